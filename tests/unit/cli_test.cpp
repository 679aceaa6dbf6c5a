// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <thread>

#include "cli/ask.h"
#include "cli/command_line.h"
#include "cli/events_text.h"
#include "cli/json.h"
#include "cli/node_text.h"
#include "cli/progress.h"
#include "cli/rollback_command.h"
#include "cli/status_text.h"
#include "cli/table.h"

using namespace dlrover;
using namespace dlrover::cli;
using namespace dlrover::proto::local;

namespace {

bool contains(const std::string &text, const std::string &part) {
    return text.find(part) != std::string::npos;
}

GroupStatusT example_group() {
    GroupStatusT g;
    g.job_id = 17;
    g.step_id = 0;
    g.user = "alice";
    g.state = GroupState::Recovering;
    g.world_size = 8;
    g.nodes = {"n1", "n2"};
    g.goodput = std::make_unique<GoodputT>();
    g.goodput->wall_us = 10000000;
    g.goodput->productive_us = 9720000;
    g.goodput->restarts = 2;
    g.goodput->steps = 42;
    auto c = std::make_unique<CheckpointStatusT>();
    c->train_step = 40;
    c->complete = true;
    g.checkpoints.push_back(std::move(c));
    auto r = std::make_unique<RankStatusT>();
    r->rank = 3;
    r->node = "n2";
    r->state = "running";
    r->train_step = 41;
    g.ranks.push_back(std::move(r));
    return g;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cli)

BOOST_AUTO_TEST_CASE(job_and_step) {
    BOOST_TEST(parse_job_step("1234")->job == 1234u);
    BOOST_TEST(!parse_job_step("1234")->step.has_value());
    BOOST_TEST(*parse_job_step("1234.7")->step == 7u);
    for (const char *bad : {"", "0", "x", "12.", ".1", "1.2.3", "-1", "99999999999"})
        BOOST_TEST(!parse_job_step(bad).ok(), bad);
}

BOOST_AUTO_TEST_CASE(commands) {
    auto line = parse_command_line({"status"});
    BOOST_REQUIRE(line.ok());
    BOOST_TEST((line->command == Command::status && line->job.empty() && !line->json));
    line = parse_command_line({"events", "--json", "12.0"});
    BOOST_REQUIRE(line.ok());
    BOOST_TEST((line->command == Command::events && line->job == "12.0" && line->json));
}

BOOST_AUTO_TEST_CASE(node_check) {
    auto line = parse_command_line({"node", "check"});
    BOOST_REQUIRE(line.ok());
    BOOST_TEST((line->command == Command::node_check && !line->json));
    BOOST_TEST(parse_command_line({"node", "check", "--json"})->json);
    BOOST_TEST(contains(parse_command_line({"node"}).status().message(), "dlrover node check"));
    BOOST_TEST(!parse_command_line({"node", "check", "n1"}).ok());

    NodeCheckReplyT reply;
    reply.node = "n1";
    reply.site = std::make_unique<SiteStatusT>();
    reply.site->slurm_version = "22.05.8";
    auto rung = std::make_unique<RungT>();
    rung->name = "job expansion";
    rung->text = "no permit_job_expansion";
    rung->change = "add it";
    reply.ladder.push_back(std::move(rung));
    BOOST_TEST(is_sound(reply), "what the site does not allow is no fault of the node");
    std::string text = node_check_text(reply);
    BOOST_TEST(contains(text, "  job expansion  closed   no permit_job_expansion\n"), text);
    BOOST_TEST(contains(text, "to change it: add it\n"), text);
    auto fact = std::make_unique<FactT>();
    fact->name = "munge";
    fact->state = FactState::Bad;
    fact->text = "gone\x1b[2J";
    reply.node_facts.push_back(std::move(fact));
    BOOST_TEST(!is_sound(reply));
    BOOST_TEST(contains(node_check_text(reply), "munge          bad      gone?[2J"), node_check_text(reply));
    std::string json = node_check_json(reply);
    BOOST_TEST(contains(json, "\"sound\":false"), json);
    BOOST_TEST(contains(json, "\"slurm_version\":\"22.05.8\""), json);
    BOOST_TEST(contains(json, "\"open\":false"), json);
    reply.site.reset();
    BOOST_TEST(contains(node_check_text(reply), "slurmctld has not answered"));
}

BOOST_AUTO_TEST_CASE(help_has_the_name_of_the_program) {
    for (std::vector<std::string> words :
         {std::vector<std::string>{"--help"}, {"-h"}, {"events", "--help"}}) {
        auto line = parse_command_line(words);
        BOOST_REQUIRE(line.ok());
        BOOST_TEST((line->command == Command::show_text));
        BOOST_TEST(contains(line->text, "Usage: dlrover "), line->text);
    }
    BOOST_TEST(contains(parse_command_line({"--version"})->text, "dlrover "));
}

BOOST_AUTO_TEST_CASE(a_wrong_command_line_is_named) {
    using Words = std::vector<std::string>;
    const std::pair<Words, const char *> wrong[] = {
        {{}, "no command is given (there are: status, events, rollback, scale, node, ckpt)"},
        {{"stats"}, "unknown command \"stats\" (there are: status, events, rollback, scale, node, ckpt)"},
        {{"stats", "12"},
         "unknown command \"stats\" (there are: status, events, rollback, scale, node, ckpt)"},
        {{"--bogus"}, "unknown option --bogus"},
        {{"--bogus", "status"}, "unknown option --bogus"},
        {{"status", "--bogus"}, "unknown option --bogus"},
        {{"events", "12", "--bogus"}, "unknown option --bogus"},
        {{"events"}, "events needs a job: dlrover events JOB"},
        {{"rollback", "12"}, "rollback needs a job and a step: dlrover rollback JOB --step N"},
        {{"rollback", "--step", "7"}, "rollback needs a job and a step: dlrover rollback JOB --step N"},
        {{"scale", "12"}, "scale needs a job and a number of nodes: dlrover scale JOB N"},
        {{"scale", "12", "0"}, "\"0\" is not a number of nodes"},
        {{"scale", "12", "many"}, "\"many\" is not a number of nodes"},
        {{"status", "12", "13"}, "unexpected word \"13\""},
        {{"status", "events", "12"}, "one command at a time"},
    };
    for (const auto &[words, text] : wrong) {
        auto line = parse_command_line(words);
        BOOST_REQUIRE_MESSAGE(!line.ok(), text);
        BOOST_TEST(line.status().message() == text);
    }
}

BOOST_AUTO_TEST_CASE(table_columns_line_up) {
    Table t({"A", "LONG"});
    t.add({"wide cell", "x"});
    BOOST_TEST(t.text(" ") == " A          LONG\n wide cell  x\n");
}

BOOST_AUTO_TEST_CASE(a_terminal_never_obeys_somebody_elses_text) {
    BOOST_TEST(printable("a\033[2Jb\nc") == "a?[2Jb c");
}

BOOST_AUTO_TEST_CASE(json_is_escaped) {
    JsonWriter j;
    j.begin_object()
        .field("a\"b", "x\n\\")
        .key("n")
        .begin_array()
        .value(std::uint32_t{1})
        .value(true)
        .null()
        .end_array()
        .end_object();
    BOOST_TEST(j.text() == "{\"a\\\"b\":\"x\\u000a\\\\\",\"n\":[1,true,null]}");
}

BOOST_AUTO_TEST_CASE(status_says_the_essentials) {
    auto g = example_group();
    std::string details = status_details(g);
    for (const char *part : {"Job 17.0 of alice: recovering", "8 ranks on 2 nodes",
                             "step 40: complete in memory", "97.2 % of 10.0 s", "41"})
        BOOST_TEST(contains(details, part), part);
    StatusReplyT reply;
    BOOST_TEST(status_list(reply) == "no elastic jobs\n");
    BOOST_TEST(status_json(reply) == "{\"groups\":[]}\n");
    reply.groups.push_back(std::make_unique<GroupStatusT>(std::move(g)));
    BOOST_TEST(contains(status_list(reply), "17.0  alice  recovering  8"));
    BOOST_TEST(contains(status_json(reply), "\"state\":\"recovering\""));
}

StoredCheckpointT stored_checkpoint(std::uint64_t step) {
    StoredCheckpointT out;
    out.generation = std::make_unique<dlrover::proto::Generation>(1, 3);
    out.train_step = step;
    return out;
}

std::unique_ptr<StorageProgressT> storage_progress(const char *node, std::uint64_t step,
                                                   std::uint64_t written, std::uint64_t bytes,
                                                   std::int64_t time_us) {
    auto out = std::make_unique<StorageProgressT>();
    out->node = node;
    out->checkpoint = std::make_unique<StoredCheckpointT>(stored_checkpoint(step));
    out->written_bytes = written;
    out->bytes = bytes;
    out->time_us = time_us;
    return out;
}

BOOST_AUTO_TEST_CASE(how_far_a_checkpoint_is_on_its_way_to_storage) {
    constexpr std::uint64_t gib = 1u << 30;
    StatusReplyT reply;
    reply.groups.push_back(std::make_unique<GroupStatusT>(example_group()));
    GroupStatusT &g = *reply.groups[0];
    g.storage = std::make_unique<StorageStatusT>();
    StorageStatusT &s = *g.storage;
    s.ckpt_dir = "/data";
    s.storing = std::make_unique<StoredCheckpointT>(stored_checkpoint(1200));
    BOOST_TEST(contains(status_details(g), "step 1200 is on its way to storage; in /data"));
    // Of a step before, and of a node that has been done with this one for long.
    s.progress.push_back(storage_progress("n3", 1100, gib, gib, 1000000));
    s.progress.push_back(storage_progress("n1", 1200, 0, 4 * gib, 2000000));
    BOOST_TEST(contains(status_details(g), "on its way to storage: 0 B of 4.0 GiB (0 %); in"));
    s.progress[1]->written_bytes = 2 * gib;
    s.progress.push_back(storage_progress("n2", 1200, 4 * gib, 4 * gib, 1000000));
    BOOST_TEST(contains(status_details(g), "6.0 GiB of 8.0 GiB (75 %), 1.0 GiB/s, about 2.0 s left; in"));
    std::string json = status_json(reply);
    BOOST_TEST(contains(json,
                        "\"storing\":{\"written_bytes\":6442450944,\"bytes\":8589934592,"
                        "\"bytes_per_s\":1073741824,\"left_us\":2000000,\"nodes\":[{\"node\":\"n1\","),
               json);
    BOOST_TEST(!contains(json, "n3"));
    // One that has written nothing yet: nobody knows how long it takes.
    s.progress.push_back(storage_progress("n4", 1200, 0, 4 * gib, 2000000));
    BOOST_TEST(contains(status_details(g), "6.0 GiB of 12 GiB (50 %); in"));
    BOOST_TEST(contains(status_json(reply), "\"left_us\":-1"));
    s.storing = nullptr;
    BOOST_TEST(!contains(status_details(g), "on its way"));
}

BOOST_AUTO_TEST_CASE(a_step_that_failures_came_back_from) {
    auto g = example_group();
    BOOST_TEST(!contains(status_details(g), "suspect"));
    auto suspect = std::make_unique<SuspectStepT>();
    suspect->train_step = 200;
    suspect->back_to = 100;
    g.suspects.push_back(std::move(suspect));
    BOOST_TEST(
        contains(status_details(g), "step 200, two failures came back from it; gone on from step 100\n"));
    StatusReplyT reply;
    reply.groups.push_back(std::make_unique<GroupStatusT>(std::move(g)));
    BOOST_TEST(contains(status_json(reply),
                        "\"suspects\":[{\"train_step\":200,\"generation\":{\"term\":0,\"number\":0},"
                        "\"back_to\":100,\"by_person\":false}]"));
    reply.groups[0]->suspects[0]->by_person = true;
    BOOST_TEST(
        contains(status_details(*reply.groups[0]), "step 200, rolled back by hand; gone on from step 100\n"));
    BOOST_TEST(contains(status_json(reply), "\"back_to\":100,\"by_person\":true}]"));
}

BOOST_AUTO_TEST_CASE(the_command_line_of_a_rollback) {
    auto line = parse_command_line({"rollback", "12.0", "--step", "100"});
    BOOST_REQUIRE(line.ok());
    BOOST_TEST((line->command == Command::rollback));
    BOOST_TEST(line->job == "12.0");
    BOOST_TEST(line->train_step == 100u);
    BOOST_TEST(!line->yes);
    BOOST_TEST(parse_command_line({"rollback", "12", "--step", "100", "--yes"})->yes);
    for (const char *bad : {"-1", "x", "1.5", "99999999999999999999"})
        BOOST_TEST(!parse_command_line({"rollback", "12", "--step", bad}).ok(), bad);
}

BOOST_AUTO_TEST_CASE(the_command_line_of_another_number_of_nodes) {
    auto line = parse_command_line({"scale", "12.0", "3"});
    BOOST_REQUIRE(line.ok());
    BOOST_TEST((line->command == Command::scale));
    BOOST_TEST(line->job == "12.0");
    BOOST_TEST(line->nodes == 3u);
    BOOST_TEST(line->wait);
    BOOST_TEST(!parse_command_line({"scale", "12", "3", "--no-wait"})->wait);
}

BOOST_AUTO_TEST_CASE(the_status_tells_how_many_nodes_are_wanted) {
    auto g = example_group();
    BOOST_TEST(!contains(status_details(g), "wanted"));
    g.max_nodes = g.wanted_nodes = 4;
    g.world_nodes = 4;
    BOOST_TEST(!contains(status_details(g), "wanted"), "all that it can have");
    g.world_nodes = 3;
    g.wanted_text = "Slurm gives no more nodes: no hours are left";
    BOOST_TEST(contains(status_details(g), "3 of 4 wanted (Slurm gives no more nodes: no hours are left)\n"));
    g.wanted_nodes = 3;
    g.wanted_text.clear();
    BOOST_TEST(contains(status_details(g), "3 of 3 wanted\n"));
    StatusReplyT reply;
    reply.groups.push_back(std::make_unique<GroupStatusT>(g));
    BOOST_TEST(contains(status_json(reply), "\"world_nodes\":3"));
    BOOST_TEST(contains(status_json(reply), "\"wanted_nodes\":3"));
}

BOOST_AUTO_TEST_CASE(only_a_running_group_is_rolled_back) {
    StatusReplyT reply;
    reply.groups.push_back(std::make_unique<GroupStatusT>(example_group()));
    GroupStatusT &g = *reply.groups[0];
    BOOST_TEST(running_group(reply).status().message() == "job 17.0 is recovering: ask again when it runs");
    g.state = GroupState::Running;
    BOOST_TEST(*running_group(reply) == &g);
    reply.groups.push_back(std::make_unique<GroupStatusT>(example_group()));
    reply.groups[1]->step_id = 1;
    BOOST_TEST(running_group(reply).status().message() ==
               "job 17 has 2 elastic steps: name one, for example 17.0");
    reply.groups[1]->state = GroupState::Failed;
    BOOST_TEST(*running_group(reply) == &g);
    g.state = GroupState::Finished;
    BOOST_TEST(
        contains(running_group(reply).status().message(), "job 17.1 has ended: dlrover ckpt rollback"));
}

BOOST_AUTO_TEST_CASE(what_a_group_has_left_behind_is_nowhere_to_go_back_to) {
    auto g = example_group();
    CheckpointId id{{Term(1), 3}, TrainStep(150)};
    BOOST_TEST(!is_left_behind(g, id));
    auto suspect = std::make_unique<SuspectStepT>();
    suspect->train_step = 200;
    suspect->back_to = 100;
    suspect->since = std::make_unique<proto::Generation>(1, 4);
    g.suspects.push_back(std::move(suspect));
    BOOST_TEST(is_left_behind(g, id));
    BOOST_TEST(!is_left_behind(g, {{Term(1), 4}, TrainStep(150)}));
    BOOST_TEST(!is_left_behind(g, {{Term(1), 3}, TrainStep(100)}));
    BOOST_TEST(find_step(g, 40).ok(), "complete in memory");
    BOOST_TEST(find_step(g, 30).status().message() ==
               "step 30 is not complete in memory, and not whole on storage: the job has no folder on "
               "storage (--dlrover-ckpt-dir)");
}

BOOST_AUTO_TEST_CASE(the_mover_of_a_step_with_copies) {
    StatusReplyT reply;
    reply.groups.push_back(std::make_unique<GroupStatusT>(example_group()));
    GroupStatusT &g = *reply.groups[0];
    g.node = "n1";
    BOOST_TEST(!contains(status_details(g), "mover"));
    BOOST_TEST(contains(status_json(reply), "\"mover\":null"));
    g.mover = std::make_unique<MoverStatusT>();
    BOOST_TEST(contains(status_details(g),
                        "does not run on node n1: ask the administrator whether dlrover-mover is installed"));
    g.mover->ready = true;
    g.mover->text = "no RDMA network is up here";
    BOOST_TEST(contains(status_details(g), "does not listen on node n1 (no RDMA network is up here)"));
    g.mover->port = 41234;
    g.mover->ways = 1;
    BOOST_TEST(contains(status_details(g), "listens at n1:41234, by TCP (no RDMA network is up here)"));
    g.mover->address = "10.0.0.3";
    g.mover->ways = 3;
    g.mover->text = "";
    BOOST_TEST(contains(status_details(g), "listens at 10.0.0.3:41234, by UCX\n"));
    BOOST_TEST(
        contains(status_json(reply),
                 "\"mover\":{\"ready\":true,\"address\":\"10.0.0.3\",\"port\":41234,\"ways\":[\"tcp\","
                 "\"ucx\"],\"text\":\"\",\"node\":\"\",\"interface\":\"\",\"nodes\":1,\"listening\":0}"));
    g.mover->ways = 1;
    g.mover->interface = "eth0, 1000 Mbit/s; ib0, 100000 Mbit/s, is there and not used";
    BOOST_TEST(contains(status_details(g),
                        "by TCP over eth0, 1000 Mbit/s; ib0, 100000 Mbit/s, is there and not used\n"));
}

BOOST_AUTO_TEST_CASE(the_pmix_servers_of_a_step) {
    StatusReplyT reply;
    reply.groups.push_back(std::make_unique<GroupStatusT>());
    GroupStatusT &g = *reply.groups[0];
    BOOST_TEST(!contains(status_details(g), "pmix"));
    BOOST_TEST(contains(status_json(reply), "\"pmix\":null"));
    g.pmix = std::make_unique<PmixStatusT>();
    BOOST_TEST(contains(status_details(g), "no namespace yet"));
    g.pmix->name_space = "dlrover.7.0.0.g1-2";
    g.pmix->nodes = 4;
    g.pmix->up = 3;
    BOOST_TEST(contains(status_details(g), "dlrover.7.0.0.g1-2, servers up on 3 of 4 nodes"));
    BOOST_TEST(
        contains(status_json(reply), "\"pmix\":{\"namespace\":\"dlrover.7.0.0.g1-2\",\"nodes\":4,\"up\":3}"));
}

BOOST_AUTO_TEST_CASE(the_worst_of_several_movers_is_named) {
    auto g = example_group();
    g.node = "n1";
    g.mover = std::make_unique<MoverStatusT>();
    g.mover->node = "n3";
    g.mover->nodes = 4;
    g.mover->listening = 2;
    BOOST_TEST(
        contains(status_details(g),
                 "does not run on node n3 (2 of 4 nodes have one that listens): ask the administrator"));
    g.mover->ready = true;
    g.mover->text = "no route";
    BOOST_TEST(contains(status_details(g),
                        "does not listen on node n3 (no route) (2 of 4 nodes have one that listens)\n"));
    g.mover->port = 41234;
    g.mover->ways = 1;
    g.mover->text = "no RDMA network is up here";
    g.mover->listening = 4;
    BOOST_TEST(contains(status_details(g),
                        "listens on all 4 nodes that answered; on n3 by TCP (no RDMA network is up here)\n"));
}

BOOST_AUTO_TEST_CASE(copies_of_one_node_and_of_several) {
    auto g = example_group();
    g.copies = std::make_unique<CopiesStatusT>();
    CopiesStatusT &c = *g.copies;
    BOOST_TEST(contains(status_details(g), "no step is safe yet; no other node keeps them\n"));
    c.safe_step = 40;
    c.target_step = 41;
    c.copied = 1;
    c.to_copy = 8;
    c.partners = {"n2", "n3"};
    BOOST_TEST(contains(status_details(g),
                        "step 40 is safe; of step 41 this node has copied 1 of 8; kept by n2, n3\n"));
    c.switches = {"leaf2", ""};
    c.same_switch = 1;
    BOOST_TEST(
        contains(status_details(g), "; kept by n2 (switch leaf2), n3; on the same switch as this node\n"));
    c.switches.clear();
    c.same_switch = 0;
    c.parities = 2;
    c.parity_bytes = 3 << 20;
    BOOST_TEST(contains(status_details(g), "; kept by n2, n3; 2 parities of 3.0 MiB here\n"));
    c.parities = 0;
    c.nodes = 4;
    c.text = "no slot is free there";
    c.in_trouble = {"n3"};
    BOOST_TEST(contains(status_details(g),
                        "step 40 is safe; of step 41 the nodes have copied 1 of 8; trouble "
                        "on n3: no slot is free there\n"));
    c.same_switch = 3;
    BOOST_TEST(
        contains(status_details(g), "; of 3 of 4 nodes on the same switch as the node itself; trouble"));
    c.in_trouble = {"n3", "n4"};
    BOOST_TEST(contains(status_details(g), "; trouble on n3 and 1 other node: no slot"));
    c.in_trouble.push_back("n1");
    BOOST_TEST(contains(status_details(g), "; trouble on n3 and 2 other nodes: no slot"));
    StatusReplyT reply;
    reply.groups.push_back(std::make_unique<GroupStatusT>(std::move(g)));
    BOOST_TEST(contains(status_json(reply),
                        "\"trouble\":\"no slot is free there\",\"nodes\":4,"
                        "\"in_trouble\":[\"n3\",\"n4\",\"n1\"]}"));
}

BOOST_AUTO_TEST_CASE(what_was_verified_and_found_damaged) {
    auto g = example_group();
    BOOST_TEST(!contains(status_details(g), "verified"));
    g.verified = std::make_unique<VerifiedStatusT>();
    VerifiedStatusT &v = *g.verified;
    v.agent_objects = 6;
    v.agent_bytes = 3ull << 30;
    BOOST_TEST(contains(status_details(g),
                        "  verified      3.0 GiB (6 objects) while programs started, 0 B (0 objects) by "
                        "ranks; none was damaged\n"));
    v.rank_objects = 1;
    v.rank_bytes = 512u << 20;
    v.damaged = 1;
    v.nodes = 2;
    BOOST_TEST(
        contains(status_details(g), ", 512 MiB (1 object) by ranks, on 2 nodes; 1 was found damaged\n"));
    StatusReplyT reply;
    reply.groups.push_back(std::make_unique<GroupStatusT>(std::move(g)));
    BOOST_TEST(contains(status_json(reply),
                        "\"verified\":{\"agent_objects\":6,\"agent_bytes\":3221225472,\"rank_objects\":1,"
                        "\"rank_bytes\":536870912,\"damaged\":1,\"nodes\":2}"));
}

BOOST_AUTO_TEST_CASE(events_are_a_time_line) {
    GroupEventsT g;
    g.job_id = 17;
    for (std::int64_t t : {1000000, 3500000}) {
        auto e = std::make_unique<proto::EventT>();
        e->time_us = t;
        e->kind = proto::EventKind::WorkerFailed;
        e->rank = 3;
        e->duration_us = 35000;
        e->text = "rank 3 was killed by signal 9";
        g.events.push_back(std::move(e));
    }
    std::string text = events_text(g);
    for (const char *part : {"+0.000 s", "+2.500 s", "worker-failed", "35 ms", "killed by signal 9"})
        BOOST_TEST(contains(text, part), part);
}

BOOST_AUTO_TEST_CASE(checkpoints_in_a_row_are_one_line) {
    GroupEventsT g;
    for (std::int64_t step : {5, 10, 15, 0, 20}) {
        auto e = std::make_unique<proto::EventT>();
        e->kind = step == 0 ? proto::EventKind::WorkerFailed : proto::EventKind::CheckpointComplete;
        e->train_step = step;
        e->text = step == 0 ? "rank 1 failed" : "every rank has sealed step " + std::to_string(step);
        g.events.push_back(std::move(e));
    }
    std::string text = events_text(g);
    BOOST_TEST(text.find("3 checkpoints, steps 5 to 15") != std::string::npos, text);
    BOOST_TEST(text.find("rank 1 failed") != std::string::npos, text);
    BOOST_TEST(text.find("has sealed step 20") != std::string::npos, text);
    BOOST_TEST(text.find("has sealed step 10") == std::string::npos, text);
}

BOOST_AUTO_TEST_CASE(skipped_saves_are_on_the_line_of_the_checkpoints_around_them) {
    using Kind = proto::EventKind;
    GroupEventsT g;
    for (Kind kind :
         {Kind::CheckpointComplete, Kind::CheckpointSkipped, Kind::CheckpointComplete,
          Kind::CheckpointSkipped, Kind::WorkerFailed, Kind::CheckpointSkipped, Kind::CheckpointSkipped,
          Kind::CheckpointSkipped, Kind::WorkerFailed, Kind::CheckpointSkipped}) {
        auto e = std::make_unique<proto::EventT>();
        e->kind = kind;
        e->train_step = static_cast<std::int64_t>(g.events.size());
        e->text = kind == Kind::CheckpointSkipped ? "this save" : "rank 1 failed";
        g.events.push_back(std::move(e));
    }
    std::string text = events_text(g);
    for (const char *part :
         {"checkpoint-complete",
          "2 checkpoints, steps 0 to 2; no slot was free 2 times, saves were skipped\n", "checkpoint-skipped",
          " no slot was free 3 times, saves were skipped\n", "this save"})
        BOOST_TEST(contains(text, part), part << " in " << text);
    BOOST_TEST(std::count(text.begin(), text.end(), '\n') == 3 + 5, text);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_CASE(how_many_saves_were_taken_and_skipped) {
    auto g = example_group();
    BOOST_TEST(!contains(status_details(g), "  saves"));
    g.goodput->checkpoints = 1;
    BOOST_TEST(contains(status_details(g), "  saves         1 checkpoint, no save was skipped\n"));
    g.goodput->checkpoints = 40;
    g.goodput->checkpoints_skipped = 1;
    BOOST_TEST(contains(status_details(g), "40 checkpoints, 1 save was skipped: no slot was free\n"));
    g.goodput->checkpoints_skipped = 3;
    BOOST_TEST(contains(status_details(g), "40 checkpoints, 3 saves were skipped: no slot was free\n"));
}

namespace {

/// What `work` writes to stderr while that is a terminal of so many columns.
template <class Work>
std::string on_a_terminal(unsigned short columns, Work work) {
    int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
    BOOST_REQUIRE(terminal >= 0 && ::grantpt(terminal) == 0 && ::unlockpt(terminal) == 0);
    int inside = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY), before = ::dup(STDERR_FILENO);
    BOOST_REQUIRE(inside >= 0 && before >= 0);
    struct winsize size = {};
    size.ws_col = columns;
    ::ioctl(terminal, TIOCSWINSZ, &size);
    ::dup2(inside, STDERR_FILENO);
    work();
    ::dup2(before, STDERR_FILENO);
    ::fcntl(terminal, F_SETFL, O_NONBLOCK);
    std::string text;
    char part[512];
    for (ssize_t count; (count = ::read(terminal, part, sizeof part)) > 0;)
        text.append(part, static_cast<std::size_t>(count));
    for (int fd : {terminal, inside, before}) ::close(fd);
    return text;
}

void half_and_whole() {
    Progress progress("verify", 2u << 20);
    for (int i = 0; i < 2; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(120));
        progress.add(1u << 20);
    }
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_progress_bar_is_drawn_on_a_terminal_and_gone_at_the_end) {
    auto text = on_a_terminal(200, half_and_whole);
    BOOST_TEST(contains(text, "\r\033[Kverify  [############            ]  50 %  1.0 MiB of 2.0 MiB"), text);
    BOOST_TEST(contains(text, "[########################] 100 %  2.0 MiB of 2.0 MiB"), text);
    BOOST_TEST((text.size() > 4 && text.substr(text.size() - 4) == "\r\033[K"), text);
    auto narrow = on_a_terminal(20, half_and_whole);
    BOOST_TEST(contains(narrow, "\r\033[Kverify  [##########\r"), narrow);
}
