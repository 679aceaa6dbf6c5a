// SPDX-License-Identifier: Apache-2.0
#include "lib/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/fault.h"
#include "base/units.h"
#include "ckpt/block_kernel.h"
#include "ckpt/object_table.h"
#include "lib/file_format.h"

namespace dlrover::lib {
namespace {

constexpr std::string_view step_prefix = "step-", step_suffix = ".dlrover", temporary_prefix = ".new-";

Status write_all(int fd, const void *data, std::uint64_t bytes) {
    auto *at = static_cast<const char *>(data);
    while (bytes != 0) {
        ssize_t n = ::write(fd, at, std::min<std::uint64_t>(bytes, std::uint64_t{1} << 30));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return Status::from_errno("write");
        at += n;
        bytes -= static_cast<std::uint64_t>(n);
    }
    return {};
}

Status sync_folder(const std::string &dir) {
    UniqueFd fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd || ::fsync(fd.get()) != 0) return Status::from_errno("fsync of " + dir);
    return {};
}

/// Newest first.
std::vector<std::uint64_t> steps_in(const std::string &dir) {
    std::vector<std::uint64_t> steps;
    std::error_code error;
    for (std::filesystem::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
        std::string name = it->path().filename().string();
        if (!name.starts_with(step_prefix) || !name.ends_with(step_suffix)) continue;
        auto digits = std::string_view(name).substr(step_prefix.size());
        auto step = parse_uint(digits.substr(0, digits.size() - step_suffix.size()), 0, UINT64_MAX);
        if (step.ok()) steps.push_back(*step);
    }
    std::sort(steps.rbegin(), steps.rend());
    return steps;
}

Result<FileFooter> read_footer(int fd, const std::string &path) {
    struct stat st;
    if (::fstat(fd, &st) != 0) return Status::from_errno("fstat of " + path);
    auto bytes = static_cast<std::uint64_t>(st.st_size);
    FileFooter footer;
    if (bytes < sizeof footer) return Status(Code::corrupt, path + ": too short for a checkpoint");
    ssize_t n = ::pread(fd, &footer, sizeof footer, static_cast<off_t>(bytes - sizeof footer));
    if (n != sizeof footer) return Status::from_errno("read of " + path);
    if (Status s = check_footer(footer, bytes); !s.ok()) return std::move(s).with_context(path);
    return footer;
}

Result<UniqueFd> open_file(const std::string &path) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) return Status::from_errno("open of " + path);
    return fd;
}

/// not_found: it is not there. corrupt: files are named when they are whole, so something has damaged it
/// since. unsupported: of another version.
Status check_file(const std::string &path) {
    auto fd = open_file(path);
    return fd.ok() ? read_footer(fd->get(), path).take_status() : fd.take_status();
}

/// By how many ranks the file's step was saved; none: that can not be read.
std::optional<std::uint32_t> saved_by(const std::string &path) {
    auto fd = open_file(path);
    if (!fd) return std::nullopt;
    auto footer = read_footer(fd->get(), path);
    if (!footer) return std::nullopt;
    auto mapping = ckpt::Mapping::file(fd->get(), footer->table_offset + footer->table_bytes);
    if (!mapping) return std::nullopt;
    auto bytes = ckpt::find_object_table(
        {mapping->base(), mapping->bytes()},
        {footer->data_bytes, footer->table_offset, footer->table_bytes, footer->table_xxh3});
    if (!bytes) return std::nullopt;
    auto table = ckpt::ObjectTableView::parse(*bytes, footer->data_bytes);
    if (!table) return std::nullopt;
    return table->identity().world_size;
}

void warn(const std::string &sentence) {
    std::fprintf(stderr, "dlrover: %s\n", sentence.c_str());
}

Result<ObjectLayout> layout_of(const FileFooter &footer, const std::byte *base) {
    ObjectLayout layout;
    layout.train_step = TrainStep(footer.train_step);
    layout.data_bytes = footer.data_bytes;
    layout.table_offset = footer.table_offset;
    layout.table_bytes = footer.table_bytes;
    layout.table_xxh3 = footer.table_xxh3;
    auto *ledger = reinterpret_cast<const std::uint8_t *>(base + footer.ledger_offset);
    layout.ledger.assign(ledger, ledger + footer.ledger_bytes);
    if (ckpt::block_kernel().hash(layout.ledger.data(), layout.ledger.size()) != footer.ledger_xxh3)
        return Status(Code::corrupt, "the ledger's checksum is wrong");
    return layout;
}

}  // namespace

