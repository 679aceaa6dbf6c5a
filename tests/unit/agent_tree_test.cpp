// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "agent/crew.h"
#include "agent/loop.h"
#include "agent/spawn.h"
#include "base/process_tree.h"

using namespace dlrover;
using namespace dlrover::agent;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

/// Forks a child that makes a grandchild in a session of its own; both sleep. The pids come through a pipe.
std::pair<pid_t, pid_t> make_family() {
    int ends[2];
    BOOST_REQUIRE(::pipe(ends) == 0);
    pid_t child = ::fork();
    if (child == 0) {
        pid_t grandchild = ::fork();
        if (grandchild == 0) {
            ::setsid();
            pid_t me = ::getpid();
            if (::write(ends[1], &me, sizeof me) < 0) ::_exit(1);
        }
        for (;;) ::pause();
    }
    pid_t grandchild = 0;
    BOOST_REQUIRE(::read(ends[0], &grandchild, sizeof grandchild) == sizeof grandchild);
    ::close(ends[0]);
    ::close(ends[1]);
    return {child, grandchild};
}

/// A working folder of its own with a folder "bin", which is the whole PATH.
struct Folder {
    Folder() {
        char name[] = "/tmp/dlrover-spawn-XXXXXX";
        dir = ::mkdtemp(name);
        fs::create_directory(dir + "/bin");
        fs::current_path(dir);
        ::setenv("PATH", (dir + "/nothing:" + dir + "/bin").c_str(), 1);
    }
    ~Folder() {
        ::setenv("PATH", path.c_str(), 1);
        fs::current_path(before);
        fs::remove_all(dir);
    }
    static void put(const std::string &name, mode_t mode) {
        UniqueFd fd(::open(name.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, mode));
        BOOST_REQUIRE(::write(fd.get(), "#!/bin/sh\necho \"$0\"\n", 20) == 20);
    }
    fs::path before = fs::current_path();
    std::string path = std::getenv("PATH"), dir;
};

std::string read_all(int fd) {
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = ::read(fd, buffer, sizeof buffer)) > 0;)
        text.append(buffer, static_cast<std::size_t>(n));
    return text;
}

struct Ended {
    int exit_status, exec_error;
    std::string out;
};

/// Runs a program without arguments to its end.
Ended run(const std::string &program) {
    SpawnRequest request;
    sigset_t none;
    ::sigemptyset(&none);
    request.signals = InheritedSignals::take(none);
    request.argv = {program};
    auto spawned = spawn(request);
    request.signals.restore();
    BOOST_REQUIRE(spawned.ok());
    std::string text = read_all(spawned->stdout_pipe.get());
    int status = 0;
    BOOST_REQUIRE(::waitpid(spawned->pid, &status, 0) == spawned->pid);
    return {WEXITSTATUS(status), read_exec_error(spawned->exec_error), text};
}

bool contains(const std::vector<pid_t> &all, pid_t pid) {
    return std::find(all.begin(), all.end(), pid) != all.end();
}

bool all_killed(pid_t spared = 0) {
    auto end = Loop::now() + 10s;
    while (!kill_descendants(::getpid(), spared) && Loop::now() < end) ::usleep(1000);
    return Loop::now() < end;
}

void reap_all() {
    while (::waitpid(-1, nullptr, 0) > 0) continue;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(agent_tree)

BOOST_AUTO_TEST_CASE(a_tree_has_done_what_its_processes_have) {
    BOOST_REQUIRE(activity_of(::getpid()).has_value());
    auto before = *activity_of(::getpid());
    pid_t child = ::fork();
    if (child == 0) {
        UniqueFd nothing(::open("/dev/null", O_WRONLY | O_CLOEXEC));
        std::vector<char> bytes(1 << 20);
        for (int i = 0; i < 8; ++i)
            if (::write(nothing.get(), bytes.data(), bytes.size()) < 0) ::_exit(1);
        while (std::clock() < CLOCKS_PER_SEC / 5) continue;
        ::pause();
    }
    auto used = [&] { return activity_of(::getpid())->processor - before.processor; };
    auto end = Loop::now() + 10s;
    while (used() < 180ms && Loop::now() < end) ::usleep(10000);
    BOOST_TEST((used() >= 180ms));
    BOOST_TEST((activity_of(child)->processor >= 100ms));
    BOOST_TEST(activity_of(::getpid())->bytes - before.bytes >= 8u << 20);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    BOOST_TEST((used() >= 180ms), "also when it has ended");
    BOOST_TEST(!activity_of(child).has_value());
}

BOOST_AUTO_TEST_CASE(finds_and_kills_what_left_the_session) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    auto [child, grandchild] = make_family();
    auto all = descendants(::getpid());
    BOOST_TEST(contains(all, child));
    BOOST_TEST(contains(all, grandchild));
    BOOST_TEST(all_killed());
    reap_all();
    BOOST_TEST(descendants(::getpid()).empty());
    BOOST_TEST(::kill(grandchild, 0) == -1);
}

