// SPDX-License-Identifier: Apache-2.0
// The module in srun, sbatch and salloc. A refusal ends the process, so each command is a child of its own.
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "spank_plugin/module.h"
#include "tests/spank/fake_daemon.h"
#include "tests/spank/host.h"

using namespace dlrover;
namespace local = proto::local;

namespace {

using Given = std::vector<std::pair<const char *, const char *>>;

/// One command line and what became of it.
struct Command {
    spank_context_t context = S_CTX_LOCAL;
    std::map<std::string, std::string> slurm;      ///< Slurm's own options
    std::map<std::string, std::string> variables;  ///< of the user's environment
    Given inherited;                               ///< options that Slurm found in its variables
    Given given;                                   ///< --dlrover-* on the command line
    bool settable = true;
    std::uint32_t step_nodes = 0;    ///< where not 0: local_user_init comes too
    std::vector<std::string> words;  ///< of plugstack.conf
    std::string stays_for;           ///< a file that comes, within 5 s
    std::optional<int> exits_with;   ///< by exit(), as srun does
};

struct Outcome {
    int exit_code = -1;
    pid_t pid = 0;
    std::string report;  ///< log lines, then "NAME=VALUE" of Slurm's options and of the request

    bool says(std::string_view part) const { return report.find(part) != std::string::npos; }
    bool group() const { return says("request=1 "); }
};

std::string inherited_variable(std::string_view option) {
    std::string name = "SLURM_SPANK__SLURM_SPANK_OPTION_dlrover_";
    for (char c : option) name += c == '-' ? '_' : c;
    return name;
}

/// Slurm's order: init, its variables, the command line, init_post_opt.
int play(const Command &command, LoadedModule &module) {
    for (const auto &[name, option] : host->options)
        if (const char *value = ::getenv(inherited_variable(name).c_str()))
            if (module.give(name.c_str(), value) != 0) return 255;
    for (const auto &[name, value] : command.given)
        if (module.give(name, value) != 0) return 255;
    int rc = module.hook("init_post_opt");
    if (command.step_nodes != 0) {
        host->numbers[S_JOB_NNODES] = command.step_nodes;
        host->numbers[S_JOB_ID] = 7;
        host->numbers[S_JOB_STEPID] = 3;
        rc |= module.hook("local_user_init");
        for (int i = 0;
             i < 500 && !command.stays_for.empty() && ::access(command.stays_for.c_str(), F_OK) != 0; ++i)
            ::usleep(10000);
    }
    return rc;
}

int write_fd = -1;

void write_report() {
    std::string text;
    for (const auto &line : host->log) text += line + "\n";
    for (const auto &[name, value] : host->command) text += name + "=" + value + "\n";
    if (const char *request = ::getenv(spank::request_variable))
        text += std::string("request=") + request + "\n";
    if (::getenv(inherited_variable("dlrover-optional").c_str())) text += "optional is handed down\n";
    if (::write(write_fd, text.data(), text.size()) < 0) ::_exit(99);
}

std::unique_ptr<LoadedModule> loaded;

[[noreturn]] void child(const Command &command) {
    Host fresh;
    host = &fresh;
    fresh.context = command.context;
    fresh.command = command.slurm;
    fresh.settable = command.settable;
    for (const auto &[name, value] : command.variables) ::setenv(name.c_str(), value.c_str(), 1);
    for (const auto &[name, value] : command.inherited) ::setenv(inherited_variable(name).c_str(), value, 1);
    // Runs last. LeakSanitizer's look at the end can hang in a child whose parent had another thread.
    static int status;
    status = command.exits_with.value_or(0);
    if (command.exits_with)
        std::atexit([] {
            std::fflush(nullptr);
            ::_exit(status);
        });
    if (!command.exits_with) std::atexit(write_report);
    loaded = std::make_unique<LoadedModule>(".libs/dlrover.so", command.words);
    // srun's own: before what the module registers.
    if (command.exits_with)
        std::atexit([] {
            loaded->hook("exit");
            loaded.reset();
            write_report();
        });
    int rc = play(command, *loaded);
    if (command.exits_with) std::exit(*command.exits_with);
    write_report();
    ::_exit(rc);
}

Outcome run(const Command &command) {
    int ends[2];
    BOOST_TEST_REQUIRE(::pipe(ends) == 0);
    std::cout.flush();
    pid_t pid = ::fork();
    if (pid == 0) {
        ::close(ends[0]);
        write_fd = ends[1];
        child(command);
    }
    ::close(ends[1]);
    Outcome outcome;
    outcome.pid = pid;
    char buffer[4096];
    for (ssize_t n; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;)
        outcome.report.append(buffer, static_cast<std::size_t>(n));
    ::close(ends[0]);
    int status = 0;
    BOOST_TEST_REQUIRE(::waitpid(pid, &status, 0) == pid);
    outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return outcome;
}

/// A dlrover-watch that tells what it was started with, for which srun stays until it has looked.
struct WatchStandIn {
    std::filesystem::path folder;

