// SPDX-License-Identifier: Apache-2.0
#include "ckpt/storage_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/fault.h"
#include "ckpt/checksum.h"
#include "ckpt/storage_answers.h"
#include "ckpt/temporary_name.h"

namespace dlrover::ckpt {
namespace {

constexpr std::uint64_t call_bytes = 16u << 20;

}  // namespace

Status file_error(const std::string &what, const std::string &path, int err) {
    Status status = Status::from_errno(what + " " + path, err);
    if (err == EDQUOT || err == EFBIG) return Status(Code::resource_exhausted, status.message());
    if (err == EROFS) return Status(Code::permission_denied, status.message());
    if (err == ENOTDIR) return Status(Code::not_found, status.message());
    if (err == ESTALE) return Status(Code::unavailable, status.message());
    return status;
}

Status write_at(int fd, const void *data, std::uint64_t bytes, std::uint64_t offset,
                const std::string &path) {
    auto *at = static_cast<const char *>(data);
    while (bytes != 0) {
        ssize_t n = ::pwrite(fd, at, std::min(bytes, call_bytes), static_cast<off_t>(offset));
        note_storage_answer();
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC;  // some file systems say it so
        if (n <= 0) return file_error("write of", path);
        at += n;
        offset += static_cast<std::uint64_t>(n);
        bytes -= static_cast<std::uint64_t>(n);
    }
    return {};
}

Status read_at(int fd, void *data, std::uint64_t bytes, std::uint64_t offset, const std::string &path) {
    auto *at = static_cast<char *>(data);
    while (bytes != 0) {
        ssize_t n = ::pread(fd, at, std::min(bytes, call_bytes), static_cast<off_t>(offset));
        note_storage_answer();
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return file_error("read of", path);
        if (n == 0) return Status(Code::corrupt, path + " is cut short");
        at += n;
        offset += static_cast<std::uint64_t>(n);
        bytes -= static_cast<std::uint64_t>(n);
    }
    return {};
}

void forget_cached(int fd, std::uint64_t offset, std::uint64_t bytes) {
    ::posix_fadvise(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
}

Result<UniqueFd> open_to_read(const std::string &path) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd) return file_error("open of", path);
    struct stat st;
    if (::fstat(fd.get(), &st) != 0) return file_error("fstat of", path);
    if (!S_ISREG(st.st_mode)) return Status(Code::corrupt, path + " is not a plain file");
    return fd;
}

Result<std::uint64_t> file_size(int fd, const std::string &path) {
    struct stat st;
    if (::fstat(fd, &st) != 0) return file_error("fstat of", path);
    return static_cast<std::uint64_t>(st.st_size);
}

Status sync_folder(const std::string &path) {
    if (int error = fault_error("storage_sync_folder"); error != 0)
        return file_error("fsync of", path, error);
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd || ::fsync(fd.get()) != 0) return file_error("fsync of", path);
    note_storage_answer();
    return {};
}

Status make_folders(const std::string &path) {
    if (::mkdir(path.c_str(), 0777) == 0) {
        auto parent = std::filesystem::path(path).parent_path().string();
        return sync_folder(parent.empty() ? "." : parent);
    }
    if (errno == EEXIST) {
        struct stat st;
        if (::stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode)) return {};
        return file_error("making", path, ENOTDIR);
    }
    auto parent = std::filesystem::path(path).parent_path().string();
    if (errno != ENOENT || parent.empty() || parent == path) return file_error("making", path);
    DLROVER_TRY(make_folders(parent));
    return make_folders(path);
}

Status write_whole_file(const std::string &folder, const std::string &name,
                        std::span<const std::uint8_t> bytes) {
    std::string temporary = folder + "/" + temporary_name(name), path = folder + "/" + name;
    UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!fd) return file_error("open of", temporary);
    Status status = write_at(fd.get(), bytes.data(), bytes.size(), 0, temporary);
    if (status.ok() && ::fsync(fd.get()) != 0) status = file_error("fsync of", temporary);
    if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) status = file_error("rename to", path);
    if (status.ok()) return sync_folder(folder);
    ::unlink(temporary.c_str());
    return status;
}

Result<std::vector<std::uint8_t>> read_whole_file(const std::string &path, std::uint64_t limit) {
    auto fd = open_to_read(path);
    if (!fd) return fd.take_status();
    auto bytes = file_size(fd->get(), path);
    if (!bytes) return bytes.take_status();
    if (*bytes > limit) return Status(Code::resource_exhausted, path + " is longer than it may be");
    std::vector<std::uint8_t> content(*bytes);
    DLROVER_TRY(read_at(fd->get(), content.data(), content.size(), 0, path));
    return content;
}

Status hash_range(int fd, std::uint64_t offset, std::uint64_t bytes, const std::string &path,
                  std::vector<std::uint64_t> &hashes, const std::function<void(std::uint64_t)> &watch) {
    std::vector<std::byte> block(std::min<std::uint64_t>(bytes, checksum_block_bytes));
    for (std::uint64_t i = 0, count = checksum_blocks(bytes); i < count; ++i) {
        std::uint64_t at = i * checksum_block_bytes;
        std::size_t n = std::min<std::uint64_t>(checksum_block_bytes, bytes - at);
        DLROVER_TRY(read_at(fd, block.data(), n, offset + at, path));
        hashes.push_back(block_kernel().hash(block.data(), n));
        if (watch) watch(n);
    }
    return {};
}

}  // namespace dlrover::ckpt
