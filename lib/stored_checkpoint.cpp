// SPDX-License-Identifier: Apache-2.0
#include "lib/stored_checkpoint.h"

#include <filesystem>

#include "ckpt/storage_name.h"
#include "lib/stored_tensors.h"

namespace dlrover::lib {
namespace {

Result<StoredCheckpoint> with_files(Result<StoredObject> object, std::shared_ptr<StoredFiles> files,
                                    const StoredRequest &request, bool verify_parts) {
    if (!object) return files->judge(object.take_status());
    return StoredCheckpoint{std::move(*object),
                            std::make_unique<StoredTensors>(files, request.threads, verify_parts),
                            all_objects(files, request.threads)};
}

}  // namespace

Result<StoredCheckpoint> open_stored_checkpoint(const StoredRequest &request, bool verify_parts) {
    auto files = StoredFiles::open(request);
    if (!files) return files.take_status();
    bool same_size = request.saved_by == request.world_size;
    auto object = same_size ? read_stored_object(**files, request.rank, request.threads)
                            : empty_stored_object(**files, request.rank, request.world_size);
    return with_files(std::move(object), *files, request, verify_parts);
}

Result<StoredRequest> find_stored_checkpoint(const std::string &folder) {
    std::error_code error;
    std::filesystem::path path = std::filesystem::canonical(folder, error);
    if (folder.empty()) return Status(Code::invalid_argument, "the folder has no name");
    if (error) return Status(Code::not_found, "there is no checkpoint in " + folder + ": " + error.message());
    if (!std::filesystem::is_directory(path, error)) return Status(Code::not_found, folder + " is no folder");
    StoredRequest request;
    if (auto id = ckpt::parse_checkpoint_folder_name(path.filename().string())) {
        request.folder = path.parent_path();
        request.id = *id;
        return request;
    }
    auto listing = ckpt::list_checkpoints(path);
    if (!listing) return listing.take_status();
    if (listing->complete.empty())
        return Status(Code::not_found, "there is no complete checkpoint in " + folder +
                                           ": name the folder of a lineage, or of one of its checkpoints");
    request.folder = path;
    request.id = listing->complete.front();
    return request;
}

Result<StoredCheckpoint> open_stored_tensors(const StoredRequest &request, bool verify_parts) {
    auto files = StoredFiles::open(request);
    if (!files) return files.take_status();
    auto object = empty_stored_object(**files, request.rank, request.world_size);
    return with_files(std::move(object), *files, request, verify_parts);
}

}  // namespace dlrover::lib
