// SPDX-License-Identifier: Apache-2.0
#include "daemon/record_store.h"

#include <algorithm>

namespace dlrover::daemon {
namespace {

/// Printable; * stands for prefixes.
bool name_is_valid(const std::string &name) {
    return !name.empty() && name.size() <= 200 && std::all_of(name.begin(), name.end(), [](char c) {
        return c > ' ' && c < 127 && c != ':' && c != '*';
    });
}

/// What grows with the ranks of a step leaves room for what every step needs.
bool is_bulk(const std::string &name) {
    for (const char *kind : {"slot/", "segment/", "progress/"})
        if (name.starts_with(kind)) return true;
    return false;
}

}  // namespace

Status RecordStore::put(const std::string &name, std::vector<std::uint8_t> value, UniqueFd fd) {
    if (!name_is_valid(name)) return Status(Code::invalid_argument, "not a record's name");
    auto old = records_.find(name);
    std::size_t old_bytes = old == records_.end() ? 0 : name.size() + old->second.value.size();
    std::size_t old_descriptors = old != records_.end() && old->second.fd ? 1 : 0;
    std::size_t bytes = bytes_ - old_bytes + name.size() + value.size();
    std::size_t descriptors = descriptors_ - old_descriptors + (fd ? 1 : 0);
    std::size_t records = records_.size() + (old == records_.end() ? 1 : 0);
    std::size_t quarters = is_bulk(name) ? 3 : 4;
    // What takes no more than before is no reason to refuse.
    auto too_much = [&](std::size_t before, std::size_t after, std::size_t limit) {
        return after > before && after > limit * quarters / 4;
    };
    if (too_much(bytes_, bytes, limits_.bytes) || too_much(descriptors_, descriptors, limits_.descriptors) ||
        too_much(records_.size(), records, limits_.records))
        return Status(Code::resource_exhausted, "the keeper is full");
    records_[name] = Record{std::move(value), std::move(fd)};
    bytes_ = bytes;
    descriptors_ = descriptors;
    return {};
}

void RecordStore::drop(const std::string &name, const std::function<void(const std::string &)> &dropped) {
    bool prefix = !name.empty() && name.back() == '*';
    std::string key = prefix ? name.substr(0, name.size() - 1) : name;
    for (auto it = records_.lower_bound(key); it != records_.end();) {
        if (prefix ? it->first.compare(0, key.size(), key) != 0 : it->first != key) break;
        bytes_ -= it->first.size() + it->second.value.size();
        descriptors_ -= it->second.fd ? 1 : 0;
        if (dropped) dropped(it->first);
        it = records_.erase(it);
    }
}

}  // namespace dlrover::daemon
