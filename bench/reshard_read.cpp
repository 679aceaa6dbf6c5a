// SPDX-License-Identifier: Apache-2.0
// How many bytes each rank of a world of another size reads of a checkpoint on storage: a count, of calls,
// not a time. With tables that tell the hashes of blocks, and with tables of before there were any.
// reshard_read FOLDER [TENSOR_BYTES [TENSORS]]
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/units.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/checksum.h"
#include "ckpt/storage_writer.h"
#include "lib/stored_files.h"
#include "lib/stored_tensors.h"

using namespace dlrover;
using namespace dlrover::ckpt;

namespace {

constexpr std::uint64_t saved_by = 8, columns = 2000, row_bytes = columns * sizeof(float);
const CheckpointId checkpoint{{Term(1), 1}, TrainStep(1)};
const char lineage[] = "bench";

struct Settings {
    std::string folder;
    std::uint64_t rows = 0, tensors = 0;  ///< of each tensor; how many
};

std::string tensor_name(std::uint64_t i) {
    return "model.layers." + std::to_string(i) + ".weight";
}

struct Object {
    std::vector<std::byte> data;
    std::vector<std::uint8_t> table;
};

/// Every tensor is cut into as many rows for each rank.
Result<Object> make_object(const Settings &settings, std::uint32_t rank, bool with_blocks) {
    Object object;
    ObjectTableWriter writer({checkpoint.step, Rank(rank), saved_by, checkpoint.generation, lineage});
    const std::uint64_t mine = settings.rows / saved_by, bytes = mine * row_bytes;
    const std::uint64_t global[] = {settings.rows, columns}, offset[] = {rank * mine, 0};
    const std::uint64_t local[] = {mine, columns};
    for (std::uint64_t i = 0; i < settings.tensors; ++i) {
        std::uint64_t at = *align_object_offset(object.data.size());
        object.data.resize(at + bytes, std::byte(i + rank));
        auto hashes = block_hashes(std::span(object.data).subspan(at));
        std::string name = tensor_name(i);
        ChunkInfo chunk{name, DType::Float32, global, offset, local, 0, at, bytes};
        chunk.checksum = combine_block_hashes(hashes);
        if (with_blocks && hashes.size() > 1) chunk.blocks = hashes;
        DLROVER_TRY(writer.add(chunk));
    }
    auto table = writer.finish();
    if (!table) return table.take_status();
    object.table = std::move(*table);
    return object;
}

Status write_checkpoint(const Settings &settings, const std::string &folder, bool with_blocks) {
    CheckpointFolder checkpoints(folder);
    Manifest manifest{checkpoint, lineage, {}, {}};
    for (std::uint32_t rank = 0; rank < saved_by; ++rank) {
        auto object = make_object(settings, rank, with_blocks);
        if (!object) return object.take_status();
        auto file =
            write_storage_file(checkpoints.data_folder(checkpoint), {object->data, object->table, {}});
        if (!file) return file.take_status();
        manifest.ranks.push_back(*file);
    }
    return checkpoints.publish(manifest);
}

/// By all calls of this process so far.
std::uint64_t bytes_read() {
    std::ifstream file("/proc/self/io");
    std::string name;
    std::uint64_t bytes = 0;
    file >> name >> bytes;
    return bytes;
}

struct Count {
    std::uint64_t tables = 0, wanted = 0, read = 0;
};

/// What rank `rank` of `ranks` reads for its share of the rows, or of the columns, of all tensors.
Result<Count> count_rank(const Settings &settings, const std::string &folder, std::uint64_t rank,
                         std::uint64_t ranks, bool by_rows) {
    Count count;
    std::uint64_t before = bytes_read();
    lib::StoredRequest request{folder, checkpoint};
    auto files = lib::StoredFiles::open(request);
    if (!files) return files.take_status();
    lib::StoredTensors tensors(*files, 2, true);
    auto there = tensors.count();
    if (!there) return there.take_status();
    count.tables = bytes_read() - before;
    std::uint64_t whole = by_rows ? settings.rows : columns;
    std::uint64_t first = whole * rank / ranks, mine = whole * (rank + 1) / ranks - first;
    const std::uint64_t offset[] = {by_rows ? first : 0, by_rows ? 0 : first};
    const std::uint64_t shape[] = {by_rows ? mine : settings.rows, by_rows ? columns : mine};
    std::vector<std::byte> out(shape[0] * shape[1] * sizeof(float));
    before = bytes_read();
    for (std::uint64_t i = 0; i < settings.tensors; ++i) {
        std::string name = tensor_name(i);
        DLROVER_TRY(tensors.read({name, DType::Float32, offset, shape, out}));
    }
    count.read = bytes_read() - before;
    count.wanted = out.size() * settings.tensors;
    return count;
}

/// A line of the table: of the rank that reads most for what it wants, and of all.
Status count_world(const Settings &settings, const std::string &folder, std::uint64_t ranks, bool by_rows,
                   bool with_blocks) {
    constexpr double mib = 1 << 20;
    Count most, all;
    double worst = 0;
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
        auto count = count_rank(settings, folder, rank, ranks, by_rows);
        if (!count) return count.take_status();
        double ratio = static_cast<double>(count->read) / static_cast<double>(count->wanted);
        if (ratio > worst) {
            worst = ratio;
            most = *count;
        }
        all.tables = std::max(all.tables, count->tables);
        all.wanted += count->wanted;
        all.read += count->read;
    }
    auto in_mib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / mib; };
    std::printf("%-8s %6llu %-8s  %9.1f %9.1f %6.2f    %9.1f %9.1f %6.2f    %7.1f\n",
                with_blocks ? "blocks" : "whole", static_cast<unsigned long long>(ranks),
                by_rows ? "rows" : "columns", in_mib(most.wanted), in_mib(most.read), worst,
                in_mib(all.wanted), in_mib(all.read),
                static_cast<double>(all.read) / static_cast<double>(all.wanted), in_mib(all.tables) * 1024);
    return {};
}

