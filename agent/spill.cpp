// SPDX-License-Identifier: Apache-2.0
#include "agent/spill.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

namespace dlrover::agent {
namespace {

FileWriter::Opened open_in(const std::string &folder, const std::string &name) {
    FileWriter::Opened opened;
    std::string path = folder + "/" + name;
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    UniqueFd fd(::open(path.c_str(), flags, 0666));
    struct stat st {};
    if (!fd || ::fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != ::geteuid()) return opened;
    opened.fd = std::move(fd);
    opened.path = std::move(path);
    return opened;
}

FileWriter::Opened open_somewhere(const std::string &folder, const std::string &name) {
    auto opened = open_in(folder, name);
    return opened.fd ? std::move(opened) : open_in("/tmp", name);
}

}  // namespace

SpillFile::SpillFile(Loop &loop, const std::string &folder, const std::string &name,
                     std::uint64_t limit_bytes)
    : wanted_path_(folder + "/" + name),
      limit_bytes_(limit_bytes),
      writer_(loop, [folder, name] { return open_somewhere(folder, name); }) {}

void SpillFile::append(std::string_view data) {
    auto room = static_cast<std::size_t>(std::min<std::uint64_t>(data.size(), limit_bytes_ - taken_bytes_));
    taken_bytes_ += room;
    beyond_bytes_ += data.size() - room;
    writer_.write(data.substr(0, room));
}

std::string SpillFile::path() const {
    return taken_bytes_ != 0 && !writer_.is_tried() ? wanted_path_ : writer_.path();
}

}  // namespace dlrover::agent
