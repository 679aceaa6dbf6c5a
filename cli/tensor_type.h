// SPDX-License-Identifier: Apache-2.0
// Names of element types: ours, and those of the safetensors format.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ckpt/dtype.h"

namespace dlrover::cli {

/// As torch and numpy call it.
std::string tensor_type_name(ckpt::DType type);
/// Empty: `bytes`, which is no tensor's type.
std::string safetensors_type_name(ckpt::DType type);
std::optional<ckpt::DType> parse_safetensors_type(std::string_view name);

}  // namespace dlrover::cli
