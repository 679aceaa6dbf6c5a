// SPDX-License-Identifier: Apache-2.0
#include "cli/output_file.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <filesystem>

#include "ckpt/storage_io.h"

namespace dlrover::cli {
namespace {

using ckpt::file_error;

constexpr int ending_signals[] = {SIGINT, SIGTERM, SIGHUP};

/// What the signals' handler removes; empty: nothing.
char doomed[PATH_MAX];

void remove_and_die(int signal_number) {
    if (doomed[0] != '\0') ::unlink(doomed);
    ::signal(signal_number, SIG_DFL);
    ::raise(signal_number);
}

/// A signal that is ignored (nohup) stays so.
void watch_signals(const std::string &path) {
    if (path.size() >= sizeof doomed) return;
    std::memcpy(doomed, path.c_str(), path.size() + 1);
    for (int number : ending_signals)
        if (::signal(number, remove_and_die) == SIG_IGN) ::signal(number, SIG_IGN);
}

void forget_signals() {
    doomed[0] = '\0';
}

Status reserve(int fd, std::uint64_t bytes, const std::string &path) {
    if (bytes == 0 || ::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0) return {};
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINTR) return {};
    return file_error("reserving room for", path);
}

std::string folder_of(const std::string &path) {
    std::string folder = std::filesystem::path(path).parent_path().string();
    return folder.empty() ? "." : folder;
}

}  // namespace

Result<OutputFile> OutputFile::create(const std::string &path, std::uint64_t bytes) {
    OutputFile file;
    file.path_ = path;
    file.temporary_ = folder_of(path) + "/.new-" + std::filesystem::path(path).filename().string() + "." +
                      std::to_string(::getpid());
    watch_signals(file.temporary_);
    file.fd_.reset(::open(file.temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!file.fd_) {
        Status status = file_error("making", path);
        file.temporary_.clear();
        forget_signals();
        return status;
    }
    DLROVER_TRY(reserve(file.fd_.get(), bytes, file.temporary_));
    return file;
}

OutputFile::OutputFile(OutputFile &&other) noexcept
    : path_(std::move(other.path_)), temporary_(std::move(other.temporary_)), fd_(std::move(other.fd_)) {
    other.temporary_.clear();
}

OutputFile::~OutputFile() {
    if (temporary_.empty()) return;
    ::unlink(temporary_.c_str());
    forget_signals();
}

Status OutputFile::commit() {
    if (::fsync(fd_.get()) != 0) return file_error("fsync of", temporary_);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) return file_error("rename to", path_);
    temporary_.clear();
    forget_signals();
    return ckpt::sync_folder(folder_of(path_));
}

}  // namespace dlrover::cli
