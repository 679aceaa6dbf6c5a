// SPDX-License-Identifier: Apache-2.0
#include "cli/export_plan.h"

#include <fnmatch.h>

#include <algorithm>

#include "ckpt/storage_name.h"
#include "cli/ckpt_view.h"
#include "cli/tensor_type.h"

namespace dlrover::cli {
namespace {

using namespace dlrover::ckpt;

bool fits(const std::string &name, const std::string &pattern) {
    return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

bool matches(const std::string &name, const std::vector<std::string> &patterns) {
    return patterns.empty() ||
           std::ranges::any_of(patterns, [&](auto &pattern) { return fits(name, pattern); });
}

/// A pattern with a typing error would leave weights out.
Status check_patterns(const IndexPlan &index, const std::vector<std::string> &patterns) {
    for (const std::string &pattern : patterns) {
        bool used = std::ranges::any_of(index.tensors, [&](auto &t) { return fits(t.name, pattern); }) ||
                    std::ranges::any_of(index.left_out, [&](auto &name) { return fits(name, pattern); });
        if (!used)
            return Status(Code::not_found,
                          "--name " + pattern + ": nothing in the checkpoint has a name that matches");
    }
    return {};
}

Status check_tensor(const GlobalTensor &tensor, bool wide) {
    if (!valid_utf8(tensor.name))
        return Status(Code::unsupported, "tensor \"" + tensor.name +
                                             "\" has a name that is no UTF-8: the format cannot hold it");
    if (tensor.name == "__metadata__")
        return Status(Code::unsupported, "a tensor is named \"__metadata__\": the format cannot hold it");
    if (wide || tensor.dtype != DType::Complex128) return {};
    return Status(
        Code::unsupported,
        "tensor \"" + tensor.name +
            "\" is of type complex128: a .safetensors file cannot hold it; choose others by --name");
}

/// Large elements first, so that every tensor's bytes are aligned to its elements.
bool earlier(const GlobalTensor *a, const GlobalTensor *b) {
    std::uint32_t bytes_a = element_bytes(a->dtype), bytes_b = element_bytes(b->dtype);
    return bytes_a != bytes_b ? bytes_a > bytes_b : a->name < b->name;
}

void lay_out(ExportPlan &plan) {
    std::ranges::sort(plan.tensors, earlier);
    for (const GlobalTensor *tensor : plan.tensors) {
        std::uint64_t end = plan.bytes + tensor_bytes(*tensor);
        plan.header.tensors.push_back({tensor->name, tensor->dtype, tensor->shape, plan.bytes, end});
        plan.bytes = end;
    }
}

}  // namespace

Result<ExportPlan> plan_export(const IndexPlan &index, const std::vector<std::string> &patterns, bool wide) {
    DLROVER_TRY(check_patterns(index, patterns));
    ExportPlan plan;
    for (const GlobalTensor &tensor : index.tensors) {
        if (!matches(tensor.name, patterns)) continue;
        if (tensor.dtype == DType::Bytes) {
            plan.not_tensors.push_back(tensor.name);
            continue;
        }
        DLROVER_TRY(check_tensor(tensor, wide));
        plan.tensors.push_back(&tensor);
    }
    for (const std::string &name : index.left_out)
        if (matches(name, patterns)) plan.own_values.push_back(name);
    if (plan.tensors.empty())
        return Status(Code::not_found, patterns.empty() ? "the checkpoint has no global tensors"
                                                        : "no global tensor has a name that matches");
    lay_out(plan);
    return plan;
}

}  // namespace dlrover::cli
