// SPDX-License-Identifier: Apache-2.0
// Plays a hostile local user: says every message of the local protocol about somebody else's job and prints
// what came back. Usage: message_probe SOCKET JOB STEP TERM NUMBER. One line a message:
// "NAME<tab>OUTCOME<tab>TEXT"; OUTCOME: refused, closed, silent, or GRANTED. Exit status 1 when anything was
// granted.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "proto/local_client.h"

namespace {

using namespace dlrover;
using namespace dlrover::proto;
using namespace std::chrono_literals;

struct Target {
    std::string socket;
    std::uint32_t job, step;
    Generation generation;
};

/// What one message came to.
struct Outcome {
    const char *word;
    std::string text;
};

template <typename T>
T about(const Target &target) {
    T message;
    if constexpr (requires { message.job_id; }) message.job_id = target.job;
    if constexpr (requires { message.step_id; }) message.step_id = target.step;
    if constexpr (requires { message.generation; })
        message.generation = std::make_unique<Generation>(target.generation);
    if constexpr (std::is_same_v<T, local::ScaleRequestT>) message.nodes = 1;
    if constexpr (requires { message.step; }) {
        if constexpr (requires { message.step->node_names; }) {
            message.step = std::make_unique<StepRegistrationT>();
            message.step->job_id = target.job;
            message.step->step_id = target.step;
            message.step->node_names = {"n1"};
            message.step->tasks_per_node = {1};
            message.step->options = std::make_unique<ElasticOptionsT>();
        }
    }
    return message;
}

bool shows_nothing(const local::MessageT &m) {
    if (auto *status = m.body.AsStatusReply()) return status->groups.empty();
    if (auto *events = m.body.AsEventsReply()) return events->groups.empty();
    if (auto *outcome = m.body.AsOutcomeReply())
        return outcome->outcome == local::Outcome::Unknown && outcome->exit_code == 0 && outcome->lost == 0;
    if (auto *rollback = m.body.AsRollbackReply())
        return rollback->state == local::RollbackState::Unknown && rollback->text.empty();
    if (auto *scale = m.body.AsScaleReply())
        return scale->state == local::ScaleState::Unknown && scale->text.empty();
    return m.body.AsNodeCheckReply() != nullptr;  // of the node and the site
}

template <typename T>
Outcome try_message(const Target &target, local::Role role) {
    auto client = LocalClient::connect(target.socket, role, 2s);
    if (!client) return {"closed", client.status().message()};
    auto reply = client->call(about<T>(target), 700ms);
    if (reply)
        return {shows_nothing(reply->message) ? "refused" : "GRANTED",
                local::EnumNameBody(reply->message.body.type)};
    if (reply.status().code() == Code::timeout) return {"silent", ""};
    return {client->connected() ? "refused" : "closed", reply.status().message()};
}

struct Attempt {
    const char *name;
    std::function<Outcome(const Target &)> run;
};

template <typename T>
Attempt attempt(const char *name, local::Role role) {
    return {name, [role](const Target &t) { return try_message<T>(t, role); }};
}

std::vector<Attempt> attempts() {
    using local::Role;
    return {
        attempt<local::RegisterStepT>("RegisterStep", Role::Spank),
        attempt<local::EndStepT>("EndStep", Role::Spank),
        attempt<local::AgentHelloT>("AgentHello", Role::Agent),
        attempt<local::AgentByeT>("AgentBye", Role::Agent),
        attempt<local::WorkerStartedT>("WorkerStarted", Role::Agent),
        attempt<local::WorkerExitedT>("WorkerExited", Role::Agent),
        attempt<local::WorkersStoppedT>("WorkersStopped", Role::Agent),
        attempt<local::AgentSignalT>("AgentSignal", Role::Agent),
        attempt<local::SegmentFilledT>("SegmentFilled", Role::Agent),
        attempt<local::StepEndedT>("StepEnded", Role::Agent),
        attempt<local::ObjectVerifiedT>("ObjectVerified", Role::Agent),
        attempt<local::RanksSeenT>("RanksSeen", Role::Agent),
        attempt<local::WorkerHelloT>("WorkerHello", Role::Worker),
        attempt<local::LeaveGenerationT>("LeaveGeneration", Role::Worker),
        attempt<local::PrepareT>("Prepare", Role::Worker),
        attempt<local::BeginSaveT>("BeginSave", Role::Worker),
        attempt<local::SealT>("Seal", Role::Worker),
        attempt<local::AbortSaveT>("AbortSave", Role::Worker),
        attempt<local::RestoreT>("Restore", Role::Worker),
        attempt<local::RestoreKeptT>("RestoreKept", Role::Worker),
        attempt<local::RestoreDoneT>("RestoreDone", Role::Worker),
        attempt<local::SubscribeT>("Subscribe", Role::Worker),
        attempt<local::MoverHelloT>("MoverHello", Role::Mover),
        attempt<local::MoverReadyT>("MoverReady", Role::Mover),
        attempt<local::ExpectingObjectT>("ExpectingObject", Role::Mover),
        attempt<local::ObjectArrivedT>("ObjectArrived", Role::Mover),
        attempt<local::ObjectSentT>("ObjectSent", Role::Mover),
        attempt<local::NodeMeasuredT>("NodeMeasured", Role::Mover),
        attempt<local::StorageAnsweredT>("StorageAnswered", Role::Writer),
        attempt<local::ObjectProgressT>("ObjectProgress", Role::Writer),
        attempt<local::WriterHelloT>("WriterHello", Role::Writer),
        attempt<local::FolderFoundT>("FolderFound", Role::Writer),
        attempt<local::ObjectStoredT>("ObjectStored", Role::Writer),
        attempt<local::CheckpointStoredT>("CheckpointStored", Role::Writer),
        attempt<local::ObjectFoldedT>("ObjectFolded", Role::Writer),
        attempt<local::MoverAnswerT>("MoverAnswer", Role::Writer),
        attempt<local::FolderTestedT>("FolderTested", Role::Writer),
        attempt<local::PmixHelloT>("PmixHello", Role::Pmix),
        attempt<local::PmixReadyT>("PmixReady", Role::Pmix),
        attempt<local::PmixParcelT>("PmixParcel", Role::Pmix),
        attempt<local::PmixAbortedT>("PmixAborted", Role::Pmix),
        attempt<local::PmixUsedT>("PmixUsed", Role::Pmix),
        attempt<local::PmixOverdueT>("PmixOverdue", Role::Pmix),
        attempt<local::PmixStateRequestT>("PmixStateRequest", Role::Pmix),
        attempt<local::PmixScaleRequestT>("PmixScaleRequest", Role::Pmix),
        attempt<local::PmixRestartRequestT>("PmixRestartRequest", Role::Pmix),
        attempt<local::ScaleRequestT>("ScaleRequest", Role::Cli),
        attempt<local::StatusRequestT>("StatusRequest", Role::Cli),
        attempt<local::EventsRequestT>("EventsRequest", Role::Cli),
        attempt<local::OutcomeRequestT>("OutcomeRequest", Role::Cli),
        attempt<local::RollbackRequestT>("RollbackRequest", Role::Cli),
        attempt<local::NodeCheckRequestT>("NodeCheckRequest", Role::Cli),
        // What only a daemon may say:
        attempt<local::HelloReplyT>("HelloReply", Role::Cli),
        attempt<local::RollbackReplyT>("RollbackReply", Role::Cli),
        attempt<local::AgentWelcomeT>("AgentWelcome", Role::Agent),
        attempt<local::WorldPublishedT>("WorldPublished", Role::Agent),
        attempt<local::StopWorkersT>("StopWorkers", Role::Agent),
        attempt<local::LeaseRenewedT>("LeaseRenewed", Role::Agent),
        attempt<local::GroupEndedT>("GroupEnded", Role::Agent),
        attempt<local::FillSegmentT>("FillSegment", Role::Agent),
        attempt<local::StartStepT>("StartStep", Role::Agent),
        attempt<local::VerifyObjectT>("VerifyObject", Role::Agent),
        attempt<local::LookAtRanksT>("LookAtRanks", Role::Agent),
        attempt<local::WorkerWelcomeT>("WorkerWelcome", Role::Worker),
        attempt<local::PreparedT>("Prepared", Role::Worker),
        attempt<local::SlotGrantedT>("SlotGranted", Role::Worker),
        attempt<local::SaveSkippedT>("SaveSkipped", Role::Worker),
        attempt<local::RestorePlanT>("RestorePlan", Role::Worker),
        attempt<local::MembershipEventT>("MembershipEvent", Role::Worker),
        attempt<local::MoverWelcomeT>("MoverWelcome", Role::Mover),
        attempt<local::ExpectObjectT>("ExpectObject", Role::Mover),
        attempt<local::SendObjectT>("SendObject", Role::Mover),
        attempt<local::CancelOrderT>("CancelOrder", Role::Mover),
        attempt<local::MeasureNodeT>("MeasureNode", Role::Mover),
        attempt<local::CallMoverT>("CallMover", Role::Mover),
        attempt<local::GroupEndingT>("GroupEnding", Role::Agent),
        attempt<local::NoticeT>("Notice", Role::Agent),
        attempt<local::NextWorldT>("NextWorld", Role::Worker),
        attempt<local::WriterWelcomeT>("WriterWelcome", Role::Writer),
        attempt<local::LookAtFolderT>("LookAtFolder", Role::Writer),
        attempt<local::StoreObjectT>("StoreObject", Role::Writer),
        attempt<local::CompleteCheckpointT>("CompleteCheckpoint", Role::Writer),
        attempt<local::FoldObjectT>("FoldObject", Role::Writer),
        attempt<local::TestFolderT>("TestFolder", Role::Writer),
        attempt<local::PmixWelcomeT>("PmixWelcome", Role::Pmix),
        attempt<local::PmixWorldT>("PmixWorld", Role::Pmix),
        attempt<local::PmixStopT>("PmixStop", Role::Pmix),
        attempt<local::PmixUnreachableT>("PmixUnreachable", Role::Pmix),
        attempt<local::PmixEventT>("PmixEvent", Role::Pmix),
        attempt<local::PmixStateT>("PmixState", Role::Pmix),
        attempt<local::PmixScaleReplyT>("PmixScaleReply", Role::Pmix),
        attempt<local::PmixRestartReplyT>("PmixRestartReply", Role::Pmix),
        attempt<local::OutcomeReplyT>("OutcomeReply", Role::Cli),
        attempt<local::ScaleReplyT>("ScaleReply", Role::Cli),
        attempt<local::StatusReplyT>("StatusReply", Role::Cli),
        attempt<local::EventsReplyT>("EventsReply", Role::Cli),
        attempt<local::NodeCheckReplyT>("NodeCheckReply", Role::Cli),
        attempt<local::HelloT>("Hello", Role::Cli),
        attempt<local::FailureT>("Failure", Role::Cli),
        attempt<local::DoneT>("Done", Role::Cli),
        // A second role's messages on the wrong kind of connection:
        attempt<local::RegisterStepT>("RegisterStep as Cli", Role::Cli),
        attempt<local::EndStepT>("EndStep as Worker", Role::Worker),
        attempt<local::AgentHelloT>("AgentHello as Cli", Role::Cli),
        attempt<local::WorkerHelloT>("WorkerHello as Agent", Role::Agent),
        attempt<local::LeaveGenerationT>("LeaveGeneration as Agent", Role::Agent),
        attempt<local::MoverHelloT>("MoverHello as Agent", Role::Agent),
        attempt<local::RegisterStepT>("RegisterStep without role", Role::None),
    };
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 6) {
        std::fprintf(stderr, "usage: message_probe SOCKET JOB STEP TERM NUMBER\n");
        return 2;
    }
    auto number = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
    Target target{argv[1], static_cast<std::uint32_t>(number(2)), static_cast<std::uint32_t>(number(3)),
                  Generation(number(4), number(5))};
    bool granted = false;
    for (const auto &a : attempts()) {
        Outcome outcome = a.run(target);
        std::printf("%s\t%s\t%s\n", a.name, outcome.word, outcome.text.c_str());
        granted = granted || std::string(outcome.word) == "GRANTED";
    }
    return granted ? 1 : 0;
}
