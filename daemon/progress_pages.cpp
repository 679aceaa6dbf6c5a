// SPDX-License-Identifier: Apache-2.0
#include "daemon/progress_pages.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/units.h"
#include "ckpt/segment.h"
#include "proto/progress.h"

namespace dlrover::daemon {
namespace {

constexpr auto longest_sum = std::chrono::hours(24 * 365);
constexpr std::uint64_t highest_step = std::uint64_t{1} << 62;

elastic::Duration sane(std::uint64_t ns) {
    auto us = elastic::Duration(static_cast<std::int64_t>(std::min<std::uint64_t>(ns, ~0ull >> 1) / 1000));
    return std::min<elastic::Duration>(us, longest_sum);
}

}  // namespace

class ProgressPages::Mapping {
  public:
    static std::shared_ptr<Mapping> create(int fd) {
        struct stat st {};
        if (::fstat(fd, &st) != 0 || st.st_size != static_cast<off_t>(proto::progress_page_bytes)) return {};
        void *at = ::mmap(nullptr, proto::progress_page_bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED) return {};
        return std::make_shared<Mapping>(at);
    }
    explicit Mapping(void *at) : at_(at) {}
    ~Mapping() { ::munmap(at_, proto::progress_page_bytes); }
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;
    const proto::ProgressPage &page() const { return *static_cast<const proto::ProgressPage *>(at_); }

  private:
    void *at_;
};

void ProgressPages::restore(const RecordName &name, const records::PageRecordT &record, UniqueFd fd) {
    auto rank = parse_uint(name.rest, 0, ~std::uint32_t{0});
    auto mapping = fd ? Mapping::create(fd.get()) : nullptr;
    if (!rank || !mapping) return;
    put(Rank(static_cast<std::uint32_t>(*rank)),
        {from_proto(record.generation), std::make_shared<const UniqueFd>(std::move(fd)), std::move(mapping)});
}

void ProgressPages::put(Rank rank, Page page) {
    if (pages_.insert_or_assign(rank, std::move(page)).second) budget_.add(uid_, {.workers = 1});
}

void ProgressPages::clear() {
    budget_.remove(uid_, {.workers = pages_.size()});
    pages_.clear();
}

Result<SharedFd> ProgressPages::page(Rank rank, GenerationId generation) {
    auto known = pages_.find(rank);
    if (known != pages_.end() && known->second.generation == generation) return known->second.fd;
    if (known == pages_.end()) DLROVER_TRY(budget_.make_room(uid_, {.workers = 1}));
    auto fd = ckpt::create_segment("dlrover-progress", proto::progress_page_bytes);
    if (!fd) return fd.take_status();
    auto mapping = Mapping::create(fd->get());
    if (!mapping) return Status::from_errno("mmap of a progress page");
    auto shared = std::make_shared<const UniqueFd>(std::move(*fd));
    put(rank, {generation, shared, std::move(mapping)});
    records::PageRecordT record;
    record.generation = to_proto_ptr(generation);
    keeper_.put(record_name("progress", group_key_) + "/" + std::to_string(rank.value()),
                encode_record(std::move(record)), shared->get());
    return shared;
}

std::vector<elastic::RankProgress> ProgressPages::read(GenerationId generation,
                                                       std::chrono::nanoseconds now) const {
    std::vector<elastic::RankProgress> all;
    for (const auto &[rank, entry] : pages_) {
        if (entry.generation != generation) continue;
        const proto::ProgressPage &page = entry.mapping->page();
        if (page.magic.load(std::memory_order_relaxed) != proto::progress_magic) continue;
        elastic::RankProgress progress;
        progress.rank = rank;
        std::uint64_t step = page.step_plus_one.load(std::memory_order_acquire);
        if (step != 0 && step <= highest_step) progress.step = TrainStep(step - 1);
        progress.steps_done = std::min(page.steps_done.load(std::memory_order_relaxed), highest_step);
        progress.step_sum = sane(page.step_sum_ns.load(std::memory_order_relaxed));
        progress.save_sum = sane(page.save_sum_ns.load(std::memory_order_relaxed));
        progress.saves_done = std::min(page.saves_done.load(std::memory_order_relaxed), highest_step);
        progress.saves_skipped = std::min(page.saves_skipped.load(std::memory_order_relaxed), highest_step);
        auto first = page.first_step_ns.load(std::memory_order_relaxed);
        auto now_ns = static_cast<std::uint64_t>(now.count());
        if (first != 0 && first < now_ns) progress.since_first_step = sane(now_ns - first);
        all.push_back(progress);
    }
    return all;
}

void ProgressPages::drop() {
    clear();
    keeper_.drop(record_name("progress", group_key_) + "/*");
}

}  // namespace dlrover::daemon
