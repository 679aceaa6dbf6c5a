// SPDX-License-Identifier: Apache-2.0
#include "cli/ask.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/units.h"
#include "proto/local_client.h"

namespace dlrover::cli {
namespace {

using namespace std::chrono_literals;
constexpr auto answer_timeout = 10s;

Status explain(Status status) {
    if (status.code() != Code::unavailable && status.code() != Code::timeout) return status;
    char host[256] = "this host";
    ::gethostname(host, sizeof host - 1);
    return Status(status.code(),
                  "the DLRover daemon on " + std::string(host) + " does not answer (" + status.message() +
                      "). Ask the administrator to start it: systemctl start dlrover; or run this "
                      "command on a node of the job: srun --overlap -N1 -n1 --jobid=JOB dlrover ...");
}

template <typename Request>
Result<proto::LocalMessage> ask(Request request) {
    auto client = proto::LocalClient::connect(socket_path(), proto::local::Role::Cli, 2s);
    if (!client) return explain(client.take_status());
    auto reply = client->call(std::move(request), answer_timeout);
    if (!reply) return explain(reply.take_status());
    return reply;
}

template <typename Groups>
void keep_step(Groups &groups, const JobStep &job) {
    std::erase_if(groups, [&](const auto &g) { return !g || (job.step && g->step_id != *job.step); });
    std::sort(groups.begin(), groups.end(), [](const auto &a, const auto &b) {
        return std::pair(a->job_id, a->step_id) < std::pair(b->job_id, b->step_id);
    });
}

}  // namespace

Result<JobStep> parse_job_step(const std::string &text) {
    auto dot = text.find('.');
    auto job = parse_uint(std::string_view(text).substr(0, dot), 1, 0xfffffff0u);
    if (!job)
        return Status(Code::invalid_argument,
                      "\"" + text + "\" is not a job: write JOB or JOB.STEP, for example 1234 or 1234.0");
    JobStep result{static_cast<std::uint32_t>(*job), std::nullopt};
    if (dot == std::string::npos) return result;
    auto step = parse_uint(std::string_view(text).substr(dot + 1), 0, 0xfffffff0u);
    if (!step)
        return Status(Code::invalid_argument,
                      "\"" + text + "\" is not a step: write JOB.STEP, for example 1234.0");
    result.step = static_cast<std::uint32_t>(*step);
    return result;
}

std::string socket_path() {
    const char *path = std::getenv("DLROVER_SOCKET");
    return path && *path ? path : proto::default_socket_path;
}

Result<proto::local::StatusReplyT> ask_status(const JobStep &job) {
    proto::local::StatusRequestT request;
    request.job_id = job.job;
    auto reply = ask(std::move(request));
    if (!reply) return reply.take_status();
    auto *status = reply->message.body.AsStatusReply();
    if (!status) return Status(Code::corrupt, "the daemon's answer is not a status");
    keep_step(status->groups, job);
    return std::move(*status);
}

Result<proto::local::EventsReplyT> ask_events(const JobStep &job) {
    proto::local::EventsRequestT request;
    request.job_id = job.job;
    if (job.step) request.step_id = *job.step;
    auto reply = ask(std::move(request));
    if (!reply) return reply.take_status();
    auto *events = reply->message.body.AsEventsReply();
    if (!events) return Status(Code::corrupt, "the daemon's answer is not a list of events");
    keep_step(events->groups, job);
    return std::move(*events);
}

Result<proto::local::RollbackReplyT> ask_rollback(const proto::local::GroupStatusT &group,
                                                  std::uint64_t step) {
    proto::local::RollbackRequestT request;
    request.job_id = group.job_id;
    request.step_id = group.step_id;
    if (group.generation) request.generation = std::make_unique<proto::Generation>(*group.generation);
    request.train_step = step;
    auto reply = ask(std::move(request));
    if (!reply) return reply.take_status();
    auto *rollback = reply->message.body.AsRollbackReply();
    if (!rollback) return Status(Code::corrupt, "the daemon's answer is not one to a rollback");
    return std::move(*rollback);
}

Result<proto::local::ScaleReplyT> ask_scale(const proto::local::GroupStatusT &group, std::uint32_t nodes) {
    proto::local::ScaleRequestT request;
    request.job_id = group.job_id;
    request.step_id = group.step_id;
    request.nodes = nodes;
    auto reply = ask(std::move(request));
    if (!reply) return reply.take_status();
    auto *scale = reply->message.body.AsScaleReply();
    if (!scale) return Status(Code::corrupt, "the daemon's answer is not one to a number of nodes");
    return std::move(*scale);
}

Result<proto::local::NodeCheckReplyT> ask_node_check() {
    auto reply = ask(proto::local::NodeCheckRequestT());
    if (!reply) return reply.take_status();
    auto *check = reply->message.body.AsNodeCheckReply();
    if (!check) return Status(Code::corrupt, "the daemon's answer is not a check of its node");
    return std::move(*check);
}

}  // namespace dlrover::cli
