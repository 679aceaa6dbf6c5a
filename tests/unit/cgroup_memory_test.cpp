// SPDX-License-Identifier: Apache-2.0
#include "ckpt/cgroup_memory.h"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>

using namespace dlrover::ckpt;
namespace fs = std::filesystem;

namespace {

/// /proc and /sys/fs/cgroup as a test wants them.
struct Tree {
    fs::path top = fs::temp_directory_path() / ("cgroups-" + std::to_string(::getpid()));
    ~Tree() { fs::remove_all(top); }
    void write(const std::string &file, const std::string &text) const {
        fs::create_directories((top / file).parent_path());
        std::ofstream(top / file) << text;
    }
    void first_version(const std::string &group, const std::string &limit, const std::string &used) const {
        write("fs/memory" + group + "/memory.limit_in_bytes", limit + "\n");
        write("fs/memory" + group + "/memory.usage_in_bytes", used + "\n");
        write("fs/memory" + group + "/memory.stat", "cache 5\ntotal_inactive_file 100\n");
    }
    void second_version(const std::string &group, const std::string &limit, const std::string &used) const {
        write("fs" + group + "/memory.max", limit + "\n");
        write("fs" + group + "/memory.current", used + "\n");
        write("fs" + group + "/memory.stat", "anon 7\ninactive_file 50\n");
    }
    std::optional<CgroupMemory> look() const {
        return cgroup_memory("12", (top / "proc").string(), (top / "fs").string());
    }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(cgroup_memory_of_a_process, Tree)

BOOST_AUTO_TEST_CASE(the_tightest_group_counts) {
    write("proc/12/cgroup", "5:cpu,cpuacct:/\n4:memory:/slurm/job_7/step_0/task_0\n0::/\n");
    first_version("/slurm", "9223372036854771712", "4000");
    first_version("/slurm/job_7", "2000", "1500");
    first_version("/slurm/job_7/step_0", "3000", "1500");
    first_version("/slurm/job_7/step_0/task_0", "9223372036854771712", "1500");
    auto memory = look();
    BOOST_REQUIRE(memory.has_value());
    BOOST_TEST(memory->limit_bytes == 2000u);
    BOOST_TEST(memory->free_bytes() == 600u, "the page cache can be dropped");
    BOOST_TEST(memory->path == (top / "fs/memory/slurm/job_7").string());
}

BOOST_AUTO_TEST_CASE(version_2) {
    write("proc/12/cgroup", "0::/system.slice/job_7/step_0/user/task_0\n");
    second_version("/system.slice", "max", "4000");
    second_version("/system.slice/job_7", "max", "1500");
    second_version("/system.slice/job_7/step_0", "1000", "1500");
    auto memory = look();
    BOOST_REQUIRE(memory.has_value());
    BOOST_TEST(memory->limit_bytes == 1000u);
    BOOST_TEST(memory->free_bytes() == 0u);
}

BOOST_AUTO_TEST_CASE(none_where_nothing_limits_or_can_be_read) {
    BOOST_TEST(!look());
    write("proc/12/cgroup", "0::/job_7\n");
    BOOST_TEST(!look());
    second_version("/job_7", "max", "1500");
    BOOST_TEST(!look());
    second_version("/job_7", "1000", "0");
    BOOST_TEST(look().has_value());
    write("proc/12/cgroup", "0::/../job_7\n");
    BOOST_TEST(!look());
    write("proc/12/cgroup", "rubbish\n0::\n:\n");
    BOOST_TEST(!look());
}

BOOST_AUTO_TEST_SUITE_END()
