// SPDX-License-Identifier: Apache-2.0
// Checkpoints on storage, and a daemon that sends ranks there.
#pragma once

#include <functional>

#include "ckpt/checkpoint_folder.h"
#include "ckpt/storage_writer.h"
#include "lib_fake_daemon.h"
#include "lib_fixture.h"
#include "storage_fixture.h"

namespace dlrover::test {

using ckpt::DType;
using ckpt::test::Maker;
using ckpt::test::Numbers;

constexpr std::uint64_t stored_step = 7;

inline ckpt::CheckpointId stored_id() {
    return {{Term(3), 2}, TrainStep(stored_step)};
}

struct Stored : Environment {
    FakeDaemon daemon;
    ckpt::test::Folder folder;
    ckpt::CheckpointFolder checkpoints{folder / "lineage"};
    ckpt::Manifest manifest{stored_id(), "lab/1000/job a", {}, {}};

    Stored() {
        manage(daemon.socket_path());
        ::setenv("DLROVER_LINEAGE", "lab/1000/job a", 1);
    }

    /// Writes and publishes what `fill` puts into each rank's object, and tells the daemon.
    void save(std::uint32_t world_size, const std::function<void(Maker &, std::uint32_t)> &fill) {
        manifest.ranks.clear();
        for (std::uint32_t rank = 0; rank < world_size; ++rank) {
            Maker maker(rank, world_size, stored_step);
            fill(maker, rank);
            auto file = ckpt::write_storage_file(checkpoints.data_folder(manifest.id), maker.object());
            BOOST_REQUIRE_MESSAGE(file.ok(), file.status().to_string());
            manifest.ranks.push_back(*file);
        }
        publish();
        offer(world_size);
    }
    void publish() {
        Status status = checkpoints.publish(manifest);
        BOOST_REQUIRE_MESSAGE(status.ok(), status.to_string());
    }
    void offer(std::uint32_t world_size) {
        daemon.restore_from(folder / "lineage", {3, 2}, stored_step, world_size);
    }
    Context context(std::uint32_t rank, std::uint32_t world_size) {
        ::setenv("RANK", std::to_string(rank).c_str(), 1);
        ::setenv("WORLD_SIZE", std::to_string(world_size).c_str(), 1);
        return open_context();
    }

    std::string rank_path(std::uint32_t rank) const { return checkpoints.rank_path(stored_id(), Rank(rank)); }
    std::string manifest_path() const { return folder / "lineage/" + ckpt::manifest_name(stored_id()); }
    bool complete() const { return std::filesystem::exists(manifest_path()); }
    bool suspect() const { return !complete() && std::filesystem::exists(manifest_path() + ".suspect"); }
};

inline Restore open_restore(dlrover_context *context) {
    dlrover_restore *restore = nullptr;
    BOOST_REQUIRE_MESSAGE(dlrover_restore_open(context, &restore) == DLROVER_OK, dlrover_error_text());
    return Restore(restore);
}

inline bool error_says(const std::string &part) {
    std::string text = dlrover_error_text();
    BOOST_TEST_INFO(text);
    return text.find(part) != std::string::npos;
}

}  // namespace dlrover::test
