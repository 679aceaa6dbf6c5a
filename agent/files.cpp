// SPDX-License-Identifier: Apache-2.0
#include "agent/files.h"

#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace dlrover::agent {

Result<std::string> make_private_dir(const std::string &name) {
    const char *tmp = std::getenv("TMPDIR");
    for (std::string base : {std::string(tmp && *tmp == '/' ? tmp : "/tmp"), std::string("/tmp")}) {
        std::string path = base + "/" + name + "-XXXXXX";
        if (::mkdtemp(path.data())) return path;
    }
    return Status::from_errno("can not make a folder in /tmp");
}

Status make_dirs(const std::string &path) {
    for (std::size_t at = 1; at <= path.size(); ++at) {
        if (at < path.size() && path[at] != '/') continue;
        if (::mkdir(path.substr(0, at).c_str(), 0777) != 0 && errno != EEXIST)
            return Status::from_errno("can not make the folder " + path.substr(0, at));
    }
    return {};
}

void remove_tree(const std::string &path) {
    constexpr int open_folders = 16;
    auto remove_one = [](const char *name, const struct stat *, int, FTW *) { return ::remove(name), 0; };
    if (!path.empty()) ::nftw(path.c_str(), remove_one, open_folders, FTW_DEPTH | FTW_PHYS);
}

void remove_tree_within(const std::string &path, std::chrono::milliseconds limit) {
    if (path.empty()) return;
    pid_t child = ::fork();
    if (child < 0) return remove_tree(path);
    if (child == 0) {
        int null = ::open("/dev/null", O_RDWR);
        for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, fd);
        remove_tree(path);
        ::_exit(0);
    }
    auto deadline = std::chrono::steady_clock::now() + limit;
    for (pid_t ended = 0; ended == 0 && std::chrono::steady_clock::now() < deadline;)
        if ((ended = ::waitpid(child, nullptr, WNOHANG)) == 0) ::usleep(500);
}

std::string read_tail(const std::string &path, std::size_t limit_bytes) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat st {};
    if (!fd || ::fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode)) return {};
    auto size = static_cast<std::size_t>(st.st_size);
    std::string text(std::min(size, limit_bytes), '\0');
    ssize_t n = ::pread(fd.get(), text.data(), text.size(), static_cast<off_t>(size - text.size()));
    text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return text;
}

namespace {

std::atomic<std::uint64_t> all_written{0};
/// So that a slow file shows that it moves.
constexpr std::size_t most_at_once = 64 << 10;

}  // namespace

std::uint64_t bytes_written() {
    return all_written;
}

std::size_t write_all(int fd, std::string_view data) {
    std::size_t written = 0;
    while (written < data.size()) {
        ssize_t n = ::write(fd, data.data() + written, std::min(data.size() - written, most_at_once));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        written += static_cast<std::size_t>(n);
        all_written += static_cast<std::uint64_t>(n);
    }
    return written;
}

bool is_same_file(int one, int other) {
    struct stat a {
    }, b{};
    return ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 && S_ISREG(a.st_mode) && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

Result<UniqueFd> create_file(const std::string &path) {
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666));
    if (!fd) return Status::from_errno("can not write " + path);
    return fd;
}

std::string current_dir() {
    char buffer[PATH_MAX];
    return ::getcwd(buffer, sizeof buffer) ? buffer : "/tmp";
}

Result<std::string> find_own_program(const std::string &name) {
    char path[PATH_MAX];
    ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
    std::string own(path, n > 0 ? static_cast<std::size_t>(n) : 0);
    own = own.substr(0, own.rfind('/'));
    const char *set = std::getenv("DLROVER_SBINDIR");
    for (const std::string &folder : {std::string(set ? set : ""), own, own + "/../sbin", own + "/..",
                                      own + "/../writer", own + "/../mover", own + "/../pmix_server",
                                      std::string(DLROVER_LIBEXECDIR), std::string(DLROVER_SBINDIR)})
        if (std::string file = folder + "/" + name; !folder.empty() && ::access(file.c_str(), X_OK) == 0)
            return file;
    return Status(Code::not_found,
                  name + " was not found in " + own + ", " DLROVER_LIBEXECDIR " or " DLROVER_SBINDIR);
}

}  // namespace dlrover::agent
