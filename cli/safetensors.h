// SPDX-License-Identifier: Apache-2.0
// The head of a .safetensors file: 8 bytes of length (little-endian), then JSON; the tensors' bytes follow.
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "ckpt/dtype.h"

namespace dlrover::cli {

/// What readers of the format accept.
inline constexpr std::uint64_t max_safetensors_header_bytes = 100'000'000;

struct SafeTensor {
    std::string name;
    ckpt::DType dtype = ckpt::DType::UInt8;
    std::vector<std::uint64_t> shape;
    std::uint64_t begin = 0, end = 0;  ///< of its bytes, counted from the end of the JSON
};

struct SafeTensorsHeader {
    std::vector<SafeTensor> tensors;
    std::vector<std::pair<std::string, std::string>> metadata;
};

/// The length and the JSON, blanks behind it, so that the data start at a multiple of 8. Text is UTF-8.
/// resource_exhausted: longer than readers accept.
Result<std::string> encode_safetensors_header(const SafeTensorsHeader &header);

/// Trusts nothing: `json` is what the length stands for, `data_bytes` what follows it. corrupt; unsupported:
/// a type that we have no name for.
Result<SafeTensorsHeader> decode_safetensors_header(std::string_view json, std::uint64_t data_bytes);

}  // namespace dlrover::cli
