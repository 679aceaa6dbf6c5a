// SPDX-License-Identifier: Apache-2.0
#include "writer/store_order.h"

#include <unistd.h>

#include <algorithm>

#include "base/fault.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/segment_grants.h"
#include "ckpt/storage_writer.h"

namespace dlrover::writer {
namespace {

constexpr std::uint64_t frame_bytes_per_chunk = 1024;  // but for name and shapes; generous
constexpr std::uint64_t frame_bytes_per_name_byte =
    6;  // three when escaped, half of a block of names left free
constexpr std::uint64_t align_bytes_from = 64u << 10, align_bytes = 4096;
constexpr std::uint64_t frame_bytes = 256u << 10;

Status check_identity(const StoreOrder &order, const ckpt::ObjectIdentity &who) {
    const Checkpoint &of = order.checkpoint;
    return ckpt::check_identity({of.id.step, order.rank, of.world_size, of.id.generation, order.to.lineage},
                                who)
        .with_context("the object in memory is not the one to be stored");
}

/// The same object, whole.
bool is_stored(const StoreOrder &order, const ckpt::StorageFile &file) {
    return check_identity(order, file.identity()).ok() &&
           file.summary().table_xxh3 == order.place.table_xxh3 &&
           std::ranges::equal(file.ledger(), order.ledger);
}

/// About what the file will have; never less.
std::uint64_t file_bytes_bound(const StoreOrder &order, const ckpt::ObjectTableView &table) {
    std::uint64_t bytes = frame_bytes + 2 * order.place.table_bytes + order.ledger.size();
    for (std::uint64_t i = 0; i < table.count(); ++i) {
        ckpt::ChunkInfo chunk = table.chunk(i);
        bytes += frame_bytes_per_chunk + frame_bytes_per_name_byte * chunk.name.size();
        bytes += 24 * chunk.local_shape.size();
        if (chunk.replica != 0) continue;
        bytes += chunk.bytes + (chunk.bytes >= align_bytes_from ? align_bytes : 0);
    }
    return bytes;
}

/// The file of this name, if it is the object's already.
Result<std::uint64_t> find_stored(const StoreOrder &order, const ckpt::CheckpointFolder &folder) {
    std::string path = folder.rank_path(order.checkpoint.id, order.rank);
    auto there = ckpt::StorageFile::open(path);
    if (there.ok() && is_stored(order, *there)) {
        DLROVER_TRY(folder.sync_names(order.checkpoint.id));
        return there->summary().file_bytes;
    }
    std::string manifest = order.to.folder + "/" + ckpt::manifest_name(order.checkpoint.id);
    if (::access(manifest.c_str(), F_OK) == 0)
        return Status(Code::already_exists, manifest + " is there, with another object of rank " +
                                                std::to_string(order.rank.value()) +
                                                " than the one to be stored");
    return Status(Code::not_found, path + " is not there");
}

/// Otherwise somebody else may have written to the memory meanwhile.
Status check_still_wanted(const StoreOrder &order) {
    if (*order.cancelled) return Status(Code::stale, "the order was cancelled");
    if (!order.line->alive()) return Status(Code::stale, "the daemon that gave the order is gone");
    return {};
}

/// Otherwise it is the order that is wrong.
bool is_inside(const ckpt::ObjectPlace &place, std::uint64_t bytes) {
    return place.data_bytes <= bytes && place.table_offset <= bytes &&
           place.table_bytes <= std::min<std::uint64_t>(bytes - place.table_offset, ckpt::max_table_bytes);
}

}  // namespace

Result<StoreOrder> make_store_order(Ticket ticket, std::shared_ptr<const Line> line, const Destination &to,
                                    const proto::local::StoreObjectT &message, std::vector<UniqueFd> fds) {
    auto checkpoint = make_checkpoint(message.checkpoint.get());
    if (!checkpoint) return checkpoint.take_status();
    if (message.rank >= checkpoint->world_size)
        return Status(Code::invalid_argument, "the order's rank is outside its world");
    if (message.ledger.size() > ckpt::max_ledger_bytes)
        return Status(Code::invalid_argument, "the order's ledger is larger than 64 KiB");
    StoreOrder order;
    order.ticket = ticket;
    order.line = std::move(line);
    order.to = to;
    order.checkpoint = *checkpoint;
    order.rank = Rank(message.rank);
    order.segments = ckpt::to_grants(message.segments, std::move(fds));
    order.place = {message.data_bytes, message.table_offset, message.table_bytes, message.table_xxh3};
    order.ledger = message.ledger;
    return order;
}

Result<std::uint64_t> store_object(StoreOrder &order, ckpt::StorageFrames &frames,
                                   std::function<void(std::uint64_t bytes)> watch) {
    auto range = ckpt::SegmentRange::map(std::move(order.segments), ckpt::Access::read_only);
    if (!range) return range.take_status();
    std::span memory(range->base(), range->bytes());
    auto bytes = ckpt::find_object_table(memory, order.place);
    if (!bytes) {
        order.memory_damaged = bytes.status().code() == Code::corrupt &&
                               is_inside(order.place, memory.size()) && check_still_wanted(order).ok();
        return bytes.take_status();
    }
    auto table = ckpt::ObjectTableView::parse(*bytes, order.place.data_bytes);
    if (!table) return table.take_status();
    DLROVER_TRY(check_identity(order, table->identity()));
    ckpt::CheckpointFolder folder(order.to.folder);
    auto there = find_stored(order, folder);
    if (there.ok() || there.status().code() != Code::not_found) return there;
    DLROVER_TRY(
        check_file_limit(file_bytes_bound(order, *table), folder.rank_path(order.checkpoint.id, order.rank)));
    fault_point("writer_before_file");
    ckpt::StorageWriteOptions options;
    options.confirm = [&] {
        DLROVER_TRY(check_still_wanted(order));
        auto found =
            find_stored(order, folder);  // by now another node may have put it there, or made it complete
        return found.status().code() == Code::already_exists ? found.take_status() : Status();
    };
    options.frames = &frames;
    options.watch = std::move(watch);
    auto written =
        ckpt::write_storage_file(folder.data_folder(order.checkpoint.id),
                                 {{range->base(), order.place.data_bytes}, *bytes, order.ledger}, options);
    if (!written) {
        order.memory_damaged = written.status().code() == Code::corrupt && check_still_wanted(order).ok();
        return written.take_status();
    }
    return written->file_bytes;
}

}  // namespace dlrover::writer
