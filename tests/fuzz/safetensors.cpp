// SPDX-License-Identifier: Apache-2.0
// The head of a .safetensors file from somewhere: the input is its JSON.
#include "cli/safetensors.h"

#include "fuzz.h"

namespace dlrover::fuzz {
namespace {

constexpr std::uint64_t data_bytes = 64;
constexpr std::size_t length_bytes = 8;

}  // namespace

bool run(std::span<const std::uint8_t> input) {
    auto header = cli::decode_safetensors_header(text_of(input), data_bytes);
    if (!header) return false;
    for (const cli::SafeTensor &tensor : header->tensors) {
        std::uint64_t bytes = ckpt::element_bytes(tensor.dtype);
        for (std::uint64_t n : tensor.shape) bytes *= n;
        require(tensor.begin <= tensor.end && tensor.end <= data_bytes, "a tensor lies inside the data");
        require(tensor.end - tensor.begin == bytes, "a tensor has the bytes of its shape");
    }
    auto text = cli::encode_safetensors_header(*header);
    require(text.ok(), "what was read can be written");
    auto again = cli::decode_safetensors_header(std::string_view(*text).substr(length_bytes), data_bytes);
    require(again.ok() && again->tensors.size() == header->tensors.size(), "and read again");
    return true;
}

std::vector<Bytes> seeds() {
    cli::SafeTensorsHeader header;
    header.metadata = {{"format", "pt"}, {"a\xc3\xa4", "\n\x1b\""}};
    header.tensors = {{"w", ckpt::DType::BFloat16, {2, 3}, 0, 12},
                      {"\xf0\x9d\x95\x8f", ckpt::DType::Float64, {}, 12, 20},
                      {"none", ckpt::DType::Int8, {0, 5}, 20, 20}};
    auto text = cli::encode_safetensors_header(header);
    require(text.ok(), "the encoder takes a proper header");
    return {
        bytes_of(std::string_view(*text).substr(length_bytes)),
        bytes_of(
            R"({"a":{"shape":[1],"data_offsets":[0,1],"dtype":"U8"},"\u00e9\ud83d\ude00":{"dtype":"BOOL","shape":[],"data_offsets":[1,2]}})")};
}

}  // namespace dlrover::fuzz
