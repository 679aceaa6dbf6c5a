// SPDX-License-Identifier: Apache-2.0
// The writer killed, stopped and cut off at every point of its work.
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <thread>

#include "writer_process.h"

using namespace dlrover;
using namespace dlrover::test;
using ckpt::test::Folder;
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t long_elements = 3u << 20;  // several windows of the file

/// What any writer must find: nothing, or a checkpoint that is whole.
void check_never_half_done(const Folder &dir) {
    ckpt::CheckpointFolder folder(lineage_folder(dir.path));
    auto listing = ckpt::list_checkpoints(lineage_folder(dir.path));
    BOOST_REQUIRE(listing.ok());
    for (const auto &id : listing->complete) {
        auto manifest = folder.read_manifest(id);
        BOOST_REQUIRE(manifest.ok());
        BOOST_TEST(folder.verify(*manifest).ok());
    }
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
        auto path = folder.rank_path(checkpoint(7), Rank(rank));
        if (!fs::exists(path)) continue;
        auto file = ckpt::StorageFile::open(path);
        BOOST_REQUIRE_MESSAGE(file.ok(), file.status().message());
        BOOST_TEST(file->verify().ok());
    }
}

void give_orders(Node &node, const MemoryObject &a, const MemoryObject &b) {
    node.push_store(a, checkpoint(7), 2, 0);
    node.push_store(b, checkpoint(7), 2, 1);
    node.push_complete(checkpoint(7), 2, 60000);
}