FileStore::FileStore(std::string dir, Rank rank, std::uint32_t world_size)
    : dir_(std::move(dir)), rank_(rank), world_size_(world_size) {}

std::string FileStore::rank_dir(std::uint32_t rank) const {
    return dir_ + "/rank-" + std::to_string(rank);
}

std::string FileStore::step_path(std::uint32_t rank, std::uint64_t step) const {
    return rank_dir(rank) + "/" + std::string(step_prefix) + std::to_string(step) + std::string(step_suffix);
}

Result<std::variant<SaveTarget, SaveSkipped>> FileStore::begin(TrainStep step, std::uint64_t bytes,
                                                               IfFull /*if_full*/) {
    if (image_.bytes() < bytes) {
        auto image = ckpt::Mapping::anonymous(bytes);
        if (!image) return image.take_status();
        image_user_.reset();
        image_ = std::move(*image);
    }
    return std::variant<SaveTarget, SaveSkipped>(
        SaveTarget{image_.base(), image_.bytes(), step, SlotIndex(0), &image_user_});
}

Status FileStore::write_object(const SaveTarget &target, const ObjectLayout &layout) const {
    std::string dir = rank_dir(rank_.value());
    std::error_code error;
    std::filesystem::create_directories(dir, error);
    if (error) return Status(Code::system, "cannot make " + dir + ": " + error.message());
    std::string temporary =
        dir + "/" + std::string(temporary_prefix) + std::to_string(layout.train_step.value());
    UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!fd) return Status::from_errno("open of " + temporary);
    std::uint64_t image_bytes = layout.table_offset + layout.table_bytes;
    FileFooter footer = make_footer(layout, image_bytes);
    DLROVER_TRY(write_all(fd.get(), target.base, image_bytes));
    DLROVER_TRY(write_all(fd.get(), layout.ledger.data(), layout.ledger.size()));
    DLROVER_TRY(write_all(fd.get(), &footer, sizeof footer));
    if (::fsync(fd.get()) != 0) return Status::from_errno("fsync of " + temporary);
    fault_point("before_rename");
    std::string path = step_path(rank_.value(), layout.train_step.value());
    if (::rename(temporary.c_str(), path.c_str()) != 0) return Status::from_errno("rename to " + path);
    return sync_folder(dir);
}

/// A program that begins anew beside the files of another one, or of its own last time, would be surprised.
void FileStore::warn_of_newer(std::uint64_t saved) {
    if (previous_ || std::exchange(warned_of_newer_, true)) return;
    auto steps = steps_in(rank_dir(rank_.value()));
    if (steps.empty() || steps.front() <= saved) return;
    warn("step " + std::to_string(saved) + " is saved beside " + step_path(rank_.value(), steps.front()) +
         ", which is newer: the next start goes on from that one; remove " + dir_ + " to begin anew");
}

void FileStore::remove_old(std::uint64_t saved) const {
    std::string dir = rank_dir(rank_.value());
    auto steps = steps_in(dir);
    auto other = std::find_if(steps.begin(), steps.end(), [&](auto step) { return step != saved; });
    std::uint64_t kept = previous_ ? *previous_ : other != steps.end() ? *other : saved;
    std::error_code error;
    for (std::uint64_t step : steps)
        if (step != saved && step != kept) std::filesystem::remove(step_path(rank_.value(), step), error);
    for (std::filesystem::directory_iterator it(dir, error), end; !error && it != end; it.increment(error))
        if (it->path().filename().string().starts_with(temporary_prefix))
            std::filesystem::remove(it->path(), error);
}

Result<std::variant<std::monostate, SaveSkipped>> FileStore::seal(const SaveTarget &target,
                                                                  const ObjectLayout &layout, std::uint64_t) {
    std::uint64_t saved = layout.train_step.value();
    warn_of_newer(saved);
    DLROVER_TRY(write_object(target, layout));
    remove_old(saved);
    previous_ = saved;
    return std::variant<std::monostate, SaveSkipped>();
}

