// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/control.h"

#include <boost/test/unit_test.hpp>

#include "pmix_server/info_list.h"

using namespace dlrover::pmix;

namespace {

pmix_status_t parse(InfoList &infos, Control &out) {
    return parse_control(std::span(infos.data(), infos.size()), out);
}

}  // namespace

BOOST_AUTO_TEST_CASE(ranks_begin_again_from_a_step_or_the_newest_one) {
    using Step = std::optional<std::uint64_t>;
    for (const auto &[text, step] : {std::pair<const char *, Step>("12", 12), {"", std::nullopt}}) {
        InfoList infos;
        infos.add(PMIX_JOB_CTRL_RESTART, std::string(text));
        infos.add(PMIX_JOB_CTRL_ID, std::string("mine"));
        Control control;
        BOOST_TEST(parse(infos, control) == PMIX_SUCCESS);
        BOOST_TEST(!control.checkpoint);
        BOOST_TEST((control.step == step));
    }
}

BOOST_AUTO_TEST_CASE(an_id_that_is_no_step_is_refused) {
    for (const char *text : {"x", "-1", "1 ", "9223372036854775807", "99999999999999999999999"}) {
        InfoList infos;
        infos.add(PMIX_JOB_CTRL_RESTART, std::string(text));
        Control control;
        BOOST_TEST(parse(infos, control) == PMIX_ERR_BAD_PARAM, text);
    }
}

BOOST_AUTO_TEST_CASE(a_checkpoint_is_asked_for_by_any_name) {
    InfoList infos;
    infos.add(PMIX_JOB_CTRL_CHECKPOINT, std::string("tonight"));
    Control control;
    BOOST_TEST(parse(infos, control) == PMIX_SUCCESS);
    BOOST_TEST(control.checkpoint);
}

BOOST_AUTO_TEST_CASE(other_orders_are_not_taken_for_notes) {
    Control control;
    BOOST_TEST(parse_control({}, control) == PMIX_ERR_NOT_SUPPORTED);
    for (const char *key : {PMIX_JOB_CTRL_KILL, PMIX_JOB_CTRL_TERMINATE, PMIX_JOB_CTRL_SIGNAL,
                            PMIX_JOB_CTRL_PAUSE, PMIX_JOB_CTRL_CANCEL, PMIX_JOB_CTRL_CHECKPOINT_SIGNAL}) {
        InfoList infos;
        infos.add(PMIX_JOB_CTRL_CHECKPOINT, std::string());
        infos.add(key, std::uint32_t{9});
        BOOST_TEST(parse(infos, control) == PMIX_ERR_NOT_SUPPORTED, key);
    }
    InfoList both;
    both.add(PMIX_JOB_CTRL_CHECKPOINT, std::string());
    both.add(PMIX_JOB_CTRL_RESTART, std::string());
    BOOST_TEST(parse(both, control) == PMIX_ERR_NOT_SUPPORTED);
}
