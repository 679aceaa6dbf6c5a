// SPDX-License-Identifier: Apache-2.0
#include "lib/stored_tensors.h"

#include <algorithm>

#include "lib/parallel.h"

namespace dlrover::lib {
namespace {

constexpr std::uint64_t stripe_bytes = std::uint64_t{8} << 20;

/// What two intervals share; false: nothing.
bool shared(std::uint64_t a, std::uint64_t a_length, std::uint64_t b, std::uint64_t b_length,
            std::uint64_t &begin, std::uint64_t &length) {
    begin = std::max(a, b);
    std::uint64_t end = std::min(a + a_length, b + b_length);
    length = end > begin ? end - begin : 0;
    return length != 0;
}

bool has_elements(std::span<const std::uint64_t> shape) {
    return std::find(shape.begin(), shape.end(), 0u) == shape.end();
}

}  // namespace

Status StoredTensors::make_plan() {
    if (plan_) return {};
    if (Status s = source_->load_tables(threads_); !s.ok()) return source_->judge(std::move(s));
    // Of a piece that several ranks have the first one is taken.
    std::vector<std::uint32_t> order = source_->nearest();
    std::vector<const ckpt::ObjectTableView *> tables;
    for (std::uint32_t rank : order) tables.push_back(&source_->table(rank));
    plan_ = ckpt::plan_index(tables);
    for (ckpt::GlobalTensor &tensor : plan_->tensors)
        for (ckpt::ChunkRef &piece : tensor.pieces) piece.rank = Rank(order[piece.rank.value()]);
    for (std::size_t i = 0; i < plan_->tensors.size(); ++i) by_name_.emplace(plan_->tensors[i].name, i);
    return {};
}

Result<std::uint64_t> StoredTensors::count() {
    DLROVER_TRY(make_plan());
    return std::uint64_t{plan_->tensors.size()};
}

Result<TensorInfo> StoredTensors::tensor(std::uint64_t index) {
    DLROVER_TRY(make_plan());
    const ckpt::GlobalTensor &tensor = plan_->tensors[index];
    return TensorInfo{tensor.name, tensor.dtype, tensor.shape};
}

Status StoredTensors::find(std::string_view name, const ckpt::GlobalTensor *&out) {
    DLROVER_TRY(make_plan());
    if (auto found = by_name_.find(name); found != by_name_.end()) {
        out = &plan_->tensors[found->second];
        return {};
    }
    std::string quoted = "\"" + std::string(name.substr(0, 200)) + "\"";
    const auto &others = plan_->left_out;
    if (std::find(others.begin(), others.end(), name) != others.end())
        return Status(Code::unsupported, quoted +
                                             " is no one tensor: the ranks' values under this name differ, "
                                             "overlap or leave a hole");
    return Status(Code::not_found, "the checkpoint has no tensor " + quoted);
}

std::vector<StoredTensors::Part> StoredTensors::parts_of(const ckpt::GlobalTensor &tensor,
                                                         const TensorBox &box) const {
    std::vector<Part> parts;
    std::size_t dims = tensor.shape.size();
    for (const ckpt::ChunkRef &ref : tensor.pieces) {
        ckpt::ChunkInfo chunk = source_->table(ref.rank.value()).chunk(ref.index);
        Part part{ref.rank.value(), ref.index, {}, {}, std::vector<std::uint64_t>(dims)};
        bool any = true;
        for (std::size_t i = 0; any && i < dims; ++i) {
            std::uint64_t begin = 0;
            any = shared(chunk.global_offset[i], chunk.local_shape[i], box.offset[i], box.shape[i], begin,
                         part.shape[i]);
            part.in_piece.push_back(begin - chunk.global_offset[i]);
            part.in_box.push_back(begin - box.offset[i]);
        }
        if (any) parts.push_back(std::move(part));
    }
    std::stable_sort(parts.begin(), parts.end(), [](auto &a, auto &b) { return a.rank < b.rank; });
    return parts;
}

/// A part cut along its first dimension that has a length, for several threads.
Status StoredTensors::read_stripes(std::span<const Part> parts, const TensorBox &box) {
    std::vector<Part> stripes;
    std::uint64_t unit = ckpt::element_bytes(box.dtype);
    for (const Part &part : parts) {
        std::size_t dim = 0;
        while (dim < part.shape.size() && part.shape[dim] == 1) ++dim;
        std::uint64_t bytes = ckpt::box_elements(part.shape) * unit;
        std::uint64_t rows = dim < part.shape.size() ? part.shape[dim] : 1;
        std::uint64_t each = std::max<std::uint64_t>(1, stripe_bytes / (bytes / rows));
        for (std::uint64_t row = 0; row < rows; row += each) {
            Part stripe = part;
            if (dim < part.shape.size()) {
                stripe.shape[dim] = std::min(each, rows - row);
                stripe.in_piece[dim] += row;
                stripe.in_box[dim] += row;
            }
            stripes.push_back(std::move(stripe));
        }
    }
    std::vector<const RankPieces *> sources;
    for (const Part &stripe : stripes) {
        auto pieces = source_->pieces(stripe.rank);
        if (!pieces) return pieces.take_status();
        sources.push_back(*pieces);
    }
    return parallel_try(stripes.size(), threads_, [&](std::uint64_t i) {
        const Part &p = stripes[i];
        return sources[i]->read_part_into(p.index, p.in_piece, p.shape, {box.shape, p.in_box}, box.out);
    });
}

/// How it is read. Whole pieces go straight to their place.
void StoredTensors::add_reads(const Part &part, const TensorBox &box, Reads &reads) const {
    ckpt::ChunkInfo chunk = source_->table(part.rank).chunk(part.index);
    bool whole = std::equal(part.shape.begin(), part.shape.end(), chunk.local_shape.begin());
    ckpt::BoxRuns runs({chunk.local_shape, part.in_piece}, {box.shape, part.in_box}, part.shape,
                       ckpt::element_bytes(box.dtype));
    if (whole && runs.single()) {
        reads.chunks.push_back({part.rank, part.index, box.out.data() + runs.b()});
        return;
    }
    std::vector<std::uint64_t> blocks;
    if (verify_parts_ || whole) blocks = blocks_of(runs);
    bool trusted = blocks.empty() || verified_.contains(part.rank, part.index, blocks);
    if (!trusted && tells_blocks(chunk)) {
        reads.blocks.push_back({part.rank, part.index, runs, std::move(blocks)});
        return;
    }
    if (!trusted) reads.chunks.push_back({part.rank, part.index, nullptr});
    reads.strided.push_back(part);
}

/// Of at most files_at_once ranks. What no table tells the blocks of is verified as a whole, before what is
/// wanted of it is read.
Status StoredTensors::read_some(std::span<const Part> parts, const TensorBox &box) {
    Reads reads;
    for (const Part &part : parts) add_reads(part, box, reads);
    DLROVER_TRY(read_chunks(*source_, reads.chunks, threads_));
    auto bytes_of = [&](auto &of) { return source_->table(of.rank).chunk(of.index).bytes; };
    for (const ChunkRead &read : reads.chunks) verified_.add_whole(read.rank, read.index, bytes_of(read));
    DLROVER_TRY(read_blocks(*source_, reads.blocks, box.out, threads_));
    for (const BlockRead &read : reads.blocks)
        verified_.add(read.rank, read.index, bytes_of(read), read.blocks);
    return read_stripes(reads.strided, box);
}

Status StoredTensors::read(const TensorBox &box) {
    const ckpt::GlobalTensor *tensor = nullptr;
    DLROVER_TRY(find(box.name, tensor));
    DLROVER_TRY(check_box(box, {tensor->name, tensor->dtype, tensor->shape}));
    if (!has_elements(box.shape)) return {};
    std::vector<Part> parts = parts_of(*tensor, box);
    std::vector<std::uint32_t> ranks;
    for (const Part &part : parts) ranks.push_back(part.rank);
    source_->expect(ranks);
    Status status = for_ranks(*source_, std::span<const Part>(parts),
                              [&](std::span<const Part> some) { return read_some(some, box); });
    return status.ok() ? Status() : source_->judge(std::move(status));
}

}  // namespace dlrover::lib
