// SPDX-License-Identifier: Apache-2.0
// What any user can send to the daemon's socket.
#include "fuzz.h"
#include "local_generated.h"
#include "proto/local_client.h"
#include "proto/local_codec.h"

namespace dlrover::fuzz {
namespace {

using namespace proto;
using namespace proto::local;

template <typename BodyT>
Bytes seed(BodyT body) {
    return encode_local(make_local(7, std::move(body)));
}

RegisterStepT step() {
    RegisterStepT body;
    body.step = std::make_unique<StepRegistrationT>();
    body.step->cluster = "lab";
    body.step->job_id = 12;
    body.step->node_names = {"n1", "n2"};
    body.step->tasks_per_node = {1, 2};
    body.step->argv = {"python", "train.py"};
    body.step->options = std::make_unique<ElasticOptionsT>();
    return body;
}

}  // namespace

bool run(std::span<const std::uint8_t> input) {
    auto message = decode_local(input);
    if (!message) return false;
    fds_of(*message);
    auto again = decode_local(encode_local(*message));
    require(again.ok() && again->id == message->id && again->body.type == message->body.type,
            "what is accepted can be written again");
    return true;
}

/// Of programs that ask, of PMIx and of helpers that are done.
std::vector<Bytes> answers() {
    StatusReplyT reply;
    reply.groups.push_back(std::make_unique<GroupStatusT>());
    reply.groups[0]->storage = std::make_unique<StorageStatusT>();
    reply.groups[0]->storage->progress.push_back(std::make_unique<StorageProgressT>());
    ScaleRequestT scale;
    scale.job_id = 7;
    scale.nodes = 3;
    RollbackRequestT rollback;
    rollback.job_id = 7;
    rollback.train_step = 100;
    rollback.generation = std::make_unique<proto::Generation>(3, 4);
    PmixStopT stop;
    stop.generation = std::make_unique<proto::Generation>(3, 4);
    stop.reason = "n3 lost";
    PmixEventT event;
    event.generation = std::make_unique<proto::Generation>(3, 4);
    event.kind = PmixEventKind::RankLost;
    event.number = 5;
    PmixStateT state;
    state.safe_step = 10;
    state.goodput = std::make_unique<GoodputT>();
    SegmentFilledT filled;
    filled.text = "no room";
    return {seed(std::move(filled)), seed(std::move(reply)), seed(std::move(rollback)),
            seed(std::move(scale)),  seed(std::move(stop)),  seed(std::move(event)),
            seed(std::move(state))};
}

std::vector<Bytes> seeds() {
    WorldPublishedT world;
    world.node_names = {"n1", "n2"};
    world.ranks_per_node = {8, 8};
    world.master_addr = "10.0.0.1";
    SealT seal;
    seal.ledger = {1, 2, 3};
    seal.to_storage = true;
    seal.shared.push_back(std::make_unique<SharedWithT>());
    RestorePlanT plan;
    plan.keepers = {1, 2};
    plan.spread = std::make_unique<SpreadCheckpointT>();
    plan.spread->checkpoint = std::make_unique<StoredCheckpointT>();
    plan.spread->tables.push_back(std::make_unique<SpreadTableT>());
    WorkerExitedT exited;
    exited.error_text = "Traceback";
    SlotGrantedT granted;
    granted.segments.push_back(std::make_unique<SlotSegmentT>());
    PreparedT prepared;
    prepared.slots.push_back(std::make_unique<SlotGrantedT>(granted));
    ExpectObjectT expect;
    expect.key.assign(32, 1);
    expect.from = "10.0.0.2";
    expect.checkpoint = std::make_unique<StoredCheckpointT>();
    expect.segments.push_back(std::make_unique<SlotSegmentT>());
    SendObjectT send;
    send.address = "10.0.0.2";
    send.segments.push_back(std::make_unique<SlotSegmentT>());
    FoldObjectT fold;
    fold.into.push_back(std::make_unique<SlotSegmentT>());
    fold.from.push_back(std::make_unique<SlotSegmentT>());
    fold.given = {0, 2};
    fold.checkpoint = std::make_unique<StoredCheckpointT>();
    NodeCheckReplyT check;
    check.site = std::make_unique<SiteStatusT>();
    check.site_facts.push_back(std::make_unique<FactT>());
    check.ladder.push_back(std::make_unique<RungT>());
    check.node_facts.push_back(std::make_unique<FactT>());
    MeasureNodeT measure;
    measure.segments.push_back(std::make_unique<SlotSegmentT>());
    MoverReadyT ready;
    ready.text = "no RDMA network is up here";
    RanksSeenT seen;
    seen.ranks.push_back(std::make_unique<RankActivityT>());
    StartStepT start;
    start.order = 1;
    start.argv = {"srun", "--jobid=57", "--", "train"};
    start.environment = {"PATH=/bin"};
    start.cwd = "/home/alice";
    std::vector<Bytes> all = {seed(MoverHelloT()),       seed(std::move(expect)),  seed(std::move(send)),
                              seed(std::move(ready)),    seed(HelloT()),           seed(step()),
                              seed(AgentHelloT()),       seed(std::move(world)),   seed(std::move(seal)),
                              seed(std::move(exited)),   seed(std::move(granted)), seed(StatusRequestT()),
                              seed(EventsRequestT()),    seed(FillSegmentT()),     seed(std::move(prepared)),
                              seed(std::move(plan)),     seed(RestoreKeptT()),     seed(OutcomeRequestT()),
                              seed(std::move(fold)),     seed(ObjectFoldedT()),    seed(NodeCheckRequestT()),
                              seed(std::move(check)),    seed(std::move(measure)), seed(NodeMeasuredT()),
                              seed(StepEndedT()),        seed(std::move(start)),   seed(ObjectProgressT()),
                              seed(RollbackReplyT()),    seed(VerifyObjectT()),    seed(ObjectVerifiedT()),
                              seed(PmixStateRequestT()), seed(LookAtRanksT()),     seed(std::move(seen))};
    for (Bytes &more : answers()) all.push_back(std::move(more));
    return all;
}

}  // namespace dlrover::fuzz
