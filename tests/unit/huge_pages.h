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

namespace dlrover::test {

inline constexpr std::uint64_t huge_page_bytes = 2u << 20;

inline bool has_huge_pages(int fd) {
    struct statfs fs {};
    return ::fstatfs(fd, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC &&
           static_cast<std::uint64_t>(fs.f_bsize) == huge_page_bytes;
}

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
