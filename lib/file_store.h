// SPDX-License-Identifier: Apache-2.0
// Plain files for programs that run without a daemon: DIR/rank-R/step-S.dlrover (docs/format-object.md).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/mapping.h"
#include "lib/environment.h"
#include "lib/store.h"

namespace dlrover::lib {

struct FileMark {
    std::uint64_t inode;
    std::int64_t bytes, mtime_ns;
    bool operator==(const FileMark &) const = default;
};

/// Writes under a temporary name, then fsync, rename, fsync of the folder; keeps the last two steps of its
/// rank. Restores the newest step of which every rank of the world has a whole file; that changes no file.
class FileStore final : public Store {
  public:
    FileStore(std::string dir, Rank rank, std::uint32_t world_size);

    Result<std::int64_t> restore_step() override;
    Status prepare(std::uint64_t) override { return {}; }
    std::vector<SaveTarget> prepared() override { return {}; }
    Result<std::variant<SaveTarget, SaveSkipped>> begin(TrainStep step, std::uint64_t bytes,
                                                        IfFull if_full) override;
    Result<std::variant<std::monostate, SaveSkipped>> seal(const SaveTarget &target,
                                                           const ObjectLayout &layout,
                                                           std::uint64_t copy_us) override;
    Status can_go_to_storage() override { return {}; }  ///< they are files already
    void abort(const SaveTarget &target) override;
    Result<ObjectSource> open() override;
    void close(const RestoreEnd &end) override;

  private:
    enum class Asked { by_world, by_load };  ///< this rank goes on from what a load gives
    struct RankFolder {
        bool exists = false, saves_now = false;  ///< a file in it is of this run
        std::vector<std::uint64_t> steps = {};   ///< newest first
    };
    struct NewerFile {
        std::uint32_t rank;
        std::uint64_t step;
        FileMark mark;
    };

    std::string rank_dir(std::uint32_t rank) const;
    std::string step_path(std::uint32_t rank, std::uint64_t step) const;
    Status make_folder() const;
    Status not_saved(TrainStep step, std::uint64_t bytes, const Status &why) const;
    void remove_temporaries() const;
    Status write_object(const SaveTarget &target, const ObjectLayout &layout) const;
    /// Keeps `saved` and the one before it (saved or restored by this process, else the newest other).
    void remove_old(std::uint64_t saved) const;
    Status check_step(std::uint64_t step) const;
    /// The folder of each rank.
    Result<std::vector<RankFolder>> look(std::chrono::nanoseconds skew) const;
    bool is_of_this_run(const FileMark &mark, std::chrono::nanoseconds skew) const;
    static std::vector<std::uint64_t> all_steps(const std::vector<RankFolder> &folders);
    Status check_world(std::uint32_t rank, std::uint64_t step) const;
    Status check_may_begin(const std::vector<RankFolder> &folders) const;
    Status check_none(const std::vector<RankFolder> &folders, Status damaged) const;
    Status note_newer(const std::vector<RankFolder> &folders, std::optional<std::uint64_t> common);
    Status set_aside_newer();
    void warn_of_newer(std::uint64_t saved);
    /// unsupported: a file that might be of it is of another version, or another world's. corrupt: nothing
    /// but damaged files is there, or files without a step in common. system: that can not be read.
    Result<std::optional<std::uint64_t>> newest_common_step(Asked asked);

    std::string dir_;
    Rank rank_;
    std::uint32_t world_size_;
    std::int64_t started_ns_;
    std::optional<std::uint64_t> previous_;
    bool warned_of_newer_ = false, warned_of_damage_ = false, saved_ = false;
    std::vector<NewerFile> newer_;  ///< than the common step, to be set aside by the first save
    std::optional<std::optional<std::uint64_t>> noted_;  ///< the common step that they are newer than
    ckpt::Mapping image_, opened_;
    std::shared_ptr<void> image_user_;  ///< SaveTarget::attached of image_, and goes before it
};

}  // namespace dlrover::lib
