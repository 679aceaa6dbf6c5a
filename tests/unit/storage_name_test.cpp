// SPDX-License-Identifier: Apache-2.0
#include "ckpt/storage_name.h"

#include <boost/test/unit_test.hpp>

using namespace dlrover;
using namespace dlrover::ckpt;

BOOST_AUTO_TEST_SUITE(storage_name)

BOOST_AUTO_TEST_CASE(names_fit_into_one_entry) {
    BOOST_TEST(escape_name("lab/1000/job a") == "lab%2F1000%2Fjob%20a");
    BOOST_TEST(escape_name("..") == "%2E.");
    BOOST_TEST(escape_name("") == "%");
    BOOST_TEST(escape_name("100%") == "100%25");
    BOOST_TEST(escape_name("größe.東") == "größe.東");
    BOOST_TEST(escape_name(std::string_view("a\0b", 3)) == "a%00b");
    BOOST_TEST(escape_name("\xff\xc3") == "%FF%C3");
    BOOST_TEST(escape_name("\xed\xa0\x80") == "%ED%A0%80");
}

BOOST_AUTO_TEST_CASE(long_names_are_cut_between_characters) {
    std::string text(199, 'a');
    BOOST_TEST(escape_file_name(text + "b") == text + "b");
    std::string wide, other;
    for (int i = 0; i < 150; ++i) wide += "é";
    other = wide + "x";
    std::string cut = escape_file_name(wide);
    BOOST_TEST(cut.size() <= 200u);
    BOOST_TEST(valid_utf8(cut));
    BOOST_TEST(cut != escape_file_name(other));
}

BOOST_AUTO_TEST_CASE(checkpoints_have_one_name) {
    CheckpointId id{{Term(std::uint64_t{2} << 32 | 5), 9}, TrainStep(1200)};
    BOOST_TEST(checkpoint_folder_name(id) == "step-1200.gen-2.5.9");
    BOOST_TEST((parse_checkpoint_folder_name("step-1200.gen-2.5.9") == id));
    BOOST_TEST((parse_manifest_name(manifest_name(id)) == id));
    BOOST_TEST((parse_suspect_name(suspect_name(id)) == id));
    BOOST_TEST(!parse_manifest_name(suspect_name(id)).has_value());
    BOOST_TEST(!parse_suspect_name(manifest_name(id)).has_value());
    for (const char *wrong :
         {"", "step-", "step-1", "step-1.gen-1.1", "step-01.gen-0.0.1", "step-1.gen-0.0.1x",
          "step-1.gen-4294967296.0.1", "step-18446744073709551616.gen-0.0.1", "step--1.gen-0.0.1",
          "Step-1.gen-0.0.1", "step-1.gen-0.0.1.manifest"})
        BOOST_TEST(!parse_checkpoint_folder_name(wrong).has_value(), wrong);
    BOOST_TEST(!parse_manifest_name("step-1.gen-0.0.1").has_value());
}

BOOST_AUTO_TEST_SUITE_END()