void check_orders_done(Node &node) {
    for (int i = 0; i < 2; ++i) {
        auto stored = *node.wait_for(local::Body::ObjectStored).body.AsObjectStored();
        BOOST_TEST(stored.ok, stored.text);
    }
    auto complete = *node.wait_for(local::Body::CheckpointStored).body.AsCheckpointStored();
    BOOST_TEST(complete.ok, complete.text);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(writer_crash)

#ifdef DLROVER_FAULT_INJECTION

BOOST_AUTO_TEST_CASE(killed_anywhere_the_next_writer_finishes) {
    auto a = make_object(7, 0, 2, long_elements), b = make_object(7, 1, 2, long_elements);
    for (const char *point : {"writer_before_file", "writer_before_file:2", "writer_mid_file:2",
                              "writer_mid_file:6", "writer_before_rename", "writer_before_rename:2",
                              "writer_before_index", "writer_before_manifest", "writer_after_manifest"}) {
        BOOST_TEST_CONTEXT(point) {
            Folder dir;
            Node node(dir.path);
            node.start_writer({.fault = point});
            give_orders(node, a, b);
            int status = node.wait_writer();
            BOOST_TEST(WIFSIGNALED(status));
            BOOST_TEST(WTERMSIG(status) == SIGKILL);
            check_never_half_done(dir);
            bool whole = fs::exists(lineage_folder(dir.path) + "/" + ckpt::manifest_name(checkpoint(7)));
            BOOST_TEST(whole == (point == std::string("writer_after_manifest")));
            node.start_writer(WriterSpec{});
            give_orders(node, a, b);
            check_orders_done(node);
            check_stored(dir.path, 7, 2, long_elements);
            BOOST_TEST(leftovers(dir.path).empty());
        }
    }
}

BOOST_AUTO_TEST_CASE(a_quota_that_is_full_is_named_and_costs_nothing_that_was_there) {
    Folder dir, other;
    Node node(dir.path);
    std::string full = other.path.string() + "/full";
    node.start_writer({.fault_error = "storage_write:" + std::to_string(EDQUOT) + ":" + full});
    BOOST_TEST(node.store(make_object(7, 0, 1), checkpoint(7), 1, 0).ok);
    BOOST_TEST(node.completed(node.push_complete(checkpoint(7), 1, 0)).ok);
    std::ofstream(full).put(' ');
    auto object = make_object(8, 0, 1);
    auto refused = node.store(object, checkpoint(8), 1, 0);
    BOOST_TEST(!refused.ok);
    BOOST_TEST(refused.text.find("Disk quota exceeded") != std::string::npos, refused.text);
    BOOST_TEST(refused.text.find("make room there, or raise the quota or limit") != std::string::npos,
               refused.text);
    BOOST_TEST(refused.text.find(dir.path.string()) != std::string::npos, refused.text);
    BOOST_TEST(leftovers(dir.path).empty());
    check_stored(dir.path, 7, 1);
    fs::remove(full);
    BOOST_TEST(node.store(object, checkpoint(8), 1, 0).ok);
    BOOST_TEST(node.completed(node.push_complete(checkpoint(8), 1, 0)).ok);
    check_stored(dir.path, 8, 1);
}

/// A name that a rename has given may be gone after a loss of power: only the folder's fsync makes it stay.
BOOST_AUTO_TEST_CASE(what_is_there_counts_once_its_name_stays) {
    Folder dir, other;
    Node node(dir.path);
    std::string broken = other.path.string() + "/broken";
    node.keep_last = 1;
    node.start_writer({.fault_error = "storage_sync_folder:" + std::to_string(EIO) + ":" + broken});
    auto object = make_object(7, 0, 1);
    auto refused = [](const auto &answer) {
        BOOST_TEST(!answer.ok);
        BOOST_TEST(answer.text.find("fsync of ") != std::string::npos, answer.text);
    };
    BOOST_TEST(node.store(make_object(6, 0, 1), checkpoint(6), 1, 0).ok);
    BOOST_TEST(node.completed(node.push_complete(checkpoint(6), 1, 0)).ok);
    std::ofstream(broken).put(' ');
    for (int i = 0; i < 3; ++i) refused(node.store(object, checkpoint(7), 1, 0));
    BOOST_TEST(
        fs::exists(ckpt::CheckpointFolder(lineage_folder(dir.path)).rank_path(checkpoint(7), Rank(0))));
    fs::remove(broken);
    BOOST_TEST(node.store(object, checkpoint(7), 1, 0).ok);
    auto complete = [&] { return node.completed(node.push_complete(checkpoint(7), 1, 0)); };
    std::ofstream(broken).put(' ');
    refused(complete());
    check_stored(dir.path, 6, 1);
    fs::remove(broken);
    BOOST_TEST(complete().ok);
    std::ofstream(broken).put(' ');
    refused(complete());
    fs::remove(broken);
    BOOST_TEST(complete().ok);
    check_stored(dir.path, 7, 1);
}

BOOST_AUTO_TEST_CASE(the_daemon_hears_how_much_of_an_object_is_written) {
    Folder dir;
    Node node(dir.path);
    node.start_writer({.fault = "writer_mid_file:1:stop"});
    auto object = make_object(7, 0, 1, 4u << 20);
    auto order = node.push_store(object, checkpoint(7), 1, 0);
    BOOST_TEST(WIFSTOPPED(node.wait_writer(true)));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // a word may come again
    node.signal_writer(SIGCONT);
    auto word = *node.wait_for(local::Body::ObjectProgress).body.AsObjectProgress();
    BOOST_TEST(word.order == order);
    BOOST_TEST(word.rank == 0u);
    BOOST_TEST(word.bytes > 0u);
    BOOST_TEST(word.bytes <= object.order(checkpoint(7), 1, 0).data_bytes);
    auto stored = node.stored(order);
    BOOST_TEST(stored.ok, stored.text);
}

BOOST_AUTO_TEST_CASE(a_cancelled_order_that_waits_is_not_done) {
    Folder dir;
    Node node(dir.path);
    node.start_writer({.fault = "writer_mid_file:1:stop"});
    auto a = make_object(7, 0, 2), b = make_object(7, 1, 2), c = make_object(8, 0, 1);
    auto first = node.push_store(a, checkpoint(7), 2, 0);
    BOOST_TEST(WIFSTOPPED(node.wait_writer(true)));
    auto second = node.push_store(b, checkpoint(7), 2, 1);
    node.push_cancel(second);
    node.signal_writer(SIGCONT);
    std::map<std::uint64_t, local::ObjectStoredT> answers;
    while (answers.size() < 2) {
        auto answer = *node.wait_for(local::Body::ObjectStored).body.AsObjectStored();
        answers[answer.order] = answer;
    }
    BOOST_TEST(answers[first].ok, answers[first].text);
    BOOST_TEST(!answers[second].ok);
    BOOST_TEST(answers[second].text == "rank 1 of step 7 is not on storage: the order was cancelled");
    BOOST_TEST(node.store(c, checkpoint(8), 1, 0).ok);
    BOOST_TEST(
        !fs::exists(ckpt::CheckpointFolder(lineage_folder(dir.path)).rank_path(checkpoint(7), Rank(1))));
}

BOOST_AUTO_TEST_CASE(the_daemon_is_restarted_in_the_middle) {
    Folder dir;
    Node node(dir.path);
    node.start_writer({.fault = "writer_mid_file:1:stop"});
    auto a = make_object(7, 0, 2), b = make_object(7, 1, 2);
    give_orders(node, a, b);
    BOOST_TEST(WIFSTOPPED(node.wait_writer(true)));
    node.stop_daemon();
    a.flip(64);  // the slot is somebody else's now
    node.signal_writer(SIGCONT);
    node.next_order = 1;  // the new daemon counts anew: the old orders' answers must not be taken for its own
    node.greet();
    auto complete = node.push_complete(checkpoint(7), 2, 60000);
    auto first = node.store(b, checkpoint(7), 2, 1);
    BOOST_TEST(first.ok, first.text);
    BOOST_TEST(first.rank == 1u);
    // What was in hand when the daemon went has not become a file.
    BOOST_TEST(
        !fs::exists(ckpt::CheckpointFolder(lineage_folder(dir.path)).rank_path(checkpoint(7), Rank(0))));
    a.flip(64);
    BOOST_TEST(node.store(a, checkpoint(7), 2, 0).ok);
    BOOST_TEST(node.completed(complete).ok);
    check_stored(dir.path, 7, 2);
}

#else

BOOST_AUTO_TEST_CASE(points_of_failure) {
    std::puts("skipped: the writer at its points of failure (needs --enable-fault-injection)");
}

#endif

BOOST_AUTO_TEST_CASE(what_ends_the_job_does_not_end_its_writer) {
    Folder dir;
    Node node(dir.path);
    node.start_writer();
    for (int number : {SIGTERM, SIGINT, SIGHUP}) node.signal_writer(number);
    BOOST_TEST(node.look().ok);
    node.signal_writer(SIGKILL);
    int status = node.wait_writer();
    BOOST_TEST(WTERMSIG(status) == SIGKILL);
}

BOOST_AUTO_TEST_CASE(it_comes_back_to_every_daemon) {
    Folder dir;
    Node node(dir.path);
    node.start_writer();
    for (int i = 0; i < 3; ++i) {
        node.stop_daemon();
        node.greet();
        BOOST_TEST(node.look().ok);
    }
}

BOOST_AUTO_TEST_CASE(it_does_not_outlive_its_parent) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    int own = ::getpriority(PRIO_PROCESS, 0);
    if (own == 19) return std::puts("skipped: a lower priority (there is none)"), void();
    std::string before = std::to_string(own);
    int report[2];
    BOOST_REQUIRE(::pipe(report) == 0);
    pid_t guard = ::fork();
    BOOST_REQUIRE(guard >= 0);
    if (guard == 0) {
        ::setenv("DLROVER_JOB_ID", "7", 1);
        ::setenv("DLROVER_STEP_ID", "0", 1);
        ::setenv("DLROVER_SOCKET", "/nonexistent/s", 1);
        pid_t writer = ::fork();
        if (writer == 0) ::execl(TEST_WRITER, TEST_WRITER, nullptr);
        (void)!::write(report[1], &writer, sizeof writer);
        for (;;) ::pause();
    }
    pid_t writer = 0;
    BOOST_REQUIRE(::read(report[0], &writer, sizeof writer) == sizeof writer);
    ::close(report[0]);
    ::close(report[1]);
    // It has settled in when its priority is lower.
    auto nice_of = [&] {
        std::ifstream stat("/proc/" + std::to_string(writer) + "/stat");
        std::string word;
        for (int field = 0; field < 19; ++field) stat >> word;
        return word;
    };
    for (int i = 0; i < 6000 && nice_of() == before; ++i) ::poll(nullptr, 0, 10);
    BOOST_TEST(nice_of() != before);
    ::kill(guard, SIGKILL);
    int status = 0;
    BOOST_TEST(::waitpid(guard, &status, 0) == guard);
    BOOST_TEST(::waitpid(writer, &status, 0) == writer);
    BOOST_TEST(WTERMSIG(status) == SIGKILL);
}

BOOST_AUTO_TEST_SUITE_END()
