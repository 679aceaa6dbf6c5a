// SPDX-License-Identifier: Apache-2.0
// In slurmstepd, as root, and in its tasks before execve, as the user. Whatever goes wrong here reaches the
// user through the agent; Slurm is never told of an error.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/hostlist.h"
#include "proto/local_client.h"
#include "spank_plugin/launch.h"
#include "spank_plugin/module.h"
#include "spank_plugin/step_facts.h"

namespace dlrover::spank {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t max_list_bytes = 1U << 20;
constexpr std::size_t max_word_bytes = 1024;
constexpr std::chrono::milliseconds longest_goodbye{500};
constexpr std::chrono::milliseconds connect_again{50};
/// Without a daemon a task has to fail within 2 seconds, and Slurm needs a part of them.
constexpr std::chrono::milliseconds longest_restart{800};

std::vector<std::string> read_argv(spank_t handle) {
    int argc = 0;
    char **argv = nullptr;
    std::vector<std::string> words;
    if (spank_get_item(handle, S_JOB_ARGV, &argc, &argv) != ESPANK_SUCCESS || !argv) return words;
    for (int i = 0; i < argc && argv[i]; ++i) words.emplace_back(argv[i]);
    return words;
}

/// Not all of it where it is too long: then other nodes can not be started like this one.
std::unique_ptr<proto::LaunchSpecT> read_launch(spank_t handle, const std::vector<std::string> &argv) {
    char **environment = nullptr;
    if (spank_get_item(handle, S_JOB_ENV, &environment) != ESPANK_SUCCESS || !environment) return nullptr;
    auto launch = std::make_unique<proto::LaunchSpecT>();
    launch->argv = argv;
    std::size_t bytes = 0;
    for (const std::string &word : argv) bytes += word.size() + 1;
    for (; *environment && bytes <= max_argv_bytes; ++environment) {
        launch->environment.emplace_back(*environment);
        bytes += launch->environment.back().size() + 1;
    }
    return bytes <= max_argv_bytes ? std::move(launch) : nullptr;
}

void read_identity(spank_t handle, StepFacts &facts) {
    uid_t uid = 0;
    gid_t gid = 0;
    if (spank_get_item(handle, S_JOB_UID, &uid) == ESPANK_SUCCESS) facts.uid = uid;
    if (spank_get_item(handle, S_JOB_GID, &gid) == ESPANK_SUCCESS) facts.gid = gid;
}

StepFacts read_facts(spank_t handle) {
    StepFacts facts;
    auto number = [&](spank_item item) { return get_uint32(handle, item).value_or(0); };
    facts.job_id = number(S_JOB_ID);
    facts.step_id = number(S_JOB_STEPID);
    facts.nodes = number(S_JOB_NNODES);
    facts.node_index = number(S_JOB_NODEID);
    facts.tasks_here = number(S_JOB_LOCAL_TASK_COUNT);
    facts.total_tasks = number(S_JOB_TOTAL_TASK_COUNT);
    facts.restart_count = number(S_SLURM_RESTART_COUNT);
    facts.array_job_id = number(S_JOB_ARRAY_ID);
    facts.array_task_id = number(S_JOB_ARRAY_TASK_ID);
    facts.stepd_pid = static_cast<std::uint32_t>(::getpid());
    read_identity(handle, facts);
    facts.argv = read_argv(handle);
    auto text = [&](const char *name, std::size_t limit) {
        return get_step_env(handle, name, limit).value_or("");
    };
    facts.cluster = text("SLURM_CLUSTER_NAME", max_word_bytes);
    facts.step_nodes = text("SLURM_STEP_NODELIST", max_list_bytes);
    facts.job_nodes = text("SLURM_JOB_NODELIST", max_list_bytes);
    facts.tasks_per_node = text("SLURM_STEP_TASKS_PER_NODE", max_list_bytes);
    return facts;
}

std::chrono::milliseconds time_left(Clock::time_point deadline) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    return std::max(left, std::chrono::milliseconds(1));
}