BOOST_AUTO_TEST_CASE(orphans_are_found) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    auto [child, grandchild] = make_family();
    ::kill(child, SIGKILL);
    BOOST_REQUIRE(::waitpid(child, nullptr, 0) == child);
    BOOST_TEST(contains(descendants(::getpid()), grandchild));
    BOOST_TEST(all_killed());
    reap_all();
}

BOOST_AUTO_TEST_CASE(the_spared_child_and_its_own_live) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    auto [spared, below] = make_family();
    auto [other, other_below] = make_family();
    BOOST_TEST(all_killed(spared));
    auto left = descendants(::getpid());
    BOOST_TEST(contains(left, spared));
    BOOST_TEST(contains(left, below));
    BOOST_TEST(!contains(left, other));
    BOOST_TEST(!contains(left, other_below));
    BOOST_TEST(all_killed());
    reap_all();
}

/// A parent in vfork() sleeps as one does whose file system hangs.
BOOST_AUTO_TEST_CASE(who_sleeps_in_the_kernel_is_known) {
    auto [ordinary, grandchild] = make_family();
    pid_t sleeper = ::fork();
    if (sleeper == 0) {
        // As vfork(), of which ThreadSanitizer makes a fork().
        auto child = ::syscall(SYS_clone, CLONE_VFORK | SIGCHLD, nullptr, nullptr, nullptr, nullptr);
        if (child == 0)
            for (;;) ::pause();
        ::_exit(0);
    }
    auto until = Loop::now() + 10s;
    while (!sleeps_in_kernel(sleeper) && Loop::now() < until) ::usleep(1000);
    BOOST_TEST(sleeps_in_kernel(sleeper));
    BOOST_TEST(!sleeps_in_kernel(ordinary));
    BOOST_TEST(!sleeps_in_kernel(grandchild));
    for (pid_t pid : descendants(sleeper)) ::kill(pid, SIGKILL);
    ::kill(sleeper, SIGKILL);
    ::kill(ordinary, SIGKILL);
    ::kill(grandchild, SIGKILL);
    BOOST_TEST(::waitpid(sleeper, nullptr, 0) == sleeper);
    BOOST_TEST(::waitpid(ordinary, nullptr, 0) == ordinary);
    BOOST_TEST(!sleeps_in_kernel(sleeper));
}

BOOST_AUTO_TEST_CASE(spawned_programs_get_a_clean_start) {
    sigset_t blocked;
    ::sigemptyset(&blocked);
    ::sigaddset(&blocked, SIGUSR1);
    SpawnRequest request;
    request.signals = InheritedSignals::take(blocked);
    request.argv = {
        "/bin/sh", "-c",
        "read x; echo \"got:$x $A\"; ps -o pgid= -p $$ | tr -d ' '; echo $$; grep SigBlk /proc/self/status; "
        "grep SigIgn /proc/self/status"};
    request.environment = {"A=1", "PATH=/usr/bin:/bin"};
    auto spawned = spawn(request);
    request.signals.restore();
    BOOST_REQUIRE(spawned.ok());
    std::string text = read_all(spawned->stdout_pipe.get());
    reap_all();
    std::string pid = std::to_string(spawned->pid);
    BOOST_TEST(text.starts_with("got: 1\n" + pid + "\n" + pid + "\n"), text);  // no stdin; leads its group
    BOOST_TEST(text.find("SigBlk:\t0000000000000000") != std::string::npos, text);
}

BOOST_AUTO_TEST_CASE(a_program_is_found_in_the_path_then_in_the_working_folder) {
    Folder folder;
    BOOST_TEST(find_program("hi") == "./hi");
    BOOST_TEST(find_program("bin/hi") == "bin/hi");
    fs::create_directory(folder.dir + "/bin/hi");  // a folder is no program
    Folder::put("hi", 0644);
    BOOST_TEST(find_program("hi") == "./hi");
    fs::remove(folder.dir + "/bin/hi");
    Folder::put("bin/hi", 0644);
    BOOST_TEST(find_program("hi") == folder.dir + "/bin/hi");
    fs::permissions("hi", fs::perms(0755));
    BOOST_TEST(find_program("hi") == "./hi");
    fs::permissions("bin/hi", fs::perms(0755));
    BOOST_TEST(find_program("hi") == folder.dir + "/bin/hi");
}

BOOST_AUTO_TEST_CASE(a_program_that_can_not_be_run_ends_as_in_a_shell) {
    Folder folder;
    Ended missing = run("hi");
    BOOST_TEST((missing.exit_status == 127 && missing.exec_error == ENOENT));
    Folder::put("hi", 0644);
    Ended denied = run("hi");
    BOOST_TEST((denied.exit_status == 126 && denied.exec_error == EACCES));
    fs::permissions("hi", fs::perms(0755));
    Ended ran = run("hi");
    BOOST_TEST((ran.exit_status == 0 && ran.exec_error == 0 && ran.out == "./hi\n"));
    BOOST_TEST(why_not_run("hi", ENOENT) == "can not run hi: No such file or directory");
    BOOST_TEST(why_not_run("1:2", ENOENT) ==
               "can not run 1:2: No such file or directory (a value is written with an equals sign: "
               "--dlrover-elastic=1:2)");
}

