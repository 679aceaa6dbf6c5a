// SPDX-License-Identifier: Apache-2.0
#include "writer/completion.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/fault.h"
#include "base/units.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/storage_answers.h"
#include "ckpt/storage_index.h"
#include "ckpt/storage_io.h"
#include "writer/tidying.h"

namespace dlrover::writer {
namespace {

constexpr std::uint64_t index_bytes_per_chunk = 4096, index_bytes_per_rank = 1024;
constexpr std::uint64_t index_frame_bytes = 64u << 10;

std::optional<std::uint32_t> parse_rank_file(const std::string &name) {
    constexpr std::string_view prefix = "rank-", suffix = ".h5";
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) return std::nullopt;
    auto digits = std::string_view(name).substr(prefix.size());
    digits.remove_suffix(suffix.size());
    auto rank = parse_uint(digits, 0, UINT32_MAX);
    if (!rank || ckpt::rank_file_name(Rank(static_cast<std::uint32_t>(*rank))) != name) return std::nullopt;
    return static_cast<std::uint32_t>(*rank);
}

/// Closed: a world may have more ranks than a process may have files open.
Result<ckpt::StorageFile> open_rank(const CompleteOrder &order, const std::string &path, Rank rank) {
    auto file = ckpt::StorageFile::open(path);
    if (!file) return file;
    ckpt::ObjectIdentity who = file->identity();
    const Checkpoint &wanted = order.checkpoint;
    if (who.lineage != order.to.lineage)
        return Status(Code::corrupt, path + " belongs to the lineage \"" + who.lineage.substr(0, 200) + "\"");
    if (who.rank != rank || who.train_step != wanted.id.step || who.generation != wanted.id.generation ||
        who.world_size != wanted.world_size)
        return Status(Code::corrupt,
                      path + " is of another rank, step, generation or world than its name says");
    file->close();
    return file;
}

Result<std::vector<ckpt::StorageFile>> open_ranks(const CompleteOrder &order,
                                                  const std::atomic<bool> &cancelled) {
    ckpt::CheckpointFolder folder(order.to.folder);
    std::vector<ckpt::StorageFile> files;
    for (std::uint32_t i = 0; i < order.checkpoint.world_size; ++i) {
        if (cancelled) return Status(Code::unavailable, "the order was cancelled");
        auto file = open_rank(order, folder.rank_path(order.checkpoint.id, Rank(i)), Rank(i));
        if (!file) return file.take_status();
        files.push_back(std::move(*file));
    }
    return files;
}

Status check_index_limit(const std::string &path, std::span<const ckpt::StorageFile> files) {
    std::uint64_t bytes = index_frame_bytes + index_bytes_per_rank * files.size();
    for (const ckpt::StorageFile &file : files) bytes += index_bytes_per_chunk * file.table().count();
    return check_file_limit(bytes, path);
}

/// Writes index and manifest. Returns the length of all files.
Result<std::uint64_t> publish(const CompleteOrder &order, const std::atomic<bool> &cancelled,
                              ckpt::StorageFrames &indexes) {
    ckpt::CheckpointFolder folder(order.to.folder);
    auto files = open_ranks(order, cancelled);
    if (!files) return files.take_status();
    std::string data = folder.data_folder(order.checkpoint.id);
    fault_point("writer_before_index");
    DLROVER_TRY(check_index_limit(data + "/" + ckpt::index_file_name, *files));
    auto index = ckpt::write_storage_index(data, *files, indexes);
    if (!index) return index.take_status();
    if (cancelled) return Status(Code::unavailable, "the order was cancelled");
    ckpt::Manifest manifest{order.checkpoint.id, order.to.lineage, *index, {}};
    std::uint64_t bytes = index->bytes;
    for (const ckpt::StorageFile &file : *files) {
        manifest.ranks.push_back(file.summary());
        bytes += file.summary().file_bytes;
    }
    fault_point("writer_before_manifest");
    DLROVER_TRY(folder.publish(manifest));
    fault_point("writer_after_manifest");
    return bytes;
}

/// The length of all files where a writer before us has made the checkpoint complete; 0 where none has.
Result<std::uint64_t> find_complete(const CompleteOrder &order) {
    ckpt::CheckpointFolder folder(order.to.folder);
    auto manifest = folder.read_manifest(order.checkpoint.id);
    if (!manifest.ok() && manifest.status().code() == Code::not_found) return std::uint64_t{0};
    if (!manifest) return manifest.take_status();
    DLROVER_TRY(folder.check(*manifest));
    if (manifest->lineage != order.to.lineage || manifest->ranks.size() != order.checkpoint.world_size)
        return Status(Code::already_exists, order.to.folder + "/" + ckpt::manifest_name(order.checkpoint.id) +
                                                " is there, of another lineage or world");
    DLROVER_TRY(folder.sync_names(order.checkpoint.id));
    std::uint64_t bytes = manifest->index ? manifest->index->bytes : 0;
    for (const ckpt::RankFile &rank : manifest->ranks) bytes += rank.file_bytes;
    return bytes;
}

}  // namespace

Result<std::vector<std::uint32_t>> missing_ranks(const CompleteOrder &order) {
    std::string data = ckpt::CheckpointFolder(order.to.folder).data_folder(order.checkpoint.id);
    std::vector<bool> there(order.checkpoint.world_size);
    std::error_code error;
    std::filesystem::directory_iterator it(data, error), end;
    for (; !error && it != end; it.increment(error)) {
        ckpt::note_storage_answer();
        auto rank = parse_rank_file(it->path().filename().string());
        if (rank && *rank < there.size()) there[*rank] = true;
    }
    ckpt::note_storage_answer();
    if (error && error.value() != ENOENT) return ckpt::file_error("listing of", data, error.value());
    // A file that another node has made shows up later; a whole folder that is gone is worth no wait.
    if (error && ::access(order.to.top.c_str(), F_OK) != 0) return ckpt::file_error("look for", order.to.top);
    std::vector<std::uint32_t> missing;
    for (std::uint32_t i = 0; i < there.size(); ++i)
        if (!there[i]) missing.push_back(i);
    return missing;
}

Result<Completed> complete(const CompleteOrder &order, const RunId &run,
                           std::span<const ckpt::CheckpointId> others, const std::atomic<bool> &cancelled,
                           ckpt::StorageFrames &indexes) {
    auto bytes = find_complete(order);
    if (bytes.ok() && *bytes == 0) bytes = publish(order, cancelled, indexes);
    if (!bytes) return bytes.take_status();
    Completed completed;
    completed.bytes = *bytes;
    std::vector<ckpt::CheckpointId> in_use(others.begin(), others.end());
    in_use.push_back(order.checkpoint.id);
    Tidied done;
    Status tidied = tidy(order.to, order.checkpoint.id, run, std::move(in_use), done);
    completed.removed = done.removed;
    completed.text = tidied.ok()
                         ? std::move(done.text)
                         : "what is not to be kept could not be removed: " + in_words(tidied, order.to);
    return completed;
}

}  // namespace dlrover::writer
