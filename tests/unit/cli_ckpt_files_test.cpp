// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <fstream>

#include "ckpt/checksum.h"
#include "cli/export_plan.h"
#include "cli/import_source.h"
#include "cli/json.h"
#include "cli/json_reader.h"
#include "cli/safetensors.h"
#include "cli/tensor_reader.h"
#include "cli/tensor_type.h"

using namespace dlrover;
using namespace dlrover::ckpt;
using namespace dlrover::cli;

namespace {

using Numbers = std::vector<std::uint64_t>;

/// What follows the 8 bytes of length, which have to be right.
std::string json_of(const std::string &head) {
    std::uint64_t length = 0;
    for (std::size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(head[i]);
    BOOST_REQUIRE(length == head.size() - 8);
    return head.substr(8);
}

std::string string_in(const char *json) {
    JsonReader reader(json);
    std::string text = reader.string();
    return reader.at_end() ? text : "not read";
}

GlobalTensor tensor(const char *name, DType type, Numbers shape) {
    return {name, type, std::move(shape), {{Rank(0), 0}}};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cli_ckpt_files)

BOOST_AUTO_TEST_CASE(a_head_comes_back) {
    SafeTensorsHeader header;
    header.metadata = {{"format", "pt"}, {"lineage", "a\"b\n"}};
    header.tensors = {{"w\xc3\xa4\x1b", DType::BFloat16, {2, 3}, 0, 12}, {"s", DType::Float64, {}, 12, 20}};
    auto head = encode_safetensors_header(header);
    BOOST_REQUIRE(head.ok());
    BOOST_TEST(head->size() % 8 == 0u);
    auto back = decode_safetensors_header(json_of(*head), 20);
    BOOST_REQUIRE_MESSAGE(back.ok(), back.status().to_string());
    BOOST_TEST((back->metadata == header.metadata));
    BOOST_REQUIRE(back->tensors.size() == 2u);
    for (std::size_t i = 0; i < 2; ++i) {
        const SafeTensor &a = back->tensors[i], &b = header.tensors[i];
        BOOST_TEST((a.name == b.name && a.dtype == b.dtype && a.shape == b.shape));
        BOOST_TEST((a.begin == b.begin && a.end == b.end));
    }
    BOOST_TEST((decode_safetensors_header(json_of(*head), 19).status().code() == Code::corrupt));
}

BOOST_AUTO_TEST_CASE(an_import_tells_the_hashes_of_blocks) {
    constexpr std::uint64_t large = 2 * checksum_block_bytes + 3;
    SafeTensorsHeader header;
    header.tensors = {{"large", DType::UInt8, {large}, 0, large},
                      {"small", DType::UInt8, {5}, large, large + 5}};
    std::string content = *encode_safetensors_header(header), path = "/tmp/import-test-XXXXXX";
    for (std::uint64_t i = 0; i < large + 5; ++i) content += static_cast<char>(i * 7 + i / 1000);
    BOOST_REQUIRE(::close(::mkstemp(path.data())) == 0);
    std::ofstream(path, std::ios::binary) << content;
    auto file = SafeTensorsFile::open(path);
    ::unlink(path.c_str());
    BOOST_REQUIRE_MESSAGE(file.ok(), file.status().to_string());
    auto bytes = make_import_table(*file, "lineage", TrainStep(1), [](std::uint64_t) {});
    BOOST_REQUIRE_MESSAGE(bytes.ok(), bytes.status().to_string());
    auto table = ObjectTableView::parse(*bytes);
    BOOST_REQUIRE_MESSAGE(table.ok(), table.status().to_string());
    auto hashes = block_hashes(file->bytes(file->tensors()[0]));
    BOOST_TEST(hashes.size() == 3u);
    BOOST_TEST(std::ranges::equal(table->chunk(0).blocks, hashes));
    BOOST_TEST(table->chunk(1).checksum == chunk_checksum(file->bytes(file->tensors()[1])));
    BOOST_TEST(table->chunk(1).blocks.empty());
}

BOOST_AUTO_TEST_CASE(every_type_has_one_name) {
    for (unsigned number = 0; number <= static_cast<unsigned>(DType::MAX); ++number) {
        DType type = DType(number);
        BOOST_TEST(tensor_type_name(type) != "unknown");
        if (type == DType::Bytes)
            BOOST_TEST(safetensors_type_name(type).empty());
        else
            BOOST_TEST((parse_safetensors_type(safetensors_type_name(type)) == type));
    }
    BOOST_TEST(!parse_safetensors_type("").has_value());
    BOOST_TEST(!parse_safetensors_type("F4").has_value());
}

BOOST_AUTO_TEST_CASE(a_head_cut_anywhere_is_refused) {
    const std::string whole =
        R"( { "__metadata__" : {"a":"b","c":""}, "w":{"shape":[1, 2],"data_offsets":[0,8],"dtype":"F32"} } )";
    BOOST_TEST(decode_safetensors_header(whole, 8).ok());
    for (std::size_t n = 0; n + 2 < whole.size(); ++n)
        BOOST_TEST(!decode_safetensors_header(whole.substr(0, n), 8).ok(), whole.substr(0, n));
    for (const char *bad : {R"({"w":{"shape":[],"data_offsets":[0,4],"dtype":"F32","more":1}})", R"({"w":1})",
                            R"({"w":{"shape":[1.0],"data_offsets":[0,4],"dtype":"F32"}})",
                            R"({"w":{"shape":[01],"data_offsets":[0,4],"dtype":"F32"}})",
                            R"({"w":{"shape":[],"data_offsets":[0,4,5],"dtype":"F32"}})",
                            R"({"w":{"shape":[],"data_offsets":[0],"dtype":"F32"}})",
                            R"({"__metadata__":{"a":1}})", R"({} {})", R"({,})", R"([])"})
        BOOST_TEST(!decode_safetensors_header(bad, 8).ok(), bad);
}

BOOST_AUTO_TEST_CASE(json_text_is_read) {
    BOOST_TEST(string_in(R"("a\"\\\/\b\f\n\r\t")") == "a\"\\/\b\f\n\r\t");
    BOOST_TEST(string_in(R"("\u00e4\u20ac\ud835\udd4f")") == "\xc3\xa4\xe2\x82\xac\xf0\x9d\x95\x8f");
    for (const char *bad : {R"("\ud835")", R"("\udd4f")", R"("\ud835\u0041")", R"("\x")", R"("\u00g0")",
                            R"("\u12)", R"("a)", "\"\xff\"", "a"})
        BOOST_TEST(string_in(bad) == "not read", bad);
}

BOOST_AUTO_TEST_CASE(json_is_always_utf8_and_harmless) {
    JsonWriter json;
    json.begin_array().value("\x7f\xc2\x9b\xc3\xa4").value("a\xff").end_array();
    BOOST_TEST(json.text() == "[\"\\u007f\\u009b\xc3\xa4\",\"a\\ufffd\"]");
}

BOOST_AUTO_TEST_CASE(boxes_fall_into_place) {
    const Numbers whole{4, 3, 5};
    std::vector<std::byte> array(4 * 3 * 5 * 2), wanted(array.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = std::byte(i % 251);
    const std::pair<Numbers, Numbers> boxes[] = {
        {{0, 0, 0}, {2, 3, 5}}, {{2, 0, 0}, {2, 3, 2}}, {{2, 0, 2}, {2, 1, 3}}, {{2, 1, 2}, {2, 2, 3}}};
    for (const auto &[offset, local] : boxes) {
        std::vector<std::byte> box;
        for (std::uint64_t i = 0; i < local[0]; ++i)
            for (std::uint64_t j = 0; j < local[1]; ++j) {
                std::uint64_t at = (((offset[0] + i) * 3 + offset[1] + j) * 5 + offset[2]) * 2;
                auto row = std::span(wanted).subspan(at, local[2] * 2);
                box.insert(box.end(), row.begin(), row.end());
            }
        place_box(whole, offset, local, 2, box, array);
    }
    BOOST_TEST((array == wanted));
    std::vector<std::byte> one{std::byte(7)}, scalar(1);
    place_box({}, {}, {}, 1, one, scalar);
    BOOST_TEST((scalar == one));
}

BOOST_AUTO_TEST_CASE(a_plan_takes_tensors_and_lists_the_rest) {
    IndexPlan index{{tensor("a", DType::UInt8, {3}), tensor("b", DType::Float64, {2}),
                     tensor("c", DType::Bytes, {9}), tensor("d", DType::Float64, {0, 4})},
                    {"own"}};
    auto plan = plan_export(index, {}, false);
    BOOST_REQUIRE(plan.ok());
    BOOST_TEST(plan->bytes == 19u);
    BOOST_REQUIRE(plan->header.tensors.size() == 3u);
    BOOST_TEST(plan->header.tensors[0].name == "b");
    BOOST_TEST(plan->header.tensors[1].name == "d");
    BOOST_TEST(plan->header.tensors[2].begin == 16u);
    BOOST_TEST(plan->not_tensors.front() == "c");
    BOOST_TEST(plan->own_values.front() == "own");
    BOOST_TEST((plan_export(index, {"[ab]"}, false)->own_values.empty()));
    BOOST_TEST((plan_export(index, {"x*"}, false).status().code() == Code::not_found));
}

BOOST_AUTO_TEST_CASE(a_plan_refuses_what_the_format_cannot_hold) {
    for (const GlobalTensor &bad : {tensor("z", DType::Complex128, {1}), tensor("\xff", DType::Int8, {1}),
                                    tensor("__metadata__", DType::Int8, {1})})
        BOOST_TEST((plan_export({{bad}, {}}, {}, false).status().code() == Code::unsupported));
    BOOST_TEST(plan_export({{tensor("z", DType::Complex128, {1})}, {}}, {}, true).ok());
}

BOOST_AUTO_TEST_SUITE_END()
