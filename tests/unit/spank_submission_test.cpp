// SPDX-License-Identifier: Apache-2.0
#include "spank_plugin/submission.h"

#include <boost/test/unit_test.hpp>

#include "spank_plugin/step_facts.h"

using namespace dlrover;
using namespace dlrover::spank;

namespace {

Submission submission(std::string_view elastic, std::string nodes, bool given = true) {
    Submission s;
    BOOST_TEST_REQUIRE(parse_option(OptionId::elastic, elastic, s.options).ok());
    s.nodes = std::move(nodes);
    s.elastic_given = given;
    return s;
}

/// "group", "untouched" or the reason of the refusal.
std::string judge(const Submission &s) {
    Verdict v = judge_submission(s);
    switch (v.kind) {
        case Verdict::Kind::untouched:
            return "untouched";
        case Verdict::Kind::group:
            return "group";
        case Verdict::Kind::refused:
            return v.reason;
    }
    return "";
}

bool contains(const std::string &text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

StepFacts facts() {
    StepFacts f;
    f.job_id = 7;
    f.step_id = 1;
    f.nodes = 3;
    f.node_index = 2;
    f.tasks_here = 1;
    f.total_tasks = 5;
    f.array_job_id = 7;  // as Slurm 22.05 says of a plain job
    f.array_task_id = 0xfffffffe;
    f.argv = {"python", "train.py"};
    f.cluster = "c";
    f.step_nodes = "n[2-4]";
    f.job_nodes = "n[1-4]";
    f.tasks_per_node = "2(x2),1";
    return f;
}

std::string registration_error(const StepFacts &f) {
    return make_registration(f, {}, {3, 3}).status().message();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(spank_submission)

BOOST_AUTO_TEST_CASE(without_the_option_nothing_is_touched) {
    BOOST_TEST(judge({}) == "untouched");
    BOOST_TEST(judge(submission("off", "3")) == "untouched");
}

BOOST_AUTO_TEST_CASE(fitting_sizes_are_groups) {
    BOOST_TEST(judge(submission("2:4", "4")) == "group");
    BOOST_TEST(judge(submission("", "1-0")) == "group");
    BOOST_TEST(judge(submission("2", "1-0")) == "group");
    BOOST_TEST(judge(submission("2:4", "")) == "group");  // not known: the nodes decide
    Submission listed = submission("2:4", "4-0");
    listed.nodes_listed = true;
    BOOST_TEST(judge(listed) == "group");
}

BOOST_AUTO_TEST_CASE(wrong_sizes_are_refused_when_asked_for_and_left_alone_when_inherited) {
    for (const char *nodes : {"3", "1", "5", "1-0", "2-4", "4-0"}) {
        BOOST_TEST(contains(judge(submission("2:4", nodes)), "4"), nodes);
        BOOST_TEST(judge(submission("2:4", nodes)) != "group", nodes);
        BOOST_TEST(judge(submission("2:4", nodes)) != "untouched", nodes);
        BOOST_TEST(judge(submission("2:4", nodes, false)) == "untouched", nodes);
    }
    Submission batch = submission("2:4", "1-0");
    batch.tool = Tool::sbatch;
    BOOST_TEST(contains(judge(batch), "give sbatch -N4"));
}

BOOST_AUTO_TEST_CASE(kinds_of_steps_that_are_no_groups) {
    for (bool Submission::*kind :
         {&Submission::pty, &Submission::multi_prog, &Submission::container, &Submission::heterogeneous}) {
        Submission s = submission("2:4", "4");
        s.*kind = true;
        BOOST_TEST(contains(judge(s), "can not be used with"));
        s.elastic_given = false;
        BOOST_TEST(judge(s) == "untouched");
    }
}

BOOST_AUTO_TEST_CASE(other_options_need_elastic) {
    Submission s;
    s.other_given = OptionId::spares;
    BOOST_TEST(contains(judge(s), "--dlrover-spares has no effect without --dlrover-elastic"));
    s.options.elastic = Elastic::off;
    BOOST_TEST(judge(s) == "untouched");
}

BOOST_AUTO_TEST_CASE(contradictions_are_refused_also_when_inherited) {
    Submission s = submission("3:4", "4", false);
    s.options.node_unit = 2;
    BOOST_TEST(contains(judge(s), "not a multiple"));
}

BOOST_AUTO_TEST_CASE(slurms_words_for_node_counts) {
    BOOST_TEST((fixed_node_count("4", false) == 4u));
    BOOST_TEST((fixed_node_count("4-0", true) == 4u));
    for (const char *text : {"", "1-0", "2-4", "4-0", "0", "-1", "x", "4-"})
        BOOST_TEST(!fixed_node_count(text, false), text);
    BOOST_TEST(!fixed_node_count("2-4", true));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(spank_registration)

BOOST_AUTO_TEST_CASE(facts_become_a_registration) {
    StepRequest request;
    request.options.spares = 1;
    request.options.name = "run";
    request.cwd = "/home/a";
    auto r = make_registration(facts(), request, {1, 2});
    BOOST_TEST_REQUIRE(r.ok(), r.status().to_string());
    BOOST_TEST(r->node_names == (std::vector<std::string>{"n2", "n3", "n4"}));
    BOOST_TEST(r->tasks_per_node == (std::vector<std::uint16_t>{2, 2, 1}));
    BOOST_TEST((r->job_id == 7 && r->step_id == 1 && r->node_index == 2));
    BOOST_TEST((r->array_job_id == 0 && r->array_task_id == 0));
    BOOST_TEST((r->batch_host == "n1" && r->cwd == "/home/a" && r->argv.size() == 2));
    BOOST_TEST((r->options->min_nodes == 1 && r->options->max_nodes == 2 && r->options->spares == 1));
    BOOST_TEST(r->options->name == "run");
}

BOOST_AUTO_TEST_CASE(array_tasks_keep_their_numbers) {
    StepFacts f = facts();
    f.array_job_id = 5;
    f.array_task_id = 0;
    auto r = make_registration(f, {}, {3, 3});
    BOOST_TEST((r->array_job_id == 5 && r->array_task_id == 0));
}

BOOST_AUTO_TEST_CASE(an_environment_that_contradicts_slurm_is_refused) {
    StepFacts f = facts();
    for (const char *nodes : {"", "n[2-3]", "n[2-5]", "n[2-", "n[1-9999999]"}) {
        f.step_nodes = nodes;
        BOOST_TEST(contains(registration_error(f), "SLURM_STEP_NODELIST"), nodes);
    }
    f = facts();
    for (const char *tasks : {"", "2(x3)", "1,2,2", "2(x2)", "2(x2),1,1"}) {
        f.tasks_per_node = tasks;
        BOOST_TEST(contains(registration_error(f), "SLURM_STEP_TASKS_PER_NODE"), tasks);
    }
    f = facts();
    f.node_index = 3;
    BOOST_TEST(contains(registration_error(f), "SLURM_STEP_NODELIST"));
    f = facts();
    f.job_nodes = "[";
    BOOST_TEST((make_registration(f, {}, {3, 3})->batch_host.empty()));
}

BOOST_AUTO_TEST_CASE(a_very_long_command_is_cut) {
    StepFacts f = facts();
    f.argv.assign(5000, std::string(1000, 'x'));
    auto r = make_registration(f, {}, {3, 3});
    BOOST_TEST(r->argv.size() == max_argv_bytes / 1001);
}

BOOST_AUTO_TEST_CASE(special_steps) {
    BOOST_TEST(is_ordinary_step(0));
    for (std::uint32_t special : {0xfffffffbU, 0xfffffffcU, 0xfffffffaU, 0xfffffffeU, 0xffffffffU})
        BOOST_TEST(!is_ordinary_step(special));
}

BOOST_AUTO_TEST_SUITE_END()