void FileStore::abort(const SaveTarget &) {}

/// What this rank has saved beyond the step that all go on from is of an attempt that has ended. When the
/// next one comes to that step, its file must not stand beside those that other ranks have saved then.
void FileStore::set_aside_newer(std::optional<std::uint64_t> common) {
    if (previous_ || std::exchange(set_aside_, true)) return;
    for (std::uint64_t step : steps_in(rank_dir(rank_.value()))) {
        if (common && step <= *common) return;
        std::string path = step_path(rank_.value(), step);
        std::string aside =
            rank_dir(rank_.value()) + "/" + std::string(temporary_prefix) + "unused-" + std::to_string(step);
        (void)::rename(path.c_str(), aside.c_str());
    }
}

/// ok: every rank has a whole file of it. Otherwise of the first that has not.
Status FileStore::check_step(std::uint64_t step) const {
    for (std::uint32_t r = 0; r < world_size_; ++r) DLROVER_TRY(check_file(step_path(r, step)));
    return {};
}

/// A world of another number of ranks has saved what is there.
Status FileStore::check_world() const {
    for (std::uint32_t r : {rank_.value(), 0u})
        for (std::uint64_t step : steps_in(rank_dir(r))) {
            auto ranks = saved_by(step_path(r, step));
            if (!ranks || *ranks == world_size_) continue;
            return Status(Code::unsupported,
                          "the checkpoints in " + dir_ + " were saved by " + std::to_string(*ranks) +
                              (*ranks == 1 ? " rank" : " ranks") + ", this world has " +
                              std::to_string(world_size_) +
                              ": from plain files only a world of that size goes on; remove " + dir_ +
                              " to begin anew");
        }
    return {};
}

Result<std::optional<std::uint64_t>> FileStore::newest_common_step() {
    Status damaged;
    std::optional<std::uint64_t> found;
    for (std::uint64_t step : steps_in(rank_dir(rank_.value()))) {
        Status status = check_step(step);
        if (status.ok()) found = step;
        if (status.ok()) break;
        if (status.code() == Code::unsupported) return status;
        if (status.code() != Code::not_found && damaged.ok()) damaged = std::move(status);
    }
    if (!found && damaged.ok()) DLROVER_TRY(check_world());
    if (damaged.ok()) set_aside_newer(found);
    if (damaged.ok()) return found;
    if (!found)
        return Status(Code::corrupt,
                      damaged.message() + ": no older step is whole; remove " + dir_ + " to begin anew");
    if (!std::exchange(warned_of_damage_, true))
        warn(damaged.message() + ": going on from step " + std::to_string(*found));
    return found;
}

Result<std::int64_t> FileStore::restore_step() {
    auto step = newest_common_step();
    if (!step) return step.take_status();
    return *step ? static_cast<std::int64_t>(**step) : -1;
}

Result<ObjectSource> FileStore::open() {
    auto newest = newest_common_step();
    if (!newest) return newest.take_status();
    std::optional<std::uint64_t> step = *newest;
    if (!step) return Status(Code::not_found, "no checkpoint in " + rank_dir(rank_.value()));
    std::string path = step_path(rank_.value(), *step);
    auto fd = open_file(path);
    if (!fd) return fd.take_status();
    auto footer = read_footer(fd->get(), path);
    if (!footer) return footer.take_status();
    std::uint64_t bytes = footer->ledger_offset + footer->ledger_bytes;
    auto mapping =
        ckpt::Mapping::file(fd->get(), std::max(bytes, footer->table_offset + footer->table_bytes));
    if (!mapping) return mapping.take_status();
    auto layout = layout_of(*footer, mapping->base());
    if (!layout) return std::move(layout.take_status()).with_context(path);
    opened_ = std::move(*mapping);
    previous_ = *step;
    return ObjectSource{
        opened_.base(), opened_.bytes(), std::move(*layout), false, nullptr, nullptr, {}, {}, path};
}

void FileStore::close(const RestoreEnd &) {
    opened_ = ckpt::Mapping();
}

}  // namespace dlrover::lib
