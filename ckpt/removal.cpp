// SPDX-License-Identifier: Apache-2.0
#include "ckpt/removal.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <memory>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "ckpt/storage_answers.h"
#include "ckpt/storage_io.h"

namespace dlrover::ckpt {
namespace {

struct CloseFolder {
    void operator()(DIR *folder) const { ::closedir(folder); }
};
using OpenFolder = std::unique_ptr<DIR, CloseFolder>;

/// None: it is not there.
Result<OpenFolder> open_folder(int at, const std::string &name, const std::string &path, FolderLink link) {
    int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | (link == FolderLink::refused ? O_NOFOLLOW : 0);
    UniqueFd fd(::openat(at, name.c_str(), flags));
    if (!fd && errno == ENOENT) return OpenFolder();
    OpenFolder folder(fd ? ::fdopendir(fd.get()) : nullptr);
    if (!folder) return file_error("open of", path);
    (void)fd.release();
    return folder;
}

Result<std::vector<std::string>> names_in(DIR *folder, const std::string &path) {
    std::vector<std::string> names;
    errno = 0;
    while (const dirent *entry = ::readdir(folder)) {
        note_storage_answer();
        std::string name = entry->d_name;
        if (name != "." && name != "..") names.push_back(std::move(name));
        errno = 0;
    }
    if (errno != 0) return file_error("listing of", path);
    return names;
}

/// An errno, 0: it is gone.
int unlink_at(int at, const std::string &name, int flags = 0) {
    int error = ::unlinkat(at, name.c_str(), flags) == 0 || errno == ENOENT ? 0 : errno;
    note_storage_answer();
    return error;
}

Status removed(const std::string &path, int error) {
    return error == 0 ? Status() : file_error("removal of", path, error);
}

Status remove_entry(int at, const std::string &name, const std::string &path) {
    int error = unlink_at(at, name);
    if (error != EISDIR) return removed(path, error);
    if (path.size() >= PATH_MAX) return removed(path, ENAMETOOLONG);
    auto folder = open_folder(at, name, path, FolderLink::refused);
    if (!folder || !*folder) return folder.take_status();
    auto names = names_in(folder->get(), path);
    if (!names) return names.take_status();
    for (const std::string &inner : *names)
        DLROVER_TRY(remove_entry(::dirfd(folder->get()), inner, path + "/" + inner));
    return removed(path, unlink_at(at, name, AT_REMOVEDIR));
}

}  // namespace

Status remove_tree(const std::string &path) {
    return remove_entry(AT_FDCWD, path, path);
}

Status remove_leftovers(const std::string &folder, const std::string &prefix, FolderLink link,
                        bool (*which)(std::string_view name)) {
    auto opened = open_folder(AT_FDCWD, folder, folder, link);
    if (!opened || !*opened) return opened.take_status();
    auto names = names_in(opened->get(), folder);
    if (!names) return names.take_status();
    for (const std::string &name : *names)
        if (name.starts_with(prefix) && (which == nullptr || which(name)))
            DLROVER_TRY(removed(folder + "/" + name, unlink_at(::dirfd(opened->get()), name)));
    return {};
}

}  // namespace dlrover::ckpt