    WatchStandIn() {
        char name[] = "/tmp/watch-XXXXXX";
        BOOST_TEST_REQUIRE(::mkdtemp(name));
        folder = name;
        std::ofstream(folder / "dlrover-watch") << R"(#!/usr/bin/python3 -IS
import os, sys
folder = os.path.dirname(sys.argv[0])
with open(folder + "/started", "a") as out: print(*sys.argv[1:], file=out)
def word(name):
    return next(line.split()[1] for line in open("/proc/self/fdinfo/3") if line.startswith(name))
with open(folder + "/telling", "w") as out:
    out.reconfigure(line_buffering=True)
    print("words", *sys.argv[1:], file=out)
    files = {int(fd): os.readlink("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd") if os.path.lexists("/proc/self/fd/" + fd)}
    for fd in sorted(files):
        if fd != out.fileno(): print(fd, files[fd], file=out)
    print("end", file=out)
    print("own session" if os.getsid(0) != os.getsid(int(word("Pid:"))) else "srun's session", file=out)
    print("blocked", next(line.split()[1] for line in open("/proc/self/status") if line.startswith("SigBlk")), file=out)
    print("handle", word("Pid:"), file=out)
os.rename(folder + "/telling", folder + "/told")
)";
        std::filesystem::permissions(folder / "dlrover-watch", std::filesystem::perms::all);
    }
    ~WatchStandIn() { std::filesystem::remove_all(folder); }

    std::string told() const { return text_of("told"); }
    /// A line of words for each that was.
    std::string started() const { return text_of("started"); }

  private:
    std::string text_of(const char *name) const {
        std::ifstream file(folder / name);
        return {std::istreambuf_iterator<char>(file), {}};
    }
};

