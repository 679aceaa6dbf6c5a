// SPDX-License-Identifier: Apache-2.0
// Objects in memory and a folder for them.
#pragma once

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ckpt/block_kernel.h"
#include "ckpt/checksum.h"
#include "ckpt/storage_header.h"
#include "ckpt/storage_image.h"
#include "ckpt/temporary_name.h"

namespace dlrover::ckpt::test {

using Numbers = std::vector<std::uint64_t>;

/// A folder that is gone at the end.
struct Folder {
    std::filesystem::path path;
    Folder() {
        const char *top = ::getenv("TMPDIR");
        std::string name = std::string(top != nullptr ? top : "/tmp") + "/storage-test-XXXXXX";
        BOOST_REQUIRE(::mkdtemp(name.data()) != nullptr);
        path = name;
    }
    ~Folder() { std::filesystem::remove_all(path); }
    Folder(const Folder &) = delete;
    Folder &operator=(const Folder &) = delete;
    std::string operator/(const std::string &name) const { return (path / name).string(); }
};

/// The number of a process that is no more.
inline pid_t dead_process() {
    pid_t pid = ::fork();
    if (pid == 0) ::_exit(0);
    int status = 0;
    BOOST_REQUIRE(::waitpid(pid, &status, 0) == pid);
    return pid;
}

/// As that process would have named it.
inline std::string temporary_of(const std::string &name, pid_t pid) {
    std::string own = temporary_name(name), number = "." + std::to_string(::getpid()) + ".";
    return own.replace(own.rfind(number), number.size(), "." + std::to_string(pid) + ".");
}

/// While it lives no file grows beyond this: a write that reaches there is cut short, the next one refused.
class FilesNoLonger {
  public:
    explicit FilesNoLonger(std::uint64_t bytes) {
        BOOST_REQUIRE(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
        signal_ = ::signal(SIGXFSZ, SIG_IGN);
        const rlimit now{bytes, before_.rlim_max};
        BOOST_REQUIRE(::setrlimit(RLIMIT_FSIZE, &now) == 0);
    }
    ~FilesNoLonger() {
        ::setrlimit(RLIMIT_FSIZE, &before_);
        ::signal(SIGXFSZ, signal_);
    }
    FilesNoLonger(const FilesNoLonger &) = delete;
    FilesNoLonger &operator=(const FilesNoLonger &) = delete;

  private:
    void (*signal_)(int) = SIG_DFL;
    rlimit before_{};
};

/// Fills an object as a rank would. Every chunk's bytes differ.
class Maker {
  public:
    explicit Maker(std::uint32_t rank = 0, std::uint32_t world_size = 1, std::uint64_t step = 7)
        : writer_({TrainStep(step), Rank(rank), world_size, {Term(3), 2}, "lab/1000/job a"}) {}

    Maker &add(std::string_view name, DType type, const Numbers &global, const Numbers &offset,
               const Numbers &local, std::uint32_t replica = 0) {
        std::uint64_t bytes = element_bytes(type);
        for (std::uint64_t n : local) bytes *= n;
        std::uint64_t seed = *align_object_offset(data.size()) / 64;
        std::vector<std::byte> content(bytes);
        for (std::uint64_t i = 0; i < bytes; ++i)
            content[i] = type == DType::Bool ? std::byte(i % 2) : std::byte(i * 7 + seed + (i >> 8));
        return put(name, type, global, offset, local, replica, content);
    }
    Maker &put(std::string_view name, DType type, const Numbers &global, const Numbers &offset,
               const Numbers &local, std::uint32_t replica, std::span<const std::byte> content) {
        std::uint64_t at = *align_object_offset(data.size());
        data.resize(at);
        data.insert(data.end(), content.begin(), content.end());
        auto hashes = block_hashes(content);
        ChunkInfo chunk{name, type, global, offset, local, replica, at, content.size()};
        chunk.checksum = combine_block_hashes(hashes);
        if (!of_before_blocks && hashes.size() > 1) chunk.blocks = hashes;
        Status added = writer_.add(chunk);
        BOOST_REQUIRE_MESSAGE(added.ok(), added.to_string());
        return *this;
    }
    Maker &add(std::string_view name, DType type, const Numbers &shape) {
        return add(name, type, shape, Numbers(shape.size()), shape);
    }
    /// What rank `keeper` has.
    Maker &kept(std::string_view name, DType type, const Numbers &shape, std::uint32_t keeper) {
        std::uint64_t bytes = *shape_bytes(shape, type);
        Numbers zeros(shape.size());
        Status added = writer_.add({name, type, shape, zeros, shape, 1, 0, bytes, 0, Rank(keeper)});
        BOOST_REQUIRE_MESSAGE(added.ok(), added.to_string());
        return *this;
    }
    Maker &skeleton(std::string_view json) {
        BOOST_REQUIRE(writer_.set_skeleton(json).ok());
        return *this;
    }
    SealedObject object() {
        auto made = writer_.finish();
        BOOST_REQUIRE(made.ok());
        table = std::move(*made);
        return {data, table, ledger};
    }

    std::vector<std::byte> data;
    std::vector<std::uint8_t> table, ledger{'p', 'o', 's'};
    bool of_before_blocks = false;  ///< the table as it was before it had blocks' hashes

  private:
    ObjectTableWriter writer_;
};

inline std::vector<std::string> names_in(const std::filesystem::path &folder) {
    std::vector<std::string> names;
    for (auto &entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
}

/// What a rank's file of the next version of the format would have in its header.
inline void make_next_version(const std::string &path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    std::vector<char> block(storage_block_bytes);
    file.read(block.data(), static_cast<std::streamsize>(block.size()));
    BOOST_REQUIRE(block[offsetof(StorageHeader, version)] == 1);
    block[offsetof(StorageHeader, version)] = 2;
    std::size_t covered = block.size() - sizeof(std::uint64_t);
    std::uint64_t hash = block_kernel().hash(block.data(), covered);
    std::memcpy(block.data() + covered, &hash, sizeof hash);
    file.seekp(0);
    file.write(block.data(), static_cast<std::streamsize>(block.size()));
    BOOST_REQUIRE(file.good());
}

inline void flip_bit(const std::string &path, std::uint64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    char c = static_cast<char>(file.get() ^ 4);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(c);
    BOOST_REQUIRE(file.good());
}

}  // namespace dlrover::ckpt::test
