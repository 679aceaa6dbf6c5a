// SPDX-License-Identifier: Apache-2.0
#include "writer/folder_mark.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "ckpt/storage_io.h"
#include "ckpt/storage_name.h"

namespace dlrover::writer {
namespace {

constexpr std::string_view prefix = ".mark-";
constexpr std::int64_t old_s = 3600;

std::string mark_name(const RunId &run, const std::string &node) {
    return std::string(prefix) + ckpt::escape_file_name(run.text) + "-" + ckpt::escape_file_name(node);
}

Result<std::vector<std::string>> marks_in(const std::string &folder) {
    std::vector<std::string> names;
    std::error_code error;
    std::filesystem::directory_iterator it(folder, error), end;
    for (; !error && it != end; it.increment(error))
        if (auto name = it->path().filename().string(); name.starts_with(prefix)) names.push_back(name);
    if (error) return ckpt::file_error("listing of", folder, error.value());
    return names;
}

/// By the clock of the file system: the nodes' clocks may differ.
void remove_older(const std::string &folder, const std::string &own) {
    struct stat mine, theirs;
    auto names = marks_in(folder);
    if (!names.ok() || ::stat((folder + "/" + own).c_str(), &mine) != 0) return;
    for (const std::string &name : *names) {
        std::string path = folder + "/" + name;
        if (name != own && ::stat(path.c_str(), &theirs) == 0 && theirs.st_mtime + old_s < mine.st_mtime)
            ::unlink(path.c_str());
    }
}

Status touch(const std::string &path) {
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666));
    return fd ? Status() : ckpt::file_error("making", path);
}

}  // namespace

Status make_mark(const Destination &to, const RunId &run, const std::string &node) {
    DLROVER_TRY(ckpt::make_folders(to.folder));
    std::string name = mark_name(run, node);
    DLROVER_TRY(touch(to.folder + "/" + name));
    remove_older(to.folder, name);
    return {};
}

Result<bool> see_mark(const Destination &to, const RunId &run, const std::string &node,
                      const std::string &self) {
    std::string probe = to.folder + "/.new-look-" + ckpt::escape_file_name(self);
    if (touch(probe).ok()) ::unlink(probe.c_str());  // what can not be written may still be looked at
    auto names = marks_in(to.folder);
    if (names.status().code() == Code::not_found) return false;
    if (!names) return names.take_status();
    return std::ranges::find(*names, mark_name(run, node)) != names->end();
}

}  // namespace dlrover::writer
