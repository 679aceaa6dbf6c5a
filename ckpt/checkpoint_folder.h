// SPDX-License-Identifier: Apache-2.0
// The checkpoints of one lineage on storage: DIR/LINEAGE of docs/format-storage.md. Everything here blocks,
// runs as the user whose folder it is, and needs no HDF5.
#pragma once

#include <functional>
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
    std::vector<CheckpointId> suspect;     ///< complete, but set aside; newest first
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
    /// Of one that was set aside.
    Result<Manifest> read_suspect(const CheckpointId &id) const;
    /// Opens one rank's file and compares it with what the manifest says of it: `expected` is of
    /// manifest.ranks.
    Result<StorageFile> open_rank(const Manifest &manifest, const RankFile &expected) const;
    /// Every rank's file is there, with the manifest's length and checksums, and the index as a whole. The
    /// chunks' bytes are not read: reading a chunk verifies it. not_found names the missing file.
    Status check(const Manifest &manifest) const;
    /// Every byte of every file.
    Status verify(const Manifest &manifest) const;
    /// The same, to the end: a sentence for each thing that is wrong. Empty: all is whole.
    std::vector<Status> damage(const Manifest &manifest, const ReadWatch &watch = {}) const;

    struct Chosen {
        Manifest manifest;
        std::vector<Status> passed_over;  ///< why newer ones were not taken, newest first
    };
    /// The highest one that passes check(). Only damage is passed over: trouble with reading is the answer.
    /// not_found: none does; the sentence says why for the newest. Of those that `wanted` takes, where it is
    /// given.
    Result<Chosen> newest(const std::function<bool(const CheckpointId &)> &wanted = {}) const;

    /// Makes a checkpoint complete: checks all files as check() does, then writes its manifest, then the hint
    /// `latest`. `manifest` is what the writers reported. already_exists: there is another manifest of that
    /// name; the same one again is fine.
    Status publish(const Manifest &manifest) const;

    /// Lets the names of the checkpoint's files stay after a loss of power. Who finds some of them and counts
    /// on them asks for it: whoever renamed them may have died before, or have been refused.
    Status sync_names(const CheckpointId &id) const;

    /// Manifest first, then data: whatever interrupts it, no manifest is left without its data. One that is
    /// not there is fine.
    Status remove(const CheckpointId &id) const;

    /// Sets complete ones aside, so that readers pass over them, and takes that back. Oldest first one way,
    /// newest first the other: what interrupts it leaves the newest as it was. Those that are so already are
    /// fine.
    Status set_aside(std::vector<CheckpointId> ids) const;
    Status take_back(std::vector<CheckpointId> ids) const;

    /// Lets the hint `latest` point to the newest complete one by name, or removes it where there is none.
    void refresh_hint() const;

  private:
    Result<Manifest> read_named(const CheckpointId &id, const std::string &name) const;
    Status check_index(const Manifest &manifest, const ReadWatch &watch = {}) const;

    std::string folder_;
};

}  // namespace dlrover::ckpt
