// SPDX-License-Identifier: Apache-2.0
// The C interface to chunks that several ranks hold alike.
#include "lib/api_chunk.h"
#include "lib/guard.h"
#include "lib/share.h"

using namespace dlrover;
using namespace dlrover::lib;

namespace {

Result<std::vector<ckpt::ChunkInfo>> to_infos(std::uint64_t count, const dlrover_chunk *chunks) {
    if (count > ckpt::max_chunks) return Status(Code::invalid_argument, "too many chunks");
    std::vector<ckpt::ChunkInfo> infos;
    infos.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) {
        auto info = to_info(chunks[i]);
        if (!info) return info.take_status();
        auto bytes = ckpt::shape_bytes(info->local_shape, info->dtype);
        if (!bytes) return Status(Code::invalid_argument, "a chunk is larger than any memory");
        info->bytes = *bytes;
        infos.push_back(*info);
    }
    return infos;
}

Status share(const Environment &environment, std::span<const std::uint32_t> ranks, std::uint64_t count,
             dlrover_chunk *chunks, std::uint32_t *keepers) {
    auto set = ReplicaSet::make(ranks, environment);
    if (!set) return set.take_status();
    auto infos = to_infos(count, chunks);
    if (!infos) return infos.take_status();
    auto dealt = set->deal(*infos);
    for (std::uint64_t i = 0; i < count; ++i) {
        if ((*infos)[i].bytes < share_bytes_from) {
            keepers[i] = DLROVER_NO_KEEPER;
            continue;
        }
        keepers[i] = dealt[i].value_or(DLROVER_NO_KEEPER);
        bool written_here = set->writes() && dealt[i].value_or(environment.rank) == environment.rank;
        // Where only one rank of a set is on its node it is its own keeper.
        chunks[i].replica = written_here ? 0 : 1;
    }
    return {};
}

Status add_shared(dlrover_save *save, std::span<const std::uint32_t> ranks, std::uint64_t count,
                  const dlrover_chunk *chunks, const std::uint32_t *keepers) {
    auto set = ReplicaSet::make(ranks, save->context->environment);
    if (!set) return set.take_status();
    auto infos = to_infos(count, chunks);
    if (!infos) return infos.take_status();
    std::vector<ckpt::ChunkInfo> shared;
    for (std::uint64_t i = 0; i < count; ++i) {
        if (keepers[i] == DLROVER_NO_KEEPER) continue;
        if (set->here().size() < 2 || !set->here_has(keepers[i]))
            return Status(
                Code::invalid_argument,
                "rank " + std::to_string(keepers[i]) +
                    " can keep nothing for this one: no rank of the set on this node, or no daemon");
        (*infos)[i].keeper = Rank(keepers[i]);
        shared.push_back((*infos)[i]);
    }
    return save->writer.add_shared(shared, set->here());
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int dlrover_share(dlrover_context *context, uint64_t rank_count, const uint32_t *ranks, uint64_t count,
                  dlrover_chunk *chunks, uint32_t *keepers) {
    bool arguments =
        (ranks != nullptr || rank_count == 0) && (count == 0 || (chunks != nullptr && keepers != nullptr));
    return guarded(context != nullptr && arguments, [&] {
        return share(context->environment, {ranks, rank_count}, count, chunks, keepers);
    });
}

int dlrover_save_add_shared(dlrover_save *save, uint64_t rank_count, const uint32_t *ranks, uint64_t count,
                            const dlrover_chunk *chunks, const uint32_t *keepers) {
    bool arguments =
        (ranks != nullptr || rank_count == 0) && (count == 0 || (chunks != nullptr && keepers != nullptr));
    return save_part(save, arguments, [&] {
        return add_shared(save, {ranks, rank_count}, count, chunks, keepers);
    });
}
}
#pragma GCC visibility pop
