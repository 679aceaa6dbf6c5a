// SPDX-License-Identifier: Apache-2.0
// The files of one checkpoint on storage (docs/format-storage.md), believed only as its manifest names them.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "ckpt/checkpoint_folder.h"
#include "lib/piece_source.h"

namespace dlrover::lib {

/// Which checkpoint, and for whom.
struct StoredRequest {
    std::string folder;  ///< of the lineage
    ckpt::CheckpointId id;
    std::uint32_t saved_by = 0;  ///< ranks; 0: any number
    std::string lineage;         ///< empty: any
    std::uint32_t rank = 0, world_size = 1;
    unsigned threads = 1;
};

/// One thread at a time, but for reading from the files that rank() gave. Everything blocks.
class StoredFiles final : public PieceSource {
  public:
    /// Reads the manifest. corrupt: it is damaged, gone, or not what was asked for; the sentence tells all.
    static Result<std::shared_ptr<StoredFiles>> open(const StoredRequest &request);

    const ckpt::Manifest &manifest() const noexcept { return manifest_; }
    std::uint32_t ranks() const override { return static_cast<std::uint32_t>(manifest_.ranks.size()); }
    /// That rank's file, open. Tables stay in memory; of the descriptors as many as are wanted at once and a
    /// few more. The pointer lives as long as this; the descriptor until release().
    Result<const ckpt::StorageFile *> rank(std::uint32_t rank);
    std::vector<std::uint32_t> nearest() const override;
    Result<const ckpt::ObjectTableView *> find_table(std::uint32_t rank) override;
    Status load_tables(unsigned threads) override;
    const ckpt::ObjectTableView &table(std::uint32_t rank) const override { return files_.at(rank).table(); }
    Result<const RankPieces *> pieces(std::uint32_t rank) override;
    /// The files that rank() gave are not read from any more.
    void release() override;
    Status read_chunk(std::uint32_t rank, std::uint64_t index, std::span<std::byte> out,
                      unsigned threads) override;

    /// What a failure means for the checkpoint. Where it is damage (wrong bytes, a missing file) the
    /// checkpoint is marked suspect, and the sentence says so; the code is corrupt. Where it is not (access
    /// refused, a broken network or device) it stays as it is.
    Status judge(Status why) const override;

    ~StoredFiles() override;

  private:
    class Pieces;
    explicit StoredFiles(const StoredRequest &request);
    Status read_manifest(const StoredRequest &request);
    Status mark(const Status &why) const;

    ckpt::CheckpointFolder folder_;
    std::string path_;
    ckpt::CheckpointId id_;
    ckpt::Manifest manifest_;
    std::map<std::uint32_t, ckpt::StorageFile> files_;
    std::map<std::uint32_t, std::unique_ptr<Pieces>> pieces_;
    std::size_t open_ = 0;  ///< descriptors
};

}  // namespace dlrover::lib
