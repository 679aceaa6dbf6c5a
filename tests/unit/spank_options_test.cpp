// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>
#include <random>

#include "spank_plugin/module_args.h"
#include "spank_plugin/options.h"
#include "spank_plugin/tasks_per_node.h"

using namespace dlrover;
using namespace dlrover::spank;

namespace {

/// "" where the text is taken, else the sentence.
std::string take(OptionId id, std::string_view text, Options &options) {
    return parse_option(id, text, options).message();
}

std::string take(OptionId id, std::string_view text) {
    Options options;
    return take(id, text, options);
}

bool contains(const std::string &text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

Options elastic(std::string_view text, std::uint32_t spares = 0, std::uint32_t unit = 1) {
    Options options;
    BOOST_TEST_REQUIRE(take(OptionId::elastic, text, options) == "");
    options.spares = spares;
    options.node_unit = unit;
    return options;
}

std::string fit(const Options &options, std::uint32_t nodes) {
    auto size = fit_options(options, nodes);
    if (!size) return size.status().message();
    return std::to_string(size->min_nodes) + ":" + std::to_string(size->max_nodes);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(spank_options)

BOOST_AUTO_TEST_CASE(elastic_forms) {
    Options o = elastic("2:4");
    BOOST_TEST((o.elastic == Elastic::on && o.min_nodes == 2 && o.max_nodes == 4));
    o = elastic("3");
    BOOST_TEST((o.elastic == Elastic::on && o.min_nodes == 3 && o.max_nodes == 0));
    for (const char *nothing : {"", "(null)"}) {
        o = elastic(nothing);
        BOOST_TEST((o.elastic == Elastic::on && o.min_nodes == 0 && o.max_nodes == 0));
    }
    BOOST_TEST((elastic("off").elastic == Elastic::off));
}

BOOST_AUTO_TEST_CASE(a_later_elastic_replaces_the_earlier_whole) {
    Options o = elastic("2:4");
    BOOST_TEST(take(OptionId::elastic, "3", o) == "");
    BOOST_TEST((o.min_nodes == 3 && o.max_nodes == 0));
}

BOOST_AUTO_TEST_CASE(elastic_refuses_with_reason_and_leaves_the_value) {
    Options o = elastic("2:4");
    Options before = o;
    for (const char *text : {"0", "0:4", "4:", ":4", "a", "2:4:6", "-1", "2 :4", " 2", "1e3", "65537",
                             "99999999999999999999", "OFF", "2:0", "2-4", "0x2"}) {
        BOOST_TEST(contains(take(OptionId::elastic, text, o), "from 1 to 65536"), text);
        BOOST_TEST((o == before), text);
    }
    BOOST_TEST(contains(take(OptionId::elastic, "4:2", o), "MAX must not be smaller than MIN"));
}

BOOST_AUTO_TEST_CASE(counts_name_their_range) {
    BOOST_TEST(take(OptionId::on_batch_loss, "continue") == "");
    BOOST_TEST(take(OptionId::on_batch_loss, "requeue") == "");
    BOOST_TEST(contains(take(OptionId::on_batch_loss, "stop"), "give continue or requeue"));
    BOOST_TEST(take(OptionId::max_restarts, "0") == "");
    BOOST_TEST(take(OptionId::max_restarts, "10000") == "");
    BOOST_TEST(contains(take(OptionId::max_restarts, "10001"), "from 0 to 10000"));
    BOOST_TEST(contains(take(OptionId::max_restarts, ""), "--dlrover-max-restarts="));
    BOOST_TEST(take(OptionId::spares, "65535") == "");
    BOOST_TEST(contains(take(OptionId::spares, "65536"), "from 0 to 65535"));
    BOOST_TEST(contains(take(OptionId::node_unit, "0"), "from 1 to 65536"));
}

BOOST_AUTO_TEST_CASE(names) {
    Options o;
    BOOST_TEST(take(OptionId::name, "llama-7b_run.2", o) == "");
    BOOST_TEST(o.name == "llama-7b_run.2");
    for (const char *text : {"", ".hidden", "-x", "a/b", "a b", "a\n", "\xc3\xa4"})
        BOOST_TEST(contains(take(OptionId::name, text), "letters, digits"), text);
    BOOST_TEST(take(OptionId::name, std::string(64, 'a')) == "");
    BOOST_TEST(take(OptionId::name, std::string(65, 'a')) != "");
}

BOOST_AUTO_TEST_CASE(checkpoint_folders_are_absolute) {
    BOOST_TEST(take(OptionId::ckpt_dir, "/data/my run") == "");
    for (const char *text : {"", "data", "./data", "~/data", "/a\nb", "/a\x7f"})
        BOOST_TEST(contains(take(OptionId::ckpt_dir, text), "absolute path"), text);
    BOOST_TEST(take(OptionId::ckpt_dir, "/" + std::string(4094, 'a')) == "");
    BOOST_TEST(take(OptionId::ckpt_dir, "/" + std::string(4095, 'a')) != "");
}

BOOST_AUTO_TEST_CASE(how_often_checkpoints_go_to_storage) {
    Options o;
    BOOST_TEST((ckpt_schedule(o).every == std::chrono::minutes(10)));
    BOOST_TEST(ckpt_schedule(o).keep_last == 0u);
    BOOST_TEST(take(OptionId::ckpt_every, "5", o) == "");
    BOOST_TEST(ckpt_schedule(o).every_steps == 5u);
    BOOST_TEST((ckpt_schedule(o).every == std::chrono::microseconds(0)));
    BOOST_TEST(take(OptionId::ckpt_every, "90s", o) == "");
    BOOST_TEST(ckpt_schedule(o).every_steps == 0u);
    BOOST_TEST((ckpt_schedule(o).every == std::chrono::seconds(90)));
    BOOST_TEST(take(OptionId::ckpt_every, "off", o) == "");
    BOOST_TEST((ckpt_schedule(o).every == std::chrono::microseconds(0)));
    BOOST_TEST(take(OptionId::ckpt_keep, "3:1000", o) == "");
    BOOST_TEST(ckpt_schedule(o).keep_last == 3u);
    BOOST_TEST(ckpt_schedule(o).keep_every == 1000u);
    BOOST_TEST(take(OptionId::ckpt_keep, "all", o) == "");
    BOOST_TEST(ckpt_schedule(o).keep_last == 0u);
    for (const char *text : {"", "0", "-1", "1ms", "31d", "10 min", "often", "5:"})
        BOOST_TEST(contains(take(OptionId::ckpt_every, text), "a number of complete checkpoints"), text);
    for (const char *text : {"", "0", "3:", "3:0", ":5", "3:4:5", "some"})
        BOOST_TEST(contains(take(OptionId::ckpt_keep, text), "N or N:STEPS"), text);
    o.elastic = Elastic::on;
    BOOST_TEST(contains(check_options(o).message(), "--dlrover-ckpt-dir"));
    o.ckpt_dir = "/data";
    BOOST_TEST(check_options(o).ok());
}

BOOST_AUTO_TEST_CASE(redundancy_grammar) {
    for (const char *known : {"single", "partner:1", "partner:16", "rs:2+1", "rs:4+2", "rs:32+8"})
        BOOST_TEST(take(OptionId::redundancy, known) == "", known);
    for (const char *text :
         {"", "double", "partner", "partner:", "partner:0", "partner:17", "rs:4", "rs:4+", "rs:+1", "rs:0+1",
          "rs:4+0", "rs:1+1", "rs:33+1", "rs:4+9", "rs:4+1+1", "rs:4", "Single", "+rs:"})
        BOOST_TEST(contains(take(OptionId::redundancy, text), "partner:K (K from 1 to 16)"), text);
}

BOOST_AUTO_TEST_CASE(optional_may_carry_a_word) {
    Options o;
    BOOST_TEST((take(OptionId::optional, "", o).empty() && o.optional));
    BOOST_TEST((take(OptionId::optional, "0", o).empty() && !o.optional));
    BOOST_TEST((take(OptionId::optional, "yes", o).empty() && o.optional));
    BOOST_TEST(contains(take(OptionId::optional, "maybe"), "yes or no"));
}

BOOST_AUTO_TEST_CASE(pmix_is_on_by_itself) {
    Options o;
    BOOST_TEST((o.pmix == Pmix::automatic));
    BOOST_TEST((take(OptionId::pmix, "no", o).empty() && o.pmix == Pmix::no));
    BOOST_TEST((served_pmix(o) == Pmix::no));
    BOOST_TEST((take(OptionId::pmix, "auto", o).empty() && o.pmix == Pmix::automatic));
    BOOST_TEST(contains(take(OptionId::pmix, "maybe", o), "auto, yes or no"));
    BOOST_TEST((o.pmix == Pmix::automatic));
    if (served_pmix(o) == Pmix::no)  // this build has none
        BOOST_TEST(contains(take(OptionId::pmix, "yes", o), "built without PMIx"));
    else
        BOOST_TEST((take(OptionId::pmix, "yes", o).empty() && o.pmix == Pmix::yes));
}

BOOST_AUTO_TEST_CASE(sentences_are_fit_for_a_terminal) {
    std::string sentence = take(OptionId::elastic, "\x1b[2J" + std::string(5000, 'x'));
    BOOST_TEST(!contains(sentence, "\x1b"));
    BOOST_TEST(sentence.size() < 400u);
}

BOOST_AUTO_TEST_CASE(group_sizes) {
    BOOST_TEST(fit(elastic("2:4"), 4) == "2:4");
    BOOST_TEST(fit(elastic("2:4", 1), 5) == "2:4");
    BOOST_TEST(fit(elastic("2"), 4) == "2:4");
    BOOST_TEST(fit(elastic("2", 1), 4) == "2:3");
    BOOST_TEST(fit(elastic(""), 4) == "4:4");
    BOOST_TEST(fit(elastic("", 1), 4) == "3:3");
    BOOST_TEST(fit(elastic("", 0, 2), 4) == "4:4");
    BOOST_TEST(fit(elastic("2:4"), 3) == "--dlrover-elastic=2:4 needs 4 nodes (MAX, -N4); the step has 3");
    BOOST_TEST(
        fit(elastic("2:4", 2), 4) ==
        "--dlrover-elastic=2:4 with --dlrover-spares=2 needs 6 nodes (MAX + spares, -N6); the step has 4");
    BOOST_TEST(fit(elastic("1:1"), 2) == "--dlrover-elastic=1:1 needs 1 node (MAX, -N1); the step has 2");
    BOOST_TEST(contains(fit(elastic("3"), 2), "needs at least 3 nodes"));
    BOOST_TEST(contains(fit(elastic("", 2), 2), "needs at least 3 nodes"));
    BOOST_TEST(contains(fit(elastic("", 0, 2), 3), "needs a multiple of 2 nodes"));
    BOOST_TEST(contains(fit(elastic(""), 0), "needs at least 1 node"));
}

BOOST_AUTO_TEST_CASE(options_that_contradict_each_other) {
    BOOST_TEST(check_options(elastic("2:4", 0, 2)).ok());
    BOOST_TEST(check_options(elastic("", 0, 7)).ok());
    BOOST_TEST(contains(check_options(elastic("3:4", 0, 2)).message(),
                        "3 is not a multiple of --dlrover-node-unit=2"));
    BOOST_TEST(contains(check_options(elastic("2:5", 0, 2)).message(), "5 is not a multiple"));
    BOOST_TEST(contains(check_options(elastic("1:65536", 1)).message(), "at most 65536 nodes"));
    Options off;
    off.node_unit = 2;
    off.min_nodes = 3;
    BOOST_TEST(check_options(off).ok());
}

BOOST_AUTO_TEST_CASE(every_option_has_a_row) {
    auto specs = option_specs();
    for (std::size_t i = 0; i < specs.size(); ++i) {
        BOOST_TEST((static_cast<std::size_t>(specs[i].id) == i));
        BOOST_TEST(std::string(specs[i].name).starts_with("dlrover-"));
        BOOST_TEST((specs[i].arginfo == nullptr) == (specs[i].argument == Argument::none));
    }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(spank_request)

StepRequest full_request() {
    StepRequest r;
    r.options = elastic("2:4", 1, 2);
    r.options.max_restarts = 7;
    r.options.requeue_without_host = true;
    r.options.name = "run-1";
    r.options.ckpt_dir = "/data/with space/100%/\xc3\xa4";
    r.options.ckpt_every = "2h";
    r.options.ckpt_keep = "3:1000";
    r.options.optional = true;
    r.options.pmix = Pmix::no;
    r.cwd = "/home/al ice";
    return r;
}

BOOST_AUTO_TEST_CASE(what_srun_sends_arrives) {
    for (StepRequest r : {full_request(), StepRequest{elastic(""), ""}, StepRequest{elastic("2"), "/"}}) {
        auto again = decode_request(encode_request(r));
        BOOST_TEST_REQUIRE(again.ok(), again.status().to_string());
        BOOST_TEST((*again == r));
    }
    std::string line = encode_request(full_request());
    for (char c : line) BOOST_TEST_REQUIRE((c >= ' ' && c < 0x7f));
}

BOOST_AUTO_TEST_CASE(refuses_what_srun_never_sends) {
    const std::string good = encode_request(full_request());
    for (const char *text :
         {"", "1", "1 ", "2 dlrover-elastic=2", "1 dlrover-elastic", "1  dlrover-elastic=2",
          "1 dlrover-elastic=2 ", "1 dlrover-elastic=off", "1 dlrover-spares=1",
          "1 dlrover-elastic=2 dlrover-elastic=2", "1 elastic=2", "1 dlrover-elastic=2 cwd=home",
          "1 dlrover-elastic=2 cwd=", "1 dlrover-elastic=2 cwd=/ cwd=/", "1 dlrover-elastic=2 cwd=/%0",
          "1 dlrover-elastic=2 cwd=/%00", "1 dlrover-elastic=2 cwd=/%zz",
          "1 dlrover-elastic=2 dlrover-node-unit=3 dlrover-spares=x",
          "1 dlrover-elastic=3:4 dlrover-node-unit=2"})
        BOOST_TEST(!decode_request(text).ok(), text);
    BOOST_TEST(!decode_request(good + " " + std::string(max_request_bytes, 'a')).ok());
}

BOOST_AUTO_TEST_CASE(changed_bytes_never_harm) {
    const std::string good = encode_request(full_request());
    std::mt19937 random(3);
    for (int round = 0; round < 20000; ++round) {
        std::string text = good.substr(0, random() % (good.size() + 1));
        for (unsigned i = random() % 4; i > 0 && !text.empty(); --i)
            text[random() % text.size()] = static_cast<char>(random());
        auto r = decode_request(text);
        if (r.ok()) BOOST_TEST(check_options(r->options).ok());
    }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(spank_small_parsers)

BOOST_AUTO_TEST_CASE(tasks_per_node) {
    using Counts = std::vector<std::uint16_t>;
    auto parse = [](std::string_view text, std::size_t nodes) {
        auto counts = parse_tasks_per_node(text, nodes);
        return counts.ok() ? *counts : Counts{};
    };
    BOOST_TEST(parse("2", 1) == Counts{2});
    BOOST_TEST(parse("2(x3)", 3) == (Counts{2, 2, 2}));
    BOOST_TEST(parse("2(x2),1,4(x1)", 4) == (Counts{2, 2, 1, 4}));
    BOOST_TEST(parse("65535", 1) == Counts{65535});
    for (const char *text : {"", "2(x2)", "2(x4)", "2(x2),", ",2", "2(x)", "2(x0),1,1,1", "2(3)", "2(x3",
                             "0(x3)", "65536(x3)", "2(x3))", "2(x99999999999999999999)", "a(x3)", "1,1,1,1"})
        BOOST_TEST(parse(text, 3) == Counts{}, text);
    BOOST_TEST(parse("", 0) == Counts{});
}

BOOST_AUTO_TEST_CASE(module_arguments) {
    auto parse = [](std::vector<std::string> words) {
        std::vector<char *> raw;
        for (auto &word : words) raw.push_back(word.data());
        return parse_module_args(raw);
    };
    ModuleArgs defaults = parse({});
    BOOST_TEST(defaults.agent.ends_with("/dlrover-agent"));
    BOOST_TEST(defaults.socket == "/run/dlrover/dlroverd.sock");
    BOOST_TEST(defaults.timeout.count() == 2000);
    ModuleArgs given = parse({"agent=/a", "socket=/s", "timeout_ms=500"});
    BOOST_TEST((given.agent == "/a" && given.socket == "/s" && given.timeout.count() == 500 &&
                given.warnings.empty()));
    ModuleArgs wrong = parse({"agent=a", "socket=", "timeout_ms=5000", "verbose", "fault=init:throw"});
    BOOST_TEST(wrong.warnings.size() == 5u);
    BOOST_TEST((wrong.agent == defaults.agent && wrong.timeout == defaults.timeout));
}

BOOST_AUTO_TEST_SUITE_END()