Command srun(std::string nodes, Given given = {}, Given inherited = {}) {
    Command c;
    if (!nodes.empty()) c.slurm["nodes"] = std::move(nodes);
    c.given = std::move(given);
    c.inherited = std::move(inherited);
    return c;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(module_in_commands)

BOOST_AUTO_TEST_CASE(srun_makes_a_group) {
    Outcome o = run(srun("4", {{"dlrover-elastic", "2:4"}, {"dlrover-name", "x"}, {"dlrover-optional", ""}}));
    BOOST_TEST(o.exit_code == 0);
    BOOST_TEST(o.group(), o.report);
    BOOST_TEST(o.says("dlrover-elastic=2:4"));
    BOOST_TEST(o.says("no-kill=set"));
    BOOST_TEST(o.says("\nwait=0"));
    BOOST_TEST(o.says("kill-on-bad-exit=0"));
    BOOST_TEST(!o.says("dlrover: "), o.report);
}

BOOST_AUTO_TEST_CASE(without_the_option_nothing_changes) {
    Outcome o = run(srun("4"));
    BOOST_TEST(o.exit_code == 0);
    BOOST_TEST(o.report == "nodes=4\n");
}

BOOST_AUTO_TEST_CASE(an_enclosing_groups_request_does_not_pass) {
    Command c = srun("4");
    c.variables[spank::request_variable] = "1 dlrover-elastic=4";
    BOOST_TEST(!run(c).group());
}

BOOST_AUTO_TEST_CASE(wrong_sizes_end_the_command) {
    Outcome o = run(srun("3", {{"dlrover-elastic", "2:4"}}));
    BOOST_TEST(o.exit_code == 1);
    BOOST_TEST(o.says("needs 4 nodes (MAX, -N4); the step has 3"), o.report);
    BOOST_TEST(run(srun("", {{"dlrover-elastic", "2:4"}})).says("give srun -N4"));
    Command c = srun("3", {{"dlrover-elastic", "2:4"}});
    c.variables["SLURM_EXIT_ERROR"] = "77";
    BOOST_TEST(run(c).exit_code == 77);
}

BOOST_AUTO_TEST_CASE(wrong_values_are_refused_by_the_callback) {
    Outcome o = run(srun("4", {{"dlrover-elastic", "x"}}));
    BOOST_TEST(o.exit_code == 255);
    BOOST_TEST(o.says("--dlrover-elastic=x is refused: give MIN"));
    BOOST_TEST(
        run(srun("4", {{"dlrover-redundancy", "rs:4+9"}})).says("--dlrover-redundancy=rs:4+9 is refused"));
}

BOOST_AUTO_TEST_CASE(an_inherited_option_leaves_other_steps_alone) {
    Given inherited = {{"dlrover-elastic", "2:4"}};
    BOOST_TEST(run(srun("4", {}, inherited)).group());
    BOOST_TEST(run(srun("1", {}, inherited)).report == "nodes=1\n");
    Command pty = srun("4", {}, inherited);
    pty.slurm["pty"] = "set";
    BOOST_TEST(run(pty).report == "nodes=4\npty=set\n");
    BOOST_TEST(run(srun("4", {{"dlrover-elastic", "off"}}, inherited)).report == "nodes=4\n");
    BOOST_TEST(run(srun("1", {{"dlrover-elastic", "2:4"}}, inherited)).exit_code == 1);
    BOOST_TEST(run(srun("2", {{"dlrover-elastic", nullptr}}, inherited)).group());
    BOOST_TEST(run(srun("2", {}, {{"dlrover-elastic", "(null)"}})).group());
}

BOOST_AUTO_TEST_CASE(pty_with_the_option_is_refused) {
    Command c = srun("4", {{"dlrover-elastic", "2:4"}});
    c.slurm["pty"] = "set";
    Outcome o = run(c);
    BOOST_TEST(o.exit_code == 1);
    BOOST_TEST(o.says("can not be used with --pty"));
}

BOOST_AUTO_TEST_CASE(defaults_of_the_environment) {
    Command c = srun("4");
    c.variables["DLROVER_ELASTIC"] = "2:4";
    c.variables["DLROVER_MAX_RESTARTS"] = "9";
    Outcome o = run(c);
    BOOST_TEST(o.group());
    BOOST_TEST(o.says("dlrover-max-restarts=9"));
    c.slurm["nodes"] = "1";
    BOOST_TEST(!run(c).group());
    c.given = {{"dlrover-elastic", "1:1"}};
    BOOST_TEST(run(c).group());
    c.given = {};
    c.inherited = {{"dlrover-elastic", "off"}};
    c.slurm["nodes"] = "4";
    BOOST_TEST(!run(c).group());
    c.inherited = {};
    c.variables["DLROVER_OPTIONAL"] = "1";
    o = run(c);
    BOOST_TEST((o.says("dlrover-optional=yes") && o.says("optional is handed down")), o.report);
    c.variables["DLROVER_OPTIONAL"] = "0";
    o = run(c);
    BOOST_TEST((o.says("dlrover-optional=no") && !o.says("optional is handed down")));
    c.variables["DLROVER_ELASTIC"] = "rubbish";
    o = run(c);
    BOOST_TEST(o.exit_code == 255);
    BOOST_TEST(o.says("(from the variable DLROVER_ELASTIC)"));
}

BOOST_AUTO_TEST_CASE(the_users_own_words_stand_and_are_commented) {
    Command c = srun("4", {{"dlrover-elastic", "2:4"}});
    c.slurm["no-kill"] = "unset";
    c.slurm["wait"] = "30";
    Outcome o = run(c);
    BOOST_TEST(o.exit_code == 0);
    BOOST_TEST(o.group());
    BOOST_TEST(o.says("--no-kill is \"unset\": a lost node will end the whole job"));
    BOOST_TEST(o.says("--wait is \"30\""));
}

BOOST_AUTO_TEST_CASE(a_slurm_that_can_not_be_told_is_reported_with_the_way_round) {
    Command c = srun("4", {{"dlrover-elastic", "2:4"}});
    c.settable = false;
    Outcome o = run(c);
    BOOST_TEST(o.exit_code == 0);
    BOOST_TEST(o.group());
    for (const char *option : {"--no-kill could not be set", "--wait could not be set",
                               "--kill-on-bad-exit could not be set", "give --no-kill", "give --wait=0"})
        BOOST_TEST(o.says(option), option);
}

BOOST_AUTO_TEST_CASE(a_size_known_too_late_is_said) {
    Command c = srun("", {{"dlrover-elastic", "3"}});
    c.step_nodes = 2;
    BOOST_TEST(run(c).says("the step runs without protection: --dlrover-elastic=3 needs at least 3 nodes"));
    c.step_nodes = 3;
    BOOST_TEST(!run(c).says("without protection"));
}

BOOST_AUTO_TEST_CASE(a_group_of_several_nodes_gets_a_watch_with_nothing_of_srun) {
    WatchStandIn watch;
    Command c = srun("2", {{"dlrover-elastic", nullptr}});
    c.words = {"agent=" + watch.folder.string() + "/agent", "socket=/nowhere/socket"};
    c.variables["SLURM_RESTART_COUNT"] = "2";
    c.step_nodes = 2;
    c.stays_for = watch.folder / "told";
    Outcome o = run(c);
    BOOST_TEST(o.exit_code == 0);
    BOOST_TEST(!o.says("dlrover: "), o.report);
    std::string told = watch.told();
    BOOST_TEST(told.starts_with("words 7 3 2 /nowhere/socket\n"), told);
    BOOST_TEST(told.find("\n0 /dev/null\n1 /dev/null\n2 /dev/null\n3 anon_inode:[pidfd]\nend\n") != told.npos,
               told);
    BOOST_TEST(told.find("\nown session\n") != told.npos, told);
    BOOST_TEST(told.find("\nblocked 0000000000000000\n") != told.npos, told);
    BOOST_TEST(told.find("\nhandle " + std::to_string(o.pid) + "\n") != told.npos, told);
}

/// A daemon that says how the group of step 7.3, run 2, has fared; then srun ends with 137.
struct Ending {
    local::OutcomeReplyT says;
    int running_first = 0;  ///< answers, before that
    FakeDaemon daemon{[this](const FakeDaemon::Message &message) {
        std::vector<FakeDaemon::Message> answers;
        const auto *request = message.body.AsOutcomeRequest();
        bool asked = request && request->job_id == 7 && request->step_id == 3 && request->restart_count == 2;
        local::OutcomeReplyT reply = says;
        if (running_first-- > 0) reply.outcome = local::Outcome::Running;
        if (asked) answers.push_back(proto::make_local(message.id, std::move(reply)));
        return answers;
    }};
    Command command = srun("2", {{"dlrover-elastic", nullptr}});

    Ending() {
        says.outcome = local::Outcome::Over;
        says.lost = 1;
        command.words = {"agent=/nowhere/agent", "socket=" + daemon.path()};
        command.variables["SLURM_RESTART_COUNT"] = "2";
        command.step_nodes = 2;
        command.exits_with = 137;
    }
};

BOOST_FIXTURE_TEST_CASE(srun_ends_as_a_group_that_has_lost_nodes, Ending) {
    Outcome o = run(command);
    BOOST_TEST(o.exit_code == 0);
    BOOST_TEST(
        o.says(
            "srun ends with exit code 0, as the group of step 7.3: tasks that were killed on nodes that it "
            "had lost, or spares, do not count"),
        o.report);
    says.exit_code = 3;
    running_first = 3;
    BOOST_TEST(run(command).exit_code == 3);
}

/// A spare that hung until the end is no loss, and its tasks are killed when it comes back.
BOOST_FIXTURE_TEST_CASE(srun_ends_as_the_group_that_lost_none_of_its_nodes, Ending) {
    says.lost = 0;
    BOOST_TEST(run(command).exit_code == 0);
    says.exit_code = 137;
    Outcome o = run(command);
    BOOST_TEST(o.exit_code == 137);
    BOOST_TEST(!o.says("dlrover: "), o.report);
}

BOOST_FIXTURE_TEST_CASE(srun_ends_as_slurm_says_where_the_group_is_not_over_or_unknown, Ending) {
    says.lost = 0;
    says.outcome = local::Outcome::Running;
    Outcome o = run(command);
    BOOST_TEST(o.exit_code == 137);
    BOOST_TEST(!o.says("dlrover: "), o.report);
    says.outcome = local::Outcome::Unknown;
    BOOST_TEST(run(command).exit_code == 137);
    command.exits_with = 0;
    auto asked = daemon.received().size();
    BOOST_TEST(run(command).exit_code == 0);
    BOOST_TEST(daemon.received().size() == asked);
    command.exits_with = 137;
    command.words = {"agent=/nowhere/agent", "socket=/nowhere/socket"};
    BOOST_TEST(run(command).exit_code == 137);
}

BOOST_AUTO_TEST_CASE(no_watch_for_one_node_other_steps_or_where_it_is_not_installed) {
    WatchStandIn watch;
    Command c = srun("1", {{"dlrover-elastic", nullptr}});
    c.words = {"agent=" + watch.folder.string() + "/agent"};
    c.step_nodes = 1;
    BOOST_TEST(run(c).exit_code == 0);
    c = srun("2");
    c.words = {"agent=" + watch.folder.string() + "/agent"};
    c.step_nodes = 2;
    BOOST_TEST(run(c).exit_code == 0);
    // One that is started after them: by the time that it has told, theirs would have been, too.
    c.given = {{"dlrover-elastic", nullptr}};
    c.stays_for = watch.folder / "told";
    BOOST_TEST(run(c).exit_code == 0);
    BOOST_TEST(watch.started().starts_with("7 3 0 "));
    BOOST_TEST(std::ranges::count(watch.started(), '\n') == 1);
    c.stays_for.clear();
    c.given = {{"dlrover-elastic", nullptr}};
    c.words = {"agent=/nowhere/agent"};
    Outcome o = run(c);
    BOOST_TEST(o.exit_code == 0);
    BOOST_TEST(!o.says("dlrover: "), o.report);
}

BOOST_AUTO_TEST_CASE(sbatch_and_salloc_set_no_kill_only) {
    Command c = srun("4", {{"dlrover-elastic", "2:4"}});
    c.context = S_CTX_ALLOCATOR;
    Outcome o = run(c);
    BOOST_TEST(o.report == "no-kill=set\nnodes=4\n");
    c.slurm["nodes"] = "2";
    o = run(c);
    BOOST_TEST(o.exit_code == 1);
    BOOST_TEST(o.says("needs 4 nodes"));
}

BOOST_AUTO_TEST_CASE(another_option_alone_is_refused) {
    BOOST_TEST(run(srun("4", {{"dlrover-spares", "1"}}))
                   .says("--dlrover-spares has no effect without --dlrover-elastic"));
    Command c = srun("4");
    c.variables["DLROVER_SPARES"] = "1";
    BOOST_TEST(run(c).exit_code == 0);
}

BOOST_AUTO_TEST_SUITE_END()
