// SPDX-License-Identifier: Apache-2.0
#include "writer/folder_look.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "ckpt/checkpoint_folder.h"
#include "ckpt/storage_io.h"

namespace dlrover::writer {
namespace {

constexpr std::size_t most_reasons = 3;

/// In a folder that everybody may write to, another user can have made ours, with checkpoints of his own in
/// it. `own`: whose a file is that we have made there, since a file server may show other owners than there
/// are here.
Status check_owner(const Destination &to, uid_t own) {
    struct stat folder {};
    if (::stat(to.folder.c_str(), &folder) != 0)
        return errno == ENOENT ? Status() : ckpt::file_error("look at", to.folder);
    if (folder.st_uid == own || folder.st_uid == 0) return {};
    return Status(Code::unsupported, to.folder + " belongs to another user (uid " +
                                         std::to_string(folder.st_uid) +
                                         "), who may have put checkpoints of his own there: give another "
                                         "--dlrover-ckpt-dir, or have the folder removed");
}

struct Tried {
    Status status;
    uid_t own = ::geteuid();  ///< of what we make there, as far as known
};

/// A folder may be there and full, over quota or read-only: only writing tells.
Tried try_to_write(const Destination &to, const std::string &node) {
    Tried tried;
    tried.status = ckpt::make_folders(to.folder);
    if (!tried.status.ok()) return tried;
    std::string path = to.folder + "/.new-probe-" + ckpt::escape_file_name(node);
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!fd) tried.status = ckpt::file_error("making", path);
    if (!fd) return tried;
    struct stat probe {};
    if (::fstat(fd.get(), &probe) == 0) tried.own = probe.st_uid;
    std::vector<char> block(4096, 'x');
    Status status = ckpt::write_at(fd.get(), block.data(), block.size(), 0, path);
    if (status.ok() && ::fsync(fd.get()) != 0) status = ckpt::file_error("fsync of", path);
    if (::unlink(path.c_str()) != 0 && errno != ENOENT && status.ok())
        status = ckpt::file_error("removal of", path);
    tried.status = std::move(status);
    return tried;
}

void add_sentence(std::string &text, const std::string &sentence) {
    text += (text.empty() ? "" : "; ") + sentence;
}

std::unique_ptr<proto::local::StoredCheckpointT> describe(const ckpt::Manifest &manifest) {
    auto stored = std::make_unique<proto::local::StoredCheckpointT>();
    const GenerationId &generation = manifest.id.generation;
    stored->generation = std::make_unique<proto::Generation>(generation.term.value(), generation.number);
    stored->train_step = manifest.id.step.value();
    stored->world_size = static_cast<std::uint32_t>(manifest.ranks.size());
    return stored;
}

void say_passed_over(const std::vector<Status> &reasons, std::string &text) {
    for (std::size_t i = 0; i < reasons.size() && i < most_reasons; ++i)
        add_sentence(text, "passed over a checkpoint: " + reasons[i].message());
    if (reasons.size() > most_reasons)
        add_sentence(text, "and " + std::to_string(reasons.size() - most_reasons) + " more");
}

/// A run never begins anew of itself where there was one before.
Status nothing_whole(const Destination &to, const std::string &why) {
    return Status(Code::corrupt, "there are checkpoints in " + to.folder + ", but none to go on from (" +
                                     why +
                                     "): look at them with dlrover ckpt ls, and remove them, or give another "
                                     "--dlrover-name, to begin anew");
}

Status not_ours(const Status &status) {
    return Status(Code::unsupported,
                  status.message() +
                      ": go on with that one, or set the checkpoint aside with dlrover ckpt "
                      "rollback to go on from an older one");
}

/// It may pass, so nobody goes back because of it; a person may know that it does not.
Status not_readable(const Status &status) {
    return Status(status.code(),
                  status.message() +
                      ": if that stays, set the checkpoint aside with dlrover ckpt rollback to go "
                      "on from an older one");
}

Status choose_newest(const Destination &to, const std::vector<PassedOver> &passed_over,
                     proto::local::FolderFoundT &found) {
    auto listing = ckpt::list_checkpoints(to.folder);
    if (!listing) return listing.take_status();
    if (listing->complete.empty() && listing->suspect.empty()) return {};
    if (listing->complete.empty()) return nothing_whole(to, "all of them are set aside");
    auto wanted = [&](const ckpt::CheckpointId &id) {
        return std::ranges::none_of(passed_over, [&](const PassedOver &p) { return p.covers(id); });
    };
    if (std::ranges::none_of(listing->complete, wanted)) return {};
    auto chosen = ckpt::CheckpointFolder(to.folder).newest(wanted);
    // Among those that are passed over there may be a whole one.
    if (chosen.status().code() == Code::not_found && !std::ranges::all_of(listing->complete, wanted))
        return {};
    if (chosen.status().code() == Code::not_found) return nothing_whole(to, chosen.status().message());
    if (chosen.status().code() == Code::unsupported) return not_ours(chosen.status());
    if (chosen.status().code() == Code::system) return not_readable(chosen.status());
    if (!chosen) return chosen.take_status();
    say_passed_over(chosen->passed_over, found.text);
    if (chosen->manifest.lineage != to.lineage) {
        add_sentence(found.text, "the checkpoints in " + to.folder + " belong to the lineage \"" +
                                     chosen->manifest.lineage.substr(0, 200) + "\"");
        return {};
    }
    found.newest = describe(chosen->manifest);
    return {};
}

}  // namespace

proto::local::FolderFoundT look_at_folder(const Destination &to, const RunId &run, const std::string &node,
                                          const std::vector<PassedOver> &passed_over) {
    proto::local::FolderFoundT found;
    auto [status, own] = try_to_write(to, node);
    if (Status owner = check_owner(to, own); !owner.ok()) {
        found.text = owner.message();
        return found;
    }
    if (status.ok()) {
        auto term = claim_term(to.folder, run);
        found.next_term = term.ok() ? *term : 0;
        status = term.take_status();
    }
    found.ok = status.ok();
    if (!status.ok()) found.text = in_words(status, to);
    // What can not be written may still be read: the run can go on from it.
    if (Status read = choose_newest(to, passed_over, found); !read.ok()) {
        found.ok = false;
        add_sentence(found.text, in_words(read, to));
    }
    return found;
}

}  // namespace dlrover::writer
