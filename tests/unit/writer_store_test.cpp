// SPDX-License-Identifier: Apache-2.0
// The writer's orders, against real memory and real files.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>

#include "writer/destination.h"
#include "writer_process.h"

using namespace dlrover;
using namespace dlrover::test;
using ckpt::test::dead_process;
using ckpt::test::Folder;
using ckpt::test::names_in;
using ckpt::test::temporary_of;
namespace fs = std::filesystem;

namespace {

bool contains(const std::string &text, const std::string &part) {
    return text.find(part) != std::string::npos;
}

std::string data_folder(const Folder &dir, std::uint64_t step) {
    return ckpt::CheckpointFolder(lineage_folder(dir.path)).data_folder(checkpoint(step));
}

/// No file has the name of this rank's, and nothing half-written is left.
void check_nothing_stored(const Folder &dir, std::uint64_t step, std::uint32_t rank) {
    BOOST_TEST(!fs::exists(data_folder(dir, step) + "/" + ckpt::rank_file_name(Rank(rank))));
    BOOST_TEST(leftovers(dir.path).empty());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(writer_store)

BOOST_AUTO_TEST_CASE(numbers_as_a_person_lists_them) {
    BOOST_TEST(writer::list_numbers({4}) == "4");
    BOOST_TEST(writer::list_numbers({0, 1}) == "0, 1");
    BOOST_TEST(writer::list_numbers({0, 3, 4, 5, 12}) == "0, 3 to 5 and 12");
    BOOST_TEST(writer::list_numbers({0, 2, 4, 6, 8}, 2) == "0, 2 and 3 more");
}

BOOST_AUTO_TEST_CASE(two_nodes_store_into_one_folder) {
    Folder dir;
    Node home(dir.path), other(dir.path);
    home.start_writer();
    other.start_writer();
    // Home's order to complete comes first: it waits for the files.
    auto complete = home.push_complete(checkpoint(7), 2, 60000);
    auto a = make_object(7, 0, 2), b = make_object(7, 1, 2);
    auto first = home.store(a, checkpoint(7), 2, 0), second = other.store(b, checkpoint(7), 2, 1);
    BOOST_TEST(first.ok, first.text);
    BOOST_TEST(second.ok, second.text);
    BOOST_TEST(second.rank == 1u);
    auto answer = home.completed(complete);
    BOOST_TEST(answer.ok, answer.text);
    BOOST_TEST(answer.text == "");
    check_stored(dir.path, 7, 2);
    std::uint64_t bytes = 0;
    for (auto &entry : fs::directory_iterator(data_folder(dir, 7))) bytes += entry.file_size();
    BOOST_TEST(answer.bytes == bytes);
    BOOST_TEST(first.bytes == fs::file_size(data_folder(dir, 7) + "/rank-0.h5"));
    auto found = other.look();
    BOOST_TEST(found.ok, found.text);
    BOOST_REQUIRE(found.newest != nullptr);
    BOOST_TEST(found.newest->train_step == 7u);
    BOOST_TEST(found.newest->world_size == 2u);
}

BOOST_AUTO_TEST_CASE(a_file_that_is_there_is_not_written_again) {
    Folder dir;
    Node node(dir.path);
    node.start_writer();
    auto object = make_object(7, 0, 1);
    BOOST_TEST(node.store(object, checkpoint(7), 1, 0).ok);
    auto path = data_folder(dir, 7) + "/rank-0.h5";
    auto before = fs::last_write_time(path);
    auto again = node.store(object, checkpoint(7), 1, 0);
    BOOST_TEST(again.ok, again.text);
    BOOST_TEST(again.bytes == fs::file_size(path));
    BOOST_TEST((fs::last_write_time(path) == before));
    // Another object of that name replaces it, but not once the checkpoint is complete.
    auto other = make_object(7, 0, 1, 4000);
    BOOST_TEST(node.store(other, checkpoint(7), 1, 0).ok);
    BOOST_TEST(node.completed(node.push_complete(checkpoint(7), 1, 0)).ok);
    auto refused = node.store(object, checkpoint(7), 1, 0);
    BOOST_TEST(!refused.ok);
    BOOST_TEST(contains(refused.text, "is there, with another object of rank 0"), refused.text);
    check_stored(dir.path, 7, 1, 4000);
    // Completing what is complete is no harm.
    BOOST_TEST(node.completed(node.push_complete(checkpoint(7), 1, 0)).ok);
}

BOOST_AUTO_TEST_CASE(the_daemon_hears_that_storage_answers) {
    Folder dir;
    Node node(dir.path);
    node.start_writer();
    BOOST_TEST(node.look().ok);
    node.wait_for(local::Body::StorageAnswered);
    // Also while it waits for files that do not come, and to a daemon that is another.
    node.stop_daemon();
    node.greet();
    auto waiting = node.push_complete(checkpoint(7), 2, 60000);
    node.wait_for(local::Body::StorageAnswered);
    node.wait_for(local::Body::StorageAnswered);
    node.push_cancel(waiting);
}

BOOST_AUTO_TEST_CASE(missing_files_are_named) {
    Folder dir;
    Node node(dir.path);
    node.start_writer();
    BOOST_TEST(node.store(make_object(7, 0, 6), checkpoint(7), 6, 0).ok);
    BOOST_TEST(node.store(make_object(7, 2, 6), checkpoint(7), 6, 2).ok);
    auto answer = node.completed(node.push_complete(checkpoint(7), 6, 50));
    BOOST_TEST(!answer.ok);
    BOOST_TEST(contains(answer.text, "the files of ranks 1 and 3 to 5 did not come"), answer.text);
    BOOST_TEST(contains(answer.text, "is " + dir.path.string() + " on a file system that all nodes"),
               answer.text);
    BOOST_TEST(!fs::exists(lineage_folder(dir.path) + "/" + ckpt::manifest_name(checkpoint(7))));
}

BOOST_AUTO_TEST_CASE(a_folder_that_is_gone_is_not_waited_for) {
    Folder dir;
    Node node(dir.path);
    node.start_writer();
    BOOST_TEST(node.store(make_object(7, 0, 1), checkpoint(7), 1, 0).ok);
    auto away = dir.path.string() + ".away";
    fs::rename(dir.path, away);
    auto answer = node.completed(node.push_complete(checkpoint(7), 1, 600000));
    fs::rename(away, dir.path);
    BOOST_TEST(!answer.ok);
    BOOST_TEST(contains(answer.text, "is " + dir.path.string() + " still there, and mounted"), answer.text);
    BOOST_TEST(node.completed(node.push_complete(checkpoint(7), 1, 0)).ok);
}

BOOST_AUTO_TEST_CASE(an_object_that_is_not_the_ordered_one) {
    Folder dir;
    Node node(dir.path);
    node.start_writer();
    auto object = make_object(7, 1, 2);
    auto rank = node.store(object, checkpoint(7), 2, 0);
    BOOST_TEST(contains(rank.text, "it is of rank 1"), rank.text);
    auto step = node.store(object, checkpoint(8), 2, 1);
    BOOST_TEST(contains(step.text, "it is of step 7"), step.text);
    auto generation = node.store(object, {{Term(3), 3}, TrainStep(7)}, 2, 1);
    BOOST_TEST(contains(generation.text, "it is of generation 0.3.2"), generation.text);
    auto world = node.store(object, checkpoint(7), 3, 1);
    BOOST_TEST(contains(world.text, "of a world of 2 ranks"), world.text);
    for (auto *answer : {&rank, &step, &generation, &world}) BOOST_TEST(!answer->ok);
    check_nothing_stored(dir, 7, 1);
    BOOST_TEST(!fs::exists(lineage_folder(dir.path)));
}

BOOST_AUTO_TEST_CASE(orders_that_can_not_be_meant) {
    Folder dir;
    Node node(dir.path);
    node.start_writer();
    auto object = make_object(7, 0, 1);
    int fd = object.memory.get();
    auto refused = [&](auto change, std::vector<int> fds) {
        auto order = object.order(checkpoint(7), 1, 0);
        change(order);
        auto answer = node.stored(node.push_store(std::move(order), fds));
        BOOST_TEST(!answer.ok);
        BOOST_TEST(!answer.memory_damaged);
        return answer.text;
    };
    BOOST_TEST(contains(refused([](auto &o) { o.checkpoint = nullptr; }, {fd}), "names no checkpoint"));
    BOOST_TEST(contains(refused([](auto &o) { o.rank = 1; }, {fd}), "rank is outside its world"));
    BOOST_TEST(contains(refused([](auto &o) { o.ledger.resize(70000); }, {fd}), "larger than 64 KiB"));
    BOOST_TEST(contains(refused([](auto &o) { o.segments.clear(); }, {}), "without memory"));
    BOOST_TEST(contains(refused([](auto &o) { o.segments[0]->fd = false; }, {}), "did not send"));
    BOOST_TEST(contains(refused([](auto &o) { o.segments[0]->bytes += 1 << 20; }, {fd}), "shorter than"));
    BOOST_TEST(contains(refused([](auto &o) { o.segments[0]->bytes = 5; }, {fd}), "wrong size"));
    BOOST_TEST(contains(refused([](auto &o) { o.data_bytes = UINT64_MAX; }, {fd}), "outside its memory"));
    BOOST_TEST(
        contains(refused([](auto &o) { o.table_offset = UINT64_MAX - 8; }, {fd}), "outside its memory"));
    BOOST_TEST(contains(refused([](auto &o) { o.data_bytes = 64; }, {fd}), ""));
    check_nothing_stored(dir, 7, 0);
    auto complete = node.completed(node.push_complete(checkpoint(7), 1u << 30, 10));
    BOOST_TEST(contains(complete.text, "impossible size"), complete.text);
    BOOST_TEST(node.store(object, checkpoint(7), 1, 0).ok);
}

BOOST_AUTO_TEST_CASE(a_bit_that_flipped_in_memory) {
    Folder dir;
    Node node(dir.path);
    node.start_writer();
    auto object = make_object(7, 0, 1);
    object.flip(5000);
    auto data = node.store(object, checkpoint(7), 1, 0);
    BOOST_TEST(!data.ok);
    BOOST_TEST(data.memory_damaged);
    BOOST_TEST(contains(data.text, "rank 0 of step 7 is damaged in this node's memory"), data.text);
    BOOST_TEST(!contains(data.text, "storage"), data.text);
    BOOST_TEST(contains(data.text, "chunk \"w\" in memory does not have its checksum"), data.text);
    check_nothing_stored(dir, 7, 0);
    object.flip(5000);
    object.flip(object.table_offset + 100);
    auto table = node.store(object, checkpoint(7), 1, 0);
    BOOST_TEST(table.memory_damaged);
    BOOST_TEST(contains(table.text, "the object table's checksum is wrong"), table.text);
    check_nothing_stored(dir, 7, 0);
    object.flip(object.table_offset + 100);
    BOOST_TEST(node.store(object, checkpoint(7), 1, 0).ok);
}

BOOST_AUTO_TEST_CASE(a_damaged_file_makes_no_checkpoint) {
    Folder dir;
    Node node(dir.path);
    node.start_writer();
    auto object = make_object(7, 0, 1);
    BOOST_TEST(node.store(object, checkpoint(7), 1, 0).ok);
    ckpt::test::flip_bit(data_folder(dir, 7) + "/rank-0.h5", 20);
    auto answer = node.completed(node.push_complete(checkpoint(7), 1, 10));
    BOOST_TEST(!answer.ok);
    BOOST_TEST(contains(answer.text, "rank-0.h5"), answer.text);
    BOOST_TEST(!fs::exists(lineage_folder(dir.path) + "/" + ckpt::manifest_name(checkpoint(7))));
    BOOST_TEST(node.store(object, checkpoint(7), 1, 0).ok);  // written anew
    BOOST_TEST(node.completed(node.push_complete(checkpoint(7), 1, 10)).ok);
    check_stored(dir.path, 7, 1);
}

BOOST_AUTO_TEST_CASE(a_cancelled_wait_completes_nothing) {
    Folder dir;
    Node node(dir.path);
    node.start_writer();
    auto cancelled = node.push_complete(checkpoint(7), 1, 60000);
    node.push_cancel(cancelled);
    BOOST_TEST(node.store(make_object(7, 0, 1), checkpoint(7), 1, 0).ok);
    // The next one waits longer than the cancelled one would have taken.
    BOOST_TEST(!node.completed(node.push_complete(checkpoint(9), 1, 100)).ok);
    BOOST_TEST(!fs::exists(lineage_folder(dir.path) + "/" + ckpt::manifest_name(checkpoint(7))));
}

BOOST_AUTO_TEST_CASE(a_wait_holds_up_neither_looks_nor_objects) {
    Folder dir;
    Node node(dir.path);
    node.start_writer();
    auto slow = node.push_complete(checkpoint(7), 2, 60000);
    BOOST_TEST(node.look().ok);
    BOOST_TEST(node.store(make_object(9, 0, 1), checkpoint(9), 1, 0).ok);
    BOOST_TEST(node.completed(node.push_complete(checkpoint(9), 1, 60000)).ok);
    node.push_cancel(slow);
    check_stored(dir.path, 9, 1);
}

BOOST_AUTO_TEST_CASE(too_many_orders) {
    Folder dir;
    Node node(dir.path);
    node.start_writer();
    for (int i = 0; i < 16; ++i)
        node.push_complete(checkpoint(100 + static_cast<std::uint64_t>(i)), 1, 600000);
    auto answer = node.completed(node.push_complete(checkpoint(7), 1, 0));
    BOOST_TEST(contains(answer.text, "too many orders"), answer.text);
}

BOOST_AUTO_TEST_CASE(old_checkpoints_are_removed) {
    Folder dir;
    Node node(dir.path);
    node.keep_last = 2;
    node.keep_every = 4;
    node.start_writer();
    BOOST_TEST(node.store(make_object(3, 0, 2), checkpoint(3), 2, 0).ok);  // never completed
    std::uint32_t removed = 0;
    for (std::uint64_t step = 4; step <= 8; ++step) {
        BOOST_TEST(node.store(make_object(step, 0, 1), checkpoint(step), 1, 0).ok);
        auto answer = node.completed(node.push_complete(checkpoint(step), 1, 1000));
        BOOST_TEST(answer.ok, answer.text);
        removed += answer.removed;
    }
    BOOST_TEST(removed == 3u);  // 3, 5, 6
    std::vector<std::string> expected{"latest"};
    for (std::uint64_t step : {4, 7, 8}) {
        expected.push_back(ckpt::checkpoint_folder_name(checkpoint(step)));
        expected.push_back(ckpt::manifest_name(checkpoint(step)));
    }
    std::sort(expected.begin(), expected.end());
    BOOST_TEST(names_in(lineage_folder(dir.path)) == expected, boost::test_tools::per_element());
    for (std::uint64_t step : {4, 7, 8}) check_stored(dir.path, step, 1);
}

BOOST_AUTO_TEST_CASE(what_was_left_is_cleared_away) {
    Folder dir;
    Node node(dir.path);
    node.keep_last = 1;
    node.start_writer();
    std::string folder = lineage_folder(dir.path), data = data_folder(dir, 7);
    BOOST_TEST(node.store(make_object(7, 0, 1), checkpoint(7), 1, 0).ok);
    auto gone = folder + "/" + ckpt::manifest_name(checkpoint(5)) + ".suspect";
    auto kept = folder + "/" + ckpt::manifest_name(checkpoint(6)) + ".suspect";
    for (const std::string &path : {data + "/.new-rank-5.h5", folder + "/.new-probe-n9", gone, kept,
                                    folder + "/" + temporary_of("step-1.gen-0.1.1.manifest", dead_process())})
        std::ofstream(path) << "x";
    fs::create_directory(data_folder(dir, 8));  // begun, and newer: stays
    auto answer = node.completed(node.push_complete(checkpoint(7), 1, 1000));
    BOOST_TEST(answer.ok, answer.text);
    BOOST_TEST(leftovers(dir.path).empty());
    BOOST_TEST(!fs::exists(gone));
    BOOST_TEST(!fs::exists(kept));  // its data is gone, too
    BOOST_TEST(fs::exists(data_folder(dir, 8)));
}

BOOST_AUTO_TEST_SUITE_END()
