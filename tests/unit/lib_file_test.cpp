// SPDX-License-Identifier: Apache-2.0
// The C interface without a daemon, and its checks of arguments.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <csignal>
#include <cstddef>
#include <fstream>
#include <functional>
#include <thread>

#include "ckpt/block_kernel.h"
#include "lib/file_format.h"
#include "lib_fixture.h"

using namespace dlrover::test;

namespace {

std::vector<std::string> files(const std::string &dir) {
    std::vector<std::string> names;
    if (!std::filesystem::exists(dir)) return names;
    for (auto &entry : std::filesystem::directory_iterator(dir)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
}

void flip(const std::string &path, std::uint64_t at) {
    std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(static_cast<std::streamoff>(at));
    char byte = static_cast<char>(f.get() ^ 0x10);
    f.seekp(static_cast<std::streamoff>(at));
    f.put(byte);
}

/// What was saved until now is of a run that has ended: files before this process are.
void end_run(const std::string &dir, std::chrono::seconds ago = std::chrono::hours(1)) {
    for (auto &entry : std::filesystem::recursive_directory_iterator(dir))
        if (entry.is_regular_file() && entry.path().filename().string().starts_with("step-"))
            std::filesystem::last_write_time(entry.path(), entry.last_write_time() - ago);
}

void make_next_version(const std::string &path) {
    using dlrover::lib::FileFooter;
    std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(std::filesystem::file_size(path) - sizeof(FileFooter));
    FileFooter footer;
    f.seekg(at);
    f.read(reinterpret_cast<char *>(&footer), sizeof footer);
    ++footer.version;
    footer.footer_xxh3 = dlrover::ckpt::block_kernel().hash(&footer, offsetof(FileFooter, footer_xxh3));
    f.seekp(at);
    f.write(reinterpret_cast<const char *>(&footer), sizeof footer);
    BOOST_REQUIRE(f.good());
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(lib_file, Environment)

BOOST_AUTO_TEST_CASE(save_and_restore) {
    auto c = open_context();
    dlrover_world world;
    BOOST_REQUIRE(dlrover_get_world(c.get(), &world) == DLROVER_OK);
    BOOST_TEST(world.restore_step == -1);
    BOOST_TEST(world.managed == 0);
    BOOST_TEST(dlrover_event_fd(c.get()) == -1);
    BOOST_TEST(dlrover_prepare(c.get(), 1000) == DLROVER_OK);
    for (std::uint64_t step : {1u, 2u, 3u}) BOOST_TEST(save_step(c.get(), step) == DLROVER_OK);
    BOOST_TEST((files(dir + "/rank-0") == std::vector<std::string>{"step-2.dlrover", "step-3.dlrover"}));
    auto again = open_context();
    BOOST_TEST(check_restored(again.get()) == 3);
}

BOOST_AUTO_TEST_CASE(files_are_on_storage_already) {
    auto c = open_context();
    dlrover_save *s = nullptr;
    BOOST_REQUIRE(dlrover_save_begin(c.get(), 1, 100, &s) == DLROVER_OK);
    BOOST_TEST(dlrover_save_to_storage(s) == DLROVER_OK);
    BOOST_TEST(dlrover_save_commit(s) == DLROVER_OK);
}

BOOST_AUTO_TEST_CASE(the_newest_step_that_every_rank_has) {
    for (const char *rank : {"0", "1"}) {
        ::setenv("RANK", rank, 1);
        ::setenv("WORLD_SIZE", "2", 1);
        auto c = open_context();
        for (std::uint64_t step : {1u, 2u}) BOOST_TEST(save_step(c.get(), step) == DLROVER_OK);
        if (*rank == '1') BOOST_TEST(save_step(c.get(), 3) == DLROVER_OK);
    }
    end_run(dir);
    auto ahead = open_context();
    BOOST_TEST(check_restored(ahead.get()) == 2);
    // Going on from there never leaves the ranks without a common step.
    BOOST_TEST(save_step(ahead.get(), 3) == DLROVER_OK);
    BOOST_TEST((files(dir + "/rank-1") ==
                std::vector<std::string>{"step-2.dlrover", "step-3.dlrover", "unused-step-3.dlrover"}));
    ::setenv("RANK", "0", 1);
    auto behind = open_context();
    BOOST_TEST(check_restored(behind.get()) == 2);
}

BOOST_AUTO_TEST_CASE(a_file_cut_short_is_not_taken) {
    auto c = open_context();
    for (std::uint64_t step : {1u, 2u}) BOOST_TEST(save_step(c.get(), step) == DLROVER_OK);
    std::string newest = dir + "/rank-0/step-2.dlrover";
    for (std::uintmax_t bytes = std::filesystem::file_size(newest); bytes > 0;
         bytes -= std::min<std::uintmax_t>(bytes, 37)) {
        std::filesystem::resize_file(newest, bytes - 1);
        auto again = open_context();
        BOOST_TEST(check_restored(again.get()) == 1);
    }
}

BOOST_AUTO_TEST_CASE(every_region_is_checked) {
    auto c = open_context();
    BOOST_TEST(save_step(c.get(), 1) == DLROVER_OK);
    std::string path = dir + "/rank-0/step-1.dlrover";
    auto bytes = std::filesystem::file_size(path);
    // Data of a, of b, table, ledger; padding between them carries nothing.
    for (std::uint64_t at : {std::uint64_t{0}, std::uint64_t{3999}, std::uint64_t{4032}, std::uint64_t{4431},
                             bytes - 129, bytes - 140, bytes - 136 - 64}) {
        flip(path, at);
        dlrover_restore *r = nullptr;
        BOOST_TEST(dlrover_restore_open(c.get(), &r) == DLROVER_E_CORRUPT, "byte " << at << " of " << bytes);
        flip(path, at);
    }
    for (std::uint64_t at = bytes - 128; at < bytes; ++at) {
        flip(path, at);
        dlrover_restore *r = nullptr;
        BOOST_TEST(dlrover_restore_open(c.get(), &r) == DLROVER_E_CORRUPT, "byte " << at << " of the footer");
        flip(path, at);
    }
    BOOST_TEST(check_restored(c.get()) == 1);
}

BOOST_AUTO_TEST_CASE(a_damaged_file_is_named) {
    auto c = open_context();
    BOOST_TEST(save_step(c.get(), 1) == DLROVER_OK);
    std::string path = dir + "/rank-0/step-1.dlrover";
    auto text_of_open = [&] {
        dlrover_restore *r = nullptr;
        BOOST_TEST(dlrover_restore_open(open_context().get(), &r) == DLROVER_E_CORRUPT);
        return std::string(dlrover_error_text());
    };
    flip(path, 0);
    std::string text = text_of_open();
    BOOST_TEST(text.find(path + " is damaged: ") != std::string::npos, text);
    BOOST_TEST(text.find("remove it to go on from the step before") != std::string::npos, text);
    flip(path, 0);
    // Nothing begins anew over what may be all that is left.
    std::filesystem::resize_file(path, 100);
    text = text_of_open();
    BOOST_TEST(text.find(path) != std::string::npos, text);
    BOOST_TEST(text.find("remove " + dir + " to begin anew") != std::string::npos, text);
    dlrover_world world;
    BOOST_TEST(dlrover_get_world(c.get(), &world) == DLROVER_E_CORRUPT);
}

namespace {

Context open_as(const std::string &rank, const char *ranks = "2") {
    ::setenv("RANK", rank.c_str(), 1);
    ::setenv("WORLD_SIZE", ranks, 1);
    return open_context();
}

/// Each of two ranks saves these steps, the one after the other.
void save_as_two(std::initializer_list<std::uint64_t> steps) {
    for (const char *rank : {"0", "1"}) {
        auto c = open_as(rank);
        for (std::uint64_t step : steps) BOOST_TEST(save_step(c.get(), step) == DLROVER_OK);
    }
}

/// The text of a restore that fails with that code; the world can not be told either.
std::string refused(const std::string &rank, int code, const char *ranks = "2") {
    dlrover_restore *r = nullptr;
    dlrover_world world;
    auto c = open_as(rank, ranks);
    BOOST_TEST(dlrover_get_world(c.get(), &world) == code);
    BOOST_TEST(dlrover_restore_open(c.get(), &r) == code);
    return dlrover_error_text();
}

bool begins_anew(dlrover_context *c) {
    dlrover_restore *r = nullptr;
    return dlrover_restore_open(c, &r) == DLROVER_E_NOT_FOUND;
}

}  // namespace

/// A folder that is not shared, or mounted late.
BOOST_AUTO_TEST_CASE(files_that_are_not_seen_are_not_begun_over) {
    save_as_two({1, 2});
    end_run(dir);
    const auto before = files(dir + "/rank-0");
    std::filesystem::rename(dir + "/rank-1", dir + "/away");
    for (const char *rank : {"0", "1"}) {
        std::string text = refused(rank, DLROVER_E_CORRUPT);
        BOOST_TEST(text.find("rank 0 has " + dir + "/rank-0/step-2.dlrover") != std::string::npos, text);
        BOOST_TEST(text.find("of rank 1 there is no " + dir + "/rank-1") != std::string::npos, text);
        BOOST_TEST(text.find("remove " + dir + " to begin anew") != std::string::npos, text);
    }
    BOOST_TEST(files(dir + "/rank-0") == before);
    std::filesystem::create_directory(dir + "/rank-1");
    BOOST_TEST(refused("0", DLROVER_E_CORRUPT).find("none in " + dir + "/rank-1") != std::string::npos);
    std::filesystem::remove(dir + "/rank-1");
    std::filesystem::rename(dir + "/away", dir + "/rank-1");
    BOOST_TEST(check_restored(open_as("1").get()) == 2);
    std::filesystem::remove(dir + "/rank-0/step-2.dlrover");
    std::filesystem::remove(dir + "/rank-1/step-1.dlrover");
    std::string text = refused("1", DLROVER_E_CORRUPT);
    BOOST_TEST(text.find("of rank 0 there are only older ones") != std::string::npos, text);
}

BOOST_AUTO_TEST_CASE(a_rank_killed_in_its_first_save_begins_anew) {
    auto killed = open_as("1"), other = open_as("0");
    dlrover_save *s = nullptr;
    BOOST_REQUIRE(dlrover_save_begin(killed.get(), 1, 100, &s) == DLROVER_OK);
    BOOST_TEST(save_step(other.get(), 1) == DLROVER_OK);
    end_run(dir);
    auto zero = open_as("0"), one = open_as("1");
    BOOST_TEST(begins_anew(zero.get()));
    BOOST_TEST(begins_anew(one.get()));
    BOOST_TEST((files(dir + "/rank-0") == std::vector<std::string>{"step-1.dlrover"}));
    // What the other one had saved then does not stand beside what is saved now, and is not removed.
    BOOST_TEST(save_step(one.get(), 1) == DLROVER_OK);
    end_run(dir);
    BOOST_TEST(begins_anew(open_as("0").get()));
    for (std::uint64_t step : {1u, 2u, 3u}) BOOST_TEST(save_step(zero.get(), step) == DLROVER_OK);
    BOOST_TEST((files(dir + "/rank-0") ==
                std::vector<std::string>{"step-2.dlrover", "step-3.dlrover", "unused-step-1.dlrover"}));
    dlrover_save_abort(s);
}

BOOST_AUTO_TEST_CASE(so_does_one_that_was_killed_before_it) {
    dlrover_world world;
    auto killed = open_as("1"), other = open_as("0");
    BOOST_TEST(dlrover_get_world(killed.get(), &world) == DLROVER_OK);
    BOOST_TEST(save_step(other.get(), 1) == DLROVER_OK);
    end_run(dir);
    BOOST_TEST(begins_anew(open_as("0").get()));
    BOOST_TEST(begins_anew(open_as("1").get()));
}

/// Ranks need not come to their first save together, and world() is asked for in a save.
BOOST_AUTO_TEST_CASE(what_another_rank_has_saved_in_this_run_stays) {
    auto zero = open_as("0");
    for (std::uint64_t step : {1u, 2u}) BOOST_TEST(save_step(zero.get(), step) == DLROVER_OK);
    auto one = open_as("1");
    dlrover_world world;
    BOOST_TEST(dlrover_get_world(one.get(), &world) == DLROVER_OK);
    BOOST_TEST(world.restore_step == -1);
    BOOST_TEST(begins_anew(one.get()));
    for (std::uint64_t step : {1u, 2u}) BOOST_TEST(save_step(one.get(), step) == DLROVER_OK);
    BOOST_TEST(check_restored(open_as("0").get()) == 2);
}

/// Ranks may be started one after the other, and save without a load: that asks for the world alone.
BOOST_AUTO_TEST_CASE(what_a_rank_that_was_started_before_has_saved_stays_without_a_load) {
    BOOST_TEST(save_step(open_as("0").get(), 1) == DLROVER_OK);
    auto one = open_as("1");
    end_run(dir, std::chrono::seconds(4));
    dlrover_world world;
    BOOST_TEST(dlrover_get_world(one.get(), &world) == DLROVER_OK);
    BOOST_TEST(save_step(one.get(), 1) == DLROVER_OK);
    BOOST_TEST(check_restored(open_as("0").get()) == 1);
}

BOOST_AUTO_TEST_CASE(what_is_set_aside_never_takes_the_place_of_another) {
    save_as_two({1});
    auto attempt = [&] {
        ::usleep(20000);  // the clock of files is no finer
        end_run(dir);
        auto c = open_as("1");
        BOOST_TEST(check_restored(c.get()) == 1);
        BOOST_TEST(save_step(c.get(), 2) == DLROVER_OK);
    };
    for (int i = 0; i < 3; ++i) attempt();
    using Files = std::vector<std::string>;
    BOOST_TEST((files(dir + "/rank-1") == Files{"step-1.dlrover", "step-2.dlrover", "unused-step-2-2.dlrover",
                                                "unused-step-2.dlrover"}));
    attempt();
    BOOST_TEST((files(dir + "/rank-1") == Files{"step-1.dlrover", "step-2.dlrover", "unused-step-2-2.dlrover",
                                                "unused-step-2-3.dlrover"}),
               "the last two stay");
}

/// Two attempts come to step 2, and of each one rank dies before it has saved it.
BOOST_AUTO_TEST_CASE(two_attempts_never_make_one_step) {
    ::setenv("WORLD_SIZE", "2", 1);
    auto as_rank = [&](const char *rank) {
        ::setenv("RANK", rank, 1);
        return open_context();
    };
    for (const char *rank : {"0", "1"}) BOOST_TEST(save_step(as_rank(rank).get(), 1) == DLROVER_OK);
    BOOST_TEST(save_step(as_rank("0").get(), 2) == DLROVER_OK);
    end_run(dir);
    auto zero = as_rank("0");
    BOOST_TEST(check_restored(zero.get()) == 1);
    auto one = as_rank("1");
    BOOST_TEST(check_restored(one.get()) == 1);
    BOOST_TEST(save_step(one.get(), 2) == DLROVER_OK);
    BOOST_TEST(check_restored(as_rank("0").get()) == 1);
    BOOST_TEST(check_restored(as_rank("1").get()) == 1);
}

/// As where access is refused, which root does not see here: nothing is said of what is there.
BOOST_AUTO_TEST_CASE(what_can_not_be_read_is_no_damage) {
    save_as_two({1, 2});
    std::string file = dir + "/rank-1/step-2.dlrover", folder = dir + "/rank-1";
    auto check = [&](const std::string &path, const char *error) {
        for (const char *rank : {"0", "1"}) {
            std::string text = refused(rank, DLROVER_E_SYSTEM);
            BOOST_TEST(text.find(path) != std::string::npos, text);
            BOOST_TEST(text.find(error) != std::string::npos, text);
            BOOST_TEST(text.find("remove") == std::string::npos, text);
        }
    };
    std::filesystem::rename(file, dir + "/file");
    std::filesystem::create_directory(file);
    check(file, "Is a directory");
    std::filesystem::remove(file);
    std::filesystem::create_symlink(file, file);
    check(file, "Too many levels of symbolic links");
    std::filesystem::remove(file);
    std::filesystem::rename(dir + "/file", file);
    std::filesystem::rename(folder, dir + "/folder");
    std::ofstream(folder) << "a file";
    check(folder, "Not a directory");
    std::filesystem::remove(folder);
    std::filesystem::rename(dir + "/folder", folder);
    BOOST_TEST(check_restored(open_as("1").get()) == 2);
}

/// The first attempt's step is damaged in one rank. Of the next attempt one rank saves it, the other dies.
BOOST_AUTO_TEST_CASE(a_damaged_step_is_never_mixed_with_that_of_the_next_attempt) {
    save_as_two({1, 2});
    std::string damaged = dir + "/rank-1/step-2.dlrover";
    flip(damaged, std::filesystem::file_size(damaged) - 1);
    end_run(dir);
    auto zero = open_as("0"), one = open_as("1");
    BOOST_TEST(check_restored(zero.get()) == 1);
    BOOST_TEST(check_restored(one.get()) == 1);
    BOOST_TEST(save_step(one.get(), 2) == DLROVER_OK);
    for (const char *rank : {"0", "1"}) BOOST_TEST(check_restored(open_as(rank).get()) == 1);
}

/// Step 2 is damaged where only its opening finds it, and is removed as the error says, in the same process.
BOOST_AUTO_TEST_CASE(a_step_that_is_given_up_after_a_look_is_never_mixed_either) {
    save_as_two({1, 2});
    flip(dir + "/rank-1/step-2.dlrover", 0);
    end_run(dir);
    auto one = open_as("1");
    dlrover_restore *r = nullptr;
    BOOST_TEST(dlrover_restore_open(one.get(), &r) == DLROVER_E_CORRUPT);
    std::filesystem::remove(dir + "/rank-1/step-2.dlrover");
    BOOST_TEST(check_restored(one.get()) == 1);
    BOOST_TEST(save_step(one.get(), 2) == DLROVER_OK);
    BOOST_TEST(check_restored(open_as("0").get()) == 1);
}

BOOST_AUTO_TEST_CASE(another_number_of_ranks_is_refused) {
    auto c = open_context();
    BOOST_TEST(save_step(c.get(), 1) == DLROVER_OK);
    ::setenv("WORLD_SIZE", "2", 1);
    for (const char *rank : {"0", "1"}) {
        ::setenv("RANK", rank, 1);
        dlrover_restore *r = nullptr;
        BOOST_TEST(dlrover_restore_open(open_context().get(), &r) == DLROVER_E_UNSUPPORTED);
        std::string text = dlrover_error_text();
        BOOST_TEST(text.find("were saved by 1 rank, this world has 2") != std::string::npos, text);
    }
    BOOST_TEST((files(dir + "/rank-0") == std::vector<std::string>{"step-1.dlrover"}));
}

BOOST_AUTO_TEST_CASE(fewer_ranks_are_refused_as_more_are) {
    save_as_two({1});
    std::string text = refused("0", DLROVER_E_UNSUPPORTED, "1");
    const std::string wanted = "the checkpoints in " + dir + " were saved by 2 ranks, this world has 1: ";
    BOOST_TEST(text.find(wanted) != std::string::npos, text);
    BOOST_TEST(text.find("remove " + dir + " to begin anew") != std::string::npos, text);
}

/// It is not passed over as if it were not there: saves would remove it.
BOOST_AUTO_TEST_CASE(a_file_of_the_next_version_is_refused_by_name) {
    auto c = open_context();
    BOOST_TEST(save_step(c.get(), 1) == DLROVER_OK);
    BOOST_TEST(save_step(c.get(), 2) == DLROVER_OK);
    make_next_version(dir + "/rank-0/step-2.dlrover");
    dlrover_restore *r = nullptr;
    BOOST_TEST(dlrover_restore_open(c.get(), &r) == DLROVER_E_UNSUPPORTED);
    const std::string wanted =
        "step-2.dlrover: a checkpoint file is of version 2, and this dlrover reads version 1";
    BOOST_TEST(std::string(dlrover_error_text()).find(wanted) != std::string::npos, dlrover_error_text());
    dlrover_world world;
    BOOST_TEST(dlrover_get_world(open_context().get(), &world) == DLROVER_E_UNSUPPORTED);
    BOOST_TEST((files(dir + "/rank-0") == std::vector<std::string>{"step-1.dlrover", "step-2.dlrover"}));
}

BOOST_AUTO_TEST_CASE(a_folder_that_can_not_be_written_is_an_error) {
    std::ofstream(dir + "/rank-0") << "a file, not a folder";
    auto c = open_context();
    BOOST_TEST(save_step(c.get(), 1) == DLROVER_E_SYSTEM);
    BOOST_TEST(std::string(dlrover_error_text()).find("rank-0") != std::string::npos);
}

namespace {

/// No file of this process grows beyond `bytes` while it lives, as on a full disk.
class NoRoom {
  public:
    explicit NoRoom(rlim_t bytes) : former_(std::signal(SIGXFSZ, SIG_IGN)) {
        ::getrlimit(RLIMIT_FSIZE, &limit_);
        rlimit low{bytes, limit_.rlim_max};
        ::setrlimit(RLIMIT_FSIZE, &low);
    }
    ~NoRoom() {
        ::setrlimit(RLIMIT_FSIZE, &limit_);
        std::signal(SIGXFSZ, former_);
    }
    NoRoom(const NoRoom &) = delete;
    NoRoom &operator=(const NoRoom &) = delete;

  private:
    void (*former_)(int);
    rlimit limit_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_failed_save_leaves_no_part_of_a_file) {
    auto c = open_context();
    BOOST_TEST(save_step(c.get(), 1) == DLROVER_OK);
    std::ofstream(dir + "/rank-0/.new-7") << "of a save that was killed";
    {
        NoRoom full(2000);
        for (std::uint64_t step : {2u, 3u}) {
            BOOST_TEST(save_step(c.get(), step) != DLROVER_OK);
            BOOST_TEST((files(dir + "/rank-0") == std::vector<std::string>{"step-1.dlrover"}));
        }
    }
    std::filesystem::create_directory(dir + "/rank-0/step-2.dlrover");
    BOOST_TEST(save_step(c.get(), 2) != DLROVER_OK);
    BOOST_TEST((files(dir + "/rank-0") == std::vector<std::string>{"step-1.dlrover", "step-2.dlrover"}));
    std::filesystem::remove(dir + "/rank-0/step-2.dlrover");
    BOOST_TEST(save_step(c.get(), 2) == DLROVER_OK);
    BOOST_TEST(check_restored(open_context().get()) == 2);
}

BOOST_AUTO_TEST_CASE(a_failed_save_names_its_file_and_says_what_to_do) {
    auto c = open_context();
    auto check = [&](const char *why) {
        BOOST_TEST(save_step(c.get(), 4) == DLROVER_E_SYSTEM);
        std::string text = dlrover_error_text();
        for (std::string part : {"step 4 is not saved to " + dir + "/rank-0/step-4.dlrover", std::string(why),
                                 std::string("set DLROVER_LOCAL_DIR to another folder")})
            BOOST_TEST(text.find(part) != std::string::npos, text);
    };
    {
        NoRoom full(2000);
        check("write: File too large");
    }
    std::filesystem::create_directories(dir + "/rank-0/step-4.dlrover/in-the-way");
    check("Is a directory");
    std::filesystem::remove_all(dir + "/rank-0");
    std::ofstream(dir + "/rank-0") << "a file, not a folder";
    check("cannot make ");
}

BOOST_AUTO_TEST_CASE(without_a_daemon_no_generation_follows) {
    dlrover_context *c = open_context().release();
    auto check = [](int code) {
        BOOST_TEST(code == DLROVER_E_UNSUPPORTED);
        std::string text = dlrover_error_text();
        BOOST_TEST(text.find("there is no daemon") != std::string::npos, text);
    };
    check(dlrover_stay(c));
    check(dlrover_next_generation(&c));
    BOOST_TEST(save_step(c, 1) == DLROVER_OK);
    dlrover_close(c);
}

BOOST_AUTO_TEST_CASE(wrong_arguments_are_refused) {
    BOOST_TEST(dlrover_open(nullptr) == DLROVER_E_INVALID);
    BOOST_TEST(save_step(nullptr, 1) == DLROVER_E_INVALID);
    auto c = open_context();
    dlrover_save *s = nullptr, *second = nullptr;
    BOOST_TEST(dlrover_save_begin(c.get(), UINT64_MAX, 0, &s) == DLROVER_E_INVALID);
    BOOST_TEST(dlrover_save_begin(c.get(), 0, UINT64_MAX, &s) == DLROVER_E_INVALID);
    BOOST_REQUIRE(dlrover_save_begin(c.get(), 1, 100, &s) == DLROVER_OK);
    BOOST_TEST(dlrover_save_begin(c.get(), 2, 100, &second) == DLROVER_E_INVALID);
    float data[10] = {};
    auto chunk = floats("x", 10);
    BOOST_TEST(dlrover_save_add(s, nullptr, data, 40) == DLROVER_E_INVALID);
    BOOST_TEST(dlrover_save_add(s, &chunk, data, 39) == DLROVER_E_INVALID);
    BOOST_TEST(dlrover_save_add(s, &chunk, data, 40) == DLROVER_E_INVALID,
               "after a failure the save is over");
    BOOST_TEST(dlrover_save_commit(s) == DLROVER_E_INVALID);
    dlrover_restore *r = nullptr;
    BOOST_TEST(dlrover_restore_open(c.get(), &r) == DLROVER_E_NOT_FOUND);
    BOOST_TEST(dlrover_phase_begin(c.get(), nullptr) == DLROVER_E_INVALID);
    dlrover_save_abort(nullptr);
    dlrover_restore_close(nullptr);
    dlrover_close(nullptr);
}

BOOST_AUTO_TEST_CASE(each_bad_chunk_is_refused) {
    float data[16] = {};
    std::vector<std::function<void(dlrover_chunk &)>> faults{[](auto &c) { c.name = nullptr; },
                                                             [](auto &c) { c.name = ""; },
                                                             [](auto &c) { c.dtype = 18; },
                                                             [](auto &c) { c.ndim = 17; },
                                                             [](auto &c) { c.global_offset[0] = 11; },
                                                             [](auto &c) { c.local_shape[0] = UINT64_MAX; },
                                                             [](auto &c) { c.global_shape[0] = 9; }};
    for (auto &fault : faults) {
        auto c = open_context();
        dlrover_save *s = nullptr;
        BOOST_REQUIRE(dlrover_save_begin(c.get(), 1, 100, &s) == DLROVER_OK);
        auto chunk = floats("x", 10);
        fault(chunk);
        BOOST_TEST(dlrover_save_add(s, &chunk, data, 40) == DLROVER_E_INVALID);
        dlrover_save_abort(s);
    }
}

BOOST_AUTO_TEST_CASE(a_save_with_a_refused_part_is_given_up) {
    float data[10] = {};
    std::vector<char> ledger(65 << 10);
    auto good = floats("x", 10), nameless = floats(nullptr, 10);
    std::vector<std::function<int(dlrover_save *)>> faults{
        [&](auto *s) { return dlrover_save_add(s, nullptr, data, 40); },
        [&](auto *s) { return dlrover_save_add(s, &nameless, data, 40); },
        [&](auto *s) { return dlrover_save_add_many(s, 1, nullptr, nullptr, nullptr); },
        [&](auto *s) { return dlrover_save_skeleton(s, nullptr, 1); },
        [&](auto *s) { return dlrover_save_ledger(s, nullptr, 1); },
        [&](auto *s) { return dlrover_save_ledger(s, ledger.data(), ledger.size()); }};
    auto c = open_context();
    for (auto &fault : faults) {
        dlrover_save *s = nullptr;
        BOOST_REQUIRE(dlrover_save_begin(c.get(), 1, 100, &s) == DLROVER_OK);
        BOOST_TEST(fault(s) == DLROVER_E_INVALID);
        BOOST_TEST(dlrover_save_add(s, &good, data, 40) == DLROVER_E_INVALID);
        BOOST_TEST(dlrover_save_commit(s) == DLROVER_E_INVALID);
        BOOST_TEST(std::string(dlrover_error_text()) ==
                   "an earlier part of this save failed: it is given up");
        dlrover_restore *r = nullptr;
        BOOST_TEST(dlrover_restore_open(c.get(), &r) == DLROVER_E_NOT_FOUND);
    }
    BOOST_TEST(save_step(c.get(), 1) == DLROVER_OK);
    BOOST_TEST(check_restored(c.get()) == 1);
}

BOOST_AUTO_TEST_CASE(a_bound_that_was_too_small_says_what_is_needed) {
    auto c = open_context();
    dlrover_save *s = nullptr;
    BOOST_REQUIRE(dlrover_save_begin(c.get(), 1, 100, &s) == DLROVER_OK);
    std::vector<float> data(1 << 20);
    auto chunk = floats("x", data.size());
    BOOST_TEST(dlrover_save_add(s, &chunk, data.data(), data.size() * 4) == DLROVER_E_NO_MEMORY);
    BOOST_TEST(std::string(dlrover_error_text()).find("needs at least 4.0 MiB") != std::string::npos,
               dlrover_error_text());
    dlrover_save_abort(s);
}

namespace {

/// The code of a save of `count` chunks of as many bytes, whose bound tells of the data alone.
int save_uncounted(dlrover_context *c, std::size_t count, const std::vector<float> &data,
                   std::size_t skeleton_bytes) {
    dlrover_save *s = nullptr;
    std::uint64_t bytes = data.size() * sizeof(float);
    if (int code = dlrover_save_begin(c, 1, count * bytes, &s); code != DLROVER_OK) return code;
    std::string skeleton(skeleton_bytes, ' ');
    int code = dlrover_save_skeleton(s, skeleton.data(), skeleton.size());
    for (std::size_t i = 0; i < count && code == DLROVER_OK; ++i) {
        std::string name = "w" + std::to_string(10 + i);
        auto chunk = floats(name.c_str(), data.size());
        code = dlrover_save_add(s, &chunk, data.data(), bytes);
    }
    if (code == DLROVER_OK) return dlrover_save_commit(s);
    dlrover_save_abort(s);
    return code;
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_hashes_of_blocks_take_nothing_of_what_a_bound_leaves_for_the_table) {
    constexpr std::uint64_t block_floats = (1 << 20) / sizeof(float);
    const std::vector<float> tiny(16), two_blocks(block_floats + 16), eight_blocks(8 * block_floats);
    for (std::size_t count : {1, 40}) {
        // As much else as just fits beside chunks that have no hashes besides their checksums.
        std::size_t fits = 1 << 19, too_many = 1 << 20;
        while (too_many - fits > 1) {
            std::size_t middle = (fits + too_many) / 2;
            int code = save_uncounted(open_context().get(), count, tiny, middle);
            (code == DLROVER_OK ? fits : too_many) = middle;
        }
        for (const auto &data : {two_blocks, eight_blocks})
            BOOST_TEST(save_uncounted(open_context().get(), count, data, fits) == DLROVER_OK,
                       count << " of " << data.size() << ": " << dlrover_error_text());
    }
}

BOOST_AUTO_TEST_CASE(environment_that_makes_no_sense_is_named) {
    dlrover_context *c = nullptr;
    for (auto [name, value] :
         {std::pair("RANK", "x"), {"WORLD_SIZE", "0"}, {"DLROVER_COPY_THREADS", "0"}, {"RANK", "1"}}) {
        ::setenv(name, value, 1);
        BOOST_TEST(dlrover_open(&c) == DLROVER_E_INVALID);
        BOOST_TEST(std::string(dlrover_error_text()).find(name) != std::string::npos, dlrover_error_text());
        ::unsetenv(name);
    }
}

BOOST_AUTO_TEST_CASE(errors_are_told_per_thread) {
    BOOST_TEST(dlrover_open(nullptr) == DLROVER_E_INVALID);
    std::string here = dlrover_error_text(), there;
    std::thread([&] { there = dlrover_error_text(); }).join();
    BOOST_TEST(here != there);
    BOOST_TEST(std::string(dlrover_version()) != "");
}

BOOST_AUTO_TEST_CASE(zero_bytes_and_zero_dimensions) {
    auto c = open_context();
    dlrover_save *s = nullptr;
    BOOST_REQUIRE(dlrover_save_begin(c.get(), 0, 100, &s) == DLROVER_OK);
    auto empty = floats("empty", 0), scalar = floats("scalar", 0);
    scalar.ndim = 0;
    float value = 2.5f;
    BOOST_TEST(dlrover_save_add(s, &empty, nullptr, 0) == DLROVER_OK);
    BOOST_TEST(dlrover_save_add(s, &scalar, &value, 4) == DLROVER_OK);
    BOOST_TEST(dlrover_save_add_many(s, 0, nullptr, nullptr, nullptr) == DLROVER_OK);
    BOOST_TEST(dlrover_save_commit(s) == DLROVER_OK);
    dlrover_restore *raw = nullptr;
    BOOST_REQUIRE(dlrover_restore_open(c.get(), &raw) == DLROVER_OK);
    Restore r(raw);
    BOOST_TEST(dlrover_restore_count(raw) == 2u);
    BOOST_TEST(dlrover_restore_step(raw) == 0);
    dlrover_chunk chunk;
    const void *data;
    std::uint64_t bytes;
    BOOST_REQUIRE(dlrover_restore_find(raw, "scalar", &chunk, &data, &bytes) == DLROVER_OK);
    BOOST_TEST(*static_cast<const float *>(data) == 2.5f);
    BOOST_TEST(dlrover_restore_chunk(raw, 2, &chunk, &data, &bytes) == DLROVER_E_NOT_FOUND);
    BOOST_TEST(dlrover_restore_find(raw, "other", &chunk, &data, &bytes) == DLROVER_E_NOT_FOUND);
    const char *json;
    BOOST_REQUIRE(dlrover_restore_skeleton(raw, &json, &bytes) == DLROVER_OK);
    BOOST_TEST(bytes == 0u);
}

BOOST_AUTO_TEST_SUITE_END()
