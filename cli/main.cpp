// SPDX-License-Identifier: Apache-2.0
// dlrover: parses the command line and dispatches.
#include <CLI/CLI.hpp>
#include <iostream>

#include "cli/ask.h"
#include "cli/events_text.h"
#include "cli/status_text.h"
#include "config.h"

namespace {

using namespace dlrover;
using namespace dlrover::cli;

constexpr int exit_failure = 1;
constexpr int exit_usage = 2;
constexpr int exit_no_such_job = 3;

struct Options {
    std::string job;
    bool json = false;
};

int complain(const Status &status, int code) {
    std::cerr << "dlrover: " << status.message() << "\n";
    return code;
}

int no_such_job(const std::string &job) {
    std::cerr << "dlrover: no elastic step of job " << job
              << " is known (never started with --dlrover-elastic, of another user, or ended too long ago)\n";
    return exit_no_such_job;
}

int run_status(const Options &options) {
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

int run_events(const Options &options) {
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

}  // namespace

int main(int argc, char **argv) {
    CLI::App app("Looks at elastic jobs (srun --dlrover-elastic). See dlrover(1).");
    app.set_version_flag("--version", "dlrover " PACKAGE_VERSION);
    app.require_subcommand(1);
    Options options;
    auto *status = app.add_subcommand("status", "State of your elastic jobs, or all of one job");
    status->add_option("job", options.job, "JOB or JOB.STEP");
    status->add_flag("--json", options.json, "JSON instead of text");
    auto *events =
        app.add_subcommand("events", "Time line of a job: what failed, why, what was done, how long it took");
    events->add_option("job", options.job, "JOB or JOB.STEP")->required();
    events->add_flag("--json", options.json, "JSON instead of text");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &error) {
        return app.exit(error) == 0 ? 0 : exit_usage;
    }
    return status->parsed() ? run_status(options) : run_events(options);
}
