// SPDX-License-Identifier: Apache-2.0
#include "mover/measure.h"

#include <cstring>
#include <vector>

#include "ckpt/checksum.h"

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

void Measurer::answer(const helper::Ticket &ticket, const Result<std::uint64_t> &xxh3,
                      std::chrono::microseconds work) {
    proto::local::NodeMeasuredT answer;
    answer.ok = xxh3.ok();
    if (xxh3.ok())
        answer.xxh3 = *xxh3;
    else
        answer.text = xxh3.status().message();
    answer.work_us = static_cast<std::uint64_t>(work.count());
    outbox_.put(ticket, std::move(answer));
}

void Measurer::begin(MeasureOrder order) {
    if (busy_.exchange(true))
        return answer(order.ticket, Status(Code::resource_exhausted, "the node is being measured already"),
                      {});
    thread_ = std::jthread([this, order = std::make_shared<MeasureOrder>(std::move(order))] {
        auto work = order->work ? do_work(order->deadline) : std::chrono::microseconds(0);
        auto xxh3 = work.ok() ? make_bytes(*order) : Result<std::uint64_t>(work.take_status());
        auto spent = work.ok() ? *work : std::chrono::microseconds(0);
        busy_ = false;
        answer(order->ticket, xxh3, spent);
    });
}

}  // namespace dlrover::mover
