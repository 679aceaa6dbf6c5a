// SPDX-License-Identifier: Apache-2.0
// The checkpoints of one lineage on storage: DIR/LINEAGE of docs/format-storage.md. Everything here blocks,
// runs as the user whose folder it is, and needs no HDF5.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/manifest.h"

namespace dlrover::ckpt {

/// What the names in the folder say; nothing is opened.
struct CheckpointListing {
    std::vector<CheckpointId> complete;    ///< with a manifest, newest first
    std::vector<CheckpointId> incomplete;  ///< data alone, newest first
};
/// A folder that is not there has none.
Result<CheckpointListing> list_checkpoints(const std::string &folder);

/// One thread at a time for one folder; several readers beside one writer are fine.
class CheckpointFolder {
  public:
    explicit CheckpointFolder(std::string folder) : folder_(std::move(folder)) {}

    std::string data_folder(const CheckpointId &id) const;
    std::string rank_path(const CheckpointId &id, Rank rank) const;

    /// corrupt: also when its name and its text disagree.
    Result<Manifest> read_manifest(const CheckpointId &id) const;
    /// Every rank's file is there, with the manifest's length and checksums, and the index as a whole. The
    /// chunks' bytes are not read: reading a chunk verifies it. not_found names the missing file.
    Status check(const Manifest &manifest) const;
    /// Every byte of every file.
    Status verify(const Manifest &manifest) const;

    struct Chosen {
        Manifest manifest;
        std::vector<Status> passed_over;  ///< why newer ones were not taken, newest first
    };
    /// The highest one that passes check(). not_found: none does; the sentence says why for the newest.
    Result<Chosen> newest() const;

    /// Makes a checkpoint complete: checks all files as check() does, then writes its manifest, then the hint
    /// `latest`. `manifest` is what the writers reported. already_exists: there is another manifest of that
    /// name; the same one again is fine.
    Status publish(const Manifest &manifest) const;

    /// Manifest first, then data: whatever interrupts it, no manifest is left without its data. One that is
    /// not there is fine.
    Status remove(const CheckpointId &id) const;

  private:
    template <typename Look>
    Status look_at_ranks(const Manifest &manifest, Look look) const;
    Status check_index(const Manifest &manifest) const;
    void hint_at(const CheckpointId &id) const;

    std::string folder_;
};

}  // namespace dlrover::ckpt
