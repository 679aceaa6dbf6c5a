// SPDX-License-Identifier: Apache-2.0
// What programs saved into plain files (DLROVER_LOCAL_DIR) as a checkpoint on storage: to_storage LOCAL_DIR
// STEP FOLDER
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/units.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/object_table.h"
#include "ckpt/storage_index.h"
#include "ckpt/storage_writer.h"
#include "lib/file_format.h"

using namespace dlrover;
using namespace dlrover::ckpt;

namespace {

/// A rank's plain file.
struct Saved {
    std::vector<char> bytes;
    lib::FileFooter footer{};

    Status read(const std::string &path) {
        std::ifstream file(path, std::ios::binary);
        bytes.assign(std::istreambuf_iterator<char>(file), {});
        if (bytes.size() < sizeof footer) return Status(Code::not_found, path + " is not there");
        std::memcpy(&footer, bytes.data() + bytes.size() - sizeof footer, sizeof footer);
        return lib::check_footer(footer, bytes.size());
    }
    std::span<const std::uint8_t> part(std::uint64_t offset, std::uint64_t length) const {
        return {reinterpret_cast<const std::uint8_t *>(bytes.data()) + offset, length};
    }
    SealedObject object() const {
        return {std::as_bytes(part(0, footer.data_bytes)), part(footer.table_offset, footer.table_bytes),
                part(footer.ledger_offset, footer.ledger_bytes)};
    }
};

/// Fills in whose checkpoint it is.
Status store_rank(const std::string &from, const std::string &to, Manifest &manifest, std::uint32_t &ranks) {
    auto rank = std::to_string(manifest.ranks.size());
    Saved saved;
    DLROVER_TRY(saved.read(from + "/rank-" + rank + "/step-" + std::to_string(manifest.id.step.value()) +
                           ".dlrover"));
    SealedObject object = saved.object();
    auto table = ObjectTableView::parse(object.table);
    if (!table) return table.take_status();
    ObjectIdentity who = table->identity();
    ranks = who.world_size;
    manifest.lineage = who.lineage;
    manifest.id.generation = who.generation;
    auto file = write_storage_file(CheckpointFolder(to).data_folder(manifest.id), object);
    if (file.ok()) manifest.ranks.push_back(*file);
    return file.take_status();
}

Status store(const std::string &from, std::uint64_t step, const std::string &to) {
    CheckpointFolder checkpoints(to);
    Manifest manifest;
    manifest.id.step = TrainStep(step);
    for (std::uint32_t ranks = 1; manifest.ranks.size() < ranks;)
        DLROVER_TRY(store_rank(from, to, manifest, ranks));
    auto index = write_storage_index(checkpoints.data_folder(manifest.id), manifest.ranks);
    if (!index) return index.take_status();
    manifest.index = *index;
    return checkpoints.publish(manifest);
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    auto step = parse_uint(argv[2], 0, UINT64_MAX);
    Status status = step.ok() ? store(argv[1], *step, argv[3]) : step.take_status();
    if (!status.ok()) std::fprintf(stderr, "to_storage: %s\n", status.to_string().c_str());
    return status.ok() ? 0 : 1;
}
