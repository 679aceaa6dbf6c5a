// SPDX-License-Identifier: Apache-2.0
// What the writer finds in a folder, whom it gives which term, and storage that does not work.
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "writer/term_claim.h"
#include "writer_process.h"

using namespace dlrover;
using namespace dlrover::test;
using ckpt::test::Folder;
namespace fs = std::filesystem;

namespace {

bool contains(const std::string &text, const std::string &part) {
    return text.find(part) != std::string::npos;
}

constexpr std::uint64_t term(std::uint64_t high) {
    return high << 32;
}

/// A file system of its own; false, with a word about it, where we may not mount one.
class SmallDisk {
  public:
    explicit SmallDisk(const std::string &options) : mounted_(mount(options, 0)) {
        if (!mounted_) std::puts("skipped: a test on a small disk needs the right to mount one");
    }
    ~SmallDisk() {
        if (mounted_) ::umount2(dir_.path.c_str(), MNT_DETACH);
    }
    explicit operator bool() const { return mounted_; }
    bool mount(const std::string &options, unsigned long flags) {
        return ::mount("tmpfs", dir_.path.c_str(), "tmpfs", flags, options.c_str()) == 0;
    }
    const fs::path &path() const { return dir_.path; }

  private:
    Folder dir_;
    bool mounted_;
};

/// Rank 0's object of a world of one, without chunks; the fixture's are of one generation only.
MemoryObject make_empty_object(const ckpt::CheckpointId &id) {
    auto table = ckpt::ObjectTableWriter({id.step, Rank(0), 1, id.generation, lineage}).finish();
    BOOST_REQUIRE(table.ok());
    return MemoryObject({{}, *table, {}});
}

void store_one(Node &node, std::uint64_t step) {
    BOOST_TEST(node.store(make_object(step, 0, 1), checkpoint(step), 1, 0).ok);
    BOOST_TEST(node.completed(node.push_complete(checkpoint(step), 1, 1000)).ok);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(writer_folder)

BOOST_AUTO_TEST_CASE(names_of_claims) {
    BOOST_TEST(writer::parse_claim_name(".run-12.claim").value() == 12u);
    for (const char *name : {".run-.claim", ".run-x.claim", ".run-1.claims", "run-1.claim", ".run-.claim",
                             ".run-4294967296.claim", ".run.claim"})
        BOOST_TEST(!writer::parse_claim_name(name).has_value());
}

BOOST_AUTO_TEST_CASE(an_empty_folder) {
    Folder dir;
    Node node(dir / "not/yet");
    node.start_writer();
    auto found = node.look();
    BOOST_TEST(found.ok, found.text);
    BOOST_TEST(found.newest == nullptr);
    BOOST_TEST(found.next_term == 0u);
    BOOST_TEST(found.text == "");
    std::string claim = lineage_folder(dir / "not/yet") + "/.run-0.claim", text;
    std::getline(std::ifstream(claim), text);
    BOOST_TEST(text == "7.0.0");
    BOOST_TEST(leftovers(dir.path).empty());
}

BOOST_AUTO_TEST_CASE(a_mark_is_seen_where_the_folder_is_shared) {
    Folder dir, other;
    Node first(dir.path), second(dir.path), apart(other.path), next_run(dir.path, {.restarts = 1});
    for (Node *node : {&first, &second, &apart, &next_run}) node->start_writer();
    BOOST_TEST(!second.test_folder("n1", false).ok);
    BOOST_TEST(first.test_folder("n1", true).ok);
    BOOST_TEST(second.test_folder("n1", false).ok);
    BOOST_TEST(!second.test_folder("n2", false).ok);
    BOOST_TEST(!next_run.test_folder("n1", false).ok);
    BOOST_TEST(!apart.test_folder("n1", false).ok);
    BOOST_TEST(!fs::exists(lineage_folder(other.path)));
    BOOST_TEST(leftovers(dir.path).empty());
}

BOOST_AUTO_TEST_CASE(old_marks_go_when_a_new_one_is_made) {
    Folder dir;
    Node node(dir.path);
    node.start_writer();
    BOOST_TEST(node.test_folder("n1", true).ok);
    std::string folder = lineage_folder(dir.path);
    auto old = folder + "/.mark-1.0.0-n1", young = folder + "/.mark-2.0.0-n1";
    for (const auto &path : {old, young}) std::ofstream(path).put('\n');
    fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(2));
    BOOST_TEST(node.test_folder("n1", true).ok);
    BOOST_TEST(!fs::exists(old));
    BOOST_TEST(fs::exists(young));
    BOOST_TEST(node.test_folder("n1", false).ok);
}

BOOST_AUTO_TEST_CASE(a_mark_that_can_not_be_made) {
    Folder dir;
    std::ofstream(dir / "file").put('x');
    Node node(dir / "file");
    node.start_writer();
    auto tested = node.test_folder("n1", true);
    BOOST_TEST(!tested.ok);
    BOOST_TEST(!tested.text.empty());
}

BOOST_AUTO_TEST_CASE(the_newest_whole_one_and_why_not_a_newer_one) {
    Folder dir;
    Node node(dir.path);
    node.start_writer();
    for (std::uint64_t step : {3, 5, 8}) store_one(node, step);
    ckpt::CheckpointFolder folder(lineage_folder(dir.path));
    ckpt::test::flip_bit(folder.rank_path(checkpoint(8), Rank(0)), 30);
    auto found = node.look();
    BOOST_TEST(found.ok);
    BOOST_REQUIRE(found.newest != nullptr);
    BOOST_TEST(found.newest->train_step == 5u);
    BOOST_TEST(found.newest->generation->term() == 3u);
    BOOST_TEST(found.newest->generation->number() == 2u);
    BOOST_TEST(found.newest->world_size == 1u);
    BOOST_TEST(contains(found.text, "passed over"), found.text);
    BOOST_TEST(contains(found.text, folder.rank_path(checkpoint(8), Rank(0))), found.text);
}

/// What is wrong with the newest one's file may pass, or be right: the answer says how a person goes back.
template <typename Spoil>
std::string look_that_chooses_nothing(Spoil spoil) {
    Folder dir;
    Node node(dir.path);
    node.start_writer();
    for (std::uint64_t step : {3, 5}) store_one(node, step);
    fs::path path = ckpt::CheckpointFolder(lineage_folder(dir.path)).rank_path(checkpoint(5), Rank(0));
    spoil(path);
    auto found = node.look();
    BOOST_TEST(!found.ok);
    BOOST_TEST(found.newest == nullptr);
    BOOST_TEST(contains(found.text, path.string()), found.text);
    BOOST_TEST(contains(found.text, "dlrover ckpt rollback"), found.text);
    return found.text;
}

BOOST_AUTO_TEST_CASE(a_newer_programs_checkpoint_is_not_passed_over) {
    std::string text =
        look_that_chooses_nothing([](const fs::path &path) { ckpt::test::make_next_version(path); });
    BOOST_TEST(contains(text, "is of version 2, and this dlrover reads version 1"), text);
}

/// As on a bad place of a disk.
BOOST_AUTO_TEST_CASE(one_that_can_not_be_read_is_not_passed_over_and_it_is_said_how_to) {
    look_that_chooses_nothing([](const fs::path &path) {
        fs::remove(path);
        fs::create_symlink(path, path);
    });
}

BOOST_AUTO_TEST_CASE(terms_are_above_everything_and_nobody_elses) {
    Folder dir;
    fs::create_directories(lineage_folder(dir.path) + "/step-9.gen-4.1.2");
    std::ofstream(lineage_folder(dir.path) + "/step-3.gen-6.1.2.manifest.suspect") << "x";
    Node a(dir.path, {.job = 11}), b(dir.path, {.job = 12}), c(dir.path, {.job = 12, .restarts = 1});
    for (Node *node : {&a, &b, &c}) node->start_writer();
    BOOST_TEST(a.look().next_term == term(7));
    BOOST_TEST(b.look().next_term == term(8));
    BOOST_TEST(c.look().next_term == term(9));
    // Again, and by another node of the same run, and by a writer that was restarted.
    BOOST_TEST(b.look().next_term == term(8));
    Node d(dir.path, {.job = 11});
    d.start_writer();
    BOOST_TEST(d.look().next_term == term(7));
    d.signal_writer(SIGKILL);
    d.wait_writer();
    d.start_writer();
    BOOST_TEST(d.look().next_term == term(7));
}

BOOST_AUTO_TEST_CASE(a_requeued_job_is_never_below_its_restart_count) {
    Folder dir;
    Node node(dir.path, {.job = 5, .restarts = 3});
    node.start_writer();
    BOOST_TEST(node.look().next_term == term(3));
}

BOOST_AUTO_TEST_CASE(runs_that_claim_at_once) {
    Folder dir;
    std::vector<std::unique_ptr<Node>> nodes;
    for (std::uint32_t i = 0; i < 8; ++i)  // four runs of two nodes each
        nodes.push_back(std::make_unique<Node>(dir.path, WriterSpec{.job = 100 + i / 2}));
    for (auto &node : nodes) node->start_writer();
    for (auto &node : nodes) {
        local::LookAtFolderT look;
        look.order = 1;
        node->push(proto::make_local(0, look));
    }
    std::map<std::uint64_t, std::uint32_t> owner;
    for (std::uint32_t i = 0; i < 8; ++i) {
        auto message = nodes[i]->wait_for(local::Body::FolderFound);
        auto *found = message.body.AsFolderFound();
        BOOST_TEST(found->ok, found->text);
        auto [it, fresh] = owner.emplace(found->next_term, i / 2);
        BOOST_TEST(it->second == i / 2);
    }
    BOOST_TEST(owner.size() >= 4u);
}

BOOST_AUTO_TEST_CASE(what_failures_come_back_from_is_passed_over) {
    Folder dir;
    Node node(dir.path);
    node.start_writer();
    for (std::uint64_t step : {4, 8}) {
        ckpt::CheckpointId id{{Term(term(1)), 1}, TrainStep(step)};
        MemoryObject made = make_empty_object(id);
        BOOST_TEST(node.store(made, id, 1, 0).ok);
        BOOST_TEST(node.completed(node.push_complete(id, 1, 1000)).ok);
    }
    BOOST_REQUIRE(node.look().newest);
    BOOST_TEST(node.look().newest->train_step == 8u);
    auto found = node.look(7);
    BOOST_TEST(found.ok, found.text);
    BOOST_REQUIRE(found.newest);
    BOOST_TEST(found.newest->train_step == 4u);
    found = node.look(3);
    BOOST_TEST(found.ok, found.text);
    BOOST_TEST(!found.newest);
}

BOOST_AUTO_TEST_CASE(a_claim_without_an_owner_is_passed) {
    Folder dir;
    fs::create_directories(lineage_folder(dir.path));
    std::ofstream(lineage_folder(dir.path) + "/.run-2.claim");  // its writer was killed before it wrote
    Node node(dir.path);
    node.start_writer();
    BOOST_TEST(node.look().next_term == term(3));
}

BOOST_AUTO_TEST_CASE(old_claims_are_removed) {
    Folder dir;
    Node node(dir.path);
    node.start_writer();
    auto folder = lineage_folder(dir.path);
    fs::create_directories(folder);
    for (const char *text : {"1.0.0", "7.0.0"})
        std::ofstream(folder + "/.run-" + text[0] + ".claim") << text << "\n";
    std::ofstream(folder + "/.run-9.claim") << "2.0.0\n";
    ckpt::CheckpointId id{{Term(term(8)), 1}, TrainStep(4)};
    MemoryObject made = make_empty_object(id);
    auto stored = node.store(made, id, 1, 0);
    BOOST_TEST(stored.ok, stored.text);
    auto answer = node.completed(node.push_complete(id, 1, 1000));
    BOOST_TEST(answer.ok, answer.text);
    BOOST_TEST(!fs::exists(folder + "/.run-1.claim"));
    BOOST_TEST(fs::exists(folder + "/.run-7.claim"));  // ours
    BOOST_TEST(fs::exists(folder + "/.run-9.claim"));  // newer than the checkpoint
}

/// Two jobs with one name at one time, each keeping one checkpoint; claimed a while ago.
struct TwoRuns {
    Folder dir;
    Node a{dir.path, {.job = 11}}, b{dir.path, {.job = 12}};

