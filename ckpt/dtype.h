// SPDX-License-Identifier: Apache-2.0
// Element types of the object table.
#pragma once

#include <cstdint>
#include <optional>

#include "table_generated.h"

namespace dlrover::ckpt {

using DType = format::DType;

/// 0 for a number that is none of ours.
constexpr std::uint32_t element_bytes(DType type) noexcept {
    switch (type) {
        case DType::Bytes:
        case DType::Bool:
        case DType::UInt8:
        case DType::Int8:
        case DType::Float8E4M3:
        case DType::Float8E5M2:
            return 1;
        case DType::UInt16:
        case DType::Int16:
        case DType::Float16:
        case DType::BFloat16:
            return 2;
        case DType::UInt32:
        case DType::Int32:
        case DType::Float32:
            return 4;
        case DType::UInt64:
        case DType::Int64:
        case DType::Float64:
        case DType::Complex64:
            return 8;
        case DType::Complex128:
            return 16;
    }
    return 0;
}

constexpr std::optional<DType> to_dtype(std::uint32_t number) noexcept {
    if (number > static_cast<std::uint32_t>(DType::MAX)) return std::nullopt;
    return static_cast<DType>(number);
}

}  // namespace dlrover::ckpt
