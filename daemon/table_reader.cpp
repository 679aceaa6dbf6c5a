// SPDX-License-Identifier: Apache-2.0
#include "daemon/table_reader.h"

#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "ckpt/object_table.h"

namespace dlrover::daemon {
namespace {

constexpr std::uint64_t turn_bytes = std::uint64_t{1} << 20;

}  // namespace

struct TableReader::Check {
    Rank rank;
    CheckpointId id;
    std::set<Asker> askers;
    std::optional<Arena::Object> object;  ///< none: not begun
    std::uint64_t at = 0;
    XXH3_state_t hash;
};

TableReader::TableReader(EventLoop &loop, Arena &arena, Hooks hooks)
    : loop_(loop), arena_(arena), hooks_(std::move(hooks)) {}

TableReader::~TableReader() {
    *alive_ = false;
    if (!checks_.empty() && checks_.front()->object)
        arena_.end_read(checks_.front()->rank, checks_.front()->object->place.slot);
}

void TableReader::later(EventLoop::Task task) {
    loop_.post([alive = alive_, task = std::move(task)] {
        if (*alive) task();
    });
}

void TableReader::check(Rank rank, const CheckpointId &id, Asker asker) {
    auto same = std::ranges::find_if(
        checks_, [&](const auto &check) { return check->rank == rank && check->id == id; });
    if (same != checks_.end()) {
        (*same)->askers.insert(asker);
        return;
    }
    auto check = std::make_unique<Check>();
    check->rank = rank;
    check->id = id;
    check->askers.insert(asker);
    checks_.push_back(std::move(check));
    if (checks_.size() == 1) later([this] { turn(); });
}

void TableReader::turn() {
    Check &check = *checks_.front();
    if (!check.object) {
        auto object = arena_.begin_read(check.rank, check.id);
        if (!object) return finish(object.take_status());
        check.object = std::move(*object);
        XXH3_64bits_reset(&check.hash);
    }
    const local::SealT &seal = check.object->seal;
    // What a former daemon has let in.
    if (seal.table_bytes > ckpt::max_table_bytes)
        return finish(Status(Code::resource_exhausted, "the object's table is too large"));
    part_.resize(std::min(turn_bytes, seal.table_bytes - check.at));
    Status got = read(*check.object, seal.table_offset + check.at, part_);
    if (!got.ok()) return finish(got);
    XXH3_64bits_update(&check.hash, part_.data(), part_.size());
    check.at += part_.size();
    if (check.at < seal.table_bytes) return later([this] { turn(); });
    bool whole = XXH3_64bits_digest(&check.hash) == seal.table_xxh3;
    finish(whole ? Status() : Status(Code::corrupt, "it is damaged in that node's memory"));
}

void TableReader::finish(const Status &status) {
    auto check = std::move(checks_.front());
    checks_.pop_front();
    if (checks_.empty())
        std::exchange(part_, {});
    else
        later([this] { turn(); });
    if (check->object) arena_.end_read(check->rank, check->object->place.slot);
    if (status.code() == Code::corrupt)
        later([this, rank = check->rank, id = check->id, slot = check->object->place.slot] {
            hooks_.damaged(rank, id, slot);
        });
    for (const Asker &asker : check->askers)
        later([this, rank = check->rank, id = check->id, asker, wrong = status.message()] {
            hooks_.checked(rank, id, asker, wrong);
        });
}

Status TableReader::read(const Arena::Object &object, std::uint64_t at, std::span<std::uint8_t> out) {
    for (const ArenaSegment &segment : object.place.segments) {
        if (at >= segment.bytes) {
            at -= segment.bytes;
            continue;
        }
        auto n = std::min<std::uint64_t>(out.size(), segment.bytes - at);
        if (::pread(segment.fd->get(), out.data(), n, static_cast<off_t>(at)) != static_cast<ssize_t>(n))
            return Status::from_errno("read of a segment");
        out = out.subspan(n);
        at = 0;
        if (out.empty()) return {};
    }
    return out.empty() ? Status() : Status(Code::invalid_argument, "an object is longer than its segments");
}

}  // namespace dlrover::daemon