/// A daemon that is being restarted or replaced is back in a moment.
template <typename Request>
Status ask_daemon(const ModuleArgs &args, const Request &request, std::chrono::milliseconds timeout) {
    auto begin = Clock::now(), deadline = begin + timeout,
         give_up = begin + std::min(timeout, longest_restart);
    while (true) {
        auto answer = proto::LocalClient::ask_once(args.socket, proto::local::Role::Spank, request,
                                                   time_left(deadline));
        if (answer.ok())
            return answer->message.body.type == proto::local::Body::Done
                       ? Status()
                       : Status(Code::corrupt,
                                "the daemon gave an answer that does not belong to the request");
        bool away = answer.status().code() == Code::unavailable;
        if (!away || Clock::now() + connect_again >= give_up) return answer.take_status();
        ::poll(nullptr, 0, static_cast<int>(connect_again.count()));
    }
}

std::unique_ptr<proto::JoinTargetT> make_target(const JoinTarget &given) {
    auto target = std::make_unique<proto::JoinTargetT>();
    target->job_id = given.job_id;
    target->step_id = given.step_id;
    target->restart_count = given.restart_count.value_or(0);
    target->any_run = !given.restart_count.has_value();
    return target;
}

Status register_step(spank_t handle, const ModuleArgs &args, const StepFacts &facts,
                     const StepRequest &request, const GroupSize &size) {
    auto step = make_registration(facts, request, size);
    if (!step) return step.take_status();
    proto::local::RegisterStepT message;
    message.step = std::make_unique<proto::StepRegistrationT>(std::move(*step));
    message.launch = read_launch(handle, facts.argv);
    if (request.options.join) message.join = make_target(*request.options.join);
    return ask_daemon(args, std::move(message), args.timeout);
}

std::string this_node(const StepFacts &facts) {
    auto names = expand_hostlist(facts.step_nodes);
    if (names && facts.node_index < names->size()) return (*names)[facts.node_index];
    char name[max_host_name_bytes + 1] = {};
    return ::gethostname(name, sizeof name - 1) == 0 ? name : "?";
}

/// What the user reads: node, what happened, what to do.
std::string register_error(const ModuleArgs &args, const std::string &node, const Status &status) {
    bool away =
        status.code() == Code::unavailable || status.code() == Code::timeout || status.code() == Code::system;
    std::string text = "node " + node + ": " + status.message();
    if (away)
        text += "; ask the administrator to start dlroverd there (it serves " + args.socket +
                "), or give --dlrover-optional to run without protection";
    return text;
}

void set_step_env(spank_t handle, const char *name, const std::string &value) {
    if (spank_setenv(handle, name, value.c_str(), 1) != ESPANK_SUCCESS)
        slurm_error("dlrover: %s could not be set", name);
}

void set_or_unset(spank_t handle, const char *name, const std::string &value) {
    if (value.empty())
        spank_unsetenv(handle, name);
    else
        set_step_env(handle, name, value);
}

/// `status`: of the registration.
void tell_tasks(spank_t handle, const ModuleArgs &args, const Group &group, const Status &status,
                const std::string &error) {
    set_step_env(handle, "DLROVER_JOB_ID", std::to_string(group.job_id));
    set_step_env(handle, "DLROVER_STEP_ID", std::to_string(group.step_id));
    set_step_env(handle, "DLROVER_SOCKET", args.socket);
    set_step_env(handle, "DLROVER_TASKS_HERE", std::to_string(group.tasks_here));
    set_step_env(handle, "DLROVER_OPTIONAL", group.optional ? "1" : "0");
    set_step_env(handle, "DLROVER_JOINS", group.joins ? "1" : "0");
    set_or_unset(handle, "DLROVER_CKPT_DIR", group.ckpt_dir);
    set_step_env(handle, "DLROVER_REDUNDANCY", group.redundancy);
    set_step_env(handle, "DLROVER_PMIX", text_of(group.pmix));
    bool late = status.code() == Code::timeout;
    set_or_unset(handle, "DLROVER_REGISTER_ERROR", late ? "" : error);
    set_or_unset(handle, "DLROVER_REGISTER_LATE", late ? "1" : "");
}