    TwoRuns() {
        for (Node *node : {&a, &b}) {
            node->keep_last = 1;
            node->start_writer();
            BOOST_TEST(node->look().ok);
        }
        claimed_before(0);
        claimed_before(1);
    }
    std::string folder() const { return lineage_folder(dir.path); }
    void claimed_before(int high) {
        fs::path claim = folder() + "/.run-" + std::to_string(high) + ".claim";
        fs::last_write_time(claim, fs::last_write_time(claim) - std::chrono::seconds(10));
    }
    static ckpt::CheckpointId id(std::uint64_t high, std::uint64_t step) {
        return {{Term(term(high)), 1}, TrainStep(step)};
    }
    void store(Node &node, const ckpt::CheckpointId &what) {
        MemoryObject made = make_empty_object(what);
        auto stored = node.store(made, what, 1, 0);
        BOOST_TEST(stored.ok, stored.text);
    }
    std::string complete(Node &node, const ckpt::CheckpointId &what) {
        auto answer = node.completed(node.push_complete(what, 1, 1000));
        BOOST_TEST(answer.ok, answer.text);
        return answer.text;
    }
    std::string put(Node &node, const ckpt::CheckpointId &what) {
        store(node, what);
        return complete(node, what);
    }
    void check_complete(std::vector<ckpt::CheckpointId> expected) {
        auto listing = ckpt::list_checkpoints(folder());
        BOOST_REQUIRE(listing.ok());
        BOOST_TEST((listing->complete == expected));
    }
};

BOOST_AUTO_TEST_CASE(two_runs_at_once_leave_each_other_the_newest) {
    TwoRuns t;
    BOOST_TEST(t.put(t.a, t.id(0, 100)) == "");
    std::string said = t.put(t.b, t.id(1, 50));
    t.check_complete({t.id(1, 50), t.id(0, 100)});
    BOOST_TEST(contains(said, "run 11.0.0"), said);
    BOOST_TEST(contains(said, "goes on from those of this run"), said);
    std::string once_more = t.put(t.b, t.id(1, 51));
    BOOST_TEST(once_more == said);  // so that it is told once
    t.check_complete({t.id(1, 51), t.id(0, 100)});
    said = t.put(t.a, t.id(0, 101));
    t.check_complete({t.id(1, 51), t.id(0, 101)});
    BOOST_TEST(contains(said, "run 12.0.0"), said);
    BOOST_TEST(contains(said, "goes on from those of run 12.0.0"), said);
    BOOST_TEST(contains(said, "--dlrover-name"), said);
    BOOST_TEST(t.a.look().next_term == term(0));  // both have their claims still
    BOOST_TEST(t.b.look().next_term == term(1));
}

BOOST_AUTO_TEST_CASE(what_another_run_is_making_stays) {
    TwoRuns t;
    t.store(t.a, t.id(0, 100));
    BOOST_TEST(contains(t.put(t.b, t.id(1, 50)), "run 11.0.0"));
    t.complete(t.a, t.id(0, 100));
    t.check_complete({t.id(1, 50), t.id(0, 100)});
}

BOOST_AUTO_TEST_CASE(of_three_runs_the_one_in_the_middle) {
    TwoRuns t;
    Node c(t.dir.path, {.job = 13});
    c.keep_last = 1;
    c.start_writer();
    BOOST_TEST(c.look().next_term == term(2));
    t.claimed_before(2);
    t.put(t.b, t.id(1, 50));
    t.put(c, t.id(2, 7));
    std::string said = t.put(t.a, t.id(0, 100));
    t.check_complete({t.id(2, 7), t.id(1, 50), t.id(0, 100)});
    BOOST_TEST(contains(said, "runs 12.0.0 and 13.0.0"), said);
}

BOOST_AUTO_TEST_CASE(a_run_after_others_clears_them_away) {
    TwoRuns t;
    t.put(t.a, t.id(0, 100));
    t.put(t.b, t.id(1, 50));
    Node c(t.dir.path, {.job = 13});
    c.keep_last = 1;
    c.start_writer();
    BOOST_TEST(c.look().next_term == term(2));
    BOOST_TEST(t.put(c, t.id(2, 51)) == "");
    t.check_complete({t.id(2, 51)});
    BOOST_TEST(!fs::exists(t.folder() + "/.run-0.claim"));
    BOOST_TEST(!fs::exists(t.folder() + "/.run-1.claim"));
}

/// In a folder for everybody: its checkpoints could have pickles in them.
BOOST_AUTO_TEST_CASE(a_folder_that_another_user_has_made) {
    if (::geteuid() != 0) {
        std::puts("skipped: a test with another user's folder needs root");
        return;
    }
    Folder dir;
    Node node(dir.path);
    node.start_writer();
    store_one(node, 7);
    BOOST_TEST(node.look().newest != nullptr);
    BOOST_REQUIRE(::chown(lineage_folder(dir.path).c_str(), 12345, 12345) == 0);
    auto found = node.look();
    BOOST_TEST(!found.ok);
    BOOST_TEST(found.newest == nullptr);
    BOOST_TEST(contains(found.text, "belongs to another user (uid 12345)"), found.text);
    BOOST_REQUIRE(::chown(lineage_folder(dir.path).c_str(), 0, 0) == 0);
    BOOST_TEST(node.look().newest != nullptr);
}

BOOST_AUTO_TEST_CASE(a_folder_of_another_lineage) {
    Folder dir;
    Node node(dir.path);
    node.start_writer();
    store_one(node, 3);
    auto mine = lineage_folder(dir.path), other = dir / "x";
    fs::rename(mine, other);
    fs::create_directory(mine);
    auto manifest = ckpt::CheckpointFolder(other).read_manifest(checkpoint(3));
    BOOST_REQUIRE(manifest.ok());
    manifest->lineage = "somebody/else";
    fs::rename(other + "/" + ckpt::checkpoint_folder_name(checkpoint(3)),
               mine + "/" + ckpt::checkpoint_folder_name(checkpoint(3)));
    std::ofstream(mine + "/" + ckpt::manifest_name(checkpoint(3))) << *ckpt::encode_manifest(*manifest);
    auto found = node.look();
    BOOST_TEST(found.newest == nullptr);
    BOOST_TEST(contains(found.text, "lineage"), found.text);
}

BOOST_AUTO_TEST_CASE(a_full_disk) {
    SmallDisk disk("size=1m");
    if (!disk) return;
    Node node(disk.path());
    node.start_writer();
    store_one(node, 3);
    auto object = make_object(7, 0, 1, 1 << 20);
    auto answer = node.store(object, checkpoint(7), 1, 0);
    BOOST_TEST(!answer.ok);
    BOOST_TEST(contains(answer.text, "No space left on device: make room there"), answer.text);
    BOOST_TEST(
        !fs::exists(ckpt::CheckpointFolder(lineage_folder(disk.path())).rank_path(checkpoint(7), Rank(0))));
    BOOST_TEST(leftovers(disk.path()).empty());
    auto found = node.look();
    BOOST_TEST(found.newest->train_step == 3u);
    BOOST_REQUIRE(disk.mount("size=64m", MS_REMOUNT));
    BOOST_TEST(node.store(object, checkpoint(7), 1, 0).ok);
    BOOST_TEST(node.completed(node.push_complete(checkpoint(7), 1, 1000)).ok);
    check_stored(disk.path(), 7, 1, 1 << 20);
}

BOOST_AUTO_TEST_CASE(no_room_for_as_much_as_the_index) {
    SmallDisk disk("size=1m");
    if (!disk) return;
    Node node(disk.path());
    node.start_writer();
    BOOST_TEST(node.store(make_object(7, 0, 1), checkpoint(7), 1, 0).ok);
    auto filler = disk.path() / "filler";
    std::ofstream(filler) << std::string(2 << 20, 'x');
    auto answer = node.completed(node.push_complete(checkpoint(7), 1, 1000));
    BOOST_TEST(!answer.ok);
    BOOST_TEST(contains(answer.text, "step 7 is not complete on storage"), answer.text);
    BOOST_TEST(contains(answer.text, "No space left on device"), answer.text);
    auto found = node.look();
    BOOST_TEST(!found.ok);
    BOOST_TEST(found.newest == nullptr);
    fs::remove(filler);
    BOOST_TEST(node.completed(node.push_complete(checkpoint(7), 1, 1000)).ok);
    check_stored(disk.path(), 7, 1);
    BOOST_TEST(leftovers(disk.path()).empty());
}

BOOST_AUTO_TEST_CASE(a_read_only_file_system) {
    SmallDisk disk("size=16m");
    if (!disk) return;
    Node node(disk.path());
    node.start_writer();
    store_one(node, 3);
    BOOST_REQUIRE(disk.mount("", MS_REMOUNT | MS_RDONLY));
    auto found = node.look();
    BOOST_TEST(!found.ok);
    BOOST_TEST(contains(found.text, "the job's user must be able to write in " + disk.path().string()),
               found.text);
    BOOST_REQUIRE(found.newest != nullptr);  // and can be gone on from
    BOOST_TEST(found.newest->train_step == 3u);
    auto answer = node.store(make_object(7, 0, 1), checkpoint(7), 1, 0);
    BOOST_TEST(!answer.ok);
    BOOST_TEST(contains(answer.text, "Read-only file system"), answer.text);
    BOOST_REQUIRE(disk.mount("", MS_REMOUNT));
    BOOST_TEST(node.look().ok);
    store_one(node, 7);
}

BOOST_AUTO_TEST_CASE(no_permission) {
    Folder dir;
    if (::geteuid() == 0) return (void)std::puts("skipped: root has every permission");
    fs::permissions(dir.path, fs::perms(0555));
    Node node(dir.path);
    node.start_writer();
    auto found = node.look();
    BOOST_TEST(!found.ok);
    BOOST_TEST(contains(found.text, "Permission denied: the job's user"), found.text);
    fs::permissions(dir.path, fs::perms(0755));
    BOOST_TEST(node.look().ok);
}

BOOST_AUTO_TEST_CASE(a_folder_that_vanishes_comes_back) {
    Folder dir;
    Node node(dir / "ckpt");
    node.start_writer();
    store_one(node, 3);
    fs::remove_all(dir / "ckpt");
    std::ofstream(dir / "ckpt") << "in the way";
    auto answer = node.store(make_object(7, 0, 1), checkpoint(7), 1, 0);
    BOOST_TEST(!answer.ok);
    BOOST_TEST(contains(answer.text, "mounted on this node?"), answer.text);
    fs::remove(dir / "ckpt");
    store_one(node, 7);
    check_stored(dir / "ckpt", 7, 1);
}

BOOST_AUTO_TEST_CASE(a_limit_on_the_size_of_files) {
    Folder dir;
    Node node(dir.path, {.file_limit = 2u << 20});
    node.start_writer();
    auto large = node.store(make_object(7, 0, 1, 1 << 20), checkpoint(7), 1, 0);
    BOOST_TEST(!large.ok);
    BOOST_TEST(contains(large.text, "files of at most 2.0 MiB (ulimit -f)"), large.text);
    BOOST_TEST(!fs::exists(lineage_folder(dir.path)));
    store_one(node, 3);
    check_stored(dir.path, 3, 1);
}

BOOST_AUTO_TEST_SUITE_END()