/// With what it needs of file systems.
Status begin(Loop &loop, Crew &crew, const proto::local::WorldPublishedT &world) {
    Status status(Code::timeout, "its files are not looked at");
    crew.prepare(world, LocalRank(0), [&](Crew::Prepared prepared) {
        status = crew.start(world, LocalRank(0), "", std::move(prepared));
        loop.stop();
    });
    auto limit = loop.after(10s, [&] { loop.stop(); });
    loop.run();
    loop.cancel(limit);
    return status;
}

BOOST_AUTO_TEST_CASE(that_a_program_can_not_be_run_is_said_once) {
    Folder folder;
    auto loop = Loop::create().value();
    UniqueFd said(::open("said", O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    Sink sink(*loop, said.get(), "agent");
    std::vector<std::string> told;
    CrewConfig config;
    config.argv = {"hi"};
    config.workers = 2;
    ::sigemptyset(&config.signals.mask);
    config.signals.pipe.sa_handler = SIG_DFL;
    config.scratch = config.spill_dir = folder.dir;
    Crew crew(*loop, sink, sink, config,
              {[](const auto &) {}, [&](const auto &exit) { told.push_back(exit.error_text); }, [] {}});
    proto::local::WorldPublishedT world;
    world.local_world_size = 2;
    for (int start = 0; start < 2; ++start) {
        BOOST_REQUIRE(begin(*loop, crew, world).ok());
        for (auto end = Loop::now() + 10s; !crew.empty() && Loop::now() < end; ::usleep(1000)) crew.reap();
    }
    BOOST_TEST(sink.flush(5s) == "");
    const std::string why = "can not run hi: No such file or directory";
    BOOST_TEST(told == std::vector<std::string>(4, why), boost::test_tools::per_element());
    BOOST_TEST(::lseek(said.get(), 0, SEEK_SET) == 0);
    BOOST_TEST(read_all(said.get()) == "agent: " + why + "\n");
}

BOOST_AUTO_TEST_CASE(a_process_that_goes_on_is_told_what_changes) {
    Folder folder;
    auto loop = Loop::create().value();
    UniqueFd said(::open("said", O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    Sink sink(*loop, said.get(), "agent");
    std::vector<proto::local::WorkerStartedT> told;
    CrewConfig config;
    config.argv = {"/bin/sleep", "60"};
    config.base = {{"PATH", "/bin"}, {"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}};
    config.launch.omp_default = true;
    ::sigemptyset(&config.signals.mask);
    config.signals.pipe.sa_handler = SIG_DFL;
    config.scratch = config.spill_dir = folder.dir;
    Crew crew(*loop, sink, sink, config,
              {[&](const auto &started) { told.push_back(started); }, [](const auto &) {}, [] {}});
    auto world_of = [](std::uint32_t ranks, std::vector<std::string> pmix, std::uint64_t number) {
        proto::local::WorldPublishedT world;
        world.generation = std::make_unique<proto::Generation>(1, number);
        world.local_world_size = 1;
        world.world_size = ranks;
        world.node_names = {"n1"};
        world.ranks_per_node = {1};
        world.variables = std::move(pmix);
        return world;
    };
    auto is_told = [&](const std::string &text) {
        const auto &all = told.back().variables;
        return std::find(all.begin(), all.end(), text) != all.end();
    };
    BOOST_REQUIRE(begin(*loop, crew, world_of(4, {"PMIX_NAMESPACE=g1"}, 1)).ok());
    BOOST_TEST(!told.back().stayed);
    BOOST_REQUIRE(crew.go_on(world_of(2, {"PMIX_NAMESPACE=g2"}, 2), LocalRank(0)).ok());
    BOOST_TEST((told.back().stayed && told.back().pid == told.front().pid));
    BOOST_TEST((is_told("SLURM_NTASKS=2") && is_told("WORLD_SIZE=2") && is_told("PMIX_NAMESPACE=g2")));
    BOOST_TEST(!is_told("OMP_NUM_THREADS=1"), "the program's own by now");
    // As the agent's own environment has it: that is not what the process has.
    BOOST_REQUIRE(crew.go_on(world_of(4, {}, 3), LocalRank(0)).ok());
    BOOST_TEST((is_told("SLURM_NTASKS=4") && is_told("PMIX_NAMESPACE") && is_told("PMIX_RANK")));
    std::size_t before = told.size();
    Status status = crew.go_on(world_of(4, {"PMIX_LONG=" + std::string(40000, 'x')}, 4), LocalRank(0));
    BOOST_TEST((status.code() == Code::resource_exhausted));
    BOOST_TEST(told.size() == before);
    BOOST_TEST(crew.started().front().generation->number() == 3u, "nothing has changed");
    crew.stop(0ms);
    for (auto end = Loop::now() + 10s; !crew.empty() && Loop::now() < end; ::usleep(1000)) crew.reap();
    BOOST_TEST(crew.empty());
}

BOOST_AUTO_TEST_SUITE_END()
