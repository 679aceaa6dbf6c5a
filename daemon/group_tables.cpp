// SPDX-License-Identifier: Apache-2.0
#include "daemon/group_tables.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "ckpt/object_table.h"

namespace dlrover::daemon {
namespace {

using Kind = MoveWord::Kind;

constexpr EventLoop::Time tick_interval = std::chrono::milliseconds(250);
constexpr EventLoop::Time ask_again = std::chrono::seconds(1);
/// Since the last piece.
constexpr EventLoop::Time patience = std::chrono::seconds(30);
constexpr std::uint32_t max_asked = 16;
/// Of all ranks together.
constexpr std::uint64_t max_tables_bytes = std::uint64_t{1} << 30;

bool same_place(const local::SealT &a, const local::SealT &b) {
    return a.data_bytes == b.data_bytes && a.table_offset == b.table_offset &&
           a.table_bytes == b.table_bytes && a.table_xxh3 == b.table_xxh3;
}

}  // namespace

GroupTables::GroupTables(Services services, Hooks hooks)
    : services_(services),
      hooks_(std::move(hooks)),
      reader_(services_.loop, services_.arena,
              {[this](Rank rank, const CheckpointId &id, const TableReader::Asker &asker,
                      const std::string &wrong) { answer(asker, first_piece(rank, id, wrong)); },
               hooks_.damaged}) {}

GroupTables::~GroupTables() {
    drop();
    *alive_ = false;
}

void GroupTables::on_world(std::optional<Part> part) {
    drop();
    trouble_.clear();
    part_ = std::move(part);
}

void GroupTables::drop() {
    begun_ = false;
    drop_memory();
    tables_.clear();
    here_ = next_ = asked_ = 0;
    timer_.reset();
}

/// Elsewhere: the kernel takes 150 ms to take back a GiB.
void GroupTables::drop_memory() {
    services_.budget.remove(services_.uid, {.bytes = bytes_, .node_bytes = bytes_});
    std::uint64_t bytes = std::exchange(bytes_, 0);
    if (memory_) services_.prefaulter.discard(std::move(memory_), bytes, services_.budget.pages_leave(bytes));
}

void GroupTables::begin() {
    if (begun_ || !part_ || !trouble_.empty()) return;
    begun_ = true;
    heard_at_ = services_.loop.now();
    memory_.reset(::memfd_create("dlrover-tables", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!memory_) return fail(0, Status::from_errno("memfd_create").message());
    tables_.resize(part_->homes.size());
    ask_more();
    timer_ = services_.loop.after(tick_interval, [this] { tick(); });
}

void GroupTables::ask_more() {
    while (begun_ && asked_ < max_asked && next_ < tables_.size()) {
        ++asked_;
        ask(next_++);
    }
}

/// What is here comes by the same way, without a network.
void GroupTables::ask(std::uint32_t rank) {
    MoveWord word;
    word.kind = Kind::FetchTable;
    word.rank = Rank(rank);
    word.id = part_->id;
    word.at = tables_[rank].got;
    tables_[rank].asked_at = services_.loop.now();
    if (hooks_.is_coming(word.rank, word.id)) {
        heard_at_ = services_.loop.now();
        return;
    }
    bool local = part_->homes[rank] == part_->self || services_.arena.holds(word.rank, word.id);
    if (!local) return hooks_.send(part_->homes[rank], word);
    services_.loop.post([this, alive = alive_, word] {
        if (*alive) on_asked({}, word);
    });
}

/// A table is verified before its first piece goes out: who fetches it could not tell where it was damaged.
void GroupTables::on_asked(const TableReader::Asker &asker, const MoveWord &word) {
    if (word.at == 0) return reader_.check(word.rank, word.id, asker);
    answer(asker, piece(word));
}

void GroupTables::answer(const TableReader::Asker &asker, const MoveWord &word) {
    if (asker) return hooks_.send(*asker, word);
    bool current = begun_ && part_ && part_->id == word.id && word.rank.value() < tables_.size();
    if (current) take(word.rank.value(), word);
}

MoveWord GroupTables::first_piece(Rank rank, const CheckpointId &id, const std::string &wrong) {
    MoveWord word;
    word.rank = rank;
    word.id = id;
    if (wrong.empty()) return piece(word);
    word.kind = Kind::Table;
    word.text = wrong;
    return word;
}

MoveWord GroupTables::piece(const MoveWord &asked) {
    MoveWord word = asked;
    word.kind = Kind::Table;
    auto object = services_.arena.begin_read(asked.rank, asked.id);
    if (!object) {
        word.text = object.status().message();
        return word;
    }
    word.object = object->seal;
    word.object.shared.clear();
    if (asked.rank != Rank(0) || asked.at != 0) word.object.ledger.clear();
    std::uint64_t table = object->seal.table_bytes;
    word.bytes.resize(std::min<std::uint64_t>(max_table_piece_bytes, table - std::min(asked.at, table)));
    Status read = TableReader::read(*object, object->seal.table_offset + asked.at, word.bytes);
    services_.arena.end_read(asked.rank, object->place.slot);
    if (read.ok() && !word.bytes.empty()) return word;
    word.bytes.clear();
    word.text = read.ok() ? "the object's table has no such part" : read.message();
    return word;
}

void GroupTables::on_word(NodeIndex from, const MoveWord &word) {
    if (word.kind == Kind::FetchTable && hooks_.is_coming(word.rank, word.id)) {
        MoveWord wait = word;
        wait.kind = Kind::Wait;
        return hooks_.send(from, wait);
    }
    if (word.kind == Kind::FetchTable) return on_asked(from, word);
    if (is_from(from, word)) take(word.rank.value(), word);
}

bool GroupTables::is_from(NodeIndex from, const MoveWord &word) const {
    return begun_ && part_ && word.id == part_->id && word.rank.value() < tables_.size() &&
           part_->homes[word.rank.value()] == from;
}

void GroupTables::on_wait(NodeIndex from, const MoveWord &word) {
    if (is_from(from, word)) heard_at_ = services_.loop.now();
}

/// A piece may come twice.
void GroupTables::take(std::uint32_t rank, const MoveWord &word) {
    Table &table = tables_[rank];
    bool done = table.object && table.got == table.object->table_bytes;
    if (done || word.at != table.got) return;
    if (word.bytes.empty()) return fail(rank, word.text);
    if (Status placed = place(table, rank, word); !placed.ok()) return fail(rank, placed.message());
    heard_at_ = services_.loop.now();
    if (table.got < table.object->table_bytes) return ask(rank);
    table.asked_at.reset();
    --asked_;
    if (++here_ < tables_.size()) return ask_more();
    timer_.reset();
    seal_memory();
}

/// Nobody writes through a mapping yet: the kernel need not look at each page whether somebody does.
void GroupTables::seal_memory() {
    constexpr int fixed = F_SEAL_SHRINK | F_SEAL_GROW;
    if (::fcntl(memory_.get(), F_ADD_SEALS, fixed | F_SEAL_FUTURE_WRITE) != 0)
        ::fcntl(memory_.get(), F_ADD_SEALS, fixed | F_SEAL_WRITE);  // before Linux 5.1
}

/// The first piece says how long the table is.
Status GroupTables::place(Table &table, std::uint32_t rank, const MoveWord &word) {
    if (!table.object) {
        std::uint64_t more = *ckpt::align_object_offset(word.object.table_bytes);
        if (word.object.table_bytes > ckpt::max_table_bytes || bytes_ + more > max_tables_bytes)
            return Status(Code::resource_exhausted, "the tables of its objects are too large for one node");
        DLROVER_TRY(services_.budget.make_room(services_.uid, {.bytes = more, .node_bytes = more}));
        table.offset = bytes_;
        if (::ftruncate(memory_.get(), static_cast<off_t>(bytes_ + more)) != 0)
            return Status::from_errno("ftruncate of memory for tables");
        bytes_ += more;
        services_.budget.add(services_.uid, {.bytes = more, .node_bytes = more});
        table.object = word.object;
    }
    if (!same_place(*table.object, word.object))
        return Status(Code::corrupt, "the object of rank " + std::to_string(rank) + " has changed");
    auto at = static_cast<off_t>(table.offset + table.got);
    if (::pwrite(memory_.get(), word.bytes.data(), word.bytes.size(), at) !=
        static_cast<ssize_t>(word.bytes.size()))
        return Status::from_errno("write of a table");
    table.got += word.bytes.size();
    return {};
}

/// The next world may know another source.
void GroupTables::fail(std::uint32_t rank, const std::string &why) {
    std::string whose = "the table of rank " + std::to_string(rank) + " of step " +
                        std::to_string(part_->id.step.value()) + " could not be fetched";
    if (rank < part_->homes.size()) whose += " from node " + hooks_.name_of(part_->homes[rank]);
    drop();
    trouble_ = whose + ": " + why;
}

void GroupTables::tick() {
    timer_ = services_.loop.after(tick_interval, [this] { tick(); });
    auto now = services_.loop.now();
    for (std::uint32_t rank = 0; rank < next_; ++rank) {
        if (!tables_[rank].asked_at) continue;
        if (now - heard_at_ >= patience)
            return fail(rank, "nothing was heard of it: see whether the daemon runs there");
        if (now - *tables_[rank].asked_at >= ask_again) ask(rank);
    }
}

Result<SharedFd> GroupTables::memory() const {
    std::string path = "/proc/self/fd/" + std::to_string(memory_.get());
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) return Status::from_errno("open of the tables for reading");
    return std::make_shared<const UniqueFd>(std::move(fd));
}

}  // namespace dlrover::daemon
