// SPDX-License-Identifier: Apache-2.0
#include "daemon/fd_store.h"

#include <sys/mman.h>

#include <cstring>

#include "daemon/keeper_link.h"

namespace dlrover::daemon {
namespace {

void write_value(int fd, std::span<const std::uint8_t> value) {
    std::vector<std::uint8_t> bytes(sizeof(std::uint64_t) + value.size());
    std::uint64_t size = value.size();
    std::memcpy(bytes.data(), &size, sizeof size);
    if (size != 0) std::memcpy(bytes.data() + sizeof size, value.data(), size);
    (void)!::pwrite(fd, bytes.data(), bytes.size(), 0);
}

bool read_value(int fd, std::vector<std::uint8_t> &value) {
    std::uint64_t size = 0;
    if (::pread(fd, &size, sizeof size, 0) != sizeof size || size > max_keeper_packet_bytes) return false;
    value.resize(size);
    return ::pread(fd, value.data(), size, sizeof size) == static_cast<ssize_t>(size);
}

}  // namespace

void FdStore::load(std::vector<std::pair<std::string, UniqueFd>> kept, RecordStore &into) {
    std::map<std::string, UniqueFd> descriptors;
    for (auto &[name, fd] : kept) {
        if (name.size() < 2) continue;
        if (name[0] == 'v') values_[name.substr(1)] = std::move(fd);
        if (name[0] == 'f') descriptors[name.substr(1)] = std::move(fd);
    }
    for (auto &[name, fd] : values_) {
        std::vector<std::uint8_t> value;
        if (!read_value(fd.get(), value)) continue;
        (void)into.put(name, std::move(value), std::move(descriptors[name])).ok();
    }
}

void FdStore::put(const std::string &name, std::span<const std::uint8_t> value, int fd) {
    if (!notifier_.enabled()) return;
    if (fd >= 0) {
        notifier_.send("FDSTOREREMOVE=1\nFDNAME=f" + name);
        notifier_.send("FDSTORE=1\nFDPOLL=0\nFDNAME=f" + name, fd);
    }
    UniqueFd &memory = values_[name];
    bool known = static_cast<bool>(memory);
    if (!known) memory.reset(::memfd_create("dlrover-record", MFD_CLOEXEC));
    if (!memory) return;
    write_value(memory.get(), value);
    if (!known) notifier_.send("FDSTORE=1\nFDPOLL=0\nFDNAME=v" + name, memory.get());
}

void FdStore::drop(const std::string &name) {
    if (!notifier_.enabled()) return;
    notifier_.send("FDSTOREREMOVE=1\nFDNAME=v" + name);
    notifier_.send("FDSTOREREMOVE=1\nFDNAME=f" + name);
    values_.erase(name);
}

}  // namespace dlrover::daemon
