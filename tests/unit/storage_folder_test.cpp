// SPDX-License-Identifier: Apache-2.0
#include "ckpt/checkpoint_folder.h"

#include "ckpt/storage_writer.h"
#include "storage_fixture.h"

using namespace dlrover;
using namespace dlrover::ckpt;
using namespace dlrover::ckpt::test;

namespace {

constexpr std::uint32_t world_size = 3;

CheckpointId id_of(std::uint64_t step) {
    return {{Term(3), 2}, TrainStep(step)};
}

/// All ranks' files of a step, without a manifest.
Manifest write_ranks(const Folder &folder, std::uint64_t step) {
    Manifest manifest{id_of(step), "lab/1000/job a", {}, {}};
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
        Maker maker(rank, world_size, step);
        maker.add("w", DType::Float32, {world_size, 50}, {rank, 0}, {1, 50});
        auto file =
            write_storage_file(CheckpointFolder(folder / "").data_folder(manifest.id), maker.object());
        BOOST_REQUIRE_MESSAGE(file.ok(), file.status().to_string());
        manifest.ranks.push_back(*file);
    }
    return manifest;
}

Manifest publish(const Folder &folder, std::uint64_t step) {
    Manifest manifest = write_ranks(folder, step);
    Status status = CheckpointFolder(folder / "").publish(manifest);
    BOOST_REQUIRE_MESSAGE(status.ok(), status.to_string());
    return manifest;
}

