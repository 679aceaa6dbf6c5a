// SPDX-License-Identifier: Apache-2.0
#include "ckpt/checkpoint_folder.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "ckpt/checksum.h"
#include "ckpt/removal.h"
#include "ckpt/storage_answers.h"
#include "ckpt/storage_io.h"
#include "ckpt/temporary_name.h"

namespace dlrover::ckpt {
namespace {

constexpr char latest_name[] = "latest";

Status check_file(const StorageFile &file, const Manifest &manifest, const std::string &path) {
    ObjectIdentity who = file.identity();
    if (who.lineage != manifest.lineage)
        return Status(Code::corrupt, path + " belongs to the lineage \"" + who.lineage.substr(0, 200) + "\"");
    if (who.train_step != manifest.id.step || who.generation != manifest.id.generation ||
        who.world_size != manifest.ranks.size())
        return Status(Code::corrupt, path + " belongs to another checkpoint");
    return {};
}

Result<Manifest> read_manifest_file(const std::string &path) {
    auto text = read_whole_file(path, max_manifest_bytes);
    if (!text) return text.take_status();
    auto manifest = decode_manifest({reinterpret_cast<const char *>(text->data()), text->size()});
    if (!manifest) return std::move(manifest.take_status()).with_context(path);
    return manifest;
}

Status remove_file(const std::string &path) {
    if (::unlink(path.c_str()) == 0 || errno == ENOENT) return {};
    return file_error("removal of", path);
}

Status fill_listing(const std::string &folder, CheckpointListing &listing) {
    std::error_code error;
    std::filesystem::directory_iterator it(folder, error), end;
    if (error.value() == ENOENT) return {};
    for (; !error && it != end; it.increment(error)) {
        note_storage_answer();
        std::string name = it->path().filename().string();
        if (auto id = parse_manifest_name(name)) listing.complete.push_back(*id);
        if (auto id = parse_suspect_name(name)) listing.suspect.push_back(*id);
        if (auto id = parse_checkpoint_folder_name(name)) listing.incomplete.push_back(*id);
    }
    return error ? file_error("listing of", folder, error.value()) : Status();
}

/// Both newest first.
void subtract(std::vector<CheckpointId> &from, const std::vector<CheckpointId> &what) {
    std::vector<CheckpointId> rest;
    std::set_difference(from.begin(), from.end(), what.begin(), what.end(), std::back_inserter(rest),
                        std::greater<>());
    from = std::move(rest);
}

}  // namespace

Result<CheckpointListing> list_checkpoints(const std::string &folder) {
    CheckpointListing listing;
    DLROVER_TRY(fill_listing(folder, listing));
    for (auto *ids : {&listing.complete, &listing.incomplete, &listing.suspect})
        std::sort(ids->rbegin(), ids->rend());
    subtract(listing.suspect, listing.complete);
    subtract(listing.incomplete, listing.complete);
    subtract(listing.incomplete, listing.suspect);
    return listing;
}

std::string CheckpointFolder::data_folder(const CheckpointId &id) const {
    return folder_ + "/" + checkpoint_folder_name(id);
}

std::string CheckpointFolder::rank_path(const CheckpointId &id, Rank rank) const {
    return data_folder(id) + "/" + rank_file_name(rank);
}

Result<Manifest> CheckpointFolder::read_named(const CheckpointId &id, const std::string &name) const {
    std::string path = folder_ + "/" + name;
    auto manifest = read_manifest_file(path);
    if (manifest.status().code() == Code::corrupt) {
        if (auto fd = open_to_read(path); fd.ok()) forget_cached(fd->get(), 0, 0);
        manifest = read_manifest_file(path);
    }
    if (!manifest) return manifest;
    if (manifest->id != id) return Status(Code::corrupt, path + " is the manifest of another checkpoint");
    return manifest;
}

Result<Manifest> CheckpointFolder::read_manifest(const CheckpointId &id) const {
    return read_named(id, manifest_name(id));
}

Result<Manifest> CheckpointFolder::read_suspect(const CheckpointId &id) const {
    return read_named(id, suspect_name(id));
}

Result<StorageFile> CheckpointFolder::open_rank(const Manifest &manifest, const RankFile &expected) const {
    std::string path = rank_path(manifest.id, expected.rank);
    auto file = StorageFile::open(path);
    if (!file) return file;
    if (file->summary() != expected)
        return Status(Code::corrupt, path + " is not the file that the manifest names");
    DLROVER_TRY(check_file(*file, manifest, path));
    return file;
}

Status CheckpointFolder::check_index(const Manifest &manifest, const ReadWatch &watch) const {
    if (!manifest.index) return {};
    std::string path = data_folder(manifest.id) + "/" + index_file_name;
    auto fd = open_to_read(path);
    if (!fd) return fd.take_status();
    auto bytes = file_size(fd->get(), path);
    if (!bytes) return bytes.take_status();
    std::vector<std::uint64_t> hashes;
    if (*bytes == manifest.index->bytes) DLROVER_TRY(hash_range(fd->get(), 0, *bytes, path, hashes, watch));
    if (!hashes.empty() && combine_block_hashes(hashes) == manifest.index->xxh3) return {};
    return Status(Code::corrupt, path + " is not the index that the manifest names");
}

Status CheckpointFolder::check(const Manifest &manifest) const {
    DLROVER_TRY(check_index(manifest));
    for (const RankFile &expected : manifest.ranks) DLROVER_TRY(open_rank(manifest, expected).take_status());
    return {};
}

std::vector<Status> CheckpointFolder::damage(const Manifest &manifest, const ReadWatch &watch) const {
    std::vector<Status> found;
    if (Status status = check_index(manifest, watch); !status.ok()) found.push_back(std::move(status));
    for (const RankFile &expected : manifest.ranks) {
        auto file = open_rank(manifest, expected);
        if (!file)
            found.push_back(file.take_status());
        else
            std::ranges::move(file->damage(watch), std::back_inserter(found));
    }
    return found;
}

Status CheckpointFolder::verify(const Manifest &manifest) const {
    DLROVER_TRY(check_index(manifest));
    for (const RankFile &expected : manifest.ranks) {
        auto file = open_rank(manifest, expected);
        if (!file) return file.take_status();
        DLROVER_TRY(file->verify());
    }
    return {};
}

Result<CheckpointFolder::Chosen> CheckpointFolder::newest(
    const std::function<bool(const CheckpointId &)> &wanted) const {
    auto listing = list_checkpoints(folder_);
    if (!listing) return listing.take_status();
    std::vector<Status> passed_over;
    for (const CheckpointId &id : listing->complete) {
        if (wanted && !wanted(id)) continue;
        auto manifest = read_manifest(id);
        Status status = manifest.ok() ? check(*manifest) : manifest.take_status();
        if (status.ok()) return Chosen{std::move(*manifest), std::move(passed_over)};
        bool damaged = status.code() == Code::corrupt || status.code() == Code::not_found;
        // What passes, or what a newer program can read, must not let a run go back.
        if (!damaged) return status;
        passed_over.push_back(std::move(status));
    }
    std::string why = passed_over.empty() ? "" : "; the newest: " + passed_over.front().message();
    return Status(Code::not_found, "no whole checkpoint in " + folder_ + why);
}

Status CheckpointFolder::sync_names(const CheckpointId &id) const {
    DLROVER_TRY(sync_folder(data_folder(id)));
    return sync_folder(folder_);
}

Status CheckpointFolder::publish(const Manifest &manifest) const {
    auto text = encode_manifest(manifest);
    if (!text) return text.take_status();
    std::string name = manifest_name(manifest.id);
    DLROVER_TRY(check(manifest));
    DLROVER_TRY(remove_abandoned(folder_, ".new-step-"));
    auto there = read_manifest(manifest.id);
    if (there.ok() && *there != manifest)
        return Status(Code::already_exists, folder_ + "/" + name + " is there with other content");
    if (there.ok())
        DLROVER_TRY(sync_names(manifest.id));
    else
        DLROVER_TRY(write_whole_file(folder_, name,
                                     {reinterpret_cast<const std::uint8_t *>(text->data()), text->size()}));
    refresh_hint();
    return {};
}

/// For people. Nobody depends on it, and not every filesystem has symbolic links.
void CheckpointFolder::refresh_hint() const {
    auto listing = list_checkpoints(folder_);
    if (!listing.ok()) return;
    std::string temporary = folder_ + "/" + temporary_name(latest_name), path = folder_ + "/" + latest_name;
    ::unlink(temporary.c_str());
    std::error_code error;
    if (listing->complete.empty()) {
        if (std::filesystem::is_symlink(path, error)) ::unlink(path.c_str());
        return;
    }
    std::string target = checkpoint_folder_name(listing->complete.front());
    if (::symlink(target.c_str(), temporary.c_str()) != 0) return;
    if (::rename(temporary.c_str(), path.c_str()) != 0) ::unlink(temporary.c_str());
}

Status CheckpointFolder::remove(const CheckpointId &id) const {
    for (const std::string &name : {manifest_name(id), suspect_name(id)})
        DLROVER_TRY(remove_file(folder_ + "/" + name));
    DLROVER_TRY(sync_folder(folder_));
    return remove_tree(data_folder(id));
}

Status CheckpointFolder::set_aside(std::vector<CheckpointId> ids) const {
    std::sort(ids.begin(), ids.end());
    for (const CheckpointId &id : ids) {
        std::string from = folder_ + "/" + manifest_name(id), to = folder_ + "/" + suspect_name(id);
        if (::rename(from.c_str(), to.c_str()) == 0 || errno == ENOENT) continue;
        return file_error("renaming", from);
    }
    return sync_folder(folder_);
}

/// A manifest that is there again was written anew: the data are its own.
Status CheckpointFolder::take_back(std::vector<CheckpointId> ids) const {
    std::sort(ids.rbegin(), ids.rend());
    for (const CheckpointId &id : ids) {
        std::string from = folder_ + "/" + suspect_name(id), to = folder_ + "/" + manifest_name(id);
        if (::access(to.c_str(), F_OK) == 0)
            DLROVER_TRY(remove_file(from));
        else if (::rename(from.c_str(), to.c_str()) != 0 && errno != ENOENT)
            return file_error("renaming", from);
    }
    return sync_folder(folder_);
}

}  // namespace dlrover::ckpt
