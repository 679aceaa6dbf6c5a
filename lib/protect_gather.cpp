// SPDX-License-Identifier: Apache-2.0
// Protected memory filled from a checkpoint that another number of ranks has saved: whatever they have, put
// together by its place in the global arrays.
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>

#include "base/count_of.h"
#include "lib/protect.h"

namespace dlrover::lib {
namespace {

/// A piece's bytes on their way: the program's memory is written when all of them are here.
struct Gathered {
    const ProtectedPiece *piece;
    std::unique_ptr<std::byte[]> bytes;
};

std::string saved_text(const OtherWorld &saved) {
    return "the checkpoint of step " + std::to_string(saved.step) + " was saved by " +
           count_of(saved.saved_by, "rank") + ", this world has " + std::to_string(saved.world_size);
}

/// dlrover_restart()'s not_found means that there is no checkpoint, and the program begins anew.
Status refusal(Status why, int id, const OtherWorld &saved) {
    Code code = why.code() == Code::not_found ? Code::invalid_argument : why.code();
    return Status(code, "id " + std::to_string(id) + ": " + why.message() + " (" + saved_text(saved) +
                            "): nothing was restored");
}

Status own_memory(const std::string &id) {
    return Status(Code::unsupported, id + " is one rank's own (dlrover_protect): for another number of ranks "
                                          "only arrays of dlrover_protect_array are put together");
}

using Tensors = std::unordered_map<std::string_view, TensorInfo>;

Result<Tensors> tensors_of(GlobalTensors &saved) {
    auto count = saved.count();
    if (!count) return count.take_status();
    Tensors tensors;
    for (std::uint64_t i = 0; i < *count; ++i) {
        auto tensor = saved.tensor(i);
        if (!tensor) return tensor.take_status();
        tensors.emplace(tensor->name, *tensor);
    }
    return tensors;
}

TensorBox box_of(const ProtectedPiece &piece, std::span<std::byte> out) {
    return {piece.name, piece.dtype, piece.global_offset, piece.local_shape, out};
}

/// Whether it can be read; nothing is.
Status check_piece(const ProtectedPiece &piece, const Tensors &tensors, GlobalTensors &saved) {
    auto found = tensors.find(piece.name);
    if (found == tensors.end()) return saved.read(box_of(piece, {}));  // which says why
    if (found->second.dtype != piece.dtype || !std::ranges::equal(found->second.shape, piece.global_shape))
        return Status(Code::invalid_argument, "array \"" + piece.name +
                                                  "\" has another type or global shape in the checkpoint "
                                                  "than it is protected with");
    return {};
}

Result<Gathered> gather_piece(const ProtectedPiece &piece, GlobalTensors &saved) {
    // Not by an exception: who has opened the checkpoint has to close it.
    Gathered gathered{&piece, std::unique_ptr<std::byte[]>(new (std::nothrow) std::byte[piece.bytes])};
    if (!gathered.bytes)
        return Status(Code::resource_exhausted,
                      "no memory to put " + std::to_string(piece.bytes) + " bytes together");
    DLROVER_TRY(saved.read(box_of(piece, {gathered.bytes.get(), piece.bytes})));
    return gathered;
}

}  // namespace

Status ProtectedMemory::check_gather(GlobalTensors &saved, const OtherWorld &world) const {
    for (const auto &[id, piece] : pieces_)
        if (is_own(piece)) return refusal(own_memory("this memory"), id, world);
    auto tensors = tensors_of(saved);
    if (!tensors) return tensors.take_status();
    for (const auto &[id, piece] : pieces_)
        if (Status fits = check_piece(piece, *tensors, saved); !fits.ok())
            return refusal(std::move(fits), id, world);
    return {};
}

Status ProtectedMemory::gather(GlobalTensors &saved, const OtherWorld &world) const {
    if (auto checked = sources(); !checked.ok()) return checked.take_status();
    DLROVER_TRY(check_gather(saved, world));
    std::vector<Gathered> all;
    for (const auto &[id, piece] : pieces_) {
        auto gathered = gather_piece(piece, saved);
        if (!gathered) return refusal(gathered.take_status(), id, world);
        all.push_back(std::move(*gathered));
    }
    for (const Gathered &one : all)
        if (one.piece->bytes != 0) std::memcpy(one.piece->data, one.bytes.get(), one.piece->bytes);
    return {};
}

Result<std::uint64_t> ProtectedMemory::gathered_count(GlobalTensors &saved, const OtherWorld &world,
                                                      int id) const {
    auto found = pieces_.find(id);
    if (found == pieces_.end())
        return Status(Code::invalid_argument,
                      "id " + std::to_string(id) +
                          " is not protected: at another number of ranks an array has " +
                          "to be (dlrover_protect_array) before its size can be told");
    if (is_own(found->second)) return refusal(own_memory("this memory"), id, world);
    const ProtectedPiece &piece = found->second;
    auto tensors = tensors_of(saved);
    if (!tensors) return tensors.take_status();
    if (Status fits = check_piece(piece, *tensors, saved); !fits.ok())
        return refusal(std::move(fits), id, world);
    return piece.bytes / ckpt::element_bytes(piece.dtype);
}

}  // namespace dlrover::lib
