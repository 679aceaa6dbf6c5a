// SPDX-License-Identifier: Apache-2.0
#include "cli/safetensors.h"

#include <algorithm>
#include <unordered_set>

#include "ckpt/storage_name.h"
#include "cli/json.h"
#include "cli/json_reader.h"
#include "cli/tensor_type.h"

namespace dlrover::cli {
namespace {

constexpr std::string_view metadata_key = "__metadata__";
constexpr std::size_t max_dims = 64, length_bytes = 8;

Status wrong(const std::string &what) {
    return Status(Code::corrupt, "not a valid .safetensors file: " + what);
}

std::vector<std::uint64_t> read_numbers(JsonReader &json, std::size_t most) {
    std::vector<std::uint64_t> numbers;
    json.begin_array();
    while (json.next_element()) {
        numbers.push_back(json.number());
        if (numbers.size() > most) json.fail();
    }
    return numbers;
}

void read_metadata(JsonReader &json, SafeTensorsHeader &header) {
    json.begin_object();
    for (std::string key; json.next_key(key);) {
        std::string value = json.string();
        header.metadata.emplace_back(std::move(key), std::move(value));
    }
}

struct RawTensor {
    SafeTensor tensor;
    std::string type;
    std::vector<std::uint64_t> offsets;
};

RawTensor read_tensor(JsonReader &json, std::string name) {
    RawTensor raw;
    raw.tensor.name = std::move(name);
    json.begin_object();
    for (std::string key; json.next_key(key);) {
        if (key == "dtype")
            raw.type = json.string();
        else if (key == "shape")
            raw.tensor.shape = read_numbers(json, max_dims);
        else if (key == "data_offsets")
            raw.offsets = read_numbers(json, 2);
        else
            json.fail();
    }
    return raw;
}

/// No overflow whatever the numbers.
bool has_bytes(const SafeTensor &tensor, std::uint64_t bytes) {
    if (std::find(tensor.shape.begin(), tensor.shape.end(), 0u) != tensor.shape.end()) return bytes == 0;
    std::uint64_t product = ckpt::element_bytes(tensor.dtype);
    for (std::uint64_t n : tensor.shape)
        if (__builtin_mul_overflow(product, n, &product)) return false;
    return product == bytes;
}

Result<SafeTensor> check_tensor(RawTensor raw, std::uint64_t data_bytes) {
    SafeTensor &tensor = raw.tensor;
    auto type = parse_safetensors_type(raw.type);
    if (!type)
        return Status(Code::unsupported, "tensor \"" + tensor.name + "\" has the type \"" + raw.type +
                                             "\", which is unknown here");
    tensor.dtype = *type;
    if (raw.offsets.size() != 2 || raw.offsets[0] > raw.offsets[1] || raw.offsets[1] > data_bytes)
        return wrong("tensor \"" + tensor.name + "\" lies outside the file");
    tensor.begin = raw.offsets[0];
    tensor.end = raw.offsets[1];
    if (!has_bytes(tensor, tensor.end - tensor.begin))
        return wrong("tensor \"" + tensor.name + "\" does not have the bytes of its shape");
    return std::move(tensor);
}

void write_tensor(JsonWriter &json, const SafeTensor &tensor) {
    json.key(tensor.name).begin_object().field("dtype", safetensors_type_name(tensor.dtype));
    json.key("shape").begin_array();
    for (std::uint64_t n : tensor.shape) json.value(n);
    json.end_array().key("data_offsets").begin_array().value(tensor.begin).value(tensor.end);
    json.end_array().end_object();
}

}  // namespace

Result<std::string> encode_safetensors_header(const SafeTensorsHeader &header) {
    JsonWriter json;
    json.begin_object().key(metadata_key).begin_object();
    for (const auto &[key, value] : header.metadata) json.field(key, value);
    json.end_object();
    for (const SafeTensor &tensor : header.tensors) write_tensor(json, tensor);
    json.end_object();
    std::string text = json.text();
    text.resize((text.size() + length_bytes - 1) / length_bytes * length_bytes, ' ');
    if (text.size() > max_safetensors_header_bytes)
        return Status(Code::resource_exhausted,
                      "the names of so many tensors do not fit into one .safetensors file: export parts of "
                      "them with --name");
    std::string out;
    for (std::uint64_t rest = text.size(), i = 0; i < length_bytes; ++i, rest >>= 8)
        out += static_cast<char>(rest & 0xff);
    return out + text;
}

Result<SafeTensorsHeader> decode_safetensors_header(std::string_view text, std::uint64_t data_bytes) {
    JsonReader json(text);
    SafeTensorsHeader header;
    std::unordered_set<std::string> names;
    json.begin_object();
    for (std::string key; json.next_key(key);) {
        if (!names.insert(key).second) return wrong("the name \"" + key + "\" is there twice");
        if (key == metadata_key) {
            read_metadata(json, header);
            continue;
        }
        RawTensor raw = read_tensor(json, std::move(key));
        if (!json.ok()) break;
        auto tensor = check_tensor(std::move(raw), data_bytes);
        if (!tensor) return tensor.take_status();
        header.tensors.push_back(std::move(*tensor));
    }
    if (!json.at_end()) return wrong("its head can not be read");
    return header;
}

}  // namespace dlrover::cli
