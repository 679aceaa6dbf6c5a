// SPDX-License-Identifier: Apache-2.0
#include "cli/tensor_type.h"

namespace dlrover::cli {
namespace {

using ckpt::DType;

struct TypeName {
    DType type;
    const char *ours, *safetensors;
};

constexpr TypeName type_names[] = {
    {DType::Bytes, "bytes", ""},
    {DType::Bool, "bool", "BOOL"},
    {DType::UInt8, "uint8", "U8"},
    {DType::Int8, "int8", "I8"},
    {DType::UInt16, "uint16", "U16"},
    {DType::Int16, "int16", "I16"},
    {DType::UInt32, "uint32", "U32"},
    {DType::Int32, "int32", "I32"},
    {DType::UInt64, "uint64", "U64"},
    {DType::Int64, "int64", "I64"},
    {DType::Float16, "float16", "F16"},
    {DType::BFloat16, "bfloat16", "BF16"},
    {DType::Float32, "float32", "F32"},
    {DType::Float64, "float64", "F64"},
    {DType::Float8E4M3, "float8_e4m3fn", "F8_E4M3"},
    {DType::Float8E5M2, "float8_e5m2", "F8_E5M2"},
    {DType::Complex64, "complex64", "C64"},
    {DType::Complex128, "complex128", "C128"},
};

}  // namespace

std::string tensor_type_name(DType type) {
    for (const TypeName &name : type_names)
        if (name.type == type) return name.ours;
    return "unknown";
}

std::string safetensors_type_name(DType type) {
    for (const TypeName &name : type_names)
        if (name.type == type) return name.safetensors;
    return "";
}

std::optional<DType> parse_safetensors_type(std::string_view name) {
    for (const TypeName &known : type_names)
        if (!name.empty() && known.safetensors == name) return known.type;
    return std::nullopt;
}

}  // namespace dlrover::cli
