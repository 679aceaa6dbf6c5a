// SPDX-License-Identifier: Apache-2.0
#include "daemon/registration.h"

#include <boost/test/unit_test.hpp>
#include <functional>

using namespace dlrover;
using namespace dlrover::daemon;

namespace {

proto::StepRegistrationT good() {
    proto::StepRegistrationT s;
    s.cluster = "lab";
    s.job_id = 7;
    s.uid = 1000;
    s.restart_count = 1;
    s.node_names = {"n1", "n2", "n3"};
    s.tasks_per_node = {2, 2, 2};
    s.node_index = 1;
    s.argv = {"python", "train.py"};
    s.options = std::make_unique<proto::ElasticOptionsT>();
    s.options->min_nodes = 1;
    s.options->max_nodes = 2;
    s.options->spares = 1;
    return s;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(daemon_registration)

BOOST_AUTO_TEST_CASE(a_good_one_is_accepted) {
    BOOST_TEST(check_registration(good(), "n2").ok());
}

BOOST_AUTO_TEST_CASE(each_wrong_value_is_refused) {
    const std::function<void(proto::StepRegistrationT &)> wrongs[] = {
        [](auto &s) { s.job_id = 0; },
        [](auto &s) { s.options.reset(); },
        [](auto &s) { s.node_names.clear(); },
        [](auto &s) { s.node_index = 0; },
        [](auto &s) { s.node_index = 3; },
        [](auto &s) { s.node_names[0] = "n2"; },
        [](auto &s) { s.node_names[0] = ""; },
        [](auto &s) { s.node_names[0] = "a\nb"; },
        [](auto &s) { s.tasks_per_node.pop_back(); },
        [](auto &s) { s.tasks_per_node[2] = 0; },
        [](auto &s) { s.tasks_per_node[2] = 2000; },
        [](auto &s) { s.options->min_nodes = 0; },
        [](auto &s) { s.options->min_nodes = 3; },
        [](auto &s) { s.options->max_nodes = 3; },
        [](auto &s) { s.options->spares = ~0u; },
        [](auto &s) { s.options->node_unit = 0; },
        [](auto &s) { s.options->node_unit = 2; },
        [](auto &s) { s.options->name = "a/b"; },
        [](auto &s) { s.options->name = std::string(300, 'a'); },
    };
    int number = 0;
    for (const auto &wrong : wrongs) {
        auto step = good();
        wrong(step);
        Status status = check_registration(step, "n2");
        BOOST_TEST((status.code() == Code::invalid_argument), "wrong value " << number);
        BOOST_TEST(!status.message().empty());
        ++number;
    }
}

BOOST_AUTO_TEST_CASE(slurm_has_the_last_word) {
    SlurmStep slurm;
    slurm.job.uid = 1000;
    slurm.job.gid = 100;
    slurm.job.restart_count = 1;
    slurm.job.batch_host = "n3";
    slurm.nodes = {"n1", "n2", "n3"};
    auto step = good();
    BOOST_TEST(check_with_slurm(step, slurm).ok());
    BOOST_TEST(step.batch_host == "n3");
    BOOST_TEST(step.gid == 100u);
    slurm.job.uid = 1001;
    BOOST_TEST((check_with_slurm(step, slurm).code() == Code::permission_denied));
    slurm.job.uid = 1000;
    slurm.nodes = {"n1", "n2"};
    BOOST_TEST((check_with_slurm(step, slurm).code() == Code::permission_denied));
    slurm.nodes = step.node_names;
    slurm.job.restart_count = 2;
    BOOST_TEST((check_with_slurm(step, slurm).code() == Code::stale));
    step.restart_count = 0;
    BOOST_TEST(check_with_slurm(step, slurm).ok());
    BOOST_TEST(step.restart_count == 2u);
}

BOOST_AUTO_TEST_CASE(a_lineage_is_user_name_and_command) {
    auto a = good(), b = good();
    BOOST_TEST(lineage_of(a) == lineage_of(b));
    b.restart_count = 5;
    BOOST_TEST(lineage_of(a) == lineage_of(b));
    b.argv = {"python train.py"};
    BOOST_TEST(lineage_of(a) != lineage_of(b));
    b = good();
    b.uid = 1001;
    BOOST_TEST(lineage_of(a) != lineage_of(b));
    b = good();
    b.job_id = 8;
    BOOST_TEST(lineage_of(a) != lineage_of(b));
    a.options->name = b.options->name = "llama";
    BOOST_TEST(lineage_of(a) == lineage_of(b));
    a.array_job_id = b.array_job_id = 7;
    b.array_task_id = 1;
    BOOST_TEST(lineage_of(a) != lineage_of(b));
}

BOOST_AUTO_TEST_CASE(a_long_command_line_is_cut_for_the_record) {
    auto step = good();
    step.argv.assign(100, std::string(1000, 'x'));
    shorten(step);
    BOOST_TEST(step.argv.size() == 4u);
}

BOOST_AUTO_TEST_SUITE_END()
