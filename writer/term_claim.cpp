// SPDX-License-Identifier: Apache-2.0
#include "writer/term_claim.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/units.h"
#include "ckpt/storage_io.h"
#include "ckpt/storage_name.h"

namespace dlrover::writer {
namespace {

constexpr std::string_view claim_prefix = ".run-", claim_suffix = ".claim", suspect_suffix = ".suspect";
constexpr std::uint64_t max_claim_bytes = 4096;
constexpr int max_attempts = 1000;
constexpr int empty_looks = 50, empty_pause_ms = 20;

/// An empty claim is one that is being written, for a moment; or for ever, by a writer that was killed.
Result<std::string> read_claim(const std::string &path) {
    for (int look = 0;; ++look) {
        auto bytes = ckpt::read_whole_file(path, max_claim_bytes);
        if (!bytes.ok() && bytes.status().code() == Code::not_found) return std::string();
        if (!bytes) return bytes.take_status();
        if (!bytes->empty() || look == empty_looks) return std::string(bytes->begin(), bytes->end());
        ::poll(nullptr, 0, empty_pause_ms);
    }
}

/// The high half of the terms of what bears this name.
std::optional<std::uint32_t> high_of(std::string_view name) {
    if (auto high = parse_claim_name(name)) return high;
    if (name.ends_with(suspect_suffix)) name.remove_suffix(suspect_suffix.size());
    auto id = ckpt::parse_manifest_name(name);
    if (!id) id = ckpt::parse_checkpoint_folder_name(name);
    if (!id) return std::nullopt;
    return high_half(*id);
}

Result<std::vector<std::string>> names_in(const std::string &folder) {
    std::vector<std::string> names;
    std::error_code error;
    std::filesystem::directory_iterator it(folder, error), end;
    for (; !error && it != end; it.increment(error)) names.push_back(it->path().filename().string());
    if (error) return ckpt::file_error("listing of", folder, error.value());
    return names;
}

struct Seen {
    std::uint64_t next = 0;  ///< above everything
    std::optional<std::uint32_t> own;
};

Result<Seen> look_around(const std::string &folder, const RunId &run) {
    auto names = names_in(folder);
    if (!names) return names.take_status();
    Seen seen;
    for (const std::string &name : *names) {
        if (auto high = high_of(name)) seen.next = std::max(seen.next, std::uint64_t{*high} + 1);
        auto claimed = parse_claim_name(name);
        if (!claimed) continue;
        auto text = read_claim(folder + "/" + name);
        if (!text) return text.take_status();
        if (*text == run.text + "\n") seen.own = std::max(seen.own.value_or(0), *claimed);
    }
    return seen;
}

/// already_exists: somebody was faster.
Status make_claim(const std::string &folder, std::uint64_t high, const RunId &run) {
    std::string path = claim_path(folder, high), text = run.text + "\n";
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!fd && errno == EEXIST) return Status(Code::already_exists, path + " is there");
    if (!fd) return ckpt::file_error("making", path);
    Status status = ckpt::write_at(fd.get(), text.data(), text.size(), 0, path);
    if (status.ok() && ::fsync(fd.get()) != 0) status = ckpt::file_error("fsync of", path);
    if (status.ok()) status = ckpt::sync_folder(folder);
    if (!status.ok()) ::unlink(path.c_str());
    return status;
}

}  // namespace

std::string claim_path(const std::string &folder, std::uint64_t high) {
    return folder + "/" + std::string(claim_prefix) + std::to_string(high) + std::string(claim_suffix);
}

std::uint32_t high_half(const CheckpointId &id) {
    return static_cast<std::uint32_t>(id.generation.term.value() >> 32);
}

std::optional<std::uint32_t> parse_claim_name(std::string_view name) {
    if (!name.starts_with(claim_prefix) || !name.ends_with(claim_suffix)) return std::nullopt;
    name.remove_prefix(claim_prefix.size());
    if (name.size() < claim_suffix.size()) return std::nullopt;
    name.remove_suffix(claim_suffix.size());
    auto high = parse_uint(name, 0, UINT32_MAX);
    if (!high) return std::nullopt;
    return static_cast<std::uint32_t>(*high);
}

Result<std::uint64_t> claim_term(const std::string &folder, const RunId &run) {
    std::uint64_t least = run.restarts;
    for (int attempt = 0; attempt < max_attempts; ++attempt) {
        auto seen = look_around(folder, run);
        if (!seen) return seen.take_status();
        if (seen->own) return std::uint64_t{*seen->own} << 32;
        std::uint64_t high = std::max(least, seen->next);
        if (high > UINT32_MAX) break;
        Status made = make_claim(folder, high, run);
        if (made.ok()) return high << 32;
        if (made.code() != Code::already_exists) return made;
        // A listing may be older than what is there (NFS): this one is not tried again.
        auto text = read_claim(claim_path(folder, high));
        if (text.ok() && *text == run.text + "\n") return high << 32;
        least = high + 1;
    }
    return Status(Code::resource_exhausted, "no term is left in " + folder);
}

std::string claimed_by(const std::string &folder, std::uint32_t high) {
    auto text = ckpt::read_whole_file(claim_path(folder, high), max_claim_bytes);
    if (!text) return {};
    return {text->begin(),
            std::find_if(text->begin(), text->end(), [](int c) { return c == ' ' || c == '\n'; })};
}

Status remove_claims_below(const std::string &folder, std::uint32_t high, const RunId &run,
                           const std::set<std::uint32_t> &kept) {
    auto names = names_in(folder);
    if (!names) return names.take_status();
    for (const std::string &name : *names) {
        auto claimed = parse_claim_name(name);
        if (!claimed || *claimed >= high || kept.contains(*claimed)) continue;
        std::string path = folder + "/" + name;
        auto text = read_claim(path);
        if (text.ok() && *text == run.text + "\n") continue;
        if (::unlink(path.c_str()) != 0 && errno != ENOENT) return ckpt::file_error("removal of", path);
    }
    return {};
}

}  // namespace dlrover::writer