std::uint64_t newest_step(const Folder &folder, std::size_t passed_over) {
    auto chosen = CheckpointFolder(folder / "").newest();
    BOOST_REQUIRE_MESSAGE(chosen.ok(), chosen.status().to_string());
    BOOST_TEST(chosen->passed_over.size() == passed_over);
    return chosen->manifest.id.step.value();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(checkpoint_folder)

BOOST_AUTO_TEST_CASE(the_newest_of_those_that_are_wanted) {
    Folder folder;
    for (std::uint64_t step : {10, 20, 30}) publish(folder, step);
    CheckpointFolder checkpoints(folder / "");
    auto below = [](std::uint64_t step) {
        return [step](const CheckpointId &id) { return id.step < TrainStep(step); };
    };
    auto chosen = checkpoints.newest(below(30));
    BOOST_REQUIRE(chosen.ok());
    BOOST_TEST((chosen->manifest.id.step == TrainStep(20)));
    BOOST_TEST(chosen->passed_over.empty());
    BOOST_TEST((checkpoints.newest(below(10)).status().code() == Code::not_found));
    BOOST_TEST(newest_step(folder, 0) == 30u);
}

BOOST_AUTO_TEST_CASE(the_newest_whole_one_is_taken) {
    Folder folder;
    CheckpointFolder checkpoints(folder / "");
    BOOST_TEST((checkpoints.newest().status().code() == Code::not_found));
    publish(folder, 10);
    Manifest last = publish(folder, 20);
    write_ranks(folder, 30);
    BOOST_TEST(newest_step(folder, 0) == 20u);
    BOOST_TEST(checkpoints.verify(last).ok());
    BOOST_TEST(checkpoints.publish(last).ok());
    BOOST_TEST(std::filesystem::read_symlink(folder / "latest") == "step-20.gen-0.3.2");
    auto listing = list_checkpoints(folder / "");
    BOOST_TEST((listing->complete == std::vector{id_of(20), id_of(10)}));
    BOOST_TEST((listing->incomplete == std::vector{id_of(30)}));
    BOOST_TEST(list_checkpoints(folder / "none")->complete.empty());
}

BOOST_AUTO_TEST_CASE(what_is_damaged_is_passed_over) {
    Folder folder;
    CheckpointFolder checkpoints(folder / "");
    for (std::uint64_t step : {10, 20, 30, 40, 50}) publish(folder, step);
    std::filesystem::remove(checkpoints.rank_path(id_of(50), Rank(1)));
    flip_bit(folder / manifest_name(id_of(40)), 60);
    std::filesystem::resize_file(checkpoints.rank_path(id_of(30), Rank(2)), 5000);
    std::filesystem::rename(checkpoints.rank_path(id_of(20), Rank(1)),
                            checkpoints.rank_path(id_of(20), Rank(0)));
    BOOST_TEST(newest_step(folder, 4) == 10u);
    auto chosen = checkpoints.newest();
    BOOST_TEST((chosen->passed_over[0].code() == Code::not_found));
    BOOST_TEST(chosen->passed_over[0].message().find("rank-1.h5") != std::string::npos);
    BOOST_TEST((chosen->passed_over[1].code() == Code::corrupt));
    std::filesystem::copy_file(folder / manifest_name(id_of(10)), folder / manifest_name(id_of(60)));
    BOOST_TEST(newest_step(folder, 5) == 10u);
}

/// Nothing is wrong with it: going on from an older one would be a loss.
BOOST_AUTO_TEST_CASE(what_a_newer_program_has_written_is_not_passed_over) {
    Folder folder;
    CheckpointFolder checkpoints(folder / "");
    for (std::uint64_t step : {10, 20}) publish(folder, step);
    make_next_version(checkpoints.rank_path(id_of(20), Rank(1)));
    Status status = checkpoints.newest().take_status();
    BOOST_TEST((status.code() == Code::unsupported));
    BOOST_TEST(status.message().find("rank-1.h5: a checkpoint's file is of version 2") != std::string::npos);
    BOOST_REQUIRE(checkpoints.set_aside({id_of(20)}).ok());
    BOOST_TEST(newest_step(folder, 0) == 10u);
}

BOOST_AUTO_TEST_CASE(only_what_the_writers_reported_becomes_complete) {
    Folder folder;
    CheckpointFolder checkpoints(folder / "");
    Manifest manifest = write_ranks(folder, 10);
    auto refused = [&](Code code) {
        BOOST_TEST((checkpoints.publish(manifest).code() == code));
        BOOST_TEST(list_checkpoints(folder / "")->complete.empty());
    };
    manifest.ranks[1].header_xxh3 ^= 1;
    refused(Code::corrupt);
    manifest.ranks[1].header_xxh3 ^= 1;
    manifest.lineage = "another";
    refused(Code::corrupt);
    manifest.lineage = "lab/1000/job a";
    manifest.index = FileSum{100, 1};
    refused(Code::not_found);
    manifest.index.reset();
    manifest.ranks.pop_back();
    refused(Code::corrupt);
    Manifest whole = write_ranks(folder, 10);
    BOOST_TEST(checkpoints.publish(whole).ok());
}

BOOST_AUTO_TEST_CASE(damaged_data_shows_when_everything_is_verified) {
    Folder folder;
    CheckpointFolder checkpoints(folder / "");
    Manifest manifest = publish(folder, 10);
    auto file = StorageFile::open(checkpoints.rank_path(id_of(10), Rank(2)));
    std::vector<std::byte> bytes(200);
    BOOST_REQUIRE(file->read_chunk(0, bytes).ok());
    std::string path = checkpoints.rank_path(id_of(10), Rank(2));
    std::ifstream in(path, std::ios::binary);
    std::string content((std::istreambuf_iterator<char>(in)), {});
    auto at = content.find(std::string(reinterpret_cast<const char *>(bytes.data()), bytes.size()));
    BOOST_REQUIRE(at != std::string::npos);
    flip_bit(path, at + 100);
    BOOST_TEST(checkpoints.check(manifest).ok());
    BOOST_TEST((checkpoints.verify(manifest).code() == Code::corrupt));
    BOOST_TEST((StorageFile::open(path)->read_chunk(0, bytes).code() == Code::corrupt));
}

BOOST_AUTO_TEST_CASE(what_is_set_aside_is_passed_over) {
    Folder folder;
    CheckpointFolder checkpoints(folder / "");
    for (std::uint64_t step : {10, 20, 30}) publish(folder, step);
    BOOST_TEST(checkpoints.set_aside({id_of(30), id_of(20)}).ok());
    BOOST_TEST(checkpoints.set_aside({id_of(30)}).ok());
    BOOST_TEST(newest_step(folder, 0) == 10u);
    auto listing = list_checkpoints(folder / "");
    BOOST_TEST((listing->suspect == std::vector{id_of(30), id_of(20)}));
    BOOST_TEST((listing->complete == std::vector{id_of(10)}));
    BOOST_TEST(listing->incomplete.empty());
    BOOST_TEST(checkpoints.remove(id_of(20)).ok());
    BOOST_TEST(list_checkpoints(folder / "")->suspect.size() == 1u);
}

BOOST_AUTO_TEST_CASE(removal_takes_the_manifest_first) {
    Folder folder;
    CheckpointFolder checkpoints(folder / "");
    publish(folder, 10);
    publish(folder, 20);
    BOOST_TEST(checkpoints.remove(id_of(10)).ok());
    BOOST_TEST((names_in(folder.path) ==
                std::vector<std::string>{"latest", "step-20.gen-0.3.2", "step-20.gen-0.3.2.manifest"}));
    BOOST_TEST(checkpoints.remove(id_of(10)).ok());
    // Stopped between the two: what is left counts as incomplete.
    std::filesystem::remove(folder / manifest_name(id_of(20)));
    BOOST_TEST((list_checkpoints(folder / "")->incomplete == std::vector{id_of(20)}));
    BOOST_TEST(checkpoints.remove(id_of(20)).ok());
    BOOST_TEST((names_in(folder.path) == std::vector<std::string>{"latest"}));
}

/// Removal goes through no symbolic link: what it names belongs to somebody else.
BOOST_AUTO_TEST_CASE(of_a_link_only_the_link_is_removed) {
    Folder folder, elsewhere;
    CheckpointFolder checkpoints(folder / "");
    std::filesystem::create_directories(elsewhere / "deep");
    for (const char *name : {"important.txt", "deep/important.txt", ".new-rank-0.h5"})
        std::ofstream(elsewhere / name) << "mine";
    std::filesystem::create_symlink(elsewhere.path, checkpoints.data_folder(id_of(10)));
    BOOST_TEST((list_checkpoints(folder / "")->incomplete == std::vector{id_of(10)}));
    Maker maker(0, 1, 10);
    maker.add("w", DType::Float32, {50});
    BOOST_TEST(!write_storage_file(checkpoints.data_folder(id_of(10)), maker.object()).ok());
    BOOST_TEST(checkpoints.remove(id_of(10)).ok());
    BOOST_TEST(!std::filesystem::is_symlink(checkpoints.data_folder(id_of(10))));
    publish(folder, 20);
    std::filesystem::create_symlink(elsewhere.path, checkpoints.data_folder(id_of(20)) + "/link");
    std::filesystem::create_directories(checkpoints.data_folder(id_of(20)) + "/inner/most");
    BOOST_TEST(checkpoints.remove(id_of(20)).ok());
    BOOST_TEST(!std::filesystem::exists(checkpoints.data_folder(id_of(20))));
    BOOST_TEST(
        (names_in(elsewhere.path) == std::vector<std::string>{".new-rank-0.h5", "deep", "important.txt"}));
    BOOST_TEST(std::filesystem::exists(elsewhere / "deep/important.txt"));
}

BOOST_AUTO_TEST_CASE(what_is_set_aside_is_passed_over_until_it_is_taken_back) {
    Folder folder;
    CheckpointFolder checkpoints(folder / "");
    for (std::uint64_t step : {10, 20, 30}) publish(folder, step);
    BOOST_TEST(checkpoints.set_aside({id_of(30), id_of(20)}).ok());
    BOOST_TEST(checkpoints.set_aside({id_of(30)}).ok());
    BOOST_TEST(newest_step(folder, 0) == 10u);
    auto listing = list_checkpoints(folder / "");
    BOOST_TEST((listing->suspect == std::vector{id_of(30), id_of(20)}));
    BOOST_TEST((listing->complete == std::vector{id_of(10)}));
    BOOST_TEST(listing->incomplete.empty());
    BOOST_TEST(checkpoints.verify(*checkpoints.read_suspect(id_of(30))).ok());
    checkpoints.refresh_hint();
    BOOST_TEST(std::filesystem::read_symlink(folder / "latest") == "step-10.gen-0.3.2");
    // The same one written again counts, and its mark is void.
    publish(folder, 30);
    BOOST_TEST((list_checkpoints(folder / "")->suspect == std::vector{id_of(20)}));
    BOOST_TEST(checkpoints.take_back({id_of(20), id_of(30)}).ok());
    BOOST_TEST((list_checkpoints(folder / "")->complete == std::vector{id_of(30), id_of(20), id_of(10)}));
    BOOST_TEST(!std::filesystem::exists(folder / suspect_name(id_of(30))));
    BOOST_TEST(checkpoints.set_aside({id_of(30)}).ok());
    BOOST_TEST(checkpoints.remove(id_of(30)).ok());
    BOOST_TEST(list_checkpoints(folder / "")->suspect.empty());
}

BOOST_AUTO_TEST_CASE(all_damage_is_named) {
    Folder folder;
    CheckpointFolder checkpoints(folder / "");
    Manifest manifest = publish(folder, 10);
    std::uint64_t read = 0, bytes = 0;
    BOOST_TEST(checkpoints.damage(manifest, [&](std::uint64_t n) { read += n; }).empty());
    for (const RankFile &file : manifest.ranks) bytes += file.file_bytes - storage_block_bytes;
    BOOST_TEST(read == bytes);
    std::filesystem::remove(checkpoints.rank_path(id_of(10), Rank(0)));
    std::string path = checkpoints.rank_path(id_of(10), Rank(2));
    flip_bit(path, std::filesystem::file_size(path) - 1);
    auto found = checkpoints.damage(manifest);
    BOOST_REQUIRE(found.size() == 2u);
    BOOST_TEST((found[0].code() == Code::not_found));
    BOOST_TEST(found[1].message().find("rank-2.h5") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
