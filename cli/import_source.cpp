// SPDX-License-Identifier: Apache-2.0
#include "cli/import_source.h"

#include <sys/mman.h>

#include "ckpt/checksum.h"
#include "ckpt/object_table.h"
#include "ckpt/storage_io.h"
#include "cli/json.h"

namespace dlrover::cli {
namespace {

using namespace dlrover::ckpt;

constexpr std::size_t length_bytes = 8;

Result<std::string> read_json(int fd, std::uint64_t file_bytes, const std::string &path) {
    unsigned char raw[length_bytes];
    if (file_bytes < length_bytes) return Status(Code::corrupt, path + " is not a valid .safetensors file");
    DLROVER_TRY(read_at(fd, raw, sizeof raw, 0, path));
    std::uint64_t length = 0;
    for (std::size_t i = length_bytes; i-- > 0;) length = length << 8 | raw[i];
    if (length > max_safetensors_header_bytes || length > file_bytes - length_bytes)
        return Status(Code::corrupt, path + " is not a valid .safetensors file");
    std::string json(length, '\0');
    DLROVER_TRY(read_at(fd, json.data(), length, length_bytes, path));
    return json;
}

std::string skeleton_of(const std::vector<SafeTensor> &tensors) {
    JsonWriter json;
    json.begin_object().field("version", std::uint32_t{1}).field("ledger", "none").key("state");
    json.begin_object().field("$", "dict").key("v").begin_object();
    std::uint64_t number = 0;
    for (const SafeTensor &tensor : tensors)
        json.key(tensor.name)
            .begin_object()
            .field("$", "tensor")
            .field("o", number++)
            .field("c", tensor.name)
            .end_object();
    json.end_object().end_object().end_object();
    return json.text();
}

}  // namespace

Result<SafeTensorsFile> SafeTensorsFile::open(const std::string &path) {
    auto fd = open_to_read(path);
    if (!fd) return fd.take_status();
    auto bytes = file_size(fd->get(), path);
    if (!bytes) return bytes.take_status();
    auto json = read_json(fd->get(), *bytes, path);
    if (!json) return json.take_status();
    std::uint64_t start = length_bytes + json->size();
    auto header = decode_safetensors_header(*json, *bytes - start);
    if (!header) return std::move(header.take_status()).with_context(path);
    void *map = ::mmap(nullptr, *bytes, PROT_READ, MAP_PRIVATE, fd->get(), 0);
    if (map == MAP_FAILED) return file_error("mapping of", path);
    (void)::madvise(map, *bytes, MADV_SEQUENTIAL);
    SafeTensorsFile file;
    file.header_ = std::move(*header);
    file.map_ = {static_cast<std::byte *>(map), *bytes};
    file.data_ = file.map_.subspan(start);
    return file;
}

SafeTensorsFile::~SafeTensorsFile() {
    if (!map_.empty()) ::munmap(map_.data(), map_.size());
}

Result<std::vector<std::uint8_t>> make_import_table(const SafeTensorsFile &file, const std::string &lineage,
                                                    TrainStep step,
                                                    const std::function<void(std::uint64_t)> &watch) {
    ObjectTableWriter writer({step, Rank(0), 1, {Term(0), 0}, lineage});
    std::uint64_t at = 0;
    for (const SafeTensor &tensor : file.tensors()) {
        auto bytes = file.bytes(tensor);
        std::vector<std::uint64_t> zero(tensor.shape.size());
        auto offset = align_object_offset(at);
        if (!offset) return Status(Code::corrupt, "the tensors are larger than any memory");
        ChunkInfo chunk{tensor.name, tensor.dtype, tensor.shape, zero, tensor.shape,
                        0,           *offset,      bytes.size()};
        DLROVER_TRY(writer.add_unhashed(chunk));
        writer.set_hashes(writer.count() - 1, block_hashes(bytes));
        at = *offset + bytes.size();
        watch(bytes.size());
    }
    DLROVER_TRY(writer.set_skeleton(skeleton_of(file.tensors())));
    return writer.finish();
}

}  // namespace dlrover::cli
