// SPDX-License-Identifier: Apache-2.0
#include "ckpt/storage_index.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ckpt/checkpoint_folder.h"
#include "ckpt/index_plan.h"
#include "ckpt/storage_writer.h"
#include "storage_fixture.h"

using namespace dlrover;
using namespace dlrover::ckpt;
using namespace dlrover::ckpt::test;

namespace {

/// The plan for ranks' objects; Makers keep the tables.
IndexPlan plan(std::vector<Maker> &ranks) {
    std::vector<ObjectTableView> views;
    std::vector<const ObjectTableView *> pointers;
    for (Maker &maker : ranks) {
        SealedObject object = maker.object();
        auto view = ObjectTableView::parse(object.table);
        BOOST_REQUIRE(view.ok());
        views.push_back(std::move(*view));
    }
    for (auto &view : views) pointers.push_back(&view);
    return plan_index(pointers);
}

std::vector<std::string> names(const IndexPlan &plan) {
    std::vector<std::string> all;
    for (auto &tensor : plan.tensors) all.push_back(tensor.name + "/" + std::to_string(tensor.pieces.size()));
    return all;
}

constexpr DType bytes = DType::UInt8;

}  // namespace

BOOST_AUTO_TEST_SUITE(storage_index)

BOOST_AUTO_TEST_CASE(tensors_are_made_of_what_covers_them) {
    std::vector<Maker> ranks;
    ranks.emplace_back(0, 2);
    ranks.emplace_back(1, 2);
    ranks[0].add("same", bytes, {4}).add("rows", bytes, {4, 2}, {0, 0}, {2, 2});
    ranks[1].add("same", bytes, {4}).add("rows", bytes, {4, 2}, {2, 0}, {2, 2});
    ranks[0]
        .add("hole", bytes, {9}, {0}, {4})
        .add("twice", bytes, {6}, {0}, {4})
        .add("types", bytes, {2}, {0}, {1});
    ranks[1]
        .add("hole", bytes, {9}, {5}, {4})
        .add("twice", bytes, {6}, {2}, {2})
        .add("types", DType::Bool, {2}, {1}, {1});
    ranks[0]
        .add("own", bytes, {600})
        .add("quarter", bytes, {2, 2}, {0, 1}, {1, 1})
        .add("quarter", bytes, {2, 2}, {1, 0}, {1, 2});
    ranks[1].add("shift", bytes, {64}, {0}, {64}, 1);  // so that "own" has other bytes than on rank 0
    ranks[1]
        .add("own", bytes, {600})
        .add("quarter", bytes, {2, 2}, {0, 0}, {1, 1})
        .add("none", bytes, {0, 3});
    ranks[1].add("scalar", bytes, {}).add("copy", bytes, {4}, {0}, {4}, 1).add("part", bytes, {4}, {1}, {0});
    ranks[0].add("part", bytes, {4});
    auto made = plan(ranks);
    BOOST_TEST((names(made) ==
                std::vector<std::string>{"none/1", "part/1", "quarter/3", "rows/2", "same/1", "scalar/1"}));
    BOOST_TEST((made.left_out == std::vector<std::string>{"hole", "own", "twice", "types"}));
}

BOOST_AUTO_TEST_CASE(copies_of_a_piece_are_found_beside_empty_pieces) {
    std::vector<Maker> ranks;
    for (std::uint32_t rank = 0; rank < 5; ++rank) {
        std::uint64_t rows = rank % 2 == 0 ? 4 : 0;  // of a tensor that ranks 1 and 3 have nothing of
        ranks.emplace_back(rank, 5).add("w", bytes, {4, 2}, {0, 0}, {rows, 2});
    }
    auto made = plan(ranks);
    BOOST_TEST((names(made) == std::vector<std::string>{"w/1"}));
    BOOST_TEST(made.left_out.empty());
}

BOOST_AUTO_TEST_CASE(an_index_is_written_of_whole_files_only) {
    Folder folder;
    CheckpointFolder checkpoints(folder / "");
    Manifest manifest{{{Term(3), 2}, TrainStep(7)}, "lab/1000/job a", {}, {}};
    std::string data = checkpoints.data_folder(manifest.id);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
        Maker maker(rank, 2);
        maker.add("w", DType::Float32, {2, 50}, {rank, 0}, {1, 50});
        manifest.ranks.push_back(*write_storage_file(data, maker.object()));
    }
    auto index = write_storage_index(data, manifest.ranks);
    BOOST_REQUIRE_MESSAGE(index.ok(), index.status().to_string());
    manifest.index = *index;
    BOOST_TEST(checkpoints.publish(manifest).ok());
    BOOST_TEST(checkpoints.verify(manifest).ok());
    std::string path = data + "/index.h5";
    for (std::uint64_t at = 0; at < index->bytes; at += 13) {
        flip_bit(path, at);
        BOOST_TEST((checkpoints.check(manifest).code() == Code::corrupt), "byte " << at);
        flip_bit(path, at);
    }
    std::filesystem::remove(path);
    BOOST_TEST((checkpoints.check(manifest).code() == Code::not_found));
    flip_bit(checkpoints.rank_path(manifest.id, Rank(1)), 50);
    BOOST_TEST((write_storage_index(data, manifest.ranks).status().code() == Code::corrupt));
    std::filesystem::remove(checkpoints.rank_path(manifest.id, Rank(1)));
    BOOST_TEST((write_storage_index(data, manifest.ranks).status().code() == Code::not_found));
    BOOST_TEST(!std::filesystem::exists(path));
}

BOOST_AUTO_TEST_CASE(an_index_of_many_ranks_needs_few_descriptors) {
    Folder folder;
    std::vector<RankFile> ranks;
    constexpr std::uint32_t count = 40;
    for (std::uint32_t rank = 0; rank < count; ++rank) {
        Maker maker(rank, count);
        maker.add("w", DType::Float32, {count, 5}, {rank, 0}, {1, 5});
        ranks.push_back(*write_storage_file(folder / "", maker.object()));
    }
    struct rlimit before, few;
    BOOST_REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    few = before;
    few.rlim_cur = static_cast<rlim_t>(UniqueFd(::open("/dev/null", O_RDONLY)).get() + 8);
    BOOST_REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
    auto index = write_storage_index(folder / "", ranks);
    ::setrlimit(RLIMIT_NOFILE, &before);
    BOOST_TEST(index.ok(), index.status().to_string());
}

BOOST_AUTO_TEST_SUITE_END()
