// SPDX-License-Identifier: Apache-2.0
#include "lib/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "base/count_of.h"
#include "base/fault.h"
#include "base/units.h"
#include "ckpt/block_kernel.h"
#include "ckpt/object_table.h"
#include "lib/file_format.h"

namespace dlrover::lib {
namespace {

using namespace std::chrono_literals;
constexpr std::string_view step_prefix = "step-", step_suffix = ".dlrover", temporary_prefix = ".new-",
                           unused_prefix = "unused-";

/// Of storage that can not be read or written, which says nothing of what is there. not_found stays.
Status system_error(const std::string &context, int err = errno) {
    Status status = Status::from_errno(context, err);
    return status.code() == Code::not_found ? std::move(status) : Status(Code::system, status.message());
}

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
    if (!fd || ::fsync(fd.get()) != 0) return system_error("fsync of " + dir);
    return {};
}

std::int64_t nanoseconds(const timespec &t) {
    return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

std::int64_t now_ns(clockid_t clock) {
    timespec now{};
    ::clock_gettime(clock, &now);
    return nanoseconds(now);
}

/// By the clock of files. Where /proc does not say it: now.
std::int64_t process_start_ns() {
    constexpr int fields_between = 19;  // from the name's end to the start, in ticks since the boot
    std::ifstream file("/proc/self/stat");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
    std::string skipped;
    for (int i = 0; i < fields_between; ++i) fields >> skipped;
    std::int64_t ticks = 0, now = now_ns(CLOCK_REALTIME);
    if (!(fields >> ticks)) return now;
    return now - now_ns(CLOCK_BOOTTIME) + ticks * (1'000'000'000 / ::sysconf(_SC_CLK_TCK));
}

/// Tells a file from one that takes its name later.
Result<FileMark> mark_of(const std::string &path) {
    struct stat st;
    if (::stat(path.c_str(), &st) != 0) return system_error("stat of " + path);
    return FileMark{st.st_ino, st.st_size, nanoseconds(st.st_mtim)};
}

/// A name that is free, so that no save ever replaces what is kept.
std::string unused_path(const std::string &dir, std::uint64_t step) {
    std::string stem =
        dir + "/" + std::string(unused_prefix) + std::string(step_prefix) + std::to_string(step);
    std::string path = stem + std::string(step_suffix);
    std::error_code error;
    for (unsigned n = 2; std::filesystem::exists(path, error); ++n)
        path = stem + "-" + std::to_string(n) + std::string(step_suffix);
    return path;
}

/// not_found: there is no such folder.
Result<std::vector<std::string>> names_in(const std::string &dir) {
    std::vector<std::string> names;
    std::error_code error;
    for (std::filesystem::directory_iterator it(dir, error), end; !error && it != end; it.increment(error))
        names.push_back(it->path().filename().string());
    if (error) return system_error("the folder " + dir, error.value());
    return names;
}

/// Newest first. not_found: there is no such folder.
Result<std::vector<std::uint64_t>> steps_in(const std::string &dir) {
    auto names = names_in(dir);
    if (!names) return names.take_status();
    std::vector<std::uint64_t> steps;
    for (const std::string &name : *names) {
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
    if (::fstat(fd, &st) != 0) return system_error("fstat of " + path);
    if (S_ISDIR(st.st_mode)) return system_error("read of " + path, EISDIR);
    auto bytes = static_cast<std::uint64_t>(st.st_size);
    FileFooter footer;
    if (bytes < sizeof footer) return Status(Code::corrupt, path + ": too short for a checkpoint");
    ssize_t n = ::pread(fd, &footer, sizeof footer, static_cast<off_t>(bytes - sizeof footer));
    if (n < 0) return system_error("read of " + path);
    if (n != sizeof footer) return Status(Code::corrupt, path + ": cut short while it was read");
    if (Status s = check_footer(footer, bytes); !s.ok()) return std::move(s).with_context(path);
    return footer;
}

Result<UniqueFd> open_file(const std::string &path) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) return system_error("open of " + path);
    return fd;
}

/// not_found: it is not there. corrupt: files are named when they are whole, so something has damaged it
/// since. unsupported: of another version. system: it can not be read.
Status check_file(const std::string &path) {
    auto fd = open_file(path);
    return fd.ok() ? read_footer(fd->get(), path).take_status() : fd.take_status();
}

Status write_file(const std::string &path, const SaveTarget &target, const ObjectLayout &layout) {
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!fd) return system_error("open of " + path);
    std::uint64_t image_bytes = layout.table_offset + layout.table_bytes;
    FileFooter footer = make_footer(layout, image_bytes);
    DLROVER_TRY(write_all(fd.get(), target.base, image_bytes));
    DLROVER_TRY(write_all(fd.get(), layout.ledger.data(), layout.ledger.size()));
    DLROVER_TRY(write_all(fd.get(), &footer, sizeof footer));
    if (::fsync(fd.get()) != 0) return system_error("fsync of " + path);
    return {};
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

/// Each death in mid-save leaves some: those of the last two stay.
void remove_old_unused(const std::string &dir) {
    constexpr std::size_t most = 2;
    std::vector<std::pair<std::int64_t, std::string>> found;
    std::error_code error;
    std::filesystem::directory_iterator entry(dir, error), end;
    for (; !error && entry != end; entry.increment(error)) {
        struct stat st;
        bool is_unused = entry->path().filename().string().starts_with(unused_prefix);
        if (is_unused && ::stat(entry->path().c_str(), &st) == 0)
            found.emplace_back(nanoseconds(st.st_ctim), entry->path().string());
    }
    std::ranges::sort(found, std::greater());
    for (std::size_t i = most; i < found.size(); ++i) std::filesystem::remove(found[i].second, error);
}

}  // namespace

FileStore::FileStore(std::string dir, Rank rank, std::uint32_t world_size)
    : dir_(std::move(dir)), rank_(rank), world_size_(world_size), started_ns_(process_start_ns()) {}

/// Ranks are started together, and one may have saved before another asks what it goes on from. Clocks of
/// nodes and storage have to agree better than the time from a run's last save to the start of the next one.
bool FileStore::is_of_this_run(const FileMark &mark, std::chrono::nanoseconds skew) const {
    return mark.mtime_ns >= started_ns_ - skew.count();
}

std::string FileStore::rank_dir(std::uint32_t rank) const {
    return dir_ + "/rank-" + std::to_string(rank);
}

std::string FileStore::step_path(std::uint32_t rank, std::uint64_t step) const {
    return rank_dir(rank) + "/" + std::string(step_prefix) + std::to_string(step) + std::string(step_suffix);
}

Result<std::variant<SaveTarget, SaveSkipped>> FileStore::begin(TrainStep step, std::uint64_t bytes,
                                                               IfFull /*if_full*/) {
    if (Status made = make_folder(); !made.ok()) return not_saved(step, bytes, made);
    if (image_.bytes() < bytes) {
        auto image = ckpt::Mapping::anonymous(bytes);
        if (!image) return image.take_status();
        image_user_.reset();
        image_ = std::move(*image);
    }
    return std::variant<SaveTarget, SaveSkipped>(
        SaveTarget{image_.base(), image_.bytes(), step, SlotIndex(0), &image_user_});
}

/// A rank whose folder is there without a file was killed before the end of its first save.
Status FileStore::make_folder() const {
    std::string dir = rank_dir(rank_.value());
    std::error_code error;
    std::filesystem::create_directories(dir, error);
    if (error) return Status(Code::system, "cannot make " + dir + ": " + error.message());
    return {};
}

/// They are of saves that a kill has ended, and would take the room of this one.
void FileStore::remove_temporaries() const {
    std::string dir = rank_dir(rank_.value());
    auto names = names_in(dir);
    if (!names) return;
    std::error_code error;
    for (const std::string &name : *names)
        if (name.starts_with(temporary_prefix)) std::filesystem::remove(dir + "/" + name, error);
}

Status FileStore::write_object(const SaveTarget &target, const ObjectLayout &layout) const {
    std::string dir = rank_dir(rank_.value()), step = std::to_string(layout.train_step.value());
    std::string temporary = dir + "/" + std::string(temporary_prefix) + step;
    remove_temporaries();
    Status status = write_file(temporary, target, layout);
    if (status.ok()) {
        fault_point("before_rename");
        std::string path = step_path(rank_.value(), layout.train_step.value());
        if (::rename(temporary.c_str(), path.c_str()) == 0) return sync_folder(dir);
        status = system_error("rename to " + path);
    }
    ::unlink(temporary.c_str());
    return status;
}

/// A program that begins anew beside the files of another one, or of its own last time, would be surprised.
void FileStore::warn_of_newer(std::uint64_t saved) {
    if (previous_ || std::exchange(warned_of_newer_, true)) return;
    auto steps = steps_in(rank_dir(rank_.value()));
    if (!steps || steps->empty() || steps->front() <= saved) return;
    warn("step " + std::to_string(saved) + " is saved beside " + step_path(rank_.value(), steps->front()) +
         ", which is newer: the next start goes on from that one; remove " + dir_ + " to begin anew");
}

void FileStore::remove_old(std::uint64_t saved) const {
    auto steps = steps_in(rank_dir(rank_.value()));
    if (!steps) return;  // the next save removes them
    auto other = std::find_if(steps->begin(), steps->end(), [&](auto step) { return step != saved; });
    std::uint64_t kept = previous_ ? *previous_ : other != steps->end() ? *other : saved;
    std::error_code error;
    for (std::uint64_t step : *steps)
        if (step != saved && step != kept) std::filesystem::remove(step_path(rank_.value(), step), error);
}

/// An error of the system alone does not say that it is of storage, nor what to do.
Status FileStore::not_saved(TrainStep step, std::uint64_t bytes, const Status &why) const {
    std::string number = std::to_string(step.value());
    return Status(Code::system, "step " + number + " is not saved to " +
                                    step_path(rank_.value(), step.value()) + ": " + why.message() +
                                    "; make it possible to write " + format_size_bytes(bytes) +
                                    " there, or set DLROVER_LOCAL_DIR to another folder");
}

Result<std::variant<std::monostate, SaveSkipped>> FileStore::seal(const SaveTarget &target,
                                                                  const ObjectLayout &layout, std::uint64_t) {
    std::uint64_t saved = layout.train_step.value();
    Status status = set_aside_newer();
    warn_of_newer(saved);
    if (status.ok()) status = write_object(target, layout);
    if (!status.ok()) return not_saved(layout.train_step, layout.table_offset + layout.table_bytes, status);
    remove_old(saved);
    previous_ = saved;
    saved_ = true;
    return std::variant<std::monostate, SaveSkipped>();
}

void FileStore::abort(const SaveTarget &) {}

Result<std::vector<FileStore::RankFolder>> FileStore::look(std::chrono::nanoseconds skew) const {
    std::vector<RankFolder> folders(world_size_);
    for (std::uint32_t r = 0; r < world_size_; ++r) {
        auto steps = steps_in(rank_dir(r));
        if (!steps && steps.status().code() != Code::not_found) return steps.take_status();
        folders[r].exists = steps.ok();
        if (steps.ok()) folders[r].steps = std::move(*steps);
        for (std::uint64_t step : folders[r].steps) {
            auto mark = mark_of(step_path(r, step));
            if (!mark.ok() && mark.status().code() != Code::not_found) return mark.take_status();
            folders[r].saves_now = folders[r].saves_now || (mark.ok() && is_of_this_run(*mark, skew));
        }
    }
    return folders;
}

/// What any rank has saved beyond the step that all go on from is of an attempt that has ended. When the
/// next one comes to that step, its files must not stand beside those of the former.
Status FileStore::note_newer(const std::vector<RankFolder> &folders, std::optional<std::uint64_t> common) {
    if (saved_ || (noted_ && *noted_ == common)) return {};
    std::vector<NewerFile> newer;
    for (std::uint32_t r = 0; r < world_size_; ++r)
        for (std::uint64_t step : folders[r].steps) {
            if (common && step <= *common) break;
            auto mark = mark_of(step_path(r, step));
            if (mark.ok() && !is_of_this_run(*mark, 0s)) newer.push_back({r, step, *mark});
            if (!mark.ok() && mark.status().code() != Code::not_found) return mark.take_status();
        }
    newer_ = std::move(newer);
    noted_ = common;
    return {};
}

/// Of all ranks, by the first that saves: another one may end before its own first save. What the others
/// have saved since this one looked stays.
Status FileStore::set_aside_newer() {
    for (; !newer_.empty(); newer_.pop_back()) {
        const NewerFile &file = newer_.back();
        std::string path = step_path(file.rank, file.step);
        auto mark = mark_of(path);
        if (!mark.ok() && mark.status().code() != Code::not_found) return mark.take_status();
        if (!mark.ok() || *mark != file.mark) continue;
        std::string unused = unused_path(rank_dir(file.rank), file.step);
        if (::rename(path.c_str(), unused.c_str()) != 0) {
            if (errno == ENOENT) continue;  // another rank was faster
            return system_error("rename of " + path + " to " + unused);
        }
        remove_old_unused(rank_dir(file.rank));
        DLROVER_TRY(sync_folder(rank_dir(file.rank)));
        warn(path + " is newer than what this start goes on from: it is kept as " + unused +
             ", which nothing uses; remove it when you like");
    }
    return {};
}

/// ok: every rank has a whole file of it. Otherwise of the first that has not.
Status FileStore::check_step(std::uint64_t step) const {
    for (std::uint32_t r = 0; r < world_size_; ++r) DLROVER_TRY(check_file(step_path(r, step)));
    return {};
}

/// unsupported: a world of another number of ranks has saved it. A table that is damaged says nothing of it.
Status FileStore::check_world(std::uint32_t rank, std::uint64_t step) const {
    auto ranks = saved_by(step_path(rank, step));
    if (!ranks || *ranks == world_size_) return {};
    return Status(Code::unsupported,
                  "the checkpoints in " + dir_ + " were saved by " + count_of(*ranks, "rank") +
                      ", this world has " + std::to_string(world_size_) +
                      ": from plain files only a world of that size goes on; start it so, or remove " + dir_ +
                      " to begin anew");
}

/// Of all ranks, newest first.
std::vector<std::uint64_t> FileStore::all_steps(const std::vector<RankFolder> &folders) {
    std::vector<std::uint64_t> steps;
    for (const RankFolder &folder : folders)
        steps.insert(steps.end(), folder.steps.begin(), folder.steps.end());
    std::sort(steps.rbegin(), steps.rend());
    steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
    return steps;
}

/// Where no step is there of all ranks, and some have files. That begins anew by itself in one case only: the
/// ranks that have files have one each, of the same step, and the folders of all others are there, without a
/// file: those were killed before the end of their first save. All else looks like files that were lost or
/// are not seen here, and so does a rank that was killed before it had a folder.
Status FileStore::check_may_begin(const std::vector<RankFolder> &folders) const {
    std::uint32_t has = 0, lacks = 0;
    bool first_save = true;
    std::uint64_t newest = all_steps(folders).front();
    for (std::uint32_t r = 0; r < world_size_; ++r) {
        const auto &steps = folders[r].steps;
        first_save = first_save && folders[r].exists && (steps.empty() || steps == std::vector{newest});
        if (!steps.empty() && steps.front() == newest) has = r;
    }
    if (first_save) return {};
    while (lacks + 1 < world_size_ && !folders[lacks].steps.empty()) ++lacks;
    if (!folders[lacks].steps.empty())
        for (lacks = 0; std::ranges::count(folders[lacks].steps, newest) != 0;) ++lacks;
    std::string there = !folders[lacks].exists         ? "there is no " + rank_dir(lacks)
                        : folders[lacks].steps.empty() ? "there is none in " + rank_dir(lacks)
                                                       : "there are only older ones in " + rank_dir(lacks);
    return Status(Code::corrupt,
                  "no step is there of all ranks: rank " + std::to_string(has) + " has " +
                      step_path(has, newest) + ", and of rank " + std::to_string(lacks) + " " + there +
                      ": bring its files back, where every rank sees the files of all; or remove " + dir_ +
                      " to begin anew");
}

/// Where no step is whole in all ranks.
Status FileStore::check_none(const std::vector<RankFolder> &folders, Status damaged) const {
    if (!damaged.ok())
        return Status(Code::corrupt,
                      damaged.message() + ": no older step is whole; remove " + dir_ + " to begin anew");
    for (std::uint32_t r = 0; r < world_size_; ++r)
        for (std::uint64_t step : folders[r].steps) DLROVER_TRY(check_world(r, step));
    if (std::ranges::any_of(folders, &RankFolder::saves_now)) return {};  // begun already, and not by us
    return check_may_begin(folders);
}

Result<std::optional<std::uint64_t>> FileStore::newest_common_step(Asked asked) {
    // Who saves without a load asks for the world: its ranks may be started one after the other.
    auto folders = look(asked == Asked::by_world ? 10s : 0s);
    if (!folders) return folders.take_status();
    auto steps = all_steps(*folders);
    Status damaged;
    std::optional<std::uint64_t> found;
    for (std::uint64_t step : steps) {
        Status status = check_step(step);
        if (status.ok()) found = step;
        if (status.ok()) break;
        if (status.code() == Code::not_found) continue;
        if (status.code() != Code::corrupt) return status;
        if (damaged.ok()) damaged = std::move(status);
    }
    if (!steps.empty())
        DLROVER_TRY(found ? check_world(rank_.value(), *found) : check_none(*folders, std::move(damaged)));
    (void)make_folder();  // where that may be written
    if (asked == Asked::by_load) DLROVER_TRY(note_newer(*folders, found));
    if (!damaged.ok() && !std::exchange(warned_of_damage_, true))
        warn(damaged.message() + ": going on from step " + std::to_string(*found));
    return found;
}

Result<std::int64_t> FileStore::restore_step() {
    auto step = newest_common_step(Asked::by_world);
    if (!step) return step.take_status();
    return *step ? static_cast<std::int64_t>(**step) : -1;
}

Result<ObjectSource> FileStore::open() {
    auto newest = newest_common_step(Asked::by_load);
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
