// SPDX-License-Identifier: Apache-2.0
// A checkpoint on storage of many simulated ranks, as dlrover_slurm.dcp of one sharded state saves it: for
// bench/plan_dcp. stored_ranks FOLDER [RANKS [TENSORS]]
#include <cstdio>
#include <string>
#include <vector>

#include "base/units.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/checksum.h"
#include "ckpt/storage_index.h"
#include "ckpt/storage_writer.h"

using namespace dlrover;
using namespace dlrover::ckpt;

namespace {

constexpr std::uint64_t columns = 4;
const CheckpointId checkpoint{{Term(1), 1}, TrainStep(1)};
const char lineage[] = "bench";

std::string tensor_name(std::uint64_t i) {
    return "model.layers." + std::to_string(i) + ".attention.weight";
}

/// Every tensor has a row of each rank; "epoch" is a value that is no tensor.
std::string skeleton_of(std::uint64_t rank, std::uint64_t ranks, std::uint64_t tensors) {
    std::string row = std::to_string(rank), shape = std::to_string(ranks) + "," + std::to_string(columns);
    std::string wide = std::to_string(columns), parts, paths;
    for (std::uint64_t i = 0; i < tensors; ++i) {
        std::string name = '"' + tensor_name(i) + '"';
        parts += (i == 0 ? "" : ",") + name + R"(:{"d":"float32","s":[)" + shape + R"(],"g":1,"p":[[)" +
                 name + ",[" + row + ",0],[1," + wide + "]]]}";
        paths += name + R"(:["model","layers.)" + std::to_string(i) + R"(.attention.weight"],)";
    }
    return R"({"version":1,"ledger":"none","dcp":{"tensors":{)" + parts +
           R"(},"values":{"epoch":"epoch"},"paths":{)" + paths + R"("epoch":["epoch"]}}})";
}

struct Object {
    std::vector<std::byte> data;
    ObjectTableWriter writer;

    Status add(const std::string &name, DType type, std::span<const std::uint64_t> global,
               std::span<const std::uint64_t> offset, std::span<const std::uint64_t> local,
               std::uint64_t bytes) {
        std::uint64_t at = *align_object_offset(data.size());
        data.resize(at + bytes, std::byte{1});
        std::uint64_t sum = chunk_checksum(std::span(data).subspan(at, bytes));
        return writer.add({name, type, global, offset, local, 0, at, bytes, sum});
    }
};

Result<RankFile> write_rank(const std::string &folder, std::uint32_t rank, std::uint32_t ranks,
                            std::uint64_t tensors) {
    Object object{{},
                  ObjectTableWriter({checkpoint.step, Rank(rank), ranks, checkpoint.generation, lineage})};
    const std::uint64_t length[] = {16}, zero[] = {0};
    DLROVER_TRY(object.add("epoch", DType::Bytes, length, zero, length, length[0]));
    for (std::uint64_t i = 0; i < tensors; ++i) {
        const std::uint64_t global[] = {ranks, columns}, offset[] = {rank, 0}, local[] = {1, columns};
        DLROVER_TRY(object.add(tensor_name(i), DType::Float32, global, offset, local, columns * 4));
    }
    DLROVER_TRY(object.writer.set_skeleton(skeleton_of(rank, ranks, tensors)));
    auto table = object.writer.finish();
    if (!table) return table.take_status();
    return write_storage_file(folder, {object.data, *table, {}});
}

Status write_checkpoint(const std::string &folder, std::uint32_t ranks, std::uint64_t tensors) {
    CheckpointFolder checkpoints(folder);
    Manifest manifest{checkpoint, lineage, {}, {}};
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        auto file = write_rank(checkpoints.data_folder(checkpoint), rank, ranks, tensors);
        if (!file) return file.take_status();
        manifest.ranks.push_back(*file);
    }
    return checkpoints.publish(manifest);
}

}  // namespace

int main(int argc, char **argv) {
    auto ranks = parse_uint(argc > 2 ? argv[2] : "1024", 1, 1u << 16);
    auto tensors = parse_uint(argc > 3 ? argv[3] : "1000", 1, 100000);
    Status status(Code::invalid_argument, "usage: stored_ranks FOLDER [RANKS [TENSORS]]");
    if (argc >= 2 && argc <= 4 && ranks.ok() && tensors.ok())
        status = write_checkpoint(argv[1], static_cast<std::uint32_t>(*ranks), *tensors);
    if (!status.ok()) std::fprintf(stderr, "stored_ranks: %s\n", status.to_string().c_str());
    return status.ok() ? 0 : 1;
}
