// SPDX-License-Identifier: Apache-2.0
#include "lib/openmp_team.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace dlrover::lib {
namespace {

/// What a compiler calls for a parallel region, and omp.h; nothing of it is linked, the program has it or
/// not.
struct OpenMp {
    using Parallel = void (*)(void (*)(void *), void *, unsigned threads, unsigned flags);
    using Ask = int (*)();
    Parallel parallel = nullptr;
    Ask max_threads = nullptr, in_parallel = nullptr;
    bool there() const { return parallel && max_threads && in_parallel; }
};

template <class Function>
Function find(const char *name) noexcept {
    return reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
}

/// Asked again each time: it may be loaded later.
OpenMp find_openmp() noexcept {
    return {find<OpenMp::Parallel>("GOMP_parallel"), find<OpenMp::Ask>("omp_get_max_threads"),
            find<OpenMp::Ask>("omp_in_parallel")};
}

std::atomic<bool> is_child{false};

/// Registered before any fork that can matter here: whoever forks later has a child without these threads.
const int registered = ::pthread_atfork(nullptr, nullptr, [] { is_child.store(true); });

/// "1234 (name, which may hold anything) R ..."
bool runs(int tasks, const char *number) noexcept {
    std::array<char, 64> name;
    if (std::strlen(number) > 16) return false;
    std::strcpy(std::strcpy(name.data(), number) + std::strlen(number), "/stat");
    UniqueFd file(::openat(tasks, name.data(), O_RDONLY | O_CLOEXEC));
    std::array<char, 128> text;
    auto n = file ? ::read(file.get(), text.data(), text.size()) : -1;
    if (n <= 0) return false;
    std::string_view seen(text.data(), static_cast<std::size_t>(n));
    auto end = seen.rfind(") ");
    return end != seen.npos && end + 2 < seen.size() && seen[end + 2] == 'R';
}

constexpr int most_looked_at = 256;  // a program of more threads than that copies by our own

/// Of a team: it is there, main thread included, and does not sleep. Where there are fewer threads than it
/// would have, there is none yet, and it would be made.
bool another_of_so_many_runs(int threads) noexcept {
    std::unique_ptr<DIR, int (*)(DIR *)> tasks(::opendir("/proc/self/task"), ::closedir);
    if (!tasks) return false;
    std::string own = std::to_string(::getpid());
    int found = 0;
    bool running = false;
    while (const dirent *entry = ::readdir(tasks.get())) {
        if (entry->d_name[0] == '.') continue;
        if (++found > most_looked_at) return false;
        running = running || (own != entry->d_name && runs(::dirfd(tasks.get()), entry->d_name));
    }
    return running && found >= threads;
}

}  // namespace

bool openmp_team_spins() noexcept {
    if (registered != 0 || is_child.load() || ::gettid() != ::getpid()) return false;
    OpenMp openmp = find_openmp();
    return openmp.there() && openmp.max_threads() > 1 && openmp.in_parallel() == 0 &&
           another_of_so_many_runs(openmp.max_threads());
}

void run_by_openmp_team(const std::function<void()> &body) {
    auto call = [](void *what) { (*static_cast<const std::function<void()> *>(what))(); };
    // 0: as many as ever. Another number would end some of the team's threads, or begin more.
    find_openmp().parallel(call, const_cast<std::function<void()> *>(&body), 0, 0);
}

}  // namespace dlrover::lib
