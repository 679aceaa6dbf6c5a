// SPDX-License-Identifier: Apache-2.0
#include "lib/own_tensors.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "ckpt/box_runs.h"

namespace dlrover::lib {
namespace {

/// What of one chunk is in a box.
struct Part {
    ckpt::ChunkInfo chunk;
    std::uint64_t index = 0;
    std::vector<std::uint64_t> in_chunk, in_box, shape;
};

/// False: nothing.
bool intersect(const ckpt::ChunkInfo &chunk, const TensorBox &box, Part &out) {
    out.chunk = chunk;
    for (std::size_t i = 0; i < box.shape.size(); ++i) {
        std::uint64_t begin = std::max(chunk.global_offset[i], box.offset[i]);
        std::uint64_t end =
            std::min(chunk.global_offset[i] + chunk.local_shape[i], box.offset[i] + box.shape[i]);
        if (begin >= end) return false;
        out.in_chunk.push_back(begin - chunk.global_offset[i]);
        out.in_box.push_back(begin - box.offset[i]);
        out.shape.push_back(end - begin);
    }
    return true;
}

bool overlap(const Part &a, const Part &b) {
    for (std::size_t i = 0; i < a.shape.size(); ++i)
        if (a.in_box[i] >= b.in_box[i] + b.shape[i] || b.in_box[i] >= a.in_box[i] + a.shape[i]) return false;
    return true;
}

/// Every element of the box is in exactly one part.
bool covers(const std::vector<Part> &parts, const TensorBox &box) {
    std::uint64_t elements = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        elements += ckpt::box_elements(parts[i].shape);
        for (std::size_t j = 0; j < i; ++j)
            if (overlap(parts[i], parts[j])) return false;
    }
    return elements == ckpt::box_elements(box.shape);
}

bool same_tensor(const ckpt::ChunkInfo &a, const ckpt::ChunkInfo &b) {
    return a.dtype == b.dtype && std::equal(a.global_shape.begin(), a.global_shape.end(),
                                            b.global_shape.begin(), b.global_shape.end());
}

Status no_one_tensor(std::string_view name) {
    return Status(Code::unsupported, "\"" + std::string(name.substr(0, 200)) +
                                         "\" is no one tensor: its chunks differ in type or global shape");
}

}  // namespace

OwnTensors::OwnTensors(const ObjectReader &object) : object_(object) {
    std::map<std::string_view, std::vector<std::uint64_t>> names;
    for (std::uint64_t i = 0; i < object.count(); ++i) names[object.chunk(i).name].push_back(i);
    names_.assign(std::make_move_iterator(names.begin()), std::make_move_iterator(names.end()));
}

Result<TensorInfo> OwnTensors::tensor(std::uint64_t index) {
    ckpt::ChunkInfo chunk = object_.chunk(names_[index].second.front());
    return TensorInfo{chunk.name, chunk.dtype, chunk.global_shape};
}

Status OwnTensors::read(const TensorBox &box) {
    auto found =
        std::lower_bound(names_.begin(), names_.end(), box.name,
                         [](const auto &entry, std::string_view name) { return entry.first < name; });
    std::string quoted = "\"" + std::string(box.name.substr(0, 200)) + "\"";
    if (found == names_.end() || found->first != box.name)
        return Status(Code::not_found, "this rank's part of the checkpoint has no tensor " + quoted);
    ckpt::ChunkInfo first = object_.chunk(found->second.front());
    DLROVER_TRY(check_box(box, {first.name, first.dtype, first.global_shape}));
    if (box.out.empty()) return {};
    std::vector<Part> parts;
    for (std::uint64_t index : found->second) {
        ckpt::ChunkInfo chunk = object_.chunk(index);
        if (!same_tensor(chunk, first)) return no_one_tensor(box.name);
        Part part;
        part.index = index;
        if (intersect(chunk, box, part)) parts.push_back(std::move(part));
    }
    if (!covers(parts, box))
        return Status(Code::unsupported, "a part of the box of tensor " + quoted +
                                             " is in another rank's memory: from there each rank has its own "
                                             "pieces only");
    for (const Part &part : parts)
        for (ckpt::BoxRuns runs({part.chunk.local_shape, part.in_chunk}, {box.shape, part.in_box}, part.shape,
                                ckpt::element_bytes(box.dtype));
             !runs.done(); runs.next())
            std::memcpy(box.out.data() + runs.b(), object_.data(part.index) + runs.a(), runs.bytes());
    return {};
}

}  // namespace dlrover::lib
