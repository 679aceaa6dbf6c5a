// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>

#include "cli/ckpt_options.h"
#include "cli/ckpt_removal.h"
#include "cli/progress.h"
#include "cli/table.h"

using namespace dlrover;
using namespace dlrover::ckpt;
using namespace dlrover::cli;

namespace {

using Words = std::vector<std::string>;

CheckpointId id_of(std::uint64_t step, std::uint64_t term = 1) {
    return {{Term(term), 1}, TrainStep(step)};
}

CkptOptions options_of(const Words &words) {
    auto options = parse_ckpt_options(words);
    BOOST_REQUIRE_MESSAGE(options.ok(), options.status().to_string());
    return *options;
}

using Ids = std::vector<CheckpointId>;

}  // namespace

BOOST_AUTO_TEST_SUITE(cli_ckpt)

BOOST_AUTO_TEST_CASE(words_of_every_command) {
    BOOST_TEST((options_of({"ls", "/c", "--json"}).action == CkptAction::list));
    BOOST_TEST(options_of({"ls", "/c", "--json"}).json);
    auto show = options_of({"show", "/c", "--step", "12"});
    BOOST_TEST((show.action == CkptAction::show && show.folder == "/c" && *show.step() == 12));
    BOOST_TEST(!options_of({"show", "/c"}).step().has_value());
    BOOST_TEST(options_of({"verify", "--all", "/c"}).all);
    auto remove = options_of({"rm", "/c", "--step", "1", "2", "--yes", "--force"});
    BOOST_TEST((remove.steps == std::vector<std::uint64_t>{1, 2} && remove.yes && remove.force));
    BOOST_TEST(*options_of({"rm", "/c", "--older-than-step", "7"}).older_than == 7u);
    BOOST_TEST(options_of({"rollback", "/c", "--undo"}).undo);
    auto to = options_of({"export", "/c", "--to", "safetensors", "out", "--name", "a*", "b"});
    BOOST_TEST((to.action == CkptAction::export_to && to.format == "safetensors" && to.file == "out"));
    BOOST_TEST((to.names == Words{"a*", "b"}));
    auto from = options_of({"import", "x.safetensors", "--to", "/c", "--lineage", "l", "--step", "0"});
    BOOST_TEST((from.action == CkptAction::import_from && from.folder == "/c" && from.lineage == "l"));
    BOOST_TEST((from.file == "x.safetensors" && *from.step() == 0));
    auto run = options_of({"import", "x", "--to", "/c", "--step", "0", "--name", "n", "--cluster", "lab",
                           "--", "python", "-u", "train.py"});
    BOOST_TEST((run.run == "n" && run.cluster == "lab" && run.file == "x"));
    BOOST_TEST((run.command == Words{"python", "-u", "train.py"}));
    BOOST_TEST(options_of({"rm", "--help"}).text.find("--older-than-step") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(wrong_words_are_named) {
    const std::pair<Words, const char *> wrong[] = {
        {{}, "subcommand"},
        {{"lst", "/c"}, "unknown command \"lst\" (there are: ls, "},
        {{"ls"}, "DIR"},
        {{"ls", "/c", "/d"}, "/d"},
        {{"show", "/c", "--step", "x"}, "not \"x\""},
        {{"show", "/c", "--step", "-1"}, "--step"},
        {{"show", "/c", "--step", "99999999999999999999"}, "not \"99999999999999999999\""},
        {{"rm", "/c"}, "rm needs --step"},
        {{"rollback", "/c"}, "either --step or --undo"},
        {{"rollback", "/c", "--undo", "--step", "1"}, "either --step or --undo, not both"},
        {{"verify", "/c", "--all", "--step", "1"}, "either --step or --all"},
        {{"export", "/c", "--to", "zip", "o"}, "not \"zip\""},
        {{"import", "f", "--to", "/c", "--lineage", "l"}, "--step"},
        {{"import", "f", "--to", "/c", "--step", "0"}, "either --lineage or --name"},
        {{"import", "f", "--to", "/c", "--step", "0", "--lineage", "l", "--name", "n", "--", "p"}, "either"},
        {{"import", "f", "--to", "/c", "--step", "0", "--name", "n"}, "-- COMMAND"},
        {{"import", "f", "--to", "/c", "--step", "0", "--lineage", "l", "--", "p"}, "-- COMMAND"},
    };
    for (const auto &[words, text] : wrong) {
        auto options = parse_ckpt_options(words);
        BOOST_REQUIRE_MESSAGE(!options.ok(), text);
        BOOST_TEST(options.status().message().find(text) != std::string::npos, options.status().message());
        BOOST_TEST((options.status().code() == Code::invalid_argument));
    }
}

BOOST_AUTO_TEST_CASE(the_newest_whole_one_is_not_removed_by_accident) {
    CheckpointListing listing{{id_of(30), id_of(20), id_of(10)}, {}, {}};
    auto refused =
        plan_removal(listing, listing.complete.front(), options_of({"rm", "/c", "--step", "30", "10"}));
    BOOST_TEST((refused.status().code() == Code::invalid_argument));
    BOOST_TEST(
        (plan_removal(listing, listing.complete.front(), options_of({"rm", "/c", "--step", "30", "--force"}))
             ->ids == Ids{id_of(30)}));
    auto older =
        plan_removal(listing, listing.complete.front(), options_of({"rm", "/c", "--older-than-step", "100"}));
    BOOST_TEST((older->ids == Ids{id_of(10), id_of(20)}));
    BOOST_TEST(older->notes.size() == 1u);
    BOOST_TEST((plan_removal(listing, listing.complete.front(), options_of({"rm", "/c", "--step", "11"}))
                    .status()
                    .code() == Code::not_found));
}

/// Else the one that a job can go on from would go.
BOOST_AUTO_TEST_CASE(what_is_damaged_does_not_count_as_the_newest) {
    CheckpointListing listing{{id_of(30), id_of(20), id_of(10)}, {}, {}};
    auto older = plan_removal(listing, id_of(20), options_of({"rm", "/c", "--older-than-step", "100"}));
    BOOST_TEST((older->ids == Ids{id_of(10)}));
    BOOST_REQUIRE(older->notes.size() == 2u);
    BOOST_TEST(older->notes[0].find("step 30 removes it") != std::string::npos, older->notes[0]);
    BOOST_TEST(older->notes[1].find("newest whole one") != std::string::npos, older->notes[1]);
    auto refused = plan_removal(listing, id_of(20), options_of({"rm", "/c", "--step", "20"}));
    BOOST_TEST((refused.status().code() == Code::invalid_argument));
    auto damaged = plan_removal(listing, id_of(20), options_of({"rm", "/c", "--step", "30"}));
    BOOST_TEST((damaged->ids == Ids{id_of(30)}));
    auto none = plan_removal(listing, std::nullopt, options_of({"rm", "/c", "--older-than-step", "100"}));
    BOOST_TEST(none->ids.empty());
    BOOST_TEST(none->notes.size() == 3u);
}

BOOST_AUTO_TEST_CASE(what_may_be_being_written_stays) {
    CheckpointListing listing{{id_of(20)}, {id_of(25), id_of(15)}, {id_of(5)}};
    auto plan = plan_removal(listing, listing.complete.front(), options_of({"rm", "/c", "--incomplete"}));
    BOOST_TEST((plan->ids == Ids{id_of(15)}));
    BOOST_TEST(plan->notes.size() == 1u);
    plan = plan_removal(listing, listing.complete.front(),
                        options_of({"rm", "/c", "--incomplete", "--suspect", "--force"}));
    BOOST_TEST((plan->ids == Ids{id_of(5), id_of(15), id_of(25)}));
    BOOST_TEST(plan->notes.empty());
}

BOOST_AUTO_TEST_CASE(all_of_a_step_go_once) {
    CheckpointListing listing{{id_of(40, 3), id_of(20, 2), id_of(20, 1)}, {}, {}};
    auto plan = plan_removal(listing, listing.complete.front(),
                             options_of({"rm", "/c", "--step", "20", "20", "--older-than-step", "21"}));
    BOOST_TEST((plan->ids == Ids{id_of(20, 1), id_of(20, 2)}));
}

BOOST_AUTO_TEST_CASE(a_rollback_counts_by_generation) {
    // Term 2 went on from step 10 of term 1: its step 15 is newer than step 30 of term 1.
    CheckpointListing listing{{id_of(15, 2), id_of(30, 1), id_of(20, 1), id_of(10, 1)}, {}, {id_of(99, 3)}};
    auto plan = plan_rollback(listing, 20);
    BOOST_TEST((plan->target == id_of(20, 1)));
    BOOST_TEST((plan->newer == Ids{id_of(15, 2), id_of(30, 1)}));
    BOOST_TEST(plan_rollback(listing, 15)->newer.empty());
    BOOST_TEST((plan_rollback(listing, 21).status().code() == Code::not_found));
    BOOST_TEST(plan_rollback(listing, 99).status().message().find("--undo") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(progress_is_one_line) {
    using std::chrono::seconds;
    BOOST_TEST(progress_text("verify", 0, 2u << 20, seconds(0)) ==
               "verify  [                        ]   0 %  0 B of 2.0 MiB");
    BOOST_TEST(progress_text("verify", 1u << 20, 2u << 20, seconds(2)) ==
               "verify  [############            ]  50 %  1.0 MiB of 2.0 MiB, 512 KiB/s, 2.0 s left");
    BOOST_TEST(progress_text("x", 5, 0, seconds(1)).find("100 %") != std::string::npos);
    BOOST_TEST(progress_text("x", 7, 5, seconds(1)).find("100 %") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(eight_bit_controls_do_not_reach_a_terminal) {
    BOOST_TEST(printable("a\xc2\x9b"
                         "2Jb") == "a?2Jb");
    BOOST_TEST(printable("\xc3\xa4") == "\xc3\xa4");
    BOOST_TEST(printable("\x9b"
                         "2J\xc3") == "?2J?");
}

BOOST_AUTO_TEST_SUITE_END()
