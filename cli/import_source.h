// SPDX-License-Identifier: Apache-2.0
// A .safetensors file as the object of the one rank of a checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "cli/safetensors.h"

namespace dlrover::cli {

/// The file, mapped: it must not become shorter meanwhile.
class SafeTensorsFile {
  public:
    /// corrupt, unsupported: see decode_safetensors_header().
    static Result<SafeTensorsFile> open(const std::string &path);
    SafeTensorsFile(SafeTensorsFile &&other) noexcept
        : header_(std::move(other.header_)), map_(std::exchange(other.map_, {})), data_(other.data_) {}
    SafeTensorsFile &operator=(SafeTensorsFile &&) = delete;
    ~SafeTensorsFile();

    const std::vector<SafeTensor> &tensors() const noexcept { return header_.tensors; }
    std::uint64_t data_bytes() const noexcept { return data_.size(); }
    std::span<const std::byte> bytes(const SafeTensor &tensor) const {
        return data_.subspan(tensor.begin, tensor.end - tensor.begin);
    }

  private:
    SafeTensorsFile() = default;
    SafeTensorsHeader header_;
    std::span<std::byte> map_;
    std::span<const std::byte> data_;
};

/// The object table of rank 0 of 1, of the generation before the first one. The skeleton says for Python that
/// the state is a dict of the tensors by name. `watch` is told of bytes that were read.
Result<std::vector<std::uint8_t>> make_import_table(const SafeTensorsFile &file, const std::string &lineage,
                                                    TrainStep step,
                                                    const std::function<void(std::uint64_t)> &watch);

}  // namespace dlrover::cli
