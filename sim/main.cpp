// SPDX-License-Identifier: Apache-2.0
// dlrover-sim: runs the members of one group through many seeds. See docs/simulator.md.
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>

#include "sim/simulator.h"

namespace {

using namespace dlrover;

constexpr int exit_usage = 2;

struct Range {
    std::uint64_t from = 1, to = 100;
};

struct Arguments {
    std::string seeds = "1:100", bug = "none";
    std::uint32_t nodes = 100, jobs = 1, switches = 0;
    std::uint64_t replay = 0;
    std::optional<std::uint32_t> copies;
    std::string code;
    std::optional<bool> joins;
    bool no_shrink = false, rollbacks = false, damage = false, scales = false, host_requeues = false,
         pairs = false;
    bool trace = false, keep_going = false;
};

elastic::PlantedBug find_bug(const std::string &name) {
    for (std::size_t i = 0; i < elastic::planted_bug_names.size(); ++i)
        if (elastic::planted_bug_names[i] == name) return static_cast<elastic::PlantedBug>(i);
    throw CLI::ValidationError("--bug", "no such bug: " + name);
}

Range parse_range(const std::string &text) {
    std::size_t colon = text.find(':');
    if (colon == std::string::npos) throw CLI::ValidationError("--seeds", "A:B expected");
    try {
        return {std::stoull(text.substr(0, colon)), std::stoull(text.substr(colon + 1))};
    } catch (const std::exception &) {
        throw CLI::ValidationError("--seeds", "A:B expected");
    }
}

std::optional<elastic::CodeSize> parse_code(const std::string &text) {
    if (text.empty()) return std::nullopt;
    std::size_t plus = text.find('+');
    if (plus == std::string::npos) throw CLI::ValidationError("--code", "K+M expected");
    try {
        return elastic::CodeSize{static_cast<std::uint32_t>(std::stoul(text.substr(0, plus))),
                                 static_cast<std::uint32_t>(std::stoul(text.substr(plus + 1)))};
    } catch (const std::exception &) {
        throw CLI::ValidationError("--code", "K+M expected");
    }
}

/// One process's share: every `step`th seed. The number of seeds that failed.
int run_share(const Arguments &a, Range seeds, std::uint32_t first, std::uint32_t step) {
    int failed = 0;
    for (std::uint64_t seed = seeds.from + first; seed <= seeds.to; seed += step) {
        sim::Simulator simulator({seed, a.nodes, find_bug(a.bug), a.trace, a.copies, parse_code(a.code),
                                  a.joins, a.no_shrink, a.rollbacks, a.damage, a.scales, a.host_requeues,
                                  a.switches, a.pairs});
        sim::Outcome outcome = simulator.run();
        if (outcome.violation.empty()) continue;
        std::cout << "seed " << seed << ": " << outcome.violation << " (at " << outcome.at.count() / 1000
                  << " ms)" << std::endl;
        ++failed;
        if (!a.keep_going) break;
    }
    return failed;
}

int run_all(const Arguments &a, Range seeds) {
    auto begin = std::chrono::steady_clock::now();
    int failed = 0;
    std::uint32_t started = 0;
    for (; a.jobs > 1 && started < a.jobs; ++started) {
        pid_t pid = ::fork();
        if (pid < 0) {
            std::cerr << "dlrover-sim: cannot start a process" << std::endl;
            return 2;
        }
        if (pid == 0) ::_exit(run_share(a, seeds, started, a.jobs) == 0 ? 0 : 1);
    }
    for (std::uint32_t i = 0; i < started; ++i) {
        int status = 0;
        ::wait(&status);
        failed += status != 0;
    }
    if (started == 0) failed = run_share(a, seeds, 0, 1);
    double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    double count = static_cast<double>(seeds.to - seeds.from + 1);
    std::cout << "seeds " << seeds.from << ":" << seeds.to << ", " << a.nodes << " nodes, " << took << " s, "
              << count / took << " seeds/s: " << (failed == 0 ? "clean" : "FAILED") << std::endl;
    return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
    Arguments a;
    CLI::App app("Runs an elastic group through simulated failures, from seeds", "dlrover-sim");
    app.add_option("--seeds", a.seeds, "first and last seed, A:B");
    app.add_option("--nodes", a.nodes, "nodes of the group")->check(CLI::Range(1, 10000));
    app.add_option("--copies", a.copies, "of each object on other nodes; else from the seed, 0 to 2");
    app.add_option("--code", a.code, "parities instead of copies, K+M; else from the seed");
    app.add_option("--joins", a.joins, "0, 1: Slurm grants nodes in place of others; else from the seed");
    app.add_flag("--no-shrink", a.no_shrink, "Slurm takes nodes out of the job once, or never");
    app.add_flag("--scales", a.scales, "persons want more nodes or fewer");
    app.add_flag("--host-requeues", a.host_requeues, "a lost batch host has the job requeued");
    app.add_option("--switches", a.switches, "on which the nodes hang; else nothing is known of them");
    app.add_flag("--pairs", a.pairs, "the link between two nodes alone goes for a time");
    app.add_flag("--rollbacks", a.rollbacks, "persons want older steps back");
    app.add_flag("--damage", a.damage, "what nodes hold turns out to be damaged; nothing is on storage");
    app.add_option("--bug", a.bug, "plant this bug");
    app.add_option("--replay", a.replay, "run this seed alone");
    app.add_flag("--trace", a.trace, "print every event");
    app.add_flag("--keep-going", a.keep_going, "do not stop at the first seed that fails");
    app.add_option("--jobs", a.jobs, "processes")->check(CLI::Range(1, 256));
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &error) {
        return app.exit(error) == 0 ? 0 : exit_usage;
    }
    try {
        Range seeds = a.replay != 0 ? Range{a.replay, a.replay} : parse_range(a.seeds);
        find_bug(a.bug);
        parse_code(a.code);
        return run_all(a, seeds);
    } catch (const CLI::ValidationError &e) {
        std::cerr << "dlrover-sim: " << e.what() << std::endl;
        return exit_usage;
    }
}
