// SPDX-License-Identifier: Apache-2.0
#include "mover/measure.h"

#include <cstring>
#include <system_error>
#include <vector>

#include "ckpt/checksum.h"
#include "mover/gpu_check.h"

namespace dlrover::mover {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t side = 256, rounds = 12;
constexpr std::uint64_t max_bytes = std::uint64_t{256} << 20;
using Matrix = std::vector<double>;

/// Small whole numbers: every sum of products is exact, in any order.
Matrix make_matrix(unsigned seed) {
    Matrix m(side * side);
    for (std::size_t i = 0; i < m.size(); ++i)
        m[i] = static_cast<double>((i * 7919 + seed * 104729) % 17) - 8;
    return m;
}

void multiply(const Matrix &a, const Matrix &b, Matrix &c) {
    for (std::size_t i = 0; i < side; ++i)
        for (std::size_t k = 0; k < side; ++k) {
            double factor = a[i * side + k];
            for (std::size_t j = 0; j < side; ++j) c[i * side + j] += factor * b[k * side + j];
        }
}

/// Of all entries of the product: a's column sums times b's row sums.
double expected_sum(const Matrix &a, const Matrix &b) {
    double total = 0;
    for (std::size_t k = 0; k < side; ++k) {
        double column = 0, row = 0;
        for (std::size_t i = 0; i < side; ++i) {
            column += a[i * side + k];
            row += b[k * side + i];
        }
        total += column * row;
    }
    return total;
}

Status do_round(unsigned seed) {
    Matrix a = make_matrix(seed), b = make_matrix(seed + 1), c(side * side);
    multiply(a, b, c);
    double sum = 0;
    for (double entry : c) sum += entry;
    if (sum == expected_sum(a, b)) return {};
    return Status(Code::corrupt, "a product of matrices is wrong: the processor miscalculates");
}

void fill(std::byte *at, std::uint64_t bytes) {
    std::uint64_t state = 0x9e3779b97f4a7c15u;
    for (std::uint64_t i = 0; i + sizeof state <= bytes; i += sizeof state) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        std::memcpy(at + i, &state, sizeof state);
    }
}

Result<std::uint64_t> make_bytes(MeasureOrder &order) {
    if (order.bytes > max_bytes) return Status(Code::invalid_argument, "a check of too many bytes");
    auto range = ckpt::SegmentRange::map(std::move(order.into), ckpt::Access::read_write);
    if (!range) return range.take_status();
    if (order.bytes > range->bytes())
        return Status(Code::invalid_argument, "the bytes are longer than their memory");
    fill(range->base(), order.bytes);
    return ckpt::chunk_checksum({range->base(), order.bytes});
}

}  // namespace

Result<std::chrono::microseconds> do_work(Clock::time_point deadline) {
    auto begin = Clock::now();
    for (unsigned i = 0; i < rounds; ++i) {
        if (Clock::now() >= deadline) return Status(Code::timeout, "the work was not done in time");
        DLROVER_TRY(do_round(i));
    }
    return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin);
}

/// GPUs that could not be tried say nothing against the node.
Result<WorkDone> do_all_work(bool gpus, Clock::time_point deadline) {
    auto work = do_work(deadline);
    if (!work) return work.take_status();
    WorkDone done{*work, {}};
    if (!gpus) return done;
    auto verdict = check_gpus(deadline);
    if (verdict.kind == GpuVerdict::Kind::failed) return Status(Code::corrupt, verdict.text);
    done.note = describe(verdict);
    return done;
}

void Measurer::refuse(const helper::Ticket &ticket, Status why, bool unfit) {
    proto::local::NodeMeasuredT answer;
    answer.text = why.message();
    answer.unfit = unfit;
    outbox_.put(ticket, std::move(answer));
}

void Measurer::measure(MeasureOrder &order) {
    auto work = order.work ? do_all_work(order.gpus, order.deadline) : Result<WorkDone>(WorkDone());
    if (!work) {
        bool unfit = work.status().code() == Code::corrupt;
        return refuse(order.ticket, work.take_status(), unfit);
    }
    auto xxh3 = make_bytes(order);
    if (!xxh3) return refuse(order.ticket, xxh3.take_status());
    proto::local::NodeMeasuredT answer;
    answer.ok = true;
    answer.text = work->note;
    answer.work_us = static_cast<std::uint64_t>(work->time.count());
    answer.xxh3 = *xxh3;
    outbox_.put(order.ticket, std::move(answer));
}

void Measurer::work(MeasureOrder order) {
    for (;;) {
        measure(order);
        std::lock_guard lock(mutex_);
        busy_ = next_.has_value();
        if (!busy_) return;
        order = std::move(*next_);
        next_.reset();
    }
}

void Measurer::begin(MeasureOrder order) {
    {
        std::lock_guard lock(mutex_);
        if (busy_) {
            if (next_) refuse(next_->ticket, Status(Code::stale, "another check of this node was ordered"));
            next_ = std::move(order);
            return;
        }
        busy_ = true;
    }
    auto ticket = order.ticket;
    try {
        thread_ = std::jthread(
            [this, held = std::make_shared<MeasureOrder>(std::move(order))] { work(std::move(*held)); });
    } catch (const std::system_error &) {
        std::lock_guard lock(mutex_);
        busy_ = false;
        refuse(ticket, Status(Code::resource_exhausted, "no thread can be had"));
    }
}

}  // namespace dlrover::mover
