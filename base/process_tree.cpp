// SPDX-License-Identifier: Apache-2.0
#include "base/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/unique_fd.h"

namespace dlrover {
namespace {

using Directory = std::unique_ptr<DIR, int (*)(DIR *)>;
constexpr int kill_rounds = 64;

std::string read_file(const std::string &path) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::string text;
    char buffer[4096];
    for (ssize_t n; fd && (n = ::read(fd.get(), buffer, sizeof buffer)) > 0;)
        text.append(buffer, static_cast<std::size_t>(n));
    return text;
}

/// Calls `visit` with every entry of `path` that is a number. False: the folder could not be read.
template <typename Visit>
bool for_each_number(const std::string &path, Visit visit) {
    Directory dir(::opendir(path.c_str()), ::closedir);
    if (!dir) return false;
    while (dirent *entry = ::readdir(dir.get())) {
        char *end = nullptr;
        long number = std::strtol(entry->d_name, &end, 10);
        if (end != entry->d_name && *end == '\0') visit(static_cast<pid_t>(number));
    }
    return true;
}

struct Stat {
    char state = 0;  // 0: no such process
    pid_t parent = 0;
    unsigned long long ticks = 0;  // of the processor, also of children that were waited for
};

/// `folder`: of a process, or of a thread.
Stat stat_in(const std::string &folder) {
    std::string text = read_file(folder + "/stat");
    std::size_t close = text.rfind(')');  // the name before it may hold anything
    Stat result;
    int parent = 0;
    unsigned long long user = 0, system = 0, waited_user = 0, waited_system = 0;
    // proc(5): state, ppid, then nine fields up to cmajflt, then the four times.
    constexpr const char *fields = " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %llu %llu";
    if (close == std::string::npos || std::sscanf(text.c_str() + close + 1, fields, &result.state, &parent,
                                                  &user, &system, &waited_user, &waited_system) != 6)
        return {};
    result.parent = parent;
    result.ticks = user + system + waited_user + waited_system;
    return result;
}

Stat stat_of(pid_t pid) {
    return stat_in("/proc/" + std::to_string(pid));
}

/// proc(5)'s io; with those of children that were waited for.
std::uint64_t bytes_of(pid_t pid) {
    std::string text = read_file("/proc/" + std::to_string(pid) + "/io");
    unsigned long long in = 0, out = 0;
    return std::sscanf(text.c_str(), "rchar: %llu wchar: %llu", &in, &out) == 2 ? in + out : 0;
}

/// Whether the kernel lists children by thread.
bool has_children_files() {
    std::string self = std::to_string(::getpid());
    return ::access(("/proc/self/task/" + self + "/children").c_str(), F_OK) == 0;
}

std::vector<pid_t> children_by_threads(pid_t pid) {
    std::vector<pid_t> children;
    std::string tasks = "/proc/" + std::to_string(pid) + "/task";
    for_each_number(tasks, [&](pid_t thread) {
        std::string text = read_file(tasks + "/" + std::to_string(thread) + "/children");
        for (char *at = text.data(), *end = nullptr;; at = end) {
            long child = std::strtol(at, &end, 10);
            if (end == at) break;
            children.push_back(static_cast<pid_t>(child));
        }
    });
    return children;
}

using Family = std::map<pid_t, std::vector<pid_t>>;

Family all_children() {
    Family family;
    for_each_number("/proc", [&](pid_t pid) {
        if (Stat s = stat_of(pid); s.state != 0) family[s.parent].push_back(pid);
    });
    return family;
}

/// The tree below `root`, breadth first; `spared` and what is below it left out.
std::vector<pid_t> walk(pid_t root, pid_t spared) {
    bool by_threads = has_children_files();
    Family family = by_threads ? Family() : all_children();
    std::vector<pid_t> found;
    std::set<pid_t> seen{root};
    auto add_children = [&](pid_t pid) {
        for (pid_t child : by_threads ? children_by_threads(pid) : family[pid])
            if (child != spared && seen.insert(child).second) found.push_back(child);
    };
    add_children(root);
    for (std::size_t i = 0; i < found.size(); ++i) add_children(found[i]);
    return found;
}

bool is_dead(const Stat &s) {
    return s.state == 0 || s.state == 'Z' || s.state == 'X';
}

/// By pidfd, after a second look at the parent: a number used again by somebody else's process is not hit.
bool signal_one(pid_t pid, int signal, const std::set<pid_t> &family) {
    UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    bool old_kernel = !fd && errno == ENOSYS;
    Stat s = stat_of(pid);
    if (is_dead(s) || !family.contains(s.parent)) return false;
    if (fd) return ::syscall(SYS_pidfd_send_signal, fd.get(), signal, nullptr, 0) == 0;
    return old_kernel && ::kill(pid, signal) == 0;
}

}  // namespace

std::vector<pid_t> descendants(pid_t root, pid_t spared) {
    std::vector<pid_t> found = walk(root, spared);
    std::erase_if(found, [](pid_t pid) { return is_dead(stat_of(pid)); });
    return found;
}

std::size_t signal_descendants(pid_t root, int signal, pid_t spared) {
    std::vector<pid_t> found = walk(root, spared);
    std::set<pid_t> family(found.begin(), found.end());
    family.insert(root);
    return static_cast<std::size_t>(std::count_if(
        found.begin(), found.end(), [&](pid_t pid) { return signal_one(pid, signal, family); }));
}

bool kill_descendants(pid_t root, pid_t spared) {
    std::set<pid_t> killed;
    for (int round = 0; round < kill_rounds; ++round) {
        std::vector<pid_t> found = walk(root, spared);
        std::set<pid_t> family(found.begin(), found.end());
        family.insert(root);
        bool any_alive = false, any_new = false;
        for (pid_t pid : found) {
            if (is_dead(stat_of(pid))) continue;
            any_alive = true;
            if (!killed.contains(pid) && signal_one(pid, SIGKILL, family))
                any_new = killed.insert(pid).second || any_new;
        }
        if (!any_alive) return true;
        if (!any_new) return false;  // those that were killed have not gone yet
    }
    return false;
}

bool sleeps_in_kernel(pid_t pid) {
    std::string tasks = "/proc/" + std::to_string(pid) + "/task";
    bool sleeps = false;
    for_each_number(tasks, [&](pid_t thread) {
        sleeps = sleeps || stat_in(tasks + "/" + std::to_string(thread)).state == 'D';
    });
    return sleeps;
}

std::optional<Activity> activity_of(pid_t root) {
    if (stat_of(root).state == 0) return std::nullopt;
    std::vector<pid_t> all = walk(root, 0);
    all.push_back(root);
    Activity sum;
    unsigned long long ticks = 0;
    for (pid_t pid : all) {
        Stat stat = stat_of(pid);
        ticks += stat.ticks;
        sum.in_kernel = sum.in_kernel || stat.state == 'D';
        sum.bytes += bytes_of(pid);
    }
    const auto each = 1'000'000 / ::sysconf(_SC_CLK_TCK);
    sum.processor = std::chrono::microseconds(ticks * static_cast<unsigned long long>(each));
    return sum;
}

}  // namespace dlrover
