// SPDX-License-Identifier: Apache-2.0
#include "daemon/message_codec.h"

#include <boost/test/unit_test.hpp>

#include "peer_generated.h"
#include "proto/codec.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace dlrover::daemon;
using std::chrono::microseconds;

namespace {

const GenerationId generation{Term(1ull << 32 | 7), 3};

NodeReport full_report() {
    NodeReport r;
    r.ready = true;
    r.running = generation;
    r.stopped = {Term(2), 1};
    r.seals = {Seal{TrainStep(9), Rank(1), 8, generation}, Seal{TrainStep(8), Rank(1), 8, generation, true}};
    r.finished = {Rank(0), Rank(3)};
    r.exits = {WorkerExit{generation, Rank(2), 9, 123456, 77, true, "boom"}};
    RankProgress p;
    p.rank = Rank(4);
    p.step = TrainStep(11);
    p.steps_done = 5;
    p.step_sum = microseconds(99);
    r.progress = {p, RankProgress{}};
    r.signal = 15;
    r.asked = CheckpointId{generation, TrainStep(7)};
    r.exposed = true;
    r.safe = CheckpointId{generation, TrainStep(6)};
    r.knows = generation;
    r.rollback = Rollback{generation, TrainStep(3)};
    r.scaling = {4, 3, {NodeIndex(1)}};
    r.damaged = Damaged{{generation, TrainStep(9)}, Rank(5)};
    r.number = 1234567;
    r.without_slurm = microseconds(60000000);
    r.durable = CheckpointId{generation, TrainStep(5)};
    r.skips = {{Rank(3), TrainStep(6)}, {Rank(1), TrainStep(7)}};
    r.parities = {Parity{{generation, TrainStep(9)}, 8, 1, {Rank(0), Rank(5)}, true}};
    return r;
}

World full_world() {
    return World{generation,
                 {NodeIndex(2), NodeIndex(0)},
                 {NodeIndex(1)},
                 TrainStep(9),
                 4,
                 2222,
                 "rank 2 was killed",
                 GenerationId{Term(4), 2},
                 3,
                 0,
                 {NodeIndex(1), NodeIndex(2)},
                 0,
                 {{Rank(1), NodeIndex(2)}, {Rank(3), NodeIndex(1)}}};
}

Goodput full_goodput() {
    Goodput g;
    g.wall = microseconds(10);
    g.lost_steps = microseconds(3);
    g.restarts = 2;
    g.counted = {generation, 7, microseconds(2), 1, TrainStep(6)};
    return g;
}

Roster full_roster() {
    return Roster{
        Term(4), {NodeSpec{2, "n7", JobId(57)}, NodeSpec{1, "n8", {}, StepId(3)}}, {NodeIndex(2)}, 1, 1};
}

Promise full_promise() {
    OpenWorld open{{Term(4), 3}, {NodeIndex(1), NodeIndex(2)}};
    return Promise{Term(5),      NodeIndex(1),   generation,     {NodeIndex(2), NodeIndex(0)},
                   {open},       {NodeIndex(1)}, {NodeIndex(1)}, full_world(),
                   full_roster()};
}

std::vector<Message> one_of_each() {
    return {VoteRequest{Term(5), generation, {NodeIndex(1)}},
            VoteReply{Term(5), true, full_promise(), full_report(), elastic::Duration(7)},
            Heartbeat{Term(5),
                      6,
                      full_world(),
                      TrainStep(9),
                      generation,
                      full_goodput(),
                      5,
                      true,
                      {NodeIndex(2)},
                      true,
                      TrainStep(4),
                      generation,
                      CheckpointId{generation, TrainStep(7)},
                      CheckpointId{generation, TrainStep(9)},
                      CheckpointId{generation, TrainStep(6)},
                      CheckpointId{generation, TrainStep(8)},
                      CheckpointId{generation, TrainStep(5)},
                      generation,
                      full_roster(),
                      elastic::Duration(0),
                      CheckpointId{generation, TrainStep(2)},
                      CheckpointId{generation, TrainStep(3)},
                      {},
                      elastic::Duration(77)},
            Heartbeat{Term(5), 6, std::nullopt, std::nullopt, {}, {}},
            HeartbeatReply{Term(5), 6, full_report()},
            Prepare{Term(5),
                    generation,
                    {NodeIndex(2)},
                    {NodeIndex(1)},
                    "why",
                    {generation, {Rank(9)}, {NodeIndex(0)}},
                    {{generation, {NodeIndex(0), NodeIndex(1)}}}},
            PrepareReply{Term(5), generation, true, 2222, full_report(), full_world()},
            Commit{Term(5), full_world()},
            Report{Term(5), full_report()},
            Finish{Term(5), 3, "given up", full_goodput(), NextRun::comes, {NodeIndex(0), NodeIndex(1)}},
            CheckOrder{Term(5), 8, NodeIndex(2), true, true},
            CheckReport{Term(5), 8, true, Duration(150), Duration(90), "why", true},
            Dismissal{Term(5), "it is slow"},
            Reach{Term(5), NodeIndex(2), NodeIndex(1)},
            Reached{Term(5), NodeIndex(1), NodeIndex(2)}};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(message_codec)

BOOST_AUTO_TEST_CASE(every_message_comes_back_as_it_was) {
    for (const Message &m : one_of_each()) {
        auto back = decode_message(encode_message(m), 3);
        BOOST_REQUIRE_MESSAGE(back.ok(), back.status().to_string());
        BOOST_TEST((*back == m), "message " << m.index());
    }
}

BOOST_AUTO_TEST_CASE(promise_comes_back_as_it_was) {
    auto back = decode_promise(encode_promise(full_promise()), 3);
    BOOST_REQUIRE(back.ok());
    BOOST_TEST((*back == full_promise()));
    BOOST_TEST((*decode_promise(encode_promise(Promise{}), 3) == Promise{}));
}

/// A report of many seals, and a world of thousands of nodes, come in few bytes.
BOOST_AUTO_TEST_CASE(what_large_groups_say_is_short_and_comes_back) {
    NodeReport report = full_report();
    report.seals.clear();
    for (std::uint32_t step : {8u, 9u})
        for (std::uint32_t rank : {16u, 17u, 18u, 19u, 20u, 21u, 22u, 23u, 40u, 41u})
            report.seals.push_back(Seal{TrainStep(step), Rank(rank), 80000, generation, step == 9});
    Message reply = HeartbeatReply{Term(3), 12, report};
    auto bytes = encode_message(reply);
    report.seals.clear();
    std::size_t without = encode_message(HeartbeatReply{Term(3), 12, report}).size();
    BOOST_TEST(bytes.size() < without + 20 * 12);
    auto back = decode_message(bytes, 10000);
    BOOST_REQUIRE(back.ok());
    BOOST_TEST((*back == reply));

    World world = full_world();
    world.nodes.clear(), world.partners.clear(), world.sources.clear();
    for (std::uint32_t n = 0; n < 9000; ++n) {
        world.nodes.emplace_back(n < 5000 ? n : n + 1);
        for (std::uint32_t k : {2u, 3u}) world.partners.emplace_back((n + k) % 10000);
    }
    world.memory_world_size = 72000;
    for (std::uint32_t r = 0; r < world.memory_world_size; ++r)
        world.sources.push_back({Rank(r), NodeIndex(r / 8 + r % 2)});
    Message commit = Commit{Term(3), world};
    bytes = encode_message(commit);
    BOOST_TEST(bytes.size() < 1000u);
    back = decode_message(bytes, 10000);
    BOOST_REQUIRE(back.ok());
    BOOST_TEST((*back == commit));
    BOOST_TEST(!decode_message(bytes, 5000).ok());
}

/// Their indices follow each other, which a list says in two words.
BOOST_AUTO_TEST_CASE(many_nodes_that_have_joined_come_back) {
    Promise promise;
    promise.term = Term(3);
    for (std::uint32_t n = 0; n < 40; ++n) {
        promise.roster.added.push_back({8, "n" + std::to_string(n), JobId(100 + n), {}});
        promise.roster.counted.emplace_back(4 + n);
    }
    promise.roster.term = Term(3);
    promise.roster.firm_added = promise.roster.firm_counted = 40;
    auto back = decode_promise(encode_promise(promise), max_table);
    BOOST_REQUIRE(back.ok());
    BOOST_TEST((*back == promise));
    promise.roster.firm_counted = 41;
    BOOST_TEST(!decode_promise(encode_promise(promise), max_table).ok());
}

BOOST_AUTO_TEST_CASE(seal_sets_that_cannot_be_are_refused) {
    auto says = [](std::vector<std::vector<std::uint32_t>> sets) {
        proto::peer::GroupMessageT message;
        proto::peer::ReportT report;
        report.report = std::make_unique<proto::peer::NodeReportT>();
        for (auto &ranks : sets) {
            auto &set = report.report->seal_sets.emplace_back(std::make_unique<proto::peer::SealSetT>());
            set->ranks = std::move(ranks);
        }
        message.body.Set(std::move(report));
        return decode_message(
                   proto::encode<proto::peer::GroupMessage>(message, proto::peer::GroupMessageIdentifier()),
                   4)
            .ok();
    };
    constexpr std::uint32_t run = 1u << 31 | 1u << 24;
    BOOST_TEST(says({{0, run | 7}, {8, 9}}));
    BOOST_TEST(!says({{run | 7}}), "a run of nothing");
    BOOST_TEST(!says({{0, run | 0xffffff}}), "more ranks than there are");
    BOOST_TEST(!says({{0, run | 0x1ffff}, {0, run | 0x1ffff}}), "more in all than there are");
}

BOOST_AUTO_TEST_CASE(nodes_out_of_range_are_refused) {
    BOOST_TEST(!decode_message(encode_message(Commit{Term(5), full_world()}), 2).ok());
    BOOST_TEST(!decode_message(encode_message(Prepare{Term(5), generation, {NodeIndex(7)}, {}, ""}), 7).ok());
    auto prepare = [](Losses losses) {
        return encode_message(Prepare{Term(5), generation, {NodeIndex(2)}, {}, "", std::move(losses)});
    };
    BOOST_TEST(!decode_message(prepare({{}, {}, {NodeIndex(7)}}), 7).ok());
    BOOST_TEST(!decode_message(prepare({{}, std::vector<Rank>(Losses::most + 1), {}}), 7).ok());
    BOOST_TEST(!decode_promise(encode_promise(full_promise()), 2).ok());
}

BOOST_AUTO_TEST_CASE(rosters_that_cannot_be_are_refused) {
    auto accepted = [](const Roster &roster) {
        return decode_message(encode_message(Heartbeat{.term = Term(5), .roster = roster}), 3).ok();
    };
    Roster roster = full_roster();
    BOOST_TEST(accepted(roster));
    BOOST_TEST(accepted(Roster{}));
    roster.firm_added = 3;
    BOOST_TEST(!accepted(roster));
    roster = full_roster();
    roster.firm_counted = 2;
    BOOST_TEST(!accepted(roster));
    roster = full_roster();
    roster.counted = {NodeIndex(3)};  // a group of three, in this daemon's view
    BOOST_TEST(!accepted(roster));
    for (NodeSpec spec : {NodeSpec{0, "n8"}, NodeSpec{1, ""}, NodeSpec{1, std::string(257, 'n')}}) {
        roster = full_roster();
        roster.added.push_back(spec);
        BOOST_TEST(!accepted(roster));
    }
    roster.added.assign(max_joined + 1, NodeSpec{1, "n"});
    BOOST_TEST(!accepted(roster));
}

BOOST_AUTO_TEST_CASE(partners_and_sources_that_cannot_be_are_refused) {
    auto accepted = [](const World &world) {
        return decode_message(encode_message(Commit{Term(5), world}), 3).ok();
    };
    World world = full_world();
    BOOST_TEST(accepted(world));
    world.partners.pop_back();  // one partner for two nodes
    BOOST_TEST(!accepted(world));
    world.partners.assign(6, NodeIndex(1));  // three for each, in a group of three
    BOOST_TEST(!accepted(world));
    world.partners = {NodeIndex(1), NodeIndex(3)};
    BOOST_TEST(!accepted(world));
    world = full_world();
    world.sources[0].node = NodeIndex(3);
    BOOST_TEST(!accepted(world));
    // What a world of another size has saved: each of its ranks is named, in order.
    world.memory_world_size = 2;
    world.sources = {{Rank(0), NodeIndex(1)}, {Rank(1), NodeIndex(2)}};
    BOOST_TEST(accepted(world));
    auto back = decode_message(encode_message(Commit{Term(5), world}), 3);
    BOOST_TEST((std::get<Commit>(*back).world == world));
    world.memory_world_size = 3;
    BOOST_TEST(!accepted(world));
    world.memory_world_size = 2;
    std::swap(world.sources[0], world.sources[1]);
    BOOST_TEST(!accepted(world));
    // A message whose lists of ranks and nodes differ in length: written by hand.
    namespace wire = proto::peer;
    wire::CommitT commit;
    commit.world = std::make_unique<wire::WorldT>();
    commit.world->generation = std::make_unique<proto::Generation>(1, 1);
    commit.world->nodes = {0};
    commit.world->source_ranks = {1};
    commit.world->source_nodes = {1};
    auto encoded = [&] {
        wire::GroupMessageT out;
        out.body.Set(wire::CommitT(commit));
        return proto::encode<wire::GroupMessage>(out, wire::GroupMessageIdentifier());
    };
    BOOST_TEST(decode_message(encoded(), 3).ok());
    commit.world->source_ranks.push_back(2);
    BOOST_TEST(!decode_message(encoded(), 3).ok());
}

BOOST_AUTO_TEST_CASE(suspects_that_cannot_be_are_refused) {
    World good;
    good.id = {Term(3), 9};
    good.nodes = {NodeIndex(0)};
    good.suspects = {{{{Term(3), 5}, TrainStep(200)}, TrainStep(100), {Term(3), 7}, 0xfedcba9876543210u}};
    good.strikes = {0xfedcba9876543210u, 1};
    auto bytes = encode_message(Commit{Term(3), good});
    auto decoded = decode_message(bytes, 3);
    BOOST_REQUIRE(decoded.ok());
    BOOST_TEST((std::get<Commit>(*decoded).world == good));
    good.suspects[0].by_person = true;
    decoded = decode_message(encode_message(Commit{Term(3), good}), 3);
    BOOST_REQUIRE(decoded.ok());
    BOOST_TEST((std::get<Commit>(*decoded).world == good));
    World bad = good;
    bad.suspects[0].back_to = TrainStep(200);
    BOOST_TEST(!decode_message(encode_message(Commit{Term(3), bad}), 3).ok());
    bad.suspects.assign(max_suspects + 1, good.suspects[0]);
    BOOST_TEST(!decode_message(encode_message(Commit{Term(3), bad}), 3).ok());
}

BOOST_AUTO_TEST_CASE(a_persons_word_is_in_a_report) {
    NodeReport report;
    report.rollback = Rollback{{Term(3), 9}, TrainStep(100)};
    auto decoded = decode_message(encode_message(Report{Term(3), report}), 3);
    BOOST_REQUIRE(decoded.ok());
    BOOST_TEST((std::get<Report>(*decoded).report == report));
    report.rollback->to = TrainStep(INT64_MAX);
    BOOST_TEST(!decode_message(encode_message(Report{Term(3), report}), 3).ok());
}

BOOST_AUTO_TEST_CASE(what_is_damaged_is_in_a_report) {
    NodeReport report;
    report.damaged = Damaged{{{Term(3), 9}, TrainStep(100)}, Rank(7)};
    auto decoded = decode_message(encode_message(Report{Term(3), report}), 3);
    BOOST_REQUIRE(decoded.ok());
    BOOST_TEST((std::get<Report>(*decoded).report == report));
    report.damaged->id.step = TrainStep(UINT64_MAX);
    BOOST_TEST(!decode_message(encode_message(Report{Term(3), report}), 3).ok());
}

BOOST_AUTO_TEST_CASE(groups_and_rebuilds_that_cannot_be_are_refused) {
    auto accepted = [](const World &world) {
        auto back = decode_message(encode_message(Commit{Term(5), world}), 3);
        return back.ok() && std::get<Commit>(*back).world == world;
    };
    World good = full_world();
    good.nodes = {NodeIndex(0), NodeIndex(1)};
    good.partners = {NodeIndex(2), NodeIndex(2)};
    good.groups = {0, 0};
    good.rebuilds = {{Rank(1), NodeIndex(2), {Rank(0), Rank(1)}, {{0, NodeIndex(0)}, {2, NodeIndex(2)}}}};
    BOOST_TEST(accepted(good));
    auto refused = [&](auto change) {
        World world = good;
        change(world);
        return !accepted(world);
    };
    BOOST_TEST(refused([](World &w) { w.groups = {0}; }));
    BOOST_TEST(refused([](World &w) { w.groups = {0, 2}; }));
    BOOST_TEST(refused([](World &w) { w.partners.clear(); }));
    BOOST_TEST(refused([](World &w) { w.partners = {NodeIndex(1), NodeIndex(1)}; }));  // a member
    BOOST_TEST(refused([](World &w) { w.partners = {NodeIndex(2), NodeIndex(0)}; }));  // two for one parity
    BOOST_TEST(!refused([](World &w) {
        w.groups = {1, 0};  // each of a group of its own
        w.partners = {NodeIndex(1), NodeIndex(0)};
    }));
    BOOST_TEST(refused([](World &w) { w.rebuilds[0].node = NodeIndex(3); }));
    BOOST_TEST(refused([](World &w) { w.rebuilds[0].rank = Rank(2); }));
    BOOST_TEST(refused([](World &w) { w.rebuilds[0].parts.pop_back(); }));
    BOOST_TEST(refused([](World &w) { w.rebuilds[0].parts[0].unit = 1; }));  // of itself
    BOOST_TEST(refused([](World &w) { w.rebuilds[0].parts[0].unit = 2; }));  // one part twice
    BOOST_TEST(refused([](World &w) { w.rebuilds[0].parts[1].unit = 10; }));
    BOOST_TEST(refused([](World &w) { w.rebuilds[0].parts[1].node = NodeIndex(3); }));
    auto reported = [](const Parity &parity) {
        NodeReport report;
        report.parities = {parity};
        return decode_message(encode_message(Report{Term(5), report}), 3).ok();
    };
    Parity parity{{generation, TrainStep(9)}, 8, 7, std::vector<Rank>(32)};
    BOOST_TEST(reported(parity));
    parity.index = 8;
    BOOST_TEST(!reported(parity));
    parity.index = 0;
    parity.ranks.resize(33);
    BOOST_TEST(!reported(parity));
    parity.ranks.clear();
    BOOST_TEST(!reported(parity));
}

BOOST_AUTO_TEST_CASE(cut_or_changed_bytes_never_crash) {
    for (const Message &m : one_of_each()) {
        proto::Bytes bytes = encode_message(m);
        for (std::size_t n = 0; n < bytes.size(); ++n) (void)decode_message({bytes.data(), n}, 3).ok();
        for (std::size_t i = 0; i < bytes.size(); ++i) {
            proto::Bytes changed = bytes;
            changed[i] ^= 0xff;
            (void)decode_message(changed, 3).ok();
        }
    }
    BOOST_TEST(!decode_message({}, 3).ok());
}

BOOST_AUTO_TEST_SUITE_END()
