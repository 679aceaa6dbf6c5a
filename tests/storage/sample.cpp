// SPDX-License-Identifier: Apache-2.0
// Writes a checkpoint of two ranks for the tests beside it: storage_sample FOLDER [STEP [TERM]]. Or one file
// of one rank: storage_sample FOLDER chunks COUNT. Each byte of each chunk follows from its number, so that a
// test knows what has to be there.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ckpt/checkpoint_folder.h"
#include "ckpt/checksum.h"
#include "ckpt/storage_index.h"
#include "ckpt/storage_writer.h"

using namespace dlrover;
using namespace dlrover::ckpt;

namespace {

const char lineage[] =
    "lab/1000/j\xc3\xb6"
    "b";

using Numbers = std::vector<std::uint64_t>;

struct Sample {
    std::vector<std::byte> data;
    ObjectTableWriter writer;
    Status status;

    Sample(const CheckpointId &id, std::uint32_t rank)
        : writer({id.step, Rank(rank), 2, id.generation, lineage}) {}

    void add(const std::string &name, DType type, const Numbers &global, const Numbers &offset,
             const Numbers &local, std::uint32_t replica = 0) {
        std::uint64_t bytes = element_bytes(type);
        for (std::uint64_t n : local) bytes *= n;
        std::uint64_t at = *align_object_offset(data.size());
        data.resize(at + bytes);
        for (std::uint64_t i = 0; i < bytes; ++i)
            data[at + i] = type == DType::Bool ? std::byte(i % 3 == 0) : std::byte((i * 5 + 17) % 256);
        std::uint64_t sum = chunk_checksum(std::span(data).subspan(at, bytes));
        if (Status s = writer.add({name, type, global, offset, local, replica, at, bytes, sum}); !s.ok())
            status = std::move(s);
    }
};

void add_all(Sample &sample, std::uint64_t rank) {
    for (unsigned type = 0; type <= static_cast<unsigned>(DType::MAX); ++type) {
        std::string name = "type." + std::to_string(type);
        sample.add(name, DType(type), {4, 128}, {rank * 2, 0}, {2, 128});
        sample.add(name + ".scalar", DType(type), {}, {}, {}, rank == 0 ? 0 : 1);
    }
    sample.add("columns/of \xe6\x9d\xb1", DType::Int32, {3, 8}, {0, rank * 5}, {3, rank == 0 ? 5u : 3u});
    sample.add("empty", DType::Float32, {3, 0}, {0, 0}, {3, 0});
    sample.add("own", DType::UInt8, {4 + rank}, {0}, {4 + rank});
    sample.add("gap", DType::UInt8, {9}, {rank * 5}, {4});
    sample.add("large", DType::Float32, {2, 300, 500}, {rank, 0, 0}, {1, 300, 500});
    if (rank == 1) sample.add("single", DType::Float32, {6}, {0}, {6});
    Numbers deep(16, 1);
    deep[3] = 2;
    deep[15] = 3;
    if (rank == 0) sample.add("deep", DType::UInt16, deep, Numbers(16), deep);
}

/// All types, 0 to 3 dimensions of 0 to 6, names of up to 4001 bytes, of which some are no UTF-8.
void add_many(Sample &sample, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
        std::string name = "n" + std::to_string(i) + (i % 7 == 0 ? "\xff" : "");
        if (i % 50 == 0) name += std::string(i * 7 % 3990, 'x');
        const Numbers local(i % 4, i % 7), offset(local.size(), i), global(local.size(), i + i % 7);
        sample.add(name, DType(i % (static_cast<unsigned>(DType::MAX) + 1)), global, offset, local);
    }
}

Result<RankFile> write_many(const std::string &folder, std::uint64_t count) {
    Sample sample({{Term(1), 3}, TrainStep(12)}, 0);
    add_many(sample, count);
    DLROVER_TRY(std::move(sample.status));
    auto table = sample.writer.finish();
    if (!table) return table.take_status();
    return write_storage_file(folder, {sample.data, *table, {}});
}

Result<RankFile> write(const std::string &folder, const CheckpointId &id, std::uint32_t rank) {
    Sample sample(id, rank);
    add_all(sample, rank);
    DLROVER_TRY(std::move(sample.status));
    DLROVER_TRY(sample.writer.set_skeleton("{\"version\":1,\"state\":\"\xc3\xa4\"}"));
    auto table = sample.writer.finish();
    if (!table) return table.take_status();
    const std::vector<std::uint8_t> ledger{'p', 'o', 's', static_cast<std::uint8_t>('0' + rank)};
    return write_storage_file(folder, {sample.data, *table, ledger});
}

Status write_checkpoint(const std::string &folder, const CheckpointId &id) {
    CheckpointFolder checkpoints(folder);
    Manifest manifest{id, lineage, {}, {}};
    std::string data = checkpoints.data_folder(manifest.id);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
        auto written = write(data, id, rank);
        if (!written) return written.take_status();
        manifest.ranks.push_back(*written);
    }
    auto index = write_storage_index(data, manifest.ranks);
    if (!index) return index.take_status();
    manifest.index = *index;
    return checkpoints.publish(manifest);
}

}  // namespace

int main(int argc, char **argv) {
    if (argc < 2 || argc > 4) return 2;
    if (argc > 2 && argv[2] == std::string("chunks")) {
        Status many = write_many(argv[1], std::strtoull(argv[argc - 1], nullptr, 10)).take_status();
        if (!many.ok()) std::fprintf(stderr, "%s\n", many.to_string().c_str());
        return many.ok() ? 0 : 1;
    }
    std::uint64_t step = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 12;
    std::uint64_t term = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
    Status status = write_checkpoint(argv[1], {{Term(term), 3}, TrainStep(step)});
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
    return status.ok() ? 0 : 1;
}