Status run(const Settings &settings) {
    std::printf("%llu tensors of %llu rows of %llu bytes, saved by %llu ranks in rows; MiB\n",
                static_cast<unsigned long long>(settings.tensors),
                static_cast<unsigned long long>(settings.rows), static_cast<unsigned long long>(row_bytes),
                static_cast<unsigned long long>(saved_by));
    std::printf("%-8s %6s %-8s  %9s %9s %6s    %9s %9s %6s    %7s\n", "verified", "ranks", "cut in", "one",
                "reads", "", "all", "read", "", "tables, KiB");
    for (bool with_blocks : {false, true}) {
        std::string folder = settings.folder + (with_blocks ? "/blocks" : "/whole");
        DLROVER_TRY(write_checkpoint(settings, folder, with_blocks));
        for (std::uint64_t ranks : {3, 16})
            for (bool by_rows : {true, false})
                DLROVER_TRY(count_world(settings, folder, ranks, by_rows, with_blocks));
    }
    return {};
}

}  // namespace

int main(int argc, char **argv) {
    auto bytes = parse_size_bytes(argc > 2 ? argv[2] : "64M");
    auto tensors = parse_uint(argc > 3 ? argv[3] : "8", 1, 10000);
    Status status(Code::invalid_argument, "usage: reshard_read FOLDER [TENSOR_BYTES [TENSORS]]");
    if (argc >= 2 && argc <= 4 && bytes.ok() && tensors.ok() && *bytes >= saved_by * row_bytes)
        status = run({argv[1], *bytes / row_bytes / saved_by * saved_by, *tensors});
    if (!status.ok()) std::fprintf(stderr, "reshard_read: %s\n", status.to_string().c_str());
    return status.ok() ? 0 : 1;
}
