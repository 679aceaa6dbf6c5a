// SPDX-License-Identifier: Apache-2.0
// Makes a checkpoint complete once all ranks' files are there: index, manifest, and an end to what is not to
// be kept.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>

#include "ckpt/storage_frame.h"
#include "helper/outbox.h"
#include "writer/destination.h"
#include "writer/term_claim.h"

namespace dlrover::writer {

using helper::Ticket;

struct CompleteOrder {
    Ticket ticket;
    Destination to;
    Checkpoint checkpoint;
    std::chrono::milliseconds wait{};
};

struct Completed {
    std::uint64_t bytes = 0;    ///< of all files
    std::uint32_t removed = 0;  ///< checkpoints
    std::string text;  ///< what did not work after the checkpoint was complete, or other runs in the folder
};

/// The ranks whose files are not there yet. A checkpoint's folder that is not there has none; an error where
/// the folder for all checkpoints is gone.
Result<std::vector<std::uint32_t>> missing_ranks(const CompleteOrder &order);

/// Precondition: none is missing. Opens every file and compares it with the order. unavailable: cancelled
/// before the manifest was written. `others`: what else is being made and is not to be removed. `indexes`: of
/// checkpoints before. Blocks.
Result<Completed> complete(const CompleteOrder &order, const RunId &run,
                           std::span<const ckpt::CheckpointId> others, const std::atomic<bool> &cancelled,
                           ckpt::StorageFrames &indexes);

}  // namespace dlrover::writer
