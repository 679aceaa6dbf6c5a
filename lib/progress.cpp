// SPDX-License-Identifier: Apache-2.0
#include "lib/progress.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>

namespace dlrover::lib {
namespace {

using proto::Phase;
using proto::ProgressPage;

std::uint64_t now_ns() {
    timespec t;
    ::clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<std::uint64_t>(t.tv_sec) * 1000000000u + static_cast<std::uint64_t>(t.tv_nsec);
}

template <typename T>
void copy_field(std::atomic<T> &to, const std::atomic<T> &from) {
    to.store(from.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

void copy_page(ProgressPage &to, const ProgressPage &from) {
    copy_field(to.phase, from.phase);
    copy_field(to.last_step_ns, from.last_step_ns);
    copy_field(to.first_step_ns, from.first_step_ns);
    copy_field(to.steps_done, from.steps_done);
    copy_field(to.step_sum_ns, from.step_sum_ns);
    copy_field(to.save_sum_ns, from.save_sum_ns);
    copy_field(to.saves_done, from.saves_done);
    copy_field(to.saves_skipped, from.saves_skipped);
    to.step_plus_one.store(from.step_plus_one.load(std::memory_order_relaxed), std::memory_order_release);
    to.magic.store(proto::progress_magic, std::memory_order_release);
}

}  // namespace

Progress::Progress() {
    own_.magic = proto::progress_magic;
}

Status Progress::attach(UniqueFd page) {
    struct stat st;
    if (::fstat(page.get(), &st) != 0) return Status::from_errno("fstat of the progress page");
    if (static_cast<std::uint64_t>(st.st_size) < proto::progress_page_bytes)
        return Status(Code::corrupt, "the progress page is too short");
    std::lock_guard lock(mutex_);
    if (page_ != &own_ && page_inode_ == st.st_ino) return {};
    auto mapping = ckpt::Mapping::shared(page.get(), proto::progress_page_bytes);
    if (!mapping) return mapping.take_status();
    auto *fresh = reinterpret_cast<ProgressPage *>(mapping->base());
    copy_page(*fresh, *page_);
    page_ = fresh;
    page_inode_ = st.st_ino;
    mapped_ = std::move(*mapping);
    return {};
}

void Progress::show_phase() {
    Phase phase = saving_ > 0                ? Phase::saving
                  : restoring_ > 0           ? Phase::restoring
                  : declared_ > 0            ? Phase::declared
                  : page_->steps_done.load() ? Phase::step
                                             : Phase::startup;
    page_->phase.store(phase, std::memory_order_relaxed);
}

void Progress::report_step(std::uint64_t step) {
    std::lock_guard lock(mutex_);
    std::uint64_t now = now_ns();
    if (declared_ > 0) {
        not_stepping_ns_ += now - declared_since_ns_;
        declared_since_ns_ = now;
    }
    std::uint64_t done = page_->steps_done.load(std::memory_order_relaxed);
    if (done == 0) {
        page_->first_step_ns.store(now, std::memory_order_relaxed);
    } else {
        std::uint64_t took = now - page_->last_step_ns.load(std::memory_order_relaxed);
        page_->step_sum_ns.fetch_add(took - std::min(took, not_stepping_ns_), std::memory_order_relaxed);
    }
    not_stepping_ns_ = 0;
    page_->steps_done.store(done + 1, std::memory_order_relaxed);
    page_->last_step_ns.store(now, std::memory_order_relaxed);
    page_->step_plus_one.store(step + 1, std::memory_order_release);
    show_phase();
}

void Progress::phase_begin() {
    std::lock_guard lock(mutex_);
    if (declared_++ == 0) declared_since_ns_ = now_ns();
    show_phase();
}

bool Progress::phase_end() {
    std::lock_guard lock(mutex_);
    if (declared_ == 0) return false;
    if (--declared_ == 0) not_stepping_ns_ += now_ns() - declared_since_ns_;
    show_phase();
    return true;
}

void Progress::restore_begin() {
    std::lock_guard lock(mutex_);
    ++restoring_;
    show_phase();
}

void Progress::restore_end() {
    std::lock_guard lock(mutex_);
    --restoring_;
    show_phase();
}

void Progress::save_begin() {
    std::lock_guard lock(mutex_);
    ++saving_;
    show_phase();
}

void Progress::save_end(std::chrono::nanoseconds lost, bool saved) {
    std::lock_guard lock(mutex_);
    --saving_;
    auto ns = static_cast<std::uint64_t>(std::max<std::int64_t>(lost.count(), 0));
    page_->save_sum_ns.fetch_add(ns, std::memory_order_relaxed);
    if (declared_ == 0) not_stepping_ns_ += ns;
    if (saved) page_->saves_done.fetch_add(1, std::memory_order_relaxed);
    show_phase();
}

void Progress::save_skipped() {
    std::lock_guard lock(mutex_);
    page_->saves_skipped.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace dlrover::lib
