// SPDX-License-Identifier: Apache-2.0
// dlrover: does what the command line asks for.
#include <algorithm>
#include <iostream>

#include "cli/ask.h"
#include "cli/ckpt_command.h"
#include "cli/command_line.h"
#include "cli/events_text.h"
#include "cli/node_text.h"
#include "cli/rollback_command.h"
#include "cli/scale_command.h"
#include "cli/status_text.h"

namespace {

using namespace dlrover;
using namespace dlrover::cli;

constexpr int exit_failure = 1;
constexpr int exit_usage = 2;
constexpr int exit_no_such_job = 3;

int complain(const Status &status, int code) {
    std::cerr << "dlrover: " << status.message() << "\n";
    return code;
}

int no_such_job(const std::string &job) {
    std::cerr << "dlrover: no elastic step of job " << job
              << " is known (never started with --dlrover-elastic, of another user, or ended too long ago)\n";
    return exit_no_such_job;
}

int run_status(const CommandLine &options) {
    JobStep job;
    if (!options.job.empty()) {
        auto parsed = parse_job_step(options.job);
        if (!parsed) return complain(parsed.status(), exit_usage);
        job = *parsed;
    }
    auto reply = ask_status(job);
    if (!reply) return complain(reply.status(), exit_failure);
    if (reply->groups.empty() && job.job != 0) return no_such_job(options.job);
    if (options.json) {
        std::cout << status_json(*reply);
    } else if (job.job == 0) {
        std::cout << status_list(*reply);
    } else {
        for (const auto &group : reply->groups) std::cout << status_details(*group);
    }
    return 0;
}

int run_events(const CommandLine &options) {
    auto job = parse_job_step(options.job);
    if (!job) return complain(job.status(), exit_usage);
    auto reply = ask_events(*job);
    if (!reply) return complain(reply.status(), exit_failure);
    if (reply->groups.empty()) return no_such_job(options.job);
    if (options.json) {
        std::cout << events_json(*reply);
    } else {
        for (const auto &group : reply->groups) std::cout << events_text(*group);
    }
    return 0;
}

/// change: to a job that is known.
template <typename Change>
int run_change(const CommandLine &options, Change change) {
    auto job = parse_job_step(options.job);
    if (!job) return complain(job.status(), exit_usage);
    auto reply = ask_status(*job);
    if (!reply) return complain(reply.status(), exit_failure);
    if (reply->groups.empty()) return no_such_job(options.job);
    Status done = change(*reply);
    return done.ok() ? 0 : complain(done, exit_failure);
}

int run_rollback(const CommandLine &options) {
    return run_change(
        options, [&](const auto &reply) { return roll_back_job(reply, options.train_step, options.yes); });
}

int run_scale(const CommandLine &options) {
    return run_change(options,
                      [&](const auto &reply) { return scale_job(reply, options.nodes, options.wait); });
}

int run_node_check(const CommandLine &options) {
    auto reply = ask_node_check();
    if (!reply) return complain(reply.status(), exit_failure);
    std::cout << (options.json ? node_check_json(*reply) : node_check_text(*reply));
    return is_sound(*reply) ? 0 : exit_failure;
}

}  // namespace

int main(int argc, char **argv) {
    std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
    if (!words.empty() && words.front() == "ckpt") return run_ckpt({words.begin() + 1, words.end()});
    auto line = parse_command_line(std::move(words));
    if (!line) return complain(line.status(), exit_usage);
    switch (line->command) {
        case Command::show_text:
            std::cout << line->text;
            return 0;
        case Command::status:
            return run_status(*line);
        case Command::events:
            return run_events(*line);
        case Command::rollback:
            return run_rollback(*line);
        case Command::scale:
            return run_scale(*line);
        case Command::node_check:
            return run_node_check(*line);
    }
}
