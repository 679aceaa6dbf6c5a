// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "common/log.h"
#include "daemon/event_log.h"
#include "daemon/free_port.h"
#include "daemon/idle_ranks.h"
#include "daemon/memory_budget.h"
#include "daemon/merge.h"
#include "daemon/query_budget.h"
#include "daemon/standstill.h"
#include "daemon/summary.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace std::chrono_literals;
namespace local = proto::local;

namespace {

void add_events(EventLog &log, int count, proto::EventKind kind, const std::string &text) {
    for (int i = 0; i < count; ++i) {
        proto::EventT event;
        event.kind = kind;
        event.text = text;
        log.add(std::move(event));
    }
}

std::ptrdiff_t count_of(const EventLog &log, proto::EventKind kind) {
    return std::count_if(log.events().begin(), log.events().end(),
                         [&](const proto::EventT &e) { return e.kind == kind; });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(daemon_parts)

BOOST_AUTO_TEST_CASE(a_rank_is_idle_since_it_has_done_nothing) {
    IdleRanks ranks;
    auto did = [](auto processor, std::uint64_t bytes = 0, bool in_kernel = false) {
        return Activity{processor, bytes, in_kernel};
    };
    BOOST_TEST((ranks.idle_for(3, did(50s), 100s) == 0s));
    BOOST_TEST((ranks.idle_for(3, did(50s), 110s) == 10s));
    BOOST_TEST((ranks.idle_for(3, did(50s + 90ms, 600'000), 120s) == 20s), "threads that look around");
    BOOST_TEST((ranks.idle_for(3, did(51s), 130s) == 0s), "it computes");
    BOOST_TEST((ranks.idle_for(3, did(51s, 100'000), 140s) == 10s));
    BOOST_TEST((ranks.idle_for(3, did(51s, 2 << 20), 150s) == 0s), "it writes");
    BOOST_TEST((ranks.idle_for(3, did(51s, 2 << 20), 160s) == 10s));
    BOOST_TEST((ranks.idle_for(3, did(51s, 2 << 20, true), 170s) == 0s), "it waits for a disk");
    BOOST_TEST((ranks.idle_for(3, did(1s), 175s) == 0s), "another process");
    BOOST_TEST((ranks.idle_for(4, did(1s), 175s) == 0s));
    ranks.keep_only({4});
    BOOST_TEST((ranks.idle_for(3, did(1s), 185s) == 0s), "nobody waited for it meanwhile");
    BOOST_TEST((ranks.idle_for(4, did(1s), 185s) == 10s));
}

/// 3.2 s after a first look.
std::string said_of(Standstill::Time ran, Standstill::Time waited) {
    Standstill still;
    BOOST_TEST(!still.look(100s, ThreadTime{1s, 1s}), "nothing is known of before");
    BOOST_TEST(!still.look(100500ms, ThreadTime{1s, 1s}));
    BOOST_TEST(!still.look(101499ms, ThreadTime{1s, 1s}), "a little late");
    return still.look(104699ms, ThreadTime{1s + ran, 1s + waited}).value_or("");
}

BOOST_AUTO_TEST_CASE(a_daemon_that_stands_still_knows_what_held_it_up) {
    BOOST_TEST(said_of(0s, 3100ms) == "stood still for 3.2 s (no processor was free for it for 3.1 s)");
    BOOST_TEST(said_of(2500ms, 0s) == "stood still for 3.2 s (it was at work for 2.5 s of it)");
    BOOST_TEST(said_of(100ms, 100ms).find("stopped, or waited for memory") != std::string::npos);
    Standstill unknown;
    BOOST_TEST(!unknown.look(100s, std::nullopt));
    BOOST_TEST((unknown.look(102s, std::nullopt) == "stood still for 2.0 s"));
    auto now = own_thread_time();
    BOOST_TEST((!now || now->ran > 0us));
}

BOOST_AUTO_TEST_CASE(a_daemon_that_keeps_standing_still_says_so_once_a_minute) {
    Standstill still;
    Standstill::Time now = 100s;
    auto after = [&](Standstill::Time pause) { return still.look(now += pause, std::nullopt).value_or(""); };
    BOOST_TEST(after(0s) == "");
    BOOST_TEST(after(2s) == "stood still for 2.0 s");
    for (int i = 0; i < 28; ++i) BOOST_TEST(after(i == 5 ? 5s : 2s) == "");
    BOOST_TEST(after(2s) == "stood still 29 times more in a minute, once for 5.0 s");
    for (int i = 0; i < 119; ++i) BOOST_TEST(after(500ms) == "");
    BOOST_TEST(after(500ms) == "");
    BOOST_TEST(after(2s) == "stood still for 2.0 s", "after a quiet minute");
}

BOOST_AUTO_TEST_CASE(the_budget_knows_quota_and_floor) {
    std::uint64_t available = 1000;
    MemoryBudget budget({.user_quota_bytes = 500, .floor_bytes = 300}, [&] { return available; });
    BOOST_TEST(budget.check(1, {.bytes = 500}).ok());
    budget.add(1, {.bytes = 400});
    SharedFd segment = std::make_shared<const UniqueFd>(::memfd_create("test", MFD_CLOEXEC));
    BOOST_REQUIRE(::ftruncate(segment->get(), 400) == 0);
    budget.begin_filling(segment, 400);
    BOOST_TEST((budget.check(1, {.bytes = 101}).code() == Code::resource_exhausted));
    BOOST_TEST((budget.check(1, {.bytes = ~std::uint64_t{0}}).code() == Code::resource_exhausted));
    // 1000 - 300 - 400 that are promised but not touched yet.
    BOOST_TEST(budget.check(2, {.bytes = 300}).ok());
    BOOST_TEST((budget.check(2, {.bytes = 301}).code() == Code::resource_exhausted));
    available = 600;
    BOOST_REQUIRE(::posix_fallocate(segment->get(), 0, 400) == 0);
    BOOST_TEST(budget.check(2, {.bytes = 300}).ok(), "its page is there, whoever made it");
    budget.end_filling(segment);
    BOOST_TEST(budget.check(2, {.bytes = 300}).ok());
    BOOST_TEST(segment.use_count() == 1);
    budget.remove(1, {.bytes = 400});
    BOOST_TEST(budget.held(1).bytes == 0u);
    BOOST_TEST(budget.check(1, {.bytes = 300}).ok());
}

BOOST_AUTO_TEST_CASE(the_budget_knows_what_slurm_leaves_the_node) {
    MemoryBudget budget({.user_quota_bytes = 500, .floor_bytes = 0}, [] { return 1000; });
    BOOST_TEST(budget.check(1, {.bytes = 500, .node_bytes = 500}).ok(), "no limit is known");
    budget.limit_node(300);
    budget.add(1, {.bytes = 200, .node_bytes = 200});
    Status refused = budget.check(2, {.bytes = 101, .node_bytes = 101});
    BOOST_TEST((refused.code() == Code::resource_exhausted));
    BOOST_TEST(refused.message().find("MemSpecLimit") != std::string::npos, refused.message());
    BOOST_TEST(budget.check(2, {.bytes = 100, .node_bytes = 100}).ok());
    BOOST_TEST(budget.check(2, {.bytes = 400}).ok(), "what is a job's is not the node's");
    budget.remove(1, {.bytes = 200, .node_bytes = 200});
    BOOST_TEST(budget.check(2, {.bytes = 300, .node_bytes = 300}).ok());
}

BOOST_AUTO_TEST_CASE(the_budget_knows_each_users_share_of_the_records) {
    MemoryBudget budget({.user_quota_bytes = 500, .floor_bytes = 0, .user_segments = 30},
                        [] { return 1000; });
    budget.add(1, {.segments = 29, .workers = 9, .noted_bytes = 30 * 4096 - 10});
    for (auto more : {MemoryBudget::Holding{.segments = 1}, MemoryBudget::Holding{.workers = 1},
                      MemoryBudget::Holding{.noted_bytes = 10}}) {
        BOOST_TEST(budget.check(1, more).ok());
        budget.add(1, more);
        Status refused = budget.check(1, more);
        BOOST_TEST((refused.code() == Code::resource_exhausted));
        BOOST_TEST(refused.message().find("limits.segments_per_user") != std::string::npos,
                   refused.message());
        BOOST_TEST(budget.check(2, more).ok(), "others have their own");
    }
    BOOST_TEST(budget.check(1, {.bytes = 1}).ok(), "what is not asked for is not looked at");
    budget.remove(1, {.segments = 30, .workers = 10, .noted_bytes = 30 * 4096});
    BOOST_TEST((budget.held(1) == MemoryBudget::Holding{}));
}

BOOST_AUTO_TEST_CASE(questions_of_one_user_take_a_part_of_the_loops_time) {
    QueryBudget budget;
    auto now = QueryBudget::Time(1s);
    for (int i = 0; i < 5; ++i) {
        BOOST_TEST(budget.allows(1000, now));
        budget.spend(1000, 100ms, now);
    }
    BOOST_TEST(!budget.allows(1000, now));
    BOOST_TEST(budget.allows(1001, now), "others have their own");
    BOOST_TEST(!budget.allows(1000, now - 100ms), "no time has passed");
    BOOST_TEST(budget.allows(1000, now + 1s), "a twentieth of it is back");
    budget.spend(1000, 60ms, now + 1s);
    BOOST_TEST(!budget.allows(1000, now + 1s));
    BOOST_TEST(budget.allows(1000, now + 20s));
    BOOST_TEST(budget.users() == 0u, "whose time is all back is forgotten");
}

BOOST_AUTO_TEST_CASE(of_many_events_the_newest_that_fit_are_given) {
    EventLog log(100);
    for (int i = 0; i < 20; ++i) {
        proto::EventT event;
        event.time_us = i;
        event.text = std::string(872, 'x');  // 1000 bytes each
        log.add(std::move(event));
    }
    std::size_t room = 5500;
    auto newest = log.newest(room);
    BOOST_REQUIRE(newest.size() == 5u);
    BOOST_TEST(newest.front()->time_us == 15);
    BOOST_TEST(newest.back()->time_us == 19);
    BOOST_TEST(room == 500u);
    BOOST_TEST(log.newest(room).empty());
}

namespace {

local::EventsReplyT events_of(std::initializer_list<std::pair<std::uint32_t, std::vector<int>>> groups) {
    local::EventsReplyT reply;
    for (const auto &[job, times] : groups) {
        auto group = std::make_unique<local::GroupEventsT>();
        group->job_id = job;
        for (int time : times) {
            auto event = std::make_unique<proto::EventT>();
            event->time_us = time;
            event->text = std::string(872, 'x');
            group->events.push_back(std::move(event));
        }
        reply.groups.push_back(std::move(group));
    }
    return reply;
}

std::vector<std::int64_t> times_of(const local::GroupEventsT &group) {
    std::vector<std::int64_t> times;
    for (const auto &event : group.events) times.push_back(event->time_us);
    return times;
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_several_nodes_have_told_is_put_in_order_and_bounded) {
    auto merged = events_of({{7, {1, 4, 9}}, {8, {2}}});
    merge_events(merged, events_of({{8, {1, 3}}, {7, {2, 5}}}));
    put_in_order(merged, 6500);
    BOOST_REQUIRE(merged.groups.size() == 2u);
    BOOST_TEST((times_of(*merged.groups[1]) == std::vector<std::int64_t>{1, 2, 3}));
    BOOST_TEST((times_of(*merged.groups[0]) == std::vector<std::int64_t>{4, 5, 9}));
    BOOST_TEST(merged.groups[0]->dropped == 2u);
    BOOST_TEST(merged.groups[1]->dropped == 0u);
}

BOOST_AUTO_TEST_CASE(the_event_log_keeps_the_newest_and_counts_the_rest) {
    EventLog log(10);
    for (int i = 0; i < 25; ++i) {
        proto::EventT event;
        event.time_us = i;
        event.text = std::string(5000, 'x');
        log.add(std::move(event));
    }
    BOOST_TEST(log.events().size() == 10u);
    BOOST_TEST(log.dropped() == 15u);
    BOOST_TEST(log.events().front().time_us == 15);
    BOOST_TEST(log.events().front().text.size() <= 1024u);
    EventLog next(10);
    next.load(log.save());
    BOOST_TEST(next.events().back().time_us == 24);
    BOOST_TEST(next.dropped() == 15u);
}

BOOST_AUTO_TEST_CASE(a_full_event_log_keeps_what_happened_once) {
    EventLog log(10);
    add_events(log, 1, proto::EventKind::WorkerFailed, "The worker failed.");
    add_events(log, 100, proto::EventKind::CheckpointComplete, "Every rank has sealed it.");
    BOOST_TEST(log.events().size() == 10u);
    BOOST_TEST((log.events().front().kind == proto::EventKind::WorkerFailed));
    add_events(log, 9, proto::EventKind::WorkerStarted, "Worker started.");
    BOOST_TEST(count_of(log, proto::EventKind::CheckpointComplete) == 0);
    BOOST_TEST(count_of(log, proto::EventKind::WorkerFailed) == 1);
    add_events(log, 1, proto::EventKind::WorkerStarted, "Worker started.");
    BOOST_TEST(count_of(log, proto::EventKind::WorkerFailed) == 0, "among such the oldest goes");
    BOOST_TEST(log.dropped() == 101u);
}

BOOST_AUTO_TEST_CASE(skipped_saves_push_out_nothing_else_and_what_is_stored_stays_longest_of_checkpoints) {
    using Kind = proto::EventKind;
    EventLog log(10);
    add_events(log, 1, Kind::NodeJoined, "Slurm has expanded the job.");
    add_events(log, 1, Kind::CheckpointStored, "It is on storage.");
    for (int i = 0; i < 100; ++i) {
        add_events(log, 1, Kind::CheckpointSkipped, "No slot was free.");
        add_events(log, 1, Kind::CheckpointComplete, "Every rank has sealed it.");
    }
    BOOST_TEST(count_of(log, Kind::NodeJoined) == 1);
    BOOST_TEST(count_of(log, Kind::CheckpointStored) == 1);
    add_events(log, 9, Kind::WorkerFailed, "The worker failed.");
    BOOST_TEST(count_of(log, Kind::NodeJoined) == 1);
    BOOST_TEST(count_of(log, Kind::CheckpointStored) == 0, "then those go");
}

BOOST_AUTO_TEST_CASE(a_saved_event_log_keeps_what_happened_once) {
    EventLog log(1000);
    add_events(log, 1, proto::EventKind::WorkerFailed, "The worker failed.");
    add_events(log, 999, proto::EventKind::CheckpointComplete, std::string(100, 'x'));
    EventLog next(1000);
    next.load(log.save());
    BOOST_TEST(next.events().size() < 999u, "not all fit a record");
    BOOST_TEST(next.events().size() + next.dropped() == 1000u);
    BOOST_TEST(count_of(next, proto::EventKind::WorkerFailed) == 1);
    BOOST_TEST((next.events().front().kind == proto::EventKind::WorkerFailed));
}

BOOST_AUTO_TEST_CASE(a_saved_event_log_fits_a_record) {
    EventLog log(100000);
    for (int i = 0; i < 5000; ++i) {
        proto::EventT event;
        event.text = std::string(500, 'x');
        log.add(std::move(event));
    }
    auto record = log.save();
    BOOST_TEST(record.dropped + record.events.size() == 5000u);
    BOOST_TEST(encode_record(std::move(record)).size() < (160u << 10));
}

BOOST_AUTO_TEST_CASE(a_mover_beside_a_faster_interface_is_the_worse) {
    local::StatusReplyT merged;
    for (const char *node : {"n1", "n2", "n3"}) {
        auto group = std::make_unique<local::GroupStatusT>();
        group->job_id = 7;
        group->mover = std::make_unique<local::MoverStatusT>();
        group->mover->ready = true;
        group->mover->port = 4000;
        group->mover->node = node;
        bool slow = node == std::string("n2");
        group->mover->interface =
            slow ? "eth0, 1000 Mbit/s; ib0, 100000 Mbit/s, is there and not used" : "ib0";
        local::StatusReplyT reply;
        reply.groups.push_back(std::move(group));
        merge_status(merged, std::move(reply));
    }
    BOOST_TEST(merged.groups.at(0)->mover->node == "n2");
}

BOOST_AUTO_TEST_CASE(the_worst_mover_and_the_sum_of_copies_come_from_several_nodes) {
    auto answer_of = [](const std::string &node, std::uint32_t copied, bool listens) {
        local::StatusReplyT reply;
        auto group = std::make_unique<local::GroupStatusT>();
        group->job_id = 7;
        group->node = node;
        group->leader = "n2";
        group->mover = std::make_unique<local::MoverStatusT>();
        group->mover->ready = true;
        group->mover->port = listens ? 4000 : 0;
        group->mover->listening = listens;
        group->mover->node = node;
        group->copies = std::make_unique<local::CopiesStatusT>();
        group->copies->partners = {"partner of " + node};
        group->copies->switches = {"switch of the partner of " + node};
        group->copies->same_switch = node != "n2";
        group->copies->safe_step = node == "n2" ? 40 : 30;
        group->copies->target_step = node == "n4" ? 30 : 45;
        group->copies->copied = copied;
        group->copies->to_copy = 4;
        if (node != "n3") {
            group->verified = std::make_unique<local::VerifiedStatusT>();
            group->verified->agent_bytes = 100 * copied;
            group->verified->damaged = node == "n4";
        }
        if (!listens) {
            group->copies->text = "it failed on " + node;
            group->copies->in_trouble = {node};
        }
        reply.groups.push_back(std::move(group));
        return reply;
    };
    auto merged = answer_of("n1", 1, true);
    merge_status(merged, answer_of("n2", 2, true));
    merge_status(merged, answer_of("n3", 3, false));
    merge_status(merged, answer_of("n4", 4, false));
    BOOST_REQUIRE(merged.groups.size() == 1u);
    const auto &mover = *merged.groups[0]->mover;
    BOOST_TEST(mover.node == "n3");
    BOOST_TEST(mover.port == 0);
    BOOST_TEST(mover.nodes == 4u);
    BOOST_TEST(mover.listening == 2u);
    const auto &copies = *merged.groups[0]->copies;
    BOOST_TEST(copies.safe_step == 40, "the leader's node knows it");
    BOOST_TEST(copies.target_step == 45);
    BOOST_TEST(copies.copied == 6u, "n4 is at another step");
    BOOST_TEST(copies.to_copy == 12u);
    const auto &verified = *merged.groups[0]->verified;
    BOOST_TEST(verified.agent_bytes == 700u);
    BOOST_TEST(verified.damaged == 1u);
    BOOST_TEST(verified.nodes == 3u);
    BOOST_TEST(copies.nodes == 4u);
    BOOST_TEST((copies.partners == std::vector<std::string>{"partner of n1"}));
    BOOST_TEST((copies.switches == std::vector<std::string>{"switch of the partner of n1"}));
    BOOST_TEST(copies.same_switch == 3u);
    BOOST_TEST(copies.text == "it failed on n3");
    BOOST_TEST((copies.in_trouble == std::vector<std::string>{"n3", "n4"}));
    // Nobody's mover is worse than one without all its ways.
    auto gone = answer_of("n5", 0, true);
    gone.groups[0]->mover->ready = false;
    gone.groups[0]->mover->listening = 0;
    merge_status(merged, std::move(gone));
    BOOST_TEST(merged.groups[0]->mover->node == "n5");
    BOOST_TEST(merged.groups[0]->mover->nodes == 5u);
}

BOOST_AUTO_TEST_CASE(the_checkpoints_are_those_of_the_nodes_with_ranks) {
    auto answer_of = [](const std::string &node, std::uint32_t number,
                        std::vector<std::pair<std::uint64_t, bool>> steps) {
        auto group = std::make_unique<local::GroupStatusT>();
        group->job_id = 7;
        group->node = node;
        group->leader = "n2";
        group->generation = std::make_unique<proto::Generation>(1, number);
        for (auto [step, complete] : steps) {
            group->checkpoints.push_back(std::make_unique<local::CheckpointStatusT>());
            group->checkpoints.back()->train_step = step;
            group->checkpoints.back()->complete = complete;
        }
        local::StatusReplyT reply;
        reply.groups.push_back(std::move(group));
        return reply;
    };
    auto merged = answer_of("n1", 4, {{20, true}, {21, false}, {22, false}});
    merge_status(merged, answer_of("n2", 4, {}));  // it leads, as a spare
    merge_status(merged, answer_of("n3", 4, {{21, true}, {23, false}}));
    merge_status(merged, answer_of("n4", 3, {{90, true}}));  // it has not heard of this generation
    std::vector<std::pair<std::uint64_t, bool>> found;
    for (const auto &c : merged.groups.at(0)->checkpoints) found.emplace_back(c->train_step, c->complete);
    BOOST_TEST(merged.groups[0]->node == "n2");
    BOOST_TEST((found == std::vector<std::pair<std::uint64_t, bool>>{{21, true}, {22, false}, {23, false}}));
}

BOOST_AUTO_TEST_CASE(ports_are_free_and_not_given_twice_in_a_row) {
    UniqueFd taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    BOOST_REQUIRE(::bind(taken.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) == 0);
    socklen_t size = sizeof address;
    ::getsockname(taken.get(), reinterpret_cast<sockaddr *>(&address), &size);
    std::uint16_t port = ntohs(address.sin_port);
    PortPicker only({port, port}, 5);
    auto warnings = log::count(log::Level::warning);
    for (int i = 0; i < 2; ++i) {
        std::uint16_t other = only.pick();
        BOOST_TEST((other != 0 && other != port));
        address.sin_port = htons(other);
        UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        BOOST_TEST(::bind(fd.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) == 0);
    }
    BOOST_TEST(log::count(log::Level::warning) == warnings + 1);
    taken.reset();
    BOOST_TEST(only.pick() == port);
    PortPicker range({29400, 29999}, 77);
    std::uint16_t first = range.pick(), second = range.pick();
    BOOST_TEST(first != 0);
    BOOST_TEST(first != second);
}

BOOST_AUTO_TEST_CASE(the_summary_is_silent_when_nothing_happened) {
    elastic::Goodput g;
    g.wall = std::chrono::seconds(10);
    BOOST_TEST(summary_text(g).empty());
    g.checkpoints = 3;
    BOOST_TEST(summary_text(g) ==
               "dlrover: 0 restarts, 3 checkpoints; no steps were reported (report_step), so no goodput");
    g.checkpoints = 0;
    g.steps = 1;
    g.restarts = 2;
    g.productive = std::chrono::seconds(9);
    g.recovery = std::chrono::seconds(1);
    BOOST_TEST(
        summary_text(g) ==
        "dlrover: 1 step, 2 restarts, 0 checkpoints; goodput 90.0 % of 10.0 s; the rest: recovery 1.0 s");
}

BOOST_AUTO_TEST_SUITE_END()
