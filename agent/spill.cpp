// SPDX-License-Identifier: Apache-2.0
#include "agent/spill.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

namespace dlrover::agent {

bool SpillFile::open_in(const std::string &folder) {
    std::string path = folder + "/" + name_;
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    UniqueFd fd(::open(path.c_str(), flags, 0666));
    struct stat st {};
    if (!fd || ::fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != ::geteuid()) return false;
    fd_ = std::move(fd);
    path_ = std::move(path);
    return true;
}

void SpillFile::append(std::string_view data) {
    if (!tried_) {
        tried_ = true;
        (void)(open_in(folder_) || open_in("/tmp"));
    }
    while (!data.empty()) {
        ssize_t n = -1;
        errno = 0;
        if (fd_ && written_bytes_ < limit_bytes_) n = ::write(fd_.get(), data.data(), data.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            dropped_bytes_ += data.size();
            return;
        }
        written_bytes_ += static_cast<std::uint64_t>(n);
        data.remove_prefix(static_cast<std::size_t>(n));
    }
}

}  // namespace dlrover::agent
