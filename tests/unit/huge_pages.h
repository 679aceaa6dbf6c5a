// SPDX-License-Identifier: Apache-2.0
// Huge pages of 2 MiB, where the test may reserve some.
#pragma once

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/vfs.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "base/unique_fd.h"
#include "ckpt/huge_pages.h"

namespace dlrover::test {

using ckpt::huge_page_bytes;

inline bool has_huge_pages(int fd) {
    struct statfs fs {};
    return ::fstatfs(fd, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC &&
           static_cast<std::uint64_t>(fs.f_bsize) == huge_page_bytes;
}

/// Of the word in brackets depends who gets transparent ones of shared memory.
inline const std::string shmem_enabled = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// To us, who ask.
inline bool transparent_huge_pages_are_given() {
    std::ifstream file(shmem_enabled);
    std::string text;
    std::getline(file, text);
    return text.find('[') != std::string::npos && text.find("[never]") == std::string::npos &&
           text.find("[deny]") == std::string::npos;
}

/// As long as this lives no other test has another setting. One test at a time.
class TransparentHugePagesHeld {
  public:
    TransparentHugePagesHeld() : lock_(::open(shmem_enabled.c_str(), O_RDONLY | O_CLOEXEC)) {
        ::flock(lock_.get(), LOCK_EX);
    }

  private:
    UniqueFd lock_;
};

/// As long as this lives they are given to who asks, if it may be set.
class TransparentHugePages {
  public:
    TransparentHugePages() {
        std::string word;
        for (std::ifstream file(shmem_enabled); file >> word;)
            if (word.front() == '[') before_ = word.substr(1, word.size() - 2);
        std::ofstream(shmem_enabled) << "advise";
    }
    ~TransparentHugePages() { std::ofstream(shmem_enabled) << before_; }
    TransparentHugePages(const TransparentHugePages &) = delete;
    TransparentHugePages &operator=(const TransparentHugePages &) = delete;

    static bool may_be_set() { return std::ofstream(shmem_enabled).is_open(); }

  private:
    TransparentHugePagesHeld held_;
    std::string before_ = "never";
};

/// So many more are reserved as long as this lives, if the system can. One test at a time.
class HugePages {
  public:
    explicit HugePages(std::uint64_t more)
        : lock_(::open((folder + "nr_hugepages").c_str(), O_RDONLY | O_CLOEXEC)) {
        ::flock(lock_.get(), LOCK_EX);
        before_ = number("nr_hugepages");
        reserve(before_ + more);
    }
    ~HugePages() { reserve(before_); }
    HugePages(const HugePages &) = delete;
    HugePages &operator=(const HugePages &) = delete;

    static std::uint64_t number(const std::string &name) {
        std::uint64_t value = 0;
        std::ifstream(folder + name) >> value;
        return value;
    }
    static std::uint64_t free() { return number("free_hugepages"); }

  private:
    static inline const std::string folder = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
    static void reserve(std::uint64_t count) { std::ofstream(folder + "nr_hugepages") << count; }
    UniqueFd lock_;
    std::uint64_t before_ = 0;
};

}  // namespace dlrover::test
