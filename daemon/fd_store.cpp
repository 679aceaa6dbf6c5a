// SPDX-License-Identifier: Apache-2.0
#include "daemon/fd_store.h"

#include <sys/mman.h>

#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "daemon/keeper_link.h"

namespace dlrover::daemon {
namespace {

constexpr std::uint32_t number_limit = 36 * 36 * 36;

std::string fd_name(char kind, std::uint32_t number) {
    char digits[8];
    auto end = std::to_chars(digits, digits + sizeof digits, number, 36).ptr;
    return kind + std::string(digits, end);
}

std::optional<std::uint32_t> number_of(const std::string &fd_name) {
    std::uint32_t number = 0;
    const char *end = fd_name.data() + fd_name.size();
    if (fd_name.size() < 2 || (fd_name[0] != 'v' && fd_name[0] != 'f')) return std::nullopt;
    auto [at, error] = std::from_chars(fd_name.data() + 1, end, number, 36);
    bool ok = error == std::errc() && at == end && number < number_limit;
    return ok ? std::optional(number) : std::nullopt;
}

/// In front of the name and the value.
struct Header {
    std::uint64_t name_bytes = 0, value_bytes = 0;
};

void write_record(int fd, const std::string &name, std::span<const std::uint8_t> value) {
    Header header{name.size(), value.size()};
    std::string bytes(reinterpret_cast<const char *>(&header), sizeof header);
    bytes += name;
    bytes.append(reinterpret_cast<const char *>(value.data()), value.size());
    (void)!::pwrite(fd, bytes.data(), bytes.size(), 0);
}

bool read_record(int fd, std::string &name, std::vector<std::uint8_t> &value) {
    Header header;
    if (::pread(fd, &header, sizeof header, 0) != sizeof header) return false;
    if (header.name_bytes > max_keeper_packet_bytes || header.value_bytes > max_keeper_packet_bytes)
        return false;
    name.resize(header.name_bytes);
    value.resize(header.value_bytes);
    auto at = static_cast<off_t>(sizeof header + name.size());
    return ::pread(fd, name.data(), name.size(), sizeof header) == static_cast<ssize_t>(name.size()) &&
           ::pread(fd, value.data(), value.size(), at) == static_cast<ssize_t>(value.size());
}

}  // namespace

void FdStore::store(const std::string &fd_name, int fd) const {
    notifier_.send("FDSTORE=1\nFDPOLL=0\nFDNAME=" + fd_name, fd);
}

void FdStore::remove(const std::string &fd_name) const {
    notifier_.send("FDSTOREREMOVE=1\nFDNAME=" + fd_name);
}

std::uint32_t FdStore::free_number() {
    if (free_.empty()) return next_++;
    std::uint32_t number = free_.back();
    free_.pop_back();
    return number;
}

void FdStore::load(std::vector<std::pair<std::string, UniqueFd>> kept, RecordStore &into) {
    std::map<std::uint32_t, std::pair<UniqueFd, UniqueFd>> found;
    for (auto &[name, fd] : kept) {
        auto number = number_of(name);
        if (!number)
            remove(name);
        else
            (name[0] == 'v' ? found[*number].first : found[*number].second) = std::move(fd);
    }
    for (auto &[number, pair] : found) {
        for (; next_ < number; ++next_) free_.push_back(next_);
        ++next_;
        if (load_entry(number, std::move(pair.first), std::move(pair.second), into)) continue;
        for (char kind : {'v', 'f'}) remove(fd_name(kind, number));
        free_.push_back(number);
    }
}

bool FdStore::load_entry(std::uint32_t number, UniqueFd memory, UniqueFd fd, RecordStore &into) {
    std::string name;
    std::vector<std::uint8_t> value;
    if (!memory || !read_record(memory.get(), name, value) || entries_.contains(name)) return false;
    bool has_fd = static_cast<bool>(fd);
    if (!into.put(name, std::move(value), std::move(fd)).ok()) return false;
    entries_.emplace(name, Entry{number, std::move(memory), has_fd});
    return true;
}

void FdStore::put(const std::string &name, std::span<const std::uint8_t> value, int fd) {
    if (!notifier_.enabled()) return;
    auto it = entries_.find(name);
    bool known = it != entries_.end();
    if (!known) {
        UniqueFd memory(::memfd_create("dlrover-record", MFD_CLOEXEC));
        if (!memory) return;
        it = entries_.emplace(name, Entry{free_number(), std::move(memory)}).first;
    }
    Entry &entry = it->second;
    write_record(entry.memory.get(), name, value);
    if (entry.has_fd) remove(fd_name('f', entry.number));
    entry.has_fd = fd >= 0;
    if (entry.has_fd) store(fd_name('f', entry.number), fd);
    if (!known) store(fd_name('v', entry.number), entry.memory.get());
}

void FdStore::drop(const std::string &name) {
    auto it = entries_.find(name);
    if (it == entries_.end()) return;
    remove(fd_name('v', it->second.number));
    if (it->second.has_fd) remove(fd_name('f', it->second.number));
    free_.push_back(it->second.number);
    entries_.erase(it);
}

}  // namespace dlrover::daemon