/// The request of an ordinary step that srun made a group of; none for every other step.
std::optional<StepRequest> take_request(spank_t handle) {
    auto step_id = get_uint32(handle, S_JOB_STEPID);
    if (!step_id || !is_ordinary_step(*step_id)) return {};
    auto text = get_step_env(handle, request_variable, max_request_bytes);
    if (!text) return {};
    spank_unsetenv(handle, request_variable);
    auto request = decode_request(*text);
    if (!request) {
        slurm_error("dlrover: the step is left alone: %s", request.status().message().c_str());
        return {};
    }
    return std::move(*request);
}

}  // namespace

std::optional<std::string> get_step_env(spank_t handle, const char *name, std::size_t limit) {
    std::string text(std::min<std::size_t>(limit, 4096) + 1, '\0');
    while (true) {
        auto rc = spank_getenv(handle, name, text.data(), static_cast<int>(text.size()));
        if (rc == ESPANK_SUCCESS) break;
        if (rc != ESPANK_NOSPACE || text.size() > limit) return {};
        text.resize(std::min(text.size() * 4, limit + 1));
    }
    text.resize(std::strlen(text.c_str()));
    return text;
}

Status remote_step_starts(spank_t handle, Module &module) {
    auto request = take_request(handle);
    if (!request) return {};
    StepFacts facts = read_facts(handle);
    auto size = fit_options(request->options, facts.nodes);
    if (!size) return {};  // srun has said so, where it was asked for by name
    Group &group = module.group.emplace();
    group.job_id = facts.job_id;
    group.step_id = facts.step_id;
    group.tasks_here = facts.tasks_here;
    group.optional = request->options.optional;
    group.joins = request->options.join.has_value();
    group.ckpt_dir = request->options.ckpt_dir;
    group.redundancy = request->options.redundancy;
    group.pmix = request->options.pmix;
    group.node = this_node(facts);
    group.agent = open_agent(module.args.agent);
    Status status = register_step(handle, module.args, facts, *request, *size);
    // A daemon that is held up finds the request when it goes on; the agents wait for that.
    group.registered = status.ok() || status.code() == Code::timeout;
    std::string error = status.ok() ? "" : register_error(module.args, group.node, status);
    tell_tasks(handle, module.args, group, status, error);
    if (!status.ok()) slurm_error("dlrover: step %u.%u: %s", facts.job_id, facts.step_id, error.c_str());
    return {};
}

Status remote_task_starts(spank_t handle, Module &module) {
    if (!module.group) return {};
    int task = 0;
    if (spank_get_item(handle, S_TASK_ID, &task) == ESPANK_SUCCESS)
        set_step_env(handle, "DLROVER_LOCAL_TASK", std::to_string(task));
    auto argv = read_argv(handle);
    if (!argv.empty() && is_own_agent(argv[0])) return {};
    const Group &group = *module.group;
    if (!group.agent && ::access(module.args.agent.c_str(), X_OK) != 0) {
        slurm_error("dlrover: %s is not installed on this node%s", module.args.agent.c_str(),
                    group.optional ? "; the task runs without protection" : "");
        if (group.optional) return {};
    }
    std::string command = argv.empty() ? "" : command_name(argv[0], group.job_id, group.step_id, group.node);
    if (command.empty() ||
        !put_agent_in_front(handle, agent_program(group.agent, module.args.agent), command))
        slurm_error("dlrover: the task runs without protection: Slurm does not show its command");
    return {};
}

Status remote_step_ended(Module &module) {
    if (!module.group || !module.group->registered) return {};
    proto::local::EndStepT message;
    message.job_id = module.group->job_id;
    message.step_id = module.group->step_id;
    return ask_daemon(module.args, std::move(message), std::min(module.args.timeout, longest_goodbye));
}

}  // namespace dlrover::spank
