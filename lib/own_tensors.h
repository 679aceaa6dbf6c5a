// SPDX-License-Identifier: Apache-2.0
// Global tensors of which only this rank's own chunks are at hand: a restore from memory or from plain files.
#pragma once

#include "lib/global_tensors.h"
#include "lib/restore.h"

namespace dlrover::lib {

class OwnTensors final : public GlobalTensors {
  public:
    /// `object` outlives this.
    explicit OwnTensors(const ObjectReader &object);

    std::uint32_t saved_by() const override { return object_.world_size(); }
    /// The names of this rank's chunks, in order, once each.
    Result<std::uint64_t> count() override { return std::uint64_t{names_.size()}; }
    Result<TensorInfo> tensor(std::uint64_t index) override;
    /// A box that lies in this rank's chunks of that name.
    Status read(const TensorBox &box) override;

  private:
    const ObjectReader &object_;
    std::vector<std::pair<std::string_view, std::vector<std::uint64_t>>> names_;  ///< chunks of each name
};

}  // namespace dlrover::lib
