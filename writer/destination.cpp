// SPDX-License-Identifier: Apache-2.0
#include "writer/destination.h"

#include <sys/resource.h>

#include "base/units.h"
#include "ckpt/manifest.h"

namespace dlrover::writer {

Result<Destination> make_destination(const proto::local::WriterWelcomeT &welcome) {
    if (!welcome.ckpt_dir.starts_with('/'))
        return Status(Code::invalid_argument, "the daemon named no folder for checkpoints");
    if (welcome.lineage.empty() || welcome.lineage.size() > ckpt::max_lineage_bytes)
        return Status(Code::invalid_argument, "the daemon named no lineage that can be stored");
    return Destination{welcome.ckpt_dir,
                       welcome.lineage,
                       welcome.ckpt_dir + "/" + ckpt::escape_file_name(welcome.lineage),
                       {welcome.keep_last, welcome.keep_every}};
}

Result<Checkpoint> make_checkpoint(const proto::local::StoredCheckpointT *named) {
    if (named == nullptr || named->generation == nullptr)
        return Status(Code::invalid_argument, "the order names no checkpoint");
    if (named->world_size == 0 || named->world_size > ckpt::max_manifest_ranks)
        return Status(Code::invalid_argument, "the order's world has an impossible size");
    GenerationId generation{Term(named->generation->term()), named->generation->number()};
    return Checkpoint{{generation, TrainStep(named->train_step)}, named->world_size};
}

std::string in_words(const Status &failure, const Destination &to) {
    switch (failure.code()) {
        case Code::resource_exhausted:
            return failure.message() + ": make room there, or raise the quota or limit";
        case Code::permission_denied:
            return failure.message() + ": the job's user must be able to write in " + to.top;
        case Code::not_found:
            return failure.message() + ": is " + to.top + " still there, and mounted on this node?";
        case Code::ok:
        case Code::invalid_argument:
        case Code::already_exists:
        case Code::unavailable:
        case Code::timeout:
        case Code::stale:
        case Code::corrupt:
        case Code::unsupported:
        case Code::system:
        case Code::internal:
            break;
    }
    return failure.message();
}

std::string list_numbers(const std::vector<std::uint32_t> &numbers, std::size_t most) {
    std::vector<std::string> parts;
    std::size_t next = 0;
    while (next < numbers.size() && parts.size() < most) {
        std::size_t first = next++;
        while (next < numbers.size() && numbers[next] == numbers[next - 1] + 1) ++next;
        std::string part = std::to_string(numbers[first]);
        if (next - first > 1) part += (next - first == 2 ? ", " : " to ") + std::to_string(numbers[next - 1]);
        parts.push_back(std::move(part));
    }
    if (next < numbers.size()) parts.push_back(std::to_string(numbers.size() - next) + " more");
    std::string text;
    for (std::size_t i = 0; i < parts.size(); ++i)
        text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
    return text;
}

Status check_file_limit(std::uint64_t bytes, const std::string &path) {
    rlimit limit{};
    if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur)
        return {};
    return Status(Code::resource_exhausted, path + " would have about " + format_size_bytes(bytes) +
                                                ", but this job may write files of at most " +
                                                format_size_bytes(limit.rlim_cur) + " (ulimit -f)");
}

}  // namespace dlrover::writer
