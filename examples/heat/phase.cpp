// SPDX-License-Identifier: Apache-2.0
#include "examples/heat/phase.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "examples/heat/failure.h"

namespace heat {
namespace {

constexpr std::uint32_t page_magic = 0x54414548;  // "HEAT"
timer_t kill_timer;
std::atomic<std::uint32_t> *armed_order = nullptr;

/// Asked to stop before the timer ran out: no order killed this process.
void on_terminate(int) {
    armed_order->store(0);
    _exit(128 + SIGTERM);
}

std::int64_t now_us() {
    timespec t;
    ::clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * std::int64_t{1'000'000} + t.tv_nsec / 1000;
}

std::uint64_t pid_namespace() {
    struct stat s;
    return ::stat("/proc/self/ns/pid", &s) == 0 ? s.st_ino : 0;
}

void make_timer() {
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGKILL;
    if (::timer_create(CLOCK_MONOTONIC, &event, &kill_timer) != 0)
        fail(exit_failed, "timer_create: %s", std::strerror(errno));
}

void set_timer(std::uint32_t delay_us) {
    itimerspec when{};
    when.it_value.tv_sec = delay_us / 1'000'000;
    when.it_value.tv_nsec = static_cast<long>(delay_us % 1'000'000) * 1000;
    ::timer_settime(kill_timer, 0, &when, nullptr);
}

}  // namespace

PhaseFile::PhaseFile(const std::string &folder, std::uint32_t rank, GenerationId generation,
                     bool older_may_live)
    : generation_(generation) {
    if (folder.empty()) return;
    open(folder, rank, older_may_live);
    if (GenerationId{page_->term, page_->generation} > generation)
        fail(exit_violation, "a newer generation already ran this rank");
    page_->pid = static_cast<std::uint32_t>(::getpid());
    page_->pid_namespace = pid_namespace();
    page_->generation = generation.number;
    page_->term = generation.term;
    page_->step = -1;
    page_->saved_step = -1;
    page_->restored_step = -1;
    page_->connected_us = 0;
    page_->first_step_us = 0;
    if (std::uint32_t phase = page_->dies_in.exchange(0); phase < 8 && phase > 0) page_->kills[phase] += 1;
    page_->started_us = now_us();
    page_->incarnation += 1;
    page_->magic = page_magic;
    make_timer();
    armed_order = &page_->dies_in;
    ::signal(SIGTERM, on_terminate);
}

/// Ends with the process, as the descriptor stays open. Of the whole file, or of one byte for a generation.
bool PhaseFile::lock(int fd, bool older_may_live) const {
    flock range{};
    range.l_type = F_WRLCK;
    range.l_whence = SEEK_SET;
    // Of a run of the job and the generation's number in it.
    std::uint64_t byte = (generation_.term >> 32 << 20) + generation_.number;
    range.l_start = older_may_live ? static_cast<off_t>(byte) : 0;
    range.l_len = older_may_live ? 1 : 0;
    return ::fcntl(fd, F_OFD_SETLK, &range) == 0;
}

void PhaseFile::open(const std::string &folder, std::uint32_t rank, bool older_may_live) {
    std::string path = folder + "/rank-" + std::to_string(rank);
    int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || ::ftruncate(fd, 4096) != 0) fail(exit_failed, "%s: %s", path.c_str(), std::strerror(errno));
    if (!lock(fd, older_may_live)) {
        int note = ::open((folder + "/violations").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (note >= 0)
            ::dprintf(note, "two processes have rank %u (generation %lu)\n", rank, generation_.number);
        fail(exit_violation, "another process has rank %u", rank);
    }
    void *p = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) fail(exit_failed, "mmap %s: %s", path.c_str(), std::strerror(errno));
    page_ = static_cast<PhasePage *>(p);
}

void PhaseFile::enter(Phase phase) {
    if (!page_) return;
    if (armed_) disarm();
    page_->phase = static_cast<std::uint32_t>(phase);
    if (page_->order_phase.load(std::memory_order_relaxed) == static_cast<std::uint32_t>(phase)) arm();
}

void PhaseFile::arm() {
    page_->dies_in = page_->order_phase.exchange(0);
    page_->orders_taken += 1;
    armed_ = true;
    std::uint32_t delay_us = page_->order_delay_us;
    if (delay_us == 0) ::kill(::getpid(), SIGKILL);
    set_timer(delay_us);
}

void PhaseFile::disarm() {
    set_timer(0);
    armed_ = false;
    page_->dies_in = 0;
}

void PhaseFile::connected(std::int64_t restored_step) {
    if (!page_) return;
    page_->restored_step = restored_step;
    page_->saved_step = restored_step;
    page_->connected_us = now_us();
}

void PhaseFile::completed(std::uint64_t step) {
    if (!page_) return;
    page_->step = static_cast<std::int64_t>(step);
    if (!first_) return;
    first_ = false;
    page_->first_step_us = now_us();
}

void PhaseFile::saved(std::uint64_t step) {
    if (page_) page_->saved_step = static_cast<std::int64_t>(step);
}

}  // namespace heat
