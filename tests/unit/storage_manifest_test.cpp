// SPDX-License-Identifier: Apache-2.0
#include "ckpt/manifest.h"

#include <boost/test/unit_test.hpp>
#include <cstdio>

#include "ckpt/block_kernel.h"
#include "ckpt/retention.h"

using namespace dlrover;
using namespace dlrover::ckpt;

namespace {

CheckpointId id(std::uint64_t step, std::uint64_t number = 1, std::uint64_t term = 1) {
    return {{Term(term), number}, TrainStep(step)};
}

Manifest sample() {
    Manifest manifest{id(1200, 3, UINT64_MAX), "lab/1000/größe \"a\\b\"\n\x1f", FileSum{77, 0xabc}, {}};
    manifest.ranks = {{Rank(0), 4096, 1, UINT64_MAX}, {Rank(1), 0, 0, 0}};
    return manifest;
}

using Ids = std::vector<CheckpointId>;

}  // namespace

BOOST_AUTO_TEST_SUITE(storage_manifest)

BOOST_AUTO_TEST_CASE(what_is_encoded_is_decoded) {
    for (bool with_index : {true, false}) {
        Manifest manifest = sample();
        if (!with_index) manifest.index.reset();
        auto text = encode_manifest(manifest);
        BOOST_REQUIRE(text.ok());
        auto back = decode_manifest(*text);
        BOOST_REQUIRE_MESSAGE(back.ok(), back.status().to_string());
        BOOST_TEST((*back == manifest));
    }
}

BOOST_AUTO_TEST_CASE(a_person_can_read_it) {
    Manifest manifest{id(12, 3), "lab", {}, {{Rank(0), 5000, 1, 2}}};
    std::string text = *encode_manifest(manifest);
    std::string head =
        "{\"format\": \"dlrover-manifest\", \"version\": 1,\n \"lineage\": \"lab\",\n"
        " \"train_step\": 12, \"term\": 1, \"generation\": 3, \"world_size\": 1,\n \"index\": null,\n"
        " \"ranks\": [\n  {\"file\": \"rank-0.h5\", \"bytes\": 5000, \"table\": \"0000000000000001\","
        " \"header\": \"0000000000000002\"}],\n \"xxh3\": \"";
    BOOST_TEST(text.substr(0, head.size()) == head);
    BOOST_TEST(text.substr(text.size() - 3) == "\"}\n");
}

BOOST_AUTO_TEST_CASE(any_flipped_bit_and_any_cut_is_found) {
    std::string text = *encode_manifest(sample());
    for (std::size_t i = 0; i < text.size(); ++i) {
        for (int bit = 0; bit < 8; ++bit) {
            std::string other = text;
            other[i] = static_cast<char>(other[i] ^ (1 << bit));
            BOOST_TEST(!decode_manifest(other).ok(), "byte " << i);
        }
        BOOST_TEST((decode_manifest(text.substr(0, i)).status().code() == Code::corrupt));
    }
    BOOST_TEST(!decode_manifest(text + "\n").ok());
}

BOOST_AUTO_TEST_CASE(the_next_version_is_refused_by_name) {
    std::string text = *encode_manifest(sample()), version = "\"version\": 1,";
    text.replace(text.find(version), version.size(), "\"version\": 2,");
    std::size_t tail = text.rfind("\n \"xxh3\"");
    char hash[17];
    std::snprintf(hash, sizeof hash, "%016llx",
                  static_cast<unsigned long long>(block_kernel().hash(text.data(), tail)));
    text.replace(text.size() - 19, 16, hash);
    Status status = decode_manifest(text).take_status();
    BOOST_TEST((status.code() == Code::unsupported));
    BOOST_TEST(status.message() ==
               "a manifest is of version 2, and this dlrover reads version 1: a newer one has written it");
}

BOOST_AUTO_TEST_CASE(what_can_not_be_told_is_refused) {
    Manifest manifest = sample();
    manifest.lineage = "\xff";
    BOOST_TEST((encode_manifest(manifest).status().code() == Code::invalid_argument));
    manifest.lineage = std::string(4097, 'a');
    BOOST_TEST(!encode_manifest(manifest).ok());
    manifest = sample();
    manifest.ranks[1].rank = Rank(2);
    BOOST_TEST(!encode_manifest(manifest).ok());
    manifest.ranks.clear();
    BOOST_TEST(!encode_manifest(manifest).ok());
}

BOOST_AUTO_TEST_CASE(the_last_ones_and_every_nth_stay) {
    Ids complete{id(10), id(30), id(20), id(40), id(50)};
    BOOST_TEST((checkpoints_to_remove({.keep_last = 2}, complete, {}, {}) == Ids{id(10), id(20), id(30)}));
    BOOST_TEST(
        (checkpoints_to_remove({.keep_last = 1, .keep_every = 20}, complete, {}, {}) == Ids{id(10), id(30)}));
    BOOST_TEST((checkpoints_to_remove({.keep_last = 9}, complete, {}, {}).empty()));
    BOOST_TEST((checkpoints_to_remove({}, complete, {}, {}).empty()));
    BOOST_TEST((checkpoints_to_remove({.keep_last = 1}, {}, Ids{id(1)}, {}).empty()));
}

BOOST_AUTO_TEST_CASE(a_newer_generation_is_newer_whatever_its_steps) {
    Ids complete{id(90, 1), id(50, 2), id(10, 1, 2)};
    BOOST_TEST((checkpoints_to_remove({.keep_last = 1}, complete, {}, {}) == Ids{id(90, 1), id(50, 2)}));
}

BOOST_AUTO_TEST_CASE(what_is_read_or_being_written_stays) {
    Ids complete{id(10), id(20), id(30)}, incomplete{id(15), id(31), id(5)};
    BOOST_TEST((checkpoints_to_remove({.keep_last = 1}, complete, incomplete, Ids{id(10)}) ==
                Ids{id(5), id(15), id(20)}));
    BOOST_TEST((checkpoints_to_remove({}, complete, incomplete, Ids{id(5)}) == Ids{id(15)}));
}

BOOST_AUTO_TEST_SUITE_END()
