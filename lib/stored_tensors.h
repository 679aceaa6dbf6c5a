// SPDX-License-Identifier: Apache-2.0
// Global tensors of a checkpoint, put together from the pieces of the ranks that saved it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ckpt/index_plan.h"
#include "lib/global_tensors.h"
#include "lib/stored_blocks.h"
#include "lib/stored_chunks.h"

namespace dlrover::lib {

/// All ranks' tables are read when a tensor is asked for the first time.
class StoredTensors final : public GlobalTensors {
  public:
    /// verify_parts: of a piece that is not wanted as a whole the blocks that hold something wanted are read
    /// once and verified; without, only what is wanted is read, and only whole pieces are verified.
    StoredTensors(std::shared_ptr<PieceSource> source, unsigned threads, bool verify_parts)
        : source_(std::move(source)), threads_(threads), verify_parts_(verify_parts) {}

    std::uint32_t saved_by() const override { return source_->ranks(); }
    Result<std::uint64_t> count() override;
    Result<TensorInfo> tensor(std::uint64_t index) override;
    Status read(const TensorBox &box) override;

  private:
    /// What of one piece is in the box.
    struct Part {
        std::uint32_t rank = 0;
        std::uint64_t index = 0;
        std::vector<std::uint64_t> in_piece, in_box, shape;
    };
    Status make_plan();
    Status find(std::string_view name, const ckpt::GlobalTensor *&out);
    std::vector<Part> parts_of(const ckpt::GlobalTensor &tensor, const TensorBox &box) const;
    struct Reads {
        std::vector<ChunkRead> chunks;
        std::vector<BlockRead> blocks;
        std::vector<Part> strided;  ///< not verified, or before
    };
    void add_reads(const Part &part, const TensorBox &box, Reads &reads) const;
    Status read_some(std::span<const Part> parts, const TensorBox &box);
    Status read_stripes(std::span<const Part> parts, const TensorBox &box);

    std::shared_ptr<PieceSource> source_;
    unsigned threads_;
    bool verify_parts_;
    std::optional<ckpt::IndexPlan> plan_;
    std::unordered_map<std::string_view, std::size_t> by_name_;
    VerifiedBlocks verified_;
};

}  // namespace dlrover::lib
