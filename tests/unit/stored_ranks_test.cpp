// SPDX-License-Identifier: Apache-2.0
// What each rank saved, and checkpoints named by their place, through the C interface.
#include "stored_fixture.h"

using namespace dlrover;
using namespace dlrover::test;

namespace {

/// A value of each rank's own, and a chunk that is stored in rank 2's file only.
void fill(Maker &maker, std::uint32_t rank) {
    maker.put("own", DType::UInt8, {4 + rank}, {0}, {4 + rank}, 0,
              std::vector<std::byte>(4 + rank, std::byte(0x40 + rank)));
    maker.put("same", DType::Int16, {2000}, {0}, {2000}, rank == 2 ? 0 : 1,
              std::vector<std::byte>(4000, std::byte(5)));
    maker.put("rows", DType::UInt8, {3, 2}, {rank, 0}, {1, 2}, 0, std::vector<std::byte>(2, std::byte(rank)));
    maker.skeleton("{\"of\": " + std::to_string(rank) + "}");
}

struct Three : Stored {
    Three() { save(3, fill); }
};

std::string skeleton_of(dlrover_restore *restore, std::uint32_t rank) {
    const char *json = nullptr;
    std::uint64_t bytes = 0;
    if (dlrover_restore_rank_skeleton(restore, rank, &json, &bytes) != DLROVER_OK)
        return dlrover_error_text();
    return {json, bytes};
}

void check_rank(dlrover_restore *restore, std::uint32_t rank) {
    std::uint64_t count = 0, bytes = 0;
    BOOST_TEST(dlrover_restore_rank_count(restore, rank, &count) == DLROVER_OK);
    BOOST_TEST(count == 3u);
    dlrover_chunk chunk;
    BOOST_REQUIRE(dlrover_restore_rank_chunk(restore, rank, 0, &chunk, &bytes) == DLROVER_OK);
    BOOST_TEST(chunk.name == "own");
    BOOST_TEST(bytes == 4 + rank);
    std::vector<std::byte> own(4 + rank), same(4000);
    BOOST_TEST(dlrover_restore_rank_read(restore, rank, 0, own.data(), own.size()) == DLROVER_OK);
    BOOST_TEST((own == std::vector<std::byte>(4 + rank, std::byte(0x40 + rank))));
    BOOST_TEST(dlrover_restore_rank_read(restore, rank, 1, same.data(), same.size()) == DLROVER_OK,
               dlrover_error_text());
    BOOST_TEST((same == std::vector<std::byte>(4000, std::byte(5))), "a replica");
    BOOST_TEST(dlrover_restore_rank_read(restore, rank, 1, same.data(), 3999) == DLROVER_E_INVALID);
    BOOST_TEST(dlrover_restore_rank_chunk(restore, rank, 3, &chunk, &bytes) == DLROVER_E_NOT_FOUND);
    BOOST_TEST(skeleton_of(restore, rank) == "{\"of\": " + std::to_string(rank) + "}");
}

int open_folder(dlrover_context *context, const std::string &path, Restore &out) {
    dlrover_restore *restore = nullptr;
    int code = dlrover_restore_open_folder(context, path.c_str(), &restore);
    out.reset(restore);
    return code;
}

bool reads_rows(dlrover_restore *restore) {
    const std::uint64_t offset[] = {1, 0}, shape[] = {2, 2};
    unsigned char rows[4] = {};
    int code = dlrover_restore_read(restore, "rows", DLROVER_UINT8, 2, offset, shape, rows, sizeof rows);
    return code == DLROVER_OK && rows[0] == 1 && rows[1] == 1 && rows[2] == 2 && rows[3] == 2;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(stored_ranks)

BOOST_FIXTURE_TEST_CASE(any_world_sees_every_rank, Three) {
    for (std::uint32_t world_size : {1, 3, 4}) {
        auto c = context(world_size - 1, world_size);
        auto restore = open_restore(c.get());
        for (std::uint32_t rank = 0; rank < 3; ++rank) check_rank(restore.get(), rank);
        BOOST_TEST(skeleton_of(restore.get(), 3) ==
                   "the checkpoint was saved by 3 ranks: there is no rank 3");
    }
    BOOST_TEST(complete());
}

BOOST_FIXTURE_TEST_CASE(from_memory_each_rank_has_its_own, Environment) {
    ::setenv("RANK", "0", 1);
    auto c = open_context();
    BOOST_REQUIRE(save_step(c.get(), 3) == DLROVER_OK);
    auto restore = open_restore(c.get());
    dlrover_chunk chunk, same;
    std::uint64_t count = 0, bytes = 0, also = 0;
    const void *data = nullptr;
    BOOST_TEST(dlrover_restore_rank_count(restore.get(), 0, &count) == DLROVER_OK);
    BOOST_TEST(count == dlrover_restore_count(restore.get()));
    BOOST_REQUIRE(dlrover_restore_rank_chunk(restore.get(), 0, 0, &chunk, &bytes) == DLROVER_OK);
    BOOST_REQUIRE(dlrover_restore_chunk(restore.get(), 0, &same, &data, &also) == DLROVER_OK);
    BOOST_TEST(bytes == also);
    BOOST_TEST(chunk.name == same.name);
    std::vector<std::byte> copy(bytes);
    BOOST_TEST(dlrover_restore_rank_read(restore.get(), 0, 0, copy.data(), bytes) == DLROVER_OK);
    BOOST_TEST(std::memcmp(copy.data(), data, bytes) == 0);
    BOOST_TEST(dlrover_restore_rank_count(restore.get(), 1, &count) == DLROVER_E_UNSUPPORTED);
    BOOST_TEST(error_says("in its own memory"));
}

BOOST_FIXTURE_TEST_CASE(damage_in_one_chunk, Three) {
    std::ifstream file(rank_path(1), std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(file)), {});
    ckpt::test::flip_bit(rank_path(1), bytes.find(std::string(5, '\x41')) + 2);
    auto c = context(0, 1);
    auto restore = open_restore(c.get());
    std::byte own[6];
    BOOST_TEST(dlrover_restore_rank_read(restore.get(), 2, 0, own, 6) == DLROVER_OK);
    BOOST_TEST(complete());
    BOOST_TEST(dlrover_restore_rank_read(restore.get(), 1, 0, own, 5) == DLROVER_E_CORRUPT);
    BOOST_TEST(error_says("rank-1.h5: the checksum of chunk \"own\" is wrong"));
    BOOST_TEST(suspect());
}

BOOST_FIXTURE_TEST_CASE(a_checkpoint_by_its_place, Three) {
    // Neither the daemon nor the lineage of this process has anything to do with it.
    ::setenv("DLROVER_LINEAGE", "lab/1000/another", 1);
    std::filesystem::create_symlink(ckpt::checkpoint_folder_name(stored_id()), folder / "lineage/link");
    for (const char *name :
         {"lineage", "lineage/step-7.gen-0.3.2", "lineage/step-7.gen-0.3.2/", "lineage/link"})
        for (std::uint32_t world_size : {1, 3}) {
            auto c = context(world_size - 1, world_size);
            Restore restore;
            BOOST_REQUIRE_MESSAGE(open_folder(c.get(), folder / name, restore) == DLROVER_OK,
                                  name << ": " << dlrover_error_text());
            BOOST_TEST(dlrover_restore_step(restore.get()) == 7);
            BOOST_TEST(dlrover_restore_world_size(restore.get()) == 3);
            BOOST_TEST(dlrover_restore_count(restore.get()) == 0u);
            BOOST_TEST(reads_rows(restore.get()));
            check_rank(restore.get(), 1);
            const char *json = nullptr;
            std::uint64_t bytes = 0;
            BOOST_TEST(dlrover_restore_skeleton(restore.get(), &json, &bytes) == DLROVER_OK);
            BOOST_TEST(std::string(json, bytes) == (world_size == 3 ? "{\"of\": 2}" : "{\"of\": 0}"));
            dlrover_restore *second = nullptr;
            BOOST_TEST(dlrover_restore_open(c.get(), &second) == DLROVER_E_INVALID, "one at a time");
        }
    BOOST_TEST(daemon.count(local::Body::Restore) == 0u);
    BOOST_TEST(daemon.count(local::Body::RestoreDone) == 0u);
}

BOOST_FIXTURE_TEST_CASE(no_checkpoint_at_that_place, Three) {
    auto c = context(0, 1);
    Restore restore;
    for (const char *name : {"", "nobody", "lineage/step-8.gen-0.3.2"}) {
        BOOST_TEST(open_folder(c.get(), folder / name, restore) == DLROVER_E_NOT_FOUND, name);
        BOOST_TEST(error_says("checkpoint in"));
    }
    std::filesystem::remove(rank_path(0));
    BOOST_TEST(open_folder(c.get(), folder / "lineage", restore) == DLROVER_E_CORRUPT);
    BOOST_TEST(error_says("rank-0.h5"));
    BOOST_TEST(suspect());
    BOOST_TEST(dlrover_restore_open_folder(c.get(), nullptr, nullptr) == DLROVER_E_INVALID);
}

BOOST_AUTO_TEST_SUITE_END()
