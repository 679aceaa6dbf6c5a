// SPDX-License-Identifier: Apache-2.0
// The C interface against a daemon that restarts, refuses and forgets.
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <fstream>
#include <functional>
#include <thread>

#include "dying_daemon.h"
#include "lib_fake_daemon.h"
#include "lib_fixture.h"

using namespace dlrover;
using namespace dlrover::test;
using namespace std::chrono_literals;
using Fault = FakeDaemon::Fault;

namespace {

struct Managed : Environment {
    FakeDaemon daemon;
    Managed() { manage(daemon.socket_path()); }
};

/// A save whose copy is done and whose commit is still to come.
dlrover_save *begin_and_copy(dlrover_context *c, std::uint64_t step) {
    dlrover_save *s = nullptr;
    BOOST_REQUIRE_MESSAGE(dlrover_save_begin(c, step, 4400, &s) == DLROVER_OK, dlrover_error_text());
    auto a = numbers(1000, static_cast<float>(step)), b = numbers(100, 7);
    auto ca = floats("a", 1000), cb = floats("b", 100);
    BOOST_REQUIRE(dlrover_save_add(s, &ca, a.data(), 4000) == DLROVER_OK);
    BOOST_REQUIRE(dlrover_save_add(s, &cb, b.data(), 400) == DLROVER_OK);
    BOOST_REQUIRE(dlrover_save_ledger(s, &step, sizeof step) == DLROVER_OK);
    return s;
}

/// Parts of slots that this process can write into.
std::size_t writable_segments() {
    std::ifstream maps("/proc/self/maps");
    std::size_t count = 0;
    for (std::string line; std::getline(maps, line);)
        count += line.find("memfd:segment") != std::string::npos && line.find(" rw") != std::string::npos;
    return count;
}

/// Slot 0 is read meanwhile, and the two others have steps 2 and 3.
void skip_step_4(dlrover_context *c) {
    BOOST_TEST(save_step(c, 1) == DLROVER_OK);
    dlrover_restore *r = nullptr;
    BOOST_REQUIRE(dlrover_restore_open(c, &r) == DLROVER_OK);
    for (std::uint64_t step : {2, 3}) BOOST_TEST(save_step(c, step) == DLROVER_OK);
    BOOST_TEST(save_step(c, 4) == DLROVER_E_SKIPPED, "no slot");
    dlrover_restore_close(r);
}

void give_up_step(dlrover_context *c, std::uint64_t step) {
    dlrover_save *s = nullptr;
    BOOST_REQUIRE(dlrover_save_begin(c, step, 1000, &s) == DLROVER_OK);
    dlrover_save_abort(s);
}

bool wait_until(const std::function<bool()> &condition) {
    for (int i = 0; i < 500; ++i) {
        if (condition()) return true;
        std::this_thread::sleep_for(10ms);
    }
    return false;
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(lib_daemon, Managed)

BOOST_AUTO_TEST_CASE(save_and_restore) {
    auto c = open_context();
    dlrover_restore *none = nullptr;
    BOOST_TEST(dlrover_restore_open(c.get(), &none) == DLROVER_E_NOT_FOUND);
    for (std::uint64_t step : {1u, 2u, 3u, 4u, 5u}) BOOST_TEST(save_step(c.get(), step) == DLROVER_OK);
    BOOST_TEST(check_restored(c.get()) == 5);
    c.reset();
    auto again = open_context();
    dlrover_world world;
    BOOST_REQUIRE(dlrover_get_world(again.get(), &world) == DLROVER_OK);
    BOOST_TEST(world.restore_step == 5);
    BOOST_TEST(world.managed == 1);
    BOOST_TEST(world.generation_term == 4294967297u);
    BOOST_TEST(world.generation_number == 3u);
    BOOST_TEST(check_restored(again.get()) == 5);
    BOOST_TEST(wait_until([&] { return daemon.last_restore_done().ok; }));
}

BOOST_AUTO_TEST_CASE(a_save_is_marked_for_storage) {
    daemon.storage_told = true;
    auto c = open_context();
    dlrover_save *s = begin_and_copy(c.get(), 1);
    BOOST_TEST(dlrover_save_to_storage(s) == DLROVER_OK);
    BOOST_TEST(dlrover_save_commit(s) == DLROVER_OK);
    BOOST_TEST(save_step(c.get(), 2) == DLROVER_OK);
    for (const auto &seal : daemon.sealed()) BOOST_TEST(seal.to_storage == (seal.train_step == 1));
}

BOOST_AUTO_TEST_CASE(without_a_folder_a_save_can_not_go_to_storage) {
    auto c = open_context();
    dlrover_save *s = begin_and_copy(c.get(), 1);
    BOOST_TEST(dlrover_save_to_storage(s) == DLROVER_E_UNSUPPORTED);
    BOOST_TEST(std::string(dlrover_error_text()).find("--dlrover-ckpt-dir") != std::string::npos);
    // In memory all the same, if the program wants that.
    BOOST_TEST(dlrover_save_commit(s) == DLROVER_OK);
    BOOST_REQUIRE(daemon.sealed().size() == 1u);
    BOOST_TEST(!daemon.sealed()[0].to_storage);
    BOOST_TEST(dlrover_save_to_storage(nullptr) == DLROVER_E_INVALID);
}

BOOST_AUTO_TEST_CASE(restore_then_save_into_every_slot) {
    auto c = open_context();
    BOOST_TEST(save_step(c.get(), 1) == DLROVER_OK);
    c.reset();
    c = open_context();
    BOOST_TEST(check_restored(c.get()) == 1);
    for (std::uint64_t step = 2; step < 9; ++step) {
        BOOST_TEST(save_step(c.get(), step) == DLROVER_OK);
        BOOST_TEST(check_restored(c.get()) == static_cast<std::int64_t>(step));
    }
    BOOST_TEST(daemon.count(local::Body::WorkerHello) == 2u, "no reconnection was needed");
}

BOOST_AUTO_TEST_CASE(a_slot_that_grows_over_several_segments) {
    auto c = open_context();
    for (std::uint64_t step = 1; step <= 6; ++step) {
        std::size_t count = step * 400000;
        BOOST_TEST(save_step(c.get(), step, count) == DLROVER_OK);
        BOOST_TEST(check_restored(c.get(), count) == static_cast<std::int64_t>(step));
    }
}

BOOST_AUTO_TEST_CASE(prepared_slots_are_mapped_before_they_are_granted) {
    auto c = open_context();
    BOOST_REQUIRE(dlrover_prepare(c.get(), 3 << 20) == DLROVER_OK);
    for (std::uint64_t step = 1; step <= 2; ++step) BOOST_TEST(save_step(c.get(), step) == DLROVER_OK);
    BOOST_REQUIRE(dlrover_prepare(c.get(), 9 << 20) == DLROVER_OK);  // the free slot grows
    for (std::uint64_t step = 3; step <= 8; ++step) {
        BOOST_TEST(save_step(c.get(), step, step * 300000) == DLROVER_OK);
        BOOST_TEST(check_restored(c.get(), step * 300000) == static_cast<std::int64_t>(step));
    }
    BOOST_TEST(daemon.count(local::Body::WorkerHello) == 1u, "no descriptor was missed");
    BOOST_REQUIRE(dlrover_prepare(c.get(), 1 << 20) == DLROVER_OK);
    BOOST_TEST(save_step(c.get(), 9) == DLROVER_OK);
}

BOOST_AUTO_TEST_CASE(no_free_slot_is_a_skipped_save) {
    daemon.refuse(local::Body::Prepare, local::Refusal::NoMemory, "quota");
    auto c = open_context();
    BOOST_TEST(dlrover_prepare(c.get(), 1 << 20) == DLROVER_E_NO_MEMORY);
    BOOST_TEST(std::string(dlrover_error_text()) == "quota");
    BOOST_TEST(save_step(c.get(), 1) == DLROVER_OK);
    dlrover_restore *r = nullptr;
    BOOST_REQUIRE(dlrover_restore_open(c.get(), &r) == DLROVER_OK);
    // Slot 0 is read; 1 and 2 are free.
    BOOST_TEST(save_step(c.get(), 2) == DLROVER_OK);
    BOOST_TEST(save_step(c.get(), 3) == DLROVER_OK);
    BOOST_TEST(save_step(c.get(), 4) == DLROVER_E_SKIPPED, "the daemon offers the slot that we still read");
    BOOST_TEST(daemon.page()->saves_skipped.load() == 1u);
    BOOST_TEST(daemon.page()->saves_done.load() == 3u);
    BOOST_TEST(wait_until([&] { return daemon.granted() == 0; }));
    BOOST_TEST(dlrover_save_wait(c.get(), 50) == DLROVER_OK);
    BOOST_TEST(save_step(c.get(), 5) == DLROVER_E_SKIPPED, "nor in 50 ms");
    BOOST_TEST(daemon.page()->saves_skipped.load() == 2u, "one save, however often it asked");
    BOOST_TEST(dlrover_save_wait(c.get(), 60000) == DLROVER_OK);
    std::thread reader([r] { dlrover_restore_close(r); });  // the waiting save does not keep it out
    BOOST_TEST(save_step(c.get(), 6) == DLROVER_OK);
    reader.join();
    BOOST_TEST(daemon.page()->saves_skipped.load() == 2u);
    BOOST_TEST(dlrover_save_wait(nullptr, 1) == DLROVER_E_INVALID);
}

// The other ranks have what the step was at first, and this one would add what it is now.
BOOST_AUTO_TEST_CASE(a_step_that_was_skipped_is_not_saved_later) {
    ::setenv("RANK", "0", 1);
    ::setenv("WORLD_SIZE", "2", 1);
    auto c = open_context();
    skip_step_4(c.get());
    auto asked = daemon.count(local::Body::BeginSave);
    BOOST_TEST(dlrover_save_wait(c.get(), 60000) == DLROVER_OK);
    BOOST_TEST(save_step(c.get(), 4) == DLROVER_E_SKIPPED, "and at once");
    BOOST_TEST(std::string(dlrover_error_text()).find("has skipped step 4") != std::string::npos);
    BOOST_TEST(daemon.count(local::Body::BeginSave) == asked);
    BOOST_TEST(daemon.page()->saves_skipped.load() == 2u);
    BOOST_TEST(save_step(c.get(), 5) == DLROVER_OK);
    for (int i = 0; i < 2; ++i) BOOST_TEST(save_step(c.get(), 7) == DLROVER_OK, "it was saved");
}

// A save that was begun, and failed.
BOOST_AUTO_TEST_CASE(a_step_that_was_given_up_is_not_saved_later) {
    ::setenv("RANK", "0", 1);
    ::setenv("WORLD_SIZE", "2", 1);
    auto c = open_context();
    give_up_step(c.get(), 1);
    BOOST_TEST(save_step(c.get(), 1) == DLROVER_E_SKIPPED);
    BOOST_TEST(std::string(dlrover_error_text()).find("given it up") != std::string::npos);
    daemon.refuse(local::Body::BeginSave, local::Refusal::Stale, "not now");
    BOOST_TEST(save_step(c.get(), 2) == DLROVER_E_STALE);
    daemon.allow(local::Body::BeginSave);
    BOOST_TEST(save_step(c.get(), 2) == DLROVER_E_SKIPPED);
    daemon.refuse(local::Body::Seal, local::Refusal::Stale, "the slot is not yours");
    BOOST_TEST(save_step(c.get(), 3) == DLROVER_E_STALE);
    daemon.allow(local::Body::Seal);
    BOOST_TEST(save_step(c.get(), 3) == DLROVER_E_SKIPPED);
    BOOST_TEST(save_step(c.get(), 4) == DLROVER_OK);
    give_up_step(c.get(), 4);
    BOOST_TEST(save_step(c.get(), 4) == DLROVER_OK, "its first save is there");
}

BOOST_AUTO_TEST_CASE(a_rank_alone_saves_a_step_that_it_had_skipped) {
    auto c = open_context();
    skip_step_4(c.get());
    give_up_step(c.get(), 5);
    BOOST_TEST(save_step(c.get(), 5) == DLROVER_OK);
    BOOST_TEST(save_step(c.get(), 4) == DLROVER_OK, "there is no other rank");
}

BOOST_AUTO_TEST_CASE(daemon_restarts_between_saves) {
    auto c = open_context();
    for (std::uint64_t step = 1; step < 6; ++step) {
        BOOST_TEST(save_step(c.get(), step) == DLROVER_OK);
        daemon.stop(true);
        daemon.start();
    }
    BOOST_TEST(check_restored(c.get()) == 5);
}

BOOST_AUTO_TEST_CASE(daemon_is_away_while_the_call_waits) {
    auto c = open_context();
    daemon.stop(true);
    DyingDaemon dying(daemon.socket_path());
    bool waiting = false;
    std::thread later([&] {
        waiting = dying.await_caller();
        daemon.start();
    });
    BOOST_TEST(save_step(c.get(), 1) == DLROVER_OK);
    later.join();
    BOOST_TEST(waiting);
    BOOST_TEST(check_restored(c.get()) == 1);
}

BOOST_AUTO_TEST_CASE(daemon_restarts_in_mid_save_and_keeps_the_grant) {
    auto c = open_context();
    auto *s = begin_and_copy(c.get(), 9);
    daemon.stop(true);
    daemon.start();
    BOOST_TEST(dlrover_save_commit(s) == DLROVER_OK);
    BOOST_TEST(check_restored(c.get()) == 9);
    BOOST_TEST(daemon.count(local::Body::BeginSave) == 1u);
}

BOOST_AUTO_TEST_CASE(daemon_restarts_in_mid_save_and_forgets_the_grant) {
    auto c = open_context();
    BOOST_TEST(save_step(c.get(), 8) == DLROVER_OK);
    auto *s = begin_and_copy(c.get(), 9);
    daemon.stop(false);
    daemon.start();
    BOOST_TEST(dlrover_save_commit(s) == DLROVER_OK);
    BOOST_TEST(check_restored(c.get()) == 9);
    BOOST_TEST(daemon.granted() == 0u);
}

BOOST_AUTO_TEST_CASE(daemon_loses_its_memory_in_mid_save) {
    auto c = open_context();
    BOOST_TEST(save_step(c.get(), 7) == DLROVER_OK);
    BOOST_TEST(save_step(c.get(), 8) == DLROVER_OK);
    auto *s = begin_and_copy(c.get(), 9);
    daemon.lose_memory();
    daemon.start();
    BOOST_TEST(dlrover_save_commit(s) == DLROVER_OK);
    BOOST_TEST(check_restored(c.get()) == 9);
    for (std::uint64_t step = 10; step < 14; ++step) BOOST_TEST(save_step(c.get(), step) == DLROVER_OK);
    BOOST_TEST(check_restored(c.get()) == 13);
}

BOOST_AUTO_TEST_CASE(prepared_anew_in_mid_save_by_a_daemon_that_lost_its_memory) {
    auto c = open_context();
    BOOST_TEST(save_step(c.get(), 8) == DLROVER_OK);
    auto *s = begin_and_copy(c.get(), 9);
    daemon.lose_memory();
    daemon.start();
    BOOST_TEST(dlrover_prepare(c.get(), 3 << 20) == DLROVER_OK);
    BOOST_TEST(dlrover_save_commit(s) == DLROVER_OK);
    BOOST_TEST(check_restored(c.get()) == 9);
    BOOST_TEST(save_step(c.get(), 10) == DLROVER_OK);
    BOOST_TEST(check_restored(c.get()) == 10);
}

BOOST_AUTO_TEST_CASE(connection_breaks_before_and_after_each_message) {
    for (auto kind :
         {local::Body::BeginSave, local::Body::Seal, local::Body::Restore, local::Body::WorkerHello})
        for (auto fault : {Fault::drop_before, Fault::drop_after}) {
            auto c = open_context();
            BOOST_TEST(save_step(c.get(), 1) == DLROVER_OK);
            if (kind == local::Body::WorkerHello) daemon.stop(true), daemon.start();
            daemon.fail_once(kind, fault);
            int code = save_step(c.get(), 2);
            BOOST_TEST(code == DLROVER_OK,
                       "save, kind " << static_cast<int>(kind) << ": " << dlrover_error_text());
            BOOST_TEST(check_restored(c.get()) == 2);
            BOOST_TEST(wait_until([&] { return daemon.granted() == 0; }), "a grant is left behind");
            daemon.lose_memory();
            daemon.start();
        }
}

BOOST_AUTO_TEST_CASE(a_grant_that_nobody_got_is_given_back) {
    auto c = open_context();
    auto *s = begin_and_copy(c.get(), 1);
    daemon.stop(true);
    dlrover_save_abort(s);
    daemon.start();
    BOOST_TEST(save_step(c.get(), 2) == DLROVER_OK);
    BOOST_TEST(daemon.granted() == 0u);
}

BOOST_AUTO_TEST_CASE(an_old_generation_is_told_to_end) {
    auto c = open_context();
    auto *s = begin_and_copy(c.get(), 1);
    daemon.refuse(local::Body::WorkerHello, local::Refusal::Stale, "generation 1.1.3 is over");
    daemon.stop(false);
    daemon.start();
    BOOST_TEST(dlrover_save_commit(s) == DLROVER_E_STALE);
    BOOST_TEST(std::string(dlrover_error_text()) == "generation 1.1.3 is over");
    BOOST_TEST(save_step(c.get(), 2) == DLROVER_E_STALE);
    dlrover_context *late = nullptr;
    BOOST_TEST(dlrover_open(&late) == DLROVER_E_STALE);
}

BOOST_AUTO_TEST_CASE(a_process_that_stays_goes_on_in_the_next_generation) {
    dlrover_context *c = open_context().release();
    float value = 7;
    BOOST_TEST(dlrover_next_generation(&c) == DLROVER_E_INVALID, "not said before");
    BOOST_REQUIRE(c != nullptr);
    BOOST_TEST(dlrover_stay(c) == DLROVER_OK);
    BOOST_TEST(dlrover_protect(c, 1, &value, 1, DLROVER_FLOAT32) == DLROVER_OK);
    BOOST_TEST(dlrover_checkpoint(c, 5) == DLROVER_OK);
    dlrover_save *s = begin_and_copy(c, 6);
    BOOST_TEST(dlrover_next_generation(&c) == DLROVER_E_INVALID, "a save is open");
    dlrover_save_abort(s);
    daemon.next_variables = {"DLROVER_GENERATION=4294967297:4", "TORCHELASTIC_RESTART_COUNT=9", "=nothing",
                             "", "GROUP_RANK"};
    ::setenv("GROUP_RANK", "0", 1);
    BOOST_REQUIRE_MESSAGE(dlrover_next_generation(&c) == DLROVER_OK, dlrover_error_text());
    dlrover_world world;
    BOOST_REQUIRE(dlrover_get_world(c, &world) == DLROVER_OK);
    BOOST_TEST(world.generation_number == 4u);
    BOOST_TEST(world.restart_count == 9u);
    BOOST_TEST(std::getenv("TORCHELASTIC_RESTART_COUNT") == std::string("9"));
    BOOST_TEST(std::getenv("GROUP_RANK") == nullptr);
    value = 0;
    BOOST_TEST(dlrover_restart(c) == DLROVER_OK);
    BOOST_TEST(value == 7, "what is protected stays so");
    daemon.refuse(local::Body::LeaveGeneration, local::Refusal::Stale, "the group is over");
    BOOST_TEST(dlrover_next_generation(&c) == DLROVER_E_STALE);
    BOOST_TEST(c == nullptr);
    BOOST_TEST(dlrover_next_generation(&c) == DLROVER_E_INVALID);
}

BOOST_AUTO_TEST_CASE(a_stale_seal_on_the_same_connection_is_final) {
    auto c = open_context();
    auto *s = begin_and_copy(c.get(), 1);
    daemon.refuse(local::Body::Seal, local::Refusal::Stale, "this generation is over");
    BOOST_TEST(dlrover_save_commit(s) == DLROVER_E_STALE);
    BOOST_TEST(daemon.count(local::Body::Seal) == 1u);
}

BOOST_AUTO_TEST_CASE(no_daemon_is_unavailable_after_the_deadline) {
    ::setenv("DLROVER_TIMEOUT_MS", "200", 1);
    daemon.stop(true);
    auto begun = std::chrono::steady_clock::now();
    dlrover_context *c = nullptr;
    BOOST_TEST(dlrover_open(&c) == DLROVER_E_UNAVAILABLE);
    auto took = std::chrono::steady_clock::now() - begun;
    BOOST_TEST((took < 2s));
    BOOST_TEST((took >= 100ms));
}

BOOST_AUTO_TEST_CASE(what_is_fetched_is_waited_for_longer_than_for_an_answer) {
    ::setenv("DLROVER_TIMEOUT_MS", "200", 1);
    auto c = open_context();
    BOOST_REQUIRE(save_step(c.get(), 5) == DLROVER_OK);
    daemon.fetch_for(1s);
    auto begun = std::chrono::steady_clock::now();
    BOOST_TEST(check_restored(c.get()) == 5);
    BOOST_TEST((std::chrono::steady_clock::now() - begun >= 900ms));
    // A daemon that comes back while it fetches is found again.
    daemon.fetch_for(600ms);
    std::thread restart([&] {
        wait_until([&, asked = daemon.count(local::Body::Restore)] {
            return daemon.count(local::Body::Restore) > asked + 1;
        });
        daemon.stop(true);
        daemon.start();
    });
    BOOST_TEST(check_restored(c.get()) == 5);
    restart.join();
}

BOOST_AUTO_TEST_CASE(a_fetch_that_fails_ends_the_wait_with_the_daemons_reason) {
    ::setenv("DLROVER_TIMEOUT_MS", "200", 1);
    auto c = open_context();
    BOOST_REQUIRE(save_step(c.get(), 5) == DLROVER_OK);
    daemon.fetch_for(1h);
    std::thread fails([&] {
        wait_until([&] { return daemon.count(local::Body::Restore) > 2; });
        daemon.refuse(local::Body::Restore, local::Refusal::Internal, "step 5 could not be fetched");
    });
    dlrover_restore *restore = nullptr;
    BOOST_TEST(dlrover_restore_open(c.get(), &restore) != DLROVER_OK);
    BOOST_TEST(std::string(dlrover_error_text()).find("step 5 could not be fetched") != std::string::npos);
    fails.join();
}

BOOST_AUTO_TEST_CASE(a_daemon_that_falls_silent_while_it_fetches_is_not_waited_for) {
    ::setenv("DLROVER_TIMEOUT_MS", "200", 1);
    auto c = open_context();
    BOOST_REQUIRE(save_step(c.get(), 5) == DLROVER_OK);
    daemon.fetch_for(1h);
    dlrover_restore *restore = nullptr;
    std::thread falls_silent([&, asked = daemon.count(local::Body::Restore)] {
        wait_until([&] { return daemon.count(local::Body::Restore) > asked + 1; });
        daemon.stop(true);
    });
    auto begun = std::chrono::steady_clock::now();
    BOOST_TEST(dlrover_restore_open(c.get(), &restore) == DLROVER_E_UNAVAILABLE);
    BOOST_TEST((std::chrono::steady_clock::now() - begun < 5s));
    falls_silent.join();
}

BOOST_AUTO_TEST_CASE(corruption_is_found_wherever_it_is) {
    auto c = open_context();
    BOOST_REQUIRE(save_step(c.get(), 1, 300000) == DLROVER_OK);
    auto seal = daemon.sealed().at(0);
    std::vector<std::uint64_t> places{0,
                                      600000,
                                      1048576,
                                      1199999,
                                      seal.data_bytes - 1,
                                      seal.table_offset,
                                      seal.table_offset + seal.table_bytes / 2,
                                      seal.table_offset + seal.table_bytes - 1};
    for (std::uint64_t at : places) {
        daemon.flip(seal.slot, at);
        dlrover_restore *r = nullptr;
        BOOST_TEST(dlrover_restore_open(c.get(), &r) == DLROVER_E_CORRUPT, "byte " << at);
        BOOST_TEST(wait_until([&] { return !daemon.last_restore_done().text.empty(); }));
        BOOST_TEST(!daemon.last_restore_done().ok);
        BOOST_TEST(daemon.last_restore_done().damaged == 0, "byte " << at);
        daemon.flip(seal.slot, at);
    }
    BOOST_TEST(check_restored(c.get(), 300000) == 1);
}

BOOST_AUTO_TEST_CASE(what_was_verified_is_not_read_again) {
    auto c = open_context();
    BOOST_REQUIRE(save_step(c.get(), 1, 300000) == DLROVER_OK);
    auto seal = daemon.sealed().at(0);
    daemon.verified_told = true;
    BOOST_TEST(check_restored(c.get(), 300000) == 1);
    BOOST_TEST(writable_segments() == 0u, "until a save gets the slot");
    daemon.flip(seal.slot, 600000);  // since then: nobody would see it
    dlrover_restore *r = nullptr;
    BOOST_REQUIRE(dlrover_restore_open(c.get(), &r) == DLROVER_OK);
    dlrover_restore_close(r);
    daemon.flip(seal.slot, seal.table_offset);
    BOOST_TEST(dlrover_restore_open(c.get(), &r) == DLROVER_E_CORRUPT, "tables are looked at each time");
    daemon.flip(seal.slot, seal.table_offset);
    daemon.verified_told = false;
    BOOST_TEST(dlrover_restore_open(c.get(), &r) == DLROVER_E_CORRUPT);
    for (std::uint64_t step = 2; step < 6; ++step)
        BOOST_REQUIRE(save_step(c.get(), step, 300000) == DLROVER_OK);
    BOOST_TEST(check_restored(c.get(), 300000) == 5);
}

BOOST_AUTO_TEST_CASE(another_lineage_or_world_is_not_restored) {
    auto c = open_context();
    BOOST_REQUIRE(save_step(c.get(), 1) == DLROVER_OK);
    ::setenv("DLROVER_LINEAGE", "test/other", 1);
    auto other = open_context();
    dlrover_restore *r = nullptr;
    BOOST_TEST(dlrover_restore_open(other.get(), &r) == DLROVER_E_CORRUPT);
    BOOST_TEST(std::string(dlrover_error_text()).find("another lineage") != std::string::npos);
    BOOST_TEST(wait_until([&] { return !daemon.last_restore_done().text.empty(); }));
    BOOST_TEST(daemon.last_restore_done().damaged == -1, "it is whole, and stays");
    ::setenv("DLROVER_LINEAGE", "test/lineage", 1);
    ::setenv("RANK", "0", 1);
    ::setenv("WORLD_SIZE", "2", 1);
    auto larger = open_context();
    BOOST_TEST(dlrover_restore_open(larger.get(), &r) == DLROVER_E_UNSUPPORTED);
}

BOOST_AUTO_TEST_CASE(a_forked_child_has_nothing) {
    auto c = open_context();
    BOOST_REQUIRE(save_step(c.get(), 1) == DLROVER_OK);
    dlrover_restore *r = nullptr;
    BOOST_REQUIRE(dlrover_restore_open(c.get(), &r) == DLROVER_OK);
    int event_fd = dlrover_event_fd(c.get());
    BOOST_REQUIRE(event_fd >= 0);
    pid_t child = ::fork();
    if (child == 0) {
        dlrover_chunk chunk;
        const void *data;
        std::uint64_t bytes;
        dlrover_world world;
        dlrover_context *mine = nullptr;
        bool right = dlrover_get_world(c.get(), &world) == DLROVER_E_FORKED &&
                     save_step(c.get(), 2) == DLROVER_E_FORKED &&
                     dlrover_report_step(c.get(), 1) == DLROVER_E_FORKED &&
                     dlrover_restore_chunk(r, 0, &chunk, &data, &bytes) == DLROVER_E_FORKED &&
                     dlrover_open(&mine) == DLROVER_E_FORKED && ::fcntl(event_fd, F_GETFD) == -1;
        dlrover_restore_close(r);
        dlrover_close(c.get());
        // No memfd and no socket of ours.
        for (auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) {
            std::error_code error;
            auto target = std::filesystem::read_symlink(entry.path(), error).string();
            if (target.find("timerfd") != std::string::npos) right = false;
        }
        std::ifstream maps("/proc/self/maps");
        for (std::string line; std::getline(maps, line);)
            if (line.find("memfd:segment") != std::string::npos) right = false;
        ::_exit(right ? 0 : 1);
    }
    int status = 0;
    BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
    BOOST_TEST(status == 0);
    dlrover_restore_close(r);
    BOOST_TEST(save_step(c.get(), 2) == DLROVER_OK);
    BOOST_TEST(check_restored(c.get()) == 2);
}

BOOST_AUTO_TEST_CASE(the_socket_does_not_live_on_in_a_child) {
    auto c = open_context();
    pid_t child = ::fork();
    if (child == 0) {
        ::pause();
        ::_exit(0);
    }
    BOOST_TEST(daemon.connections() == 1u);
    c.reset();
    BOOST_TEST(wait_until([&] { return daemon.connections() == 0; }), "the child keeps the connection open");
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
}

BOOST_AUTO_TEST_CASE(events_come_through_the_descriptor_also_after_a_restart) {
    auto c = open_context();
    dlrover_event e;
    BOOST_TEST(dlrover_next_event(c.get(), &e) == DLROVER_E_NOT_FOUND);
    int fd = dlrover_event_fd(c.get());
    auto readable = [&] {
        pollfd p{fd, POLLIN, 0};
        return ::poll(&p, 1, 0) == 1;
    };
    auto next = [&] { return dlrover_next_event(c.get(), &e); };
    BOOST_TEST(!readable());
    daemon.push_event(proto::EventKind::WorkerFailed, "Rank 1 failed.");
    BOOST_REQUIRE(wait_until(readable));
    BOOST_REQUIRE(next() == DLROVER_OK);
    BOOST_TEST(e.kind == DLROVER_EVENT_OTHER);
    BOOST_TEST(e.rank == 1);
    BOOST_TEST(std::string(e.text) == "Rank 1 failed.");
    BOOST_TEST(next() == DLROVER_E_NOT_FOUND);
    // A push that arrives together with an answer is seen too.
    daemon.push_event(proto::EventKind::CheckpointComplete, "Step 1 is complete.");
    BOOST_TEST(save_step(c.get(), 1) == DLROVER_OK);
    BOOST_TEST(wait_until(readable));
    BOOST_REQUIRE(next() == DLROVER_OK);
    BOOST_TEST(e.kind == DLROVER_EVENT_CHECKPOINT_COMPLETE);
    daemon.stop(true);
    BOOST_REQUIRE(wait_until(readable));
    BOOST_TEST(next() == DLROVER_E_NOT_FOUND);
    daemon.start();
    BOOST_TEST(wait_until([&] {
        return readable() && next() == DLROVER_E_NOT_FOUND && daemon.count(local::Body::Subscribe) == 2;
    }));
    daemon.push_event(proto::EventKind::WorldPublished, "A new world.");
    BOOST_REQUIRE(wait_until([&] { return readable() && next() == DLROVER_OK; }));
    BOOST_TEST(e.kind == DLROVER_EVENT_NEW_GENERATION);
}

BOOST_AUTO_TEST_CASE(whoever_has_the_descriptor_has_subscribed) {
    auto c = open_context();
    BOOST_REQUIRE(dlrover_event_fd(c.get()) >= 0);
    BOOST_TEST(daemon.count(local::Body::Subscribe) == 1u);
}

BOOST_AUTO_TEST_CASE(who_subscribes_while_the_daemon_is_away_hears_what_comes_after) {
    ::setenv("DLROVER_TIMEOUT_MS", "200", 1);
    auto c = open_context();
    daemon.stop(true);
    int fd = dlrover_event_fd(c.get());
    BOOST_REQUIRE(fd >= 0);
    dlrover_event e;
    BOOST_TEST(dlrover_next_event(c.get(), &e) == DLROVER_E_NOT_FOUND);
    daemon.start();
    auto next = [&] {
        pollfd p{fd, POLLIN, 0};
        return ::poll(&p, 1, 0) == 1 ? dlrover_next_event(c.get(), &e) : DLROVER_E_NOT_FOUND;
    };
    BOOST_REQUIRE(
        wait_until([&] { return next() != DLROVER_OK && daemon.count(local::Body::Subscribe) == 1; }));
    daemon.push_event(proto::EventKind::WorkerFailed, "Rank 1 failed.");
    BOOST_REQUIRE(wait_until([&] { return next() == DLROVER_OK; }));
    BOOST_TEST(std::string(e.text) == "Rank 1 failed.");
}

BOOST_AUTO_TEST_CASE(events_say_what_happens_to_the_group) {
    using Kind = local::PmixEventKind;
    auto c = open_context();
    BOOST_REQUIRE(dlrover_event_fd(c.get()) >= 0);
    daemon.push_happened(Kind::RankLost, 3);
    daemon.push_happened(Kind::NodeLost, 0);
    daemon.push_happened(Kind::NodeLost, 9);  // of another world
    daemon.push_happened(Kind::None, 1);
    daemon.push_happened(Kind::StepSafe, 40);
    daemon.push_happened(Kind::StepDurable, 30);
    daemon.push_happened(Kind::AllocationChanged, 5);
    daemon.push_happened(Kind::Draining, 119);
    daemon.push_stop("n1 lost");
    std::vector<std::string> heard;
    dlrover_event e;
    BOOST_TEST(wait_until([&] {
        while (dlrover_next_event(c.get(), &e) == DLROVER_OK) {
            BOOST_TEST(e.generation_term == 1u);
            BOOST_TEST(e.generation_number == 2u);
            heard.push_back(std::to_string(e.kind) + " " + std::to_string(e.rank) + " " +
                            std::to_string(e.train_step) + " " + e.node + ": " + e.text);
        }
        return heard.size() == 7u;
    }));
    auto line = [](dlrover_event_kind kind, const char *rest) { return std::to_string(kind) + " " + rest; };
    std::vector<std::string> expected{
        line(DLROVER_EVENT_RANK_LOST, "3 -1 n2: rank 3 is lost"),
        line(DLROVER_EVENT_NODE_LOST, "-1 -1 n1: node n1 is lost"),
        line(DLROVER_EVENT_CHECKPOINT_SAFE, "-1 40 : the checkpoint of step 40 is safe on other nodes"),
        line(DLROVER_EVENT_CHECKPOINT_DURABLE, "-1 30 : the checkpoint of step 30 is on storage"),
        line(DLROVER_EVENT_ALLOCATION_CHANGED, "-1 -1 : the group has 5 nodes now"),
        line(DLROVER_EVENT_DRAINING, "-1 -1 : Slurm ends the job in 119 s"),
        line(DLROVER_EVENT_GENERATION_ENDS, "-1 -1 : n1 lost")};
    BOOST_TEST(heard == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(progress_is_on_the_page) {
    auto c = open_context();
    auto *page = daemon.page();
    BOOST_TEST(page->magic.load() == proto::progress_magic);
    BOOST_TEST((page->phase.load() == proto::Phase::startup));
    BOOST_TEST(dlrover_report_step(c.get(), 41) == DLROVER_OK);
    BOOST_TEST(page->step_plus_one.load() == 42u);
    BOOST_TEST(page->steps_done.load() == 1u);
    BOOST_TEST(page->first_step_ns.load() == page->last_step_ns.load());
    BOOST_TEST(page->step_sum_ns.load() == 0u);
    BOOST_TEST(dlrover_phase_begin(c.get(), "eval") == DLROVER_OK);
    BOOST_TEST(dlrover_phase_begin(c.get(), "inner") == DLROVER_OK);
    BOOST_TEST(dlrover_phase_end(c.get()) == DLROVER_OK);
    BOOST_TEST((page->phase.load() == proto::Phase::declared));
    std::this_thread::sleep_for(30ms);  // not waited for: it is what is measured
    BOOST_TEST(dlrover_phase_end(c.get()) == DLROVER_OK);
    BOOST_TEST((page->phase.load() == proto::Phase::step));
    BOOST_TEST(dlrover_phase_end(c.get()) == DLROVER_E_INVALID);
    auto *s = begin_and_copy(c.get(), 41);
    BOOST_TEST((page->phase.load() == proto::Phase::saving));
    BOOST_TEST(dlrover_save_commit(s) == DLROVER_OK);
    BOOST_TEST((page->phase.load() == proto::Phase::step));
    BOOST_TEST(page->save_sum_ns.load() > 0u);
    BOOST_TEST(dlrover_report_step(c.get(), 42) == DLROVER_OK);
    std::uint64_t since = page->last_step_ns.load() - page->first_step_ns.load();
    BOOST_TEST(page->step_sum_ns.load() > 0u);
    BOOST_TEST(page->step_sum_ns.load() + page->save_sum_ns.load() + 30000000u <= since + 1000u,
               "time in save() and in declared phases is no step time");
    // The page goes on after a reconnection.
    daemon.stop(true);
    daemon.start();
    BOOST_TEST(save_step(c.get(), 43) == DLROVER_OK);
    BOOST_TEST(page->steps_done.load() == 2u);
    BOOST_TEST(page->saves_done.load() == 2u);
}

BOOST_AUTO_TEST_SUITE_END()
