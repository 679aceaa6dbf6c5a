// SPDX-License-Identifier: Apache-2.0
// A group's message from a peer (first byte 0) or a promise from the keeper's records (else). What is
// accepted is fed to a member.
#include <algorithm>

#include "daemon/message_codec.h"
#include "elastic/member.h"
#include "fuzz.h"

namespace dlrover::fuzz {
namespace {

using namespace elastic;
constexpr std::uint32_t node_count = 4;

GroupConfig config() {
    GroupConfig c;
    c.self = NodeIndex(2);
    c.nodes.resize(node_count);
    c.step_nodes = node_count - 1;
    c.batch_host = NodeIndex(0);
    c.min_nodes = 2;
    c.max_nodes = node_count;
    c.copies = 1;
    return c;
}

Bytes with_choice(std::uint8_t choice, const proto::Bytes &bytes) {
    Bytes result(1 + bytes.size(), choice);
    std::ranges::copy(bytes, result.begin() + 1);
    return result;
}

void feed(const Message &message) {
    Member member(config(), std::nullopt, Time(0));
    member.step(Time(1000), LocalReady{});
    member.step(Time(2000), PeerMessage{NodeIndex(1), message});
    member.step(Time(3000), Tick{});
    member.step(Time(2000000), Tick{});
    member.view();
}

bool run_message(std::span<const std::uint8_t> bytes) {
    auto message = daemon::decode_message(bytes, node_count);
    if (!message) return false;
    auto again = daemon::decode_message(daemon::encode_message(*message), node_count);
    require(again.ok() && *again == *message, "a message survives the way");
    feed(*message);
    return true;
}

bool run_promise(std::span<const std::uint8_t> bytes) {
    auto promise = daemon::decode_promise(bytes, node_count);
    if (!promise) return false;
    auto again = daemon::decode_promise(daemon::encode_promise(*promise), node_count);
    require(again.ok() && *again == *promise, "a promise survives the way");
    Member member(config(), *promise, Time(0));
    member.step(Time(1000), LocalReady{});
    member.step(Time(2000000), Tick{});
    return true;
}

}  // namespace

bool run(std::span<const std::uint8_t> input) {
    if (input.empty()) return false;
    // In memory of its own: FlatBuffers reads aligned words, as a frame's payload is.
    Bytes body(input.begin() + 1, input.end());
    return input[0] == 0 ? run_message(body) : run_promise(body);
}

std::vector<Bytes> seeds() {
    GenerationId generation{Term(3), 4};
    NodeReport report;
    report.ready = true;
    report.running = generation;
    report.seals.push_back({TrainStep(10), Rank(1), 4, generation, true});
    report.asked = CheckpointId{generation, TrainStep(9)};
    report.durable = CheckpointId{generation, TrainStep(8)};
    report.exits.push_back({generation, Rank(1), 9, 5, 6, false, "killed"});
    report.progress.push_back({.rank = Rank(1), .step = TrainStep(11)});
    World world{.id = generation,
                .nodes = {NodeIndex(0), NodeIndex(1)},
                .spares = {NodeIndex(2)},
                .restore_step = TrainStep(9),
                .reason = "start",
                .restore_generation = generation,
                .partners = {NodeIndex(1), NodeIndex(2)},
                .sources = {{Rank(1), NodeIndex(2)}}};
    CheckpointId id{generation, TrainStep(9)};
    report.exposed = true;
    report.safe = id;
    report.rollback = Rollback{generation, TrainStep(7)};
    report.scaling = {4, 3, {NodeIndex(1)}};
    report.damaged = Damaged{id, Rank(1)};
    report.number = 200001;
    world.suspects.push_back({id, TrainStep(7), {Term(3), 5}, 0, true});
    Promise promise{Term(3), NodeIndex(1), generation, {NodeIndex(0), NodeIndex(1)}};
    promise.open = {{{Term(2), 3}, {NodeIndex(1), NodeIndex(2)}}};
    promise.removed = {NodeIndex(3)};
    Roster roster{Term(3), {{1, "n5", JobId(7)}, {2, "n6"}}, {NodeIndex(3)}, 2, 1};
    promise.roster = roster;
    std::vector<Message> messages{
        VoteRequest{Term(3), generation},
        VoteReply{Term(3), true, promise, report},
        Heartbeat{.term = Term(3),
                  .sequence = 5,
                  .world = world,
                  .protect = id,
                  .safe = id,
                  .freed = id,
                  .roster = roster,
                  .whole_ago = elastic::Duration(200000),
                  .lost = id,
                  .durable = id},
        HeartbeatReply{Term(3), 5, report},
        Prepare{Term(3),
                generation,
                {NodeIndex(0), NodeIndex(2)},
                {},
                "start",
                {generation, {Rank(1)}, {NodeIndex(1)}}},
        PrepareReply{.term = Term(3), .generation = generation, .accepted = true, .world = world},
        Commit{Term(3), world},
        Report{Term(3), report},
        Finish{.term = Term(3), .exit_code = 1, .message = "gave up"},
        CheckOrder{Term(3), 1, NodeIndex(1), true, true},
        CheckReport{Term(3), 1, true, Duration(150), Duration(90), "", true},
        Dismissal{Term(3), "it is slow"},
        Reach{Term(3), NodeIndex(1), NodeIndex(0)},
        Reached{Term(3), NodeIndex(1), NodeIndex(0)}};
    std::vector<Bytes> list;
    for (const auto &message : messages) list.push_back(with_choice(0, daemon::encode_message(message)));
    list.push_back(with_choice(1, daemon::encode_promise(promise)));
    return list;
}

}  // namespace dlrover::fuzz
