// SPDX-License-Identifier: Apache-2.0
#include "agent/filler.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <utility>

#include "base/units.h"
#include "ckpt/cgroup_memory.h"

namespace dlrover::agent {

Filler::~Filler() {
    prefaulter_.reset();
    if (wake_) loop_.forget(wake_.get());
}

Status Filler::begin() {
    wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_) return Status::from_errno("eventfd");
    DLROVER_TRY(loop_.watch(wake_.get(), EPOLLIN, [this](std::uint32_t) { on_ready(); }));
    prefaulter_ = std::make_unique<ckpt::Prefaulter>([this](std::uint64_t more) { return room(more); });
    return {};
}

/// Asked on the prefaulter's thread.
Status Filler::room(std::uint64_t more_bytes) const {
    DLROVER_TRY(ckpt::room_above_floor(floor_bytes_, more_bytes));
    auto job = ckpt::cgroup_memory("self");
    if (!job || job->free_bytes() >= more_bytes + job_floor_bytes_) return {};
    return Status(Code::resource_exhausted, "the job's memory is at its limit of " +
                                                format_size_bytes(job->limit_bytes) + " (" + job->path + ")");
}

Status Filler::fill(const proto::local::FillSegmentT &order, UniqueFd segment) {
    floor_bytes_ = order.floor_bytes;
    job_floor_bytes_ = order.job_floor_bytes;
    if (!prefaulter_) DLROVER_TRY(begin());
    prefaulter_->add(std::move(segment), order.bytes, std::make_shared<std::atomic<bool>>(false),
                     [this, id = order.id](ckpt::Prefaulter::Report report) {
                         proto::local::SegmentFilledT filled;
                         filled.id = id;
                         filled.busy_us = static_cast<std::uint64_t>(report.busy.count());
                         filled.no_room = report.status.code() == Code::resource_exhausted;
                         filled.text = report.status.message();
                         std::lock_guard lock(mutex_);
                         filled_.push_back(std::move(filled));
                         std::uint64_t one = 1;
                         (void)!::write(wake_.get(), &one, sizeof one);
                     });
    return {};
}

void Filler::on_ready() {
    std::uint64_t count;
    (void)!::read(wake_.get(), &count, sizeof count);
    std::vector<proto::local::SegmentFilledT> filled;
    {
        std::lock_guard lock(mutex_);
        filled = std::exchange(filled_, {});
    }
    for (auto &segment : filled) on_filled_(std::move(segment));
}

}  // namespace dlrover::agent
