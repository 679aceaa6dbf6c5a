// SPDX-License-Identifier: Apache-2.0
#include "daemon/group_storage.h"

#include <algorithm>
#include <utility>

#include "base/fault.h"
#include "base/units.h"
#include "common/log.h"
#include "daemon/records.h"
#include "daemon/wall_clock.h"

namespace dlrover::daemon {
namespace {

constexpr EventLoop::Time remind_interval = std::chrono::seconds(1);
constexpr EventLoop::Time end_interval = std::chrono::milliseconds(200);
/// Files of other nodes show up within the time that network file systems keep what they know of a folder.
constexpr std::chrono::milliseconds visible_limit = std::chrono::seconds(75);
/// A writer is started with the first agent.
constexpr EventLoop::Time writer_limit = std::chrono::seconds(30);

elastic::FlushConfig flush_config(const proto::ElasticOptionsT &options, const Settings &settings) {
    elastic::FlushConfig config;
    config.every_steps = options.ckpt_every_steps;
    config.every = elastic::Duration(options.ckpt_every_us);
    config.order_limit = settings.storage.order_limit;
    config.end_lead = settings.storage.end_lead;
    return config;
}

/// Above it there is no room for the reigns of a run.
constexpr std::uint64_t most_term = std::uint64_t{0xfffffffe} << 32;
constexpr std::size_t max_text_bytes = 1024;

std::string bounded(const std::string &text) {
    return text.substr(0, max_text_bytes);
}

std::string step_text(const CheckpointId &id) {
    return "step " + std::to_string(id.step.value());
}

}  // namespace

GroupStorage::GroupStorage(Services services, Facts facts, Hooks hooks)
    : services_(services),
      facts_(std::move(facts)),
      hooks_(std::move(hooks)),
      look_order_(static_cast<std::uint64_t>(wall_clock_us())),
      silence_(services.loop, services.settings.storage.silent_after,
               [this](EventLoop::Time lasted, bool over) { tell_silence(lasted, over); }) {}

GroupStorage::~GroupStorage() {
    *alive_ = false;
}

std::unique_ptr<local::StoredCheckpointT> GroupStorage::describe(const CheckpointId &id,
                                                                 std::uint32_t ranks) const {
    auto out = std::make_unique<local::StoredCheckpointT>();
    out->generation = to_proto_ptr(id.generation);
    out->train_step = id.step.value();
    out->world_size = ranks;
    return out;
}

// ---- the writer of this node ----

void GroupStorage::on_writer_hello(const Client &from, std::uint32_t id) {
    if (writer_ && *writer_ != from.id) services_.port.close(*writer_);  // its successor is here
    writer_ = from.id;
    silence_.set_owed(false);  // it begins anew
    local::WriterWelcomeT welcome;
    welcome.ckpt_dir = facts_.options.ckpt_dir;
    welcome.lineage = facts_.lineage;
    welcome.keep_last = facts_.options.ckpt_keep_last;
    welcome.keep_every = facts_.options.ckpt_keep_every;
    services_.port.answer(from.id, id, std::move(welcome));
    if (question_) ask_writer();
    store_next();
    complete_order();
}

void GroupStorage::on_writer_gone(ConnectionId connection) {
    if (writer_ != connection) return;
    writer_.reset();
    writer_gone_ = services_.loop.now();
    silence_.set_owed(false);
}

bool GroupStorage::on_writer_message(const Client &from, const local::MessageT &message) {
    const auto &body = message.body;
    auto *found = body.AsFolderFound();
    auto *object = body.AsObjectStored();
    auto *checkpoint = body.AsCheckpointStored();
    auto *progress = body.AsObjectProgress();
    if (!found && !object && !checkpoint && !progress && !body.AsStorageAnswered()) return false;
    if (!is_writer(from.id)) return true;  // its successor does it again
    silence_.on_answer();
    if (found) on_folder_found(*found);
    if (object) on_object_stored(*object);
    if (progress) on_progress(*progress);
    if (checkpoint) on_checkpoint_stored(*checkpoint);
    silence_.set_owed(writer_owes());
    return true;
}

// ---- storage that does not answer ----

bool GroupStorage::writer_owes() const {
    bool completes = is_home() && flying_ && silent_.empty();
    return writer_ && (question_ || (part_ && !part_->stored) || completes);
}

std::string GroupStorage::silence_text(EventLoop::Time lasted) const {
    const std::string &folder = facts_.options.ckpt_dir, &node = facts_.node;
    return "storage has been silent for " + format_duration(lasted) + ": " + folder +
           " does not answer dlrover-writer on " + node +
           "; training goes on, checkpoints stay in memory and go there when it answers; see whether ls and "
           "df of that folder answer on " +
           node + ", and tell who looks after that file system";
}

void GroupStorage::tell_silence(EventLoop::Time lasted, bool over) {
    if (!over && question_) return;  // on_no_writer() says it
    std::string text = over ? "storage answers again on " + facts_.node + ", after " + format_duration(lasted)
                            : silence_text(lasted);
    text.front() = 'S';
    hooks_.tell(proto::EventKind::Warning, text + ".", part_ ? part_->order.id : CheckpointId{}, -1);
}

// ---- what is there ----

void GroupStorage::look(const elastic::LookAtStorage &question) {
    question_ = question.request;
    passed_over_ = question.passed_over;
    ++look_order_;
    ask_writer();
    question_timer_ = services_.loop.after(writer_limit, [this] { on_no_writer(); });
}

void GroupStorage::ask_writer() {
    if (!writer_ || !question_) return;
    local::LookAtFolderT look;
    look.order = look_order_;
    for (const elastic::Suspect &suspect : passed_over_) {
        auto entry = std::make_unique<local::PassedOverT>();
        entry->after = suspect.back_to.value();
        entry->before = to_proto_ptr(suspect.since);
        look.passed_over.push_back(std::move(entry));
    }
    services_.port.push(*writer_, std::move(look));
    silence_.set_owed(true);
}

void GroupStorage::on_no_writer() {
    question_timer_.reset();
    if (!question_) return;
    if (writer_) {
        hooks_.tell(proto::EventKind::Warning,
                    facts_.options.ckpt_dir + " does not answer: the group waits for it.", {}, -1);
        return;
    }
    elastic::LocalStorage answer;
    answer.text = "dlrover-writer does not run on " + facts_.node +
                  ", so checkpoints can not be put on storage: ask the administrator whether it is installed";
    answer_question(answer);
}

void GroupStorage::on_folder_found(const local::FolderFoundT &found) {
    if (!question_ || found.order != look_order_) return;
    elastic::LocalStorage answer;
    // The writer is a process of the user: nothing in its words is believed.
    bool possible = (found.next_term & 0xffffffffU) == 0 && found.next_term <= most_term &&
                    (!found.newest || found.newest->train_step <= INT64_MAX);
    answer.ok = found.ok && possible;
    answer.text =
        possible ? bounded(found.text) : "dlrover-writer on " + facts_.node + " says what can not be";
    if (!possible) return answer_question(answer);
    answer.next_term = Term(found.next_term);
    if (found.newest && found.newest->world_size > 0) {
        answer.newest =
            CheckpointId{from_proto(found.newest->generation), TrainStep(found.newest->train_step)};
        answer.world_size = found.newest->world_size;
    }
    answer_question(answer);
}

void GroupStorage::answer_question(const elastic::LocalStorage &answer) {
    elastic::LocalStorage numbered = answer;
    numbered.request = *question_;
    question_.reset();
    question_timer_.reset();
    services_.loop.post([this, alive = alive_, numbered = std::move(numbered)] {
        if (*alive) hooks_.found(numbered);
    });
}

// ---- the group ----

void GroupStorage::restore_stored(const CheckpointId &id, std::int64_t time_us) {
    stored_ = id;
    stored_us_ = time_us;
}

void GroupStorage::on_world(const elastic::World &world, std::optional<elastic::CompleteStep> complete,
                            bool again) {
    home_ = world.nodes.front();
    world_nodes_ = world.nodes;
    home_heard_ = services_.loop.now();
    if (part_ && part_->home != *home_) release_part();
    bool fresh = std::exchange(world_, world.id) != world.id;
    bool stored = fresh && world.stored_world_size > 0 && world.restore_step;
    bool nodes_left = flying_ && !std::ranges::all_of(flying_->step.nodes, [&](NodeIndex node) {
                          return std::ranges::find(world.nodes, node) != world.nodes.end();
                      });
    bool went_back = fresh && !world.suspects.empty() && world.suspects.back().since == world.id;
    std::optional<CheckpointId> from;
    if (world.restore_step) from = CheckpointId{world.restore_generation, *world.restore_step};
    bool lost = fresh && flusher_ && flusher_->newest() > from;
    // What was complete in memory is lost or suspect, or rank 0 is elsewhere now.
    if (stored || went_back || lost || nodes_left || *home_ != facts_.self) stop_ordering();
    if (*home_ != facts_.self) return;
    auto now = services_.loop.now();
    if (!flusher_) {
        flusher_.emplace(flush_config(facts_.options, services_.settings),
                         static_cast<std::uint64_t>(wall_clock_us()), now);
        if (stored_) act(flusher_->known(now, *stored_));
        act(flusher_->ends_at(now, job_end_));
    }
    if (stored) {
        stored_ = CheckpointId{world.restore_generation, *world.restore_step};
        stored_us_ = 0;
        act(flusher_->known(now, *stored_));
    }
    if (complete) act(flusher_->complete(now, std::move(*complete)));
    if (asked_) act(flusher_->ask(now, *asked_));
    if (again) act(flusher_->hurry(services_.loop.now()));
}

void GroupStorage::on_complete(elastic::CompleteStep step) {
    if (!is_home()) return;
    act(flusher_->complete(services_.loop.now(), std::move(step)));
    if (ending_ && flusher_) act(flusher_->hurry(services_.loop.now()));
}

void GroupStorage::on_lost(const CheckpointId &id) {
    if (is_home()) flusher_->forget(id);
    if (ending_) check_end();
}

/// What the writer is at it judges itself.
void GroupStorage::on_dropped(Rank rank, const CheckpointId &id) {
    if (!part_ || part_->stored || part_->order.id != id || part_->objects.empty()) return;
    auto last = std::prev(part_->objects.end());
    auto found =
        std::find_if(part_->objects.begin(), last, [&](const auto &entry) { return entry.first == rank; });
    if (found == last) return;
    lack(rank, found->second, {});
    part_->objects.erase(found);
}

void GroupStorage::on_asked(const CheckpointId &id) {
    asked_ = id;
    if (is_home()) act(flusher_->ask(services_.loop.now(), id));
}

void GroupStorage::on_job_end(std::optional<EventLoop::Time> end) {
    job_end_ = end;
    if (is_home() && !ending_) act(flusher_->ends_at(services_.loop.now(), end));
}

void GroupStorage::send(NodeIndex to, FlushWord word) {
    if (to != facts_.self) return hooks_.send(to, word);
    services_.loop.post([this, alive = alive_, word = std::move(word)] {
        if (*alive) on_word(facts_.self, word);
    });
}

void GroupStorage::on_word(NodeIndex from, const FlushWord &word) {
    using Kind = FlushWord::Kind;
    bool from_home = home_ == from;
    if (from_home) home_heard_ = services_.loop.now();
    switch (word.kind) {
        case Kind::Begin:
            if (from_home) begin_part(from, word);
            return;
        case Kind::Drop:
            if (part_ && part_->home == from && part_->order.order <= word.order) release_part();
            return;
        case Kind::Stored:
        case Kind::Lacks:
        case Kind::Trouble:
            if (!is_home() || !flying_ || flying_->number != word.order) return;
            if (word.kind == Kind::Trouble)
                return act(flusher_->failed(services_.loop.now(), word.order, word.text));
            return on_part_over(from, word);
        case Kind::Gone:
            if (is_home() && ending_ && flying_ && flying_->number == word.order) {
                hooks_.tell(proto::EventKind::Warning,
                            "The last checkpoint is not on storage: " + word.text + ".", flying_->step.id,
                            -1);
                say_over();
            }
            return;
        case Kind::Ask: {
            FlushWord answer;
            answer.kind = ending_ && over_ ? Kind::Over : Kind::Wait;
            return send(from, answer);
        }
        case Kind::Over:
            if (from_home && ending_) say_over();
            return;
        case Kind::Wait:
        case Kind::None:
            return;
    }
}

// ---- this node's part ----

void GroupStorage::begin_part(NodeIndex home, const FlushWord &order) {
    bool same = part_ && part_->order.order == order.order;
    if (same && part_->order.ranks == order.ranks) {
        if (part_->stored) answer_part();  // the first word was lost
        return;
    }
    bool late = same && order.ranks.empty();  // a word of the first round
    if (late || (part_ && part_->home == home && part_->order.order > order.order)) return;
    fault_point("daemon_flush_received");
    release_part();
    part_ = Part{.home = home, .order = order, .begun = services_.loop.now()};
    take_objects();
    if (part_->objects.empty() && part_->lacks.empty())
        return fail_part(facts_.node + " no longer has its objects of " + step_text(order.id));
    store_next();
}

/// Copies of other nodes' objects are these nodes' to put there, unless they are asked for.
void GroupStorage::take_objects() {
    const FlushWord &order = part_->order;
    auto ranks = order.ranks.empty() ? hooks_.own_ranks(order.world_size) : std::optional(order.ranks);
    for (Rank rank : ranks ? *ranks : services_.arena.holders(order.id)) {
        auto object = services_.arena.begin_read(rank, order.id);
        if (!object.ok()) {
            part_->lacks.push_back(rank);
            continue;
        }
        part_->bytes += object->seal.data_bytes;
        part_->objects.emplace_back(rank, std::move(*object));
    }
    if (!part_->lacks.empty())
        part_->why_lacking = facts_.node + " no longer has what rank " +
                             std::to_string(part_->lacks.front().value()) + " has saved of " +
                             step_text(order.id);
}

void GroupStorage::store_next() {
    if (!part_ || part_->stored) return;
    part_->partly = 0;
    if (part_->objects.empty()) {
        part_->stored = true;
        part_->took = services_.loop.now() - part_->begun;
        trouble_.clear();
        fault_point("daemon_part_stored");
        return answer_part();
    }
    if (!writer_) return;
    auto &[rank, object] = part_->objects.back();
    local::StoreObjectT store;
    store.order = part_->order.order;
    store.checkpoint = describe(part_->order.id, part_->order.world_size);
    store.rank = rank.value();
    std::vector<SharedFd> fds;
    for (const auto &segment : object.place.segments) {
        auto entry = std::make_unique<local::SlotSegmentT>();
        entry->id = segment.id.value();
        entry->bytes = segment.bytes;
        entry->fd = true;
        fds.push_back(segment.fd);
        store.segments.push_back(std::move(entry));
    }
    store.data_bytes = object.seal.data_bytes;
    store.table_offset = object.seal.table_offset;
    store.table_bytes = object.seal.table_bytes;
    store.table_xxh3 = object.seal.table_xxh3;
    store.ledger = object.seal.ledger;
    fault_point("daemon_before_writer_told");
    services_.port.send(*writer_, proto::make_local(0, std::move(store)), std::move(fds));
    fault_point("daemon_writer_told");
    silence_.set_owed(true);
}

void GroupStorage::on_object_stored(const local::ObjectStoredT &stored) {
    if (!part_ || part_->stored || part_->objects.empty() || stored.order != part_->order.order) return;
    auto &[rank, object] = part_->objects.back();
    if (stored.rank != rank.value()) return;
    if (!stored.ok && stored.memory_damaged) return on_object_damaged(bounded(stored.text));
    if (!stored.ok) return fail_part(bounded(stored.text));
    fault_point("daemon_object_stored");
    services_.arena.end_read(rank, object.place.slot);
    part_->written += object.seal.data_bytes;
    part_->objects.pop_back();
    store_next();
}

/// It is damaged. `text`: what the writer says of it.
void GroupStorage::lack(Rank rank, const Arena::Object &object, const std::string &text) {
    part_->bytes -= object.seal.data_bytes;
    services_.arena.end_read(rank, object.place.slot);
    if (part_->lacks.empty())
        part_->why_lacking = "what rank " + std::to_string(rank.value()) + " has saved of " +
                             step_text(part_->order.id) + " is damaged in the memory of " + facts_.node +
                             (text.empty() ? "" : " (" + text + ")");
    part_->lacks.push_back(rank);
}

/// No fault of storage: the others go there, and another node may have a copy of this one.
void GroupStorage::on_object_damaged(const std::string &text) {
    auto [rank, object] = std::move(part_->objects.back());
    part_->objects.pop_back();
    lack(rank, object, text);
    services_.loop.post([this, alive = alive_, rank, id = part_->order.id, slot = object.place.slot] {
        if (*alive) hooks_.damaged(rank, id, slot);
    });
    store_next();
}

/// The writer is a process of the user: more than there is, or less than before, is not believed.
void GroupStorage::on_progress(const local::ObjectProgressT &progress) {
    if (!part_ || part_->stored || part_->objects.empty() || progress.order != part_->order.order) return;
    const auto &[rank, object] = part_->objects.back();
    if (progress.rank != rank.value() || progress.bytes > object.seal.data_bytes) return;
    part_->partly = std::max(part_->partly, progress.bytes);
}

std::unique_ptr<local::StorageProgressT> GroupStorage::progress() const {
    auto out = std::make_unique<local::StorageProgressT>();
    out->node = facts_.node;
    out->checkpoint = describe(part_->order.id, part_->order.world_size);
    out->written_bytes = part_->written + part_->partly;
    out->bytes = part_->bytes;
    out->time_us = (part_->stored ? part_->took : services_.loop.now() - part_->begun).count();
    return out;
}

void GroupStorage::fail_part(const std::string &text) {
    trouble_ = text;
    answer_home(FlushWord::Kind::Trouble, text);
    release_part();
}

/// What was kept for it may be written over again.
void GroupStorage::release_part() {
    if (!part_) return;
    for (const auto &[rank, object] : part_->objects) services_.arena.end_read(rank, object.place.slot);
    if (writer_ && !part_->stored) {
        local::CancelOrderT cancel;
        cancel.order = part_->order.order;
        services_.port.push(*writer_, std::move(cancel));
    }
    part_.reset();
    silence_.set_owed(writer_owes());
}

void GroupStorage::answer_home(FlushWord::Kind kind, const std::string &text) {
    FlushWord answer = part_->order;
    answer.kind = kind;
    answer.text = text;
    answer.lacks = part_->lacks;
    send(part_->home, std::move(answer));
}

void GroupStorage::answer_part() {
    answer_home(part_->lacks.empty() ? FlushWord::Kind::Stored : FlushWord::Kind::Lacks, part_->why_lacking);
}

// ---- rank 0's node ----

void GroupStorage::act(elastic::Flusher::Actions actions) {
    for (auto &action : actions) {
        if (auto *begin = std::get_if<elastic::FlushBegin>(&action)) begin_order(*begin);
        if (auto *drop = std::get_if<elastic::FlushDrop>(&action)) drop_order(drop->number);
        if (auto *note = std::get_if<elastic::FlushNote>(&action)) tell(*note);
        if (auto *passed = std::get_if<elastic::FlushPassed>(&action)) tell(*passed);
    }
    schedule();
    if (ending_) check_end();
}

void GroupStorage::schedule() {
    flush_timer_.reset();
    if (!flusher_ || flusher_->deadline() == elastic::Time::max()) return;
    auto wait = std::max(flusher_->deadline() - services_.loop.now(), EventLoop::Time(0));
    flush_timer_ = services_.loop.after(std::min<EventLoop::Time>(wait, std::chrono::hours(1)), [this] {
        if (flusher_) act(flusher_->tick(services_.loop.now()));
    });
}

void GroupStorage::begin_order(const elastic::FlushBegin &begin) {
    flying_ = begin;
    missing_ = {};
    silent_ = {begin.step.nodes.begin(), begin.step.nodes.end()};
    if (begin.end_in)
        hooks_.tell(proto::EventKind::Warning,
                    "The job's time ends in " + std::to_string(begin.end_in->count() / 1000000) +
                        " s: " + step_text(begin.step.id) + " goes to storage now.",
                    begin.step.id, -1);
    fault_point("daemon_before_flush_order");
    remind();
    fault_point("daemon_flush_ordered");
}

/// A word may be lost.
void GroupStorage::remind() {
    remind_timer_.reset();
    if (!flying_ || silent_.empty()) return;
    FlushWord word;
    word.kind = FlushWord::Kind::Begin;
    word.order = flying_->number;
    word.id = flying_->step.id;
    word.world_size = flying_->step.world_size;
    word.ranks = missing_.asked;
    for (NodeIndex node : silent_) send(node, word);
    remind_timer_ = services_.loop.after(remind_interval, [this] { remind(); });
}

/// Words of the round before come twice, too.
void GroupStorage::on_part_over(NodeIndex from, const FlushWord &word) {
    fault_point("daemon_part_told");
    if (word.ranks != missing_.asked || silent_.erase(from) == 0) return;
    if (missing_.why.empty()) missing_.why = word.text;
    if (missing_.asked.empty()) missing_.ranks.insert(word.lacks.begin(), word.lacks.end());
    for (Rank rank : missing_.asked)
        if (std::ranges::find(word.lacks, rank) == word.lacks.end()) missing_.ranks.erase(rank);
    if (silent_.empty()) end_round();
}

/// What a node lacks of its own is asked for from all, once.
void GroupStorage::end_round() {
    if (missing_.ranks.empty()) return complete_order();
    if (!missing_.asked.empty())
        return act(flusher_->lost(services_.loop.now(), flying_->number,
                                  missing_.why + ", and no other node has a whole copy"));
    missing_.asked.assign(missing_.ranks.begin(), missing_.ranks.end());
    silent_ = {flying_->step.nodes.begin(), flying_->step.nodes.end()};
    remind();
}

/// The files meet in the folder: once every node has put its own there, this one's writer looks for them all.
void GroupStorage::complete_order() {
    if (!flying_ || !silent_.empty() || !writer_) return;
    local::CompleteCheckpointT complete;
    complete.order = flying_->number;
    complete.checkpoint = describe(flying_->step.id, flying_->step.world_size);
    complete.wait_ms = static_cast<std::uint32_t>(visible_limit.count());
    fault_point("daemon_before_commit_order");
    services_.port.push(*writer_, std::move(complete));
    fault_point("daemon_commit_ordered");
    silence_.set_owed(true);
}

void GroupStorage::drop_order(std::uint64_t number) {
    if (!flying_ || flying_->number != number) return;
    FlushWord word;
    word.kind = FlushWord::Kind::Drop;
    word.order = number;
    word.id = flying_->step.id;
    for (NodeIndex node : flying_->step.nodes) send(node, word);
    if (writer_) {
        local::CancelOrderT cancel;
        cancel.order = number;
        services_.port.push(*writer_, std::move(cancel));
    }
    flying_.reset();
    silent_.clear();
    remind_timer_.reset();
    silence_.set_owed(writer_owes());
}

void GroupStorage::stop_ordering() {
    if (flying_) drop_order(flying_->number);
    flusher_.reset();
    flush_timer_.reset();
}

void GroupStorage::on_checkpoint_stored(const local::CheckpointStoredT &stored) {
    if (!is_home() || !flying_ || stored.order != flying_->number) return;
    auto now = services_.loop.now();
    if (stored.ok) remark(stored.text);
    fault_point("daemon_before_stored_noted");
    act(stored.ok ? flusher_->done(now, stored.order)
                  : flusher_->failed(now, stored.order, bounded(stored.text)));
    fault_point("daemon_stored_noted");
}

/// What the writer says of a folder that took the checkpoint, once.
void GroupStorage::remark(const std::string &text) {
    if (text.empty() || text == remark_) return;
    remark_ = text;
    hooks_.tell(proto::EventKind::Warning, "Checkpoints on storage: " + bounded(text) + ".", flying_->step.id,
                -1);
}

void GroupStorage::tell(const elastic::FlushNote &note) {
    if (note.ok) {
        stored_ = note.id;
        stored_us_ = wall_clock_us();
        hooks_.tell(proto::EventKind::CheckpointStored,
                    "Checkpoint of " + step_text(note.id) + " is on storage.", note.id, note.took.count());
        return services_.loop.post([this, alive = alive_, id = note.id] {
            if (*alive) hooks_.stored(id);
        });
    }
    hooks_.tell(proto::EventKind::Warning,
                "The checkpoint of " + step_text(note.id) + " is not on storage: " + note.text +
                    (!note.lost ? ". The newest is tried again."
                     : ending_  ? "."
                                : ". A later one goes there instead."),
                note.id, note.took.count());
}

void GroupStorage::tell(const elastic::FlushPassed &passed) {
    std::string what = passed.count == 1 ? "Step " + std::to_string(passed.first.step.value()) + " was"
                                         : std::to_string(passed.count) + " steps from " +
                                               std::to_string(passed.first.step.value()) + " to " +
                                               std::to_string(passed.last.step.value()) + " were";
    hooks_.tell(proto::EventKind::Warning,
                what + " asked for on storage and passed by newer ones before it was free: " +
                    step_text(passed.by) + " goes there instead.",
                passed.by, -1);
}

// ---- the end ----

void GroupStorage::end() {
    if (ending_) return;
    ending_ = true;
    ending_since_ = home_heard_ = services_.loop.now();
    if (is_home()) act(flusher_->hurry(services_.loop.now()));
    check_end();
}

/// Whether nothing of this node may still be wanted on storage.
bool GroupStorage::idle_here() const {
    return !home_ || services_.arena.seals().empty();
}

/// A writer that has died is back soon, but not when the agent that had started it is gone.
bool GroupStorage::is_deserted() const {
    auto since = std::max(ending_since_, writer_gone_);
    return !writer_ && services_.loop.now() - since >= services_.settings.storage.end_patience;
}

/// Storage that is slow is waited for, not what has said nothing since the end began.
bool GroupStorage::is_hanging() const {
    auto since = silence_.since();
    return since &&
           services_.loop.now() - std::max(ending_since_, *since) >= services_.settings.storage.end_silence;
}

std::string GroupStorage::reason_to_end() const {
    auto now = services_.loop.now();
    if (now - ending_since_ >= services_.settings.storage.end_limit)
        return "The last checkpoint was not on storage in time: the group ends without it.";
    if (is_home())
        return is_deserted() || is_hanging()
                   ? "The last checkpoint is not on storage: " + why_not_text() + "."
                   : "";
    if (now - home_heard_ >= services_.settings.storage.end_patience)
        return "The node of rank 0 is silent: the group ends here without the last checkpoint.";
    return {};
}

std::string GroupStorage::why_not_text() const {
    if (!is_hanging()) return "dlrover-writer no longer runs on " + facts_.node;
    return facts_.options.ckpt_dir + " has not answered dlrover-writer on " + facts_.node + " for " +
           format_duration(silence_.lasted());
}

void GroupStorage::check_end() {
    end_timer_.reset();
    if (over_) return;
    bool done = is_home() ? flusher_->settled() : idle_here();
    std::string reason = reason_to_end();
    if (!done && !reason.empty()) hooks_.tell(proto::EventKind::Warning, reason, {}, -1);
    if (done || !reason.empty()) return say_over();
    if (!is_home()) ask_home();
    if (!is_home() && (is_deserted() || is_hanging()) && part_ && !part_->stored)
        answer_home(FlushWord::Kind::Gone, why_not_text());
    end_timer_ = services_.loop.after(end_interval, [this] { check_end(); });
}

void GroupStorage::ask_home() {
    FlushWord word;
    word.kind = FlushWord::Kind::Ask;
    send(*home_, word);
}

void GroupStorage::say_over() {
    if (over_) return;
    over_ = true;
    end_timer_.reset();
    if (is_home()) {
        FlushWord word;
        word.kind = FlushWord::Kind::Over;
        for (NodeIndex node : world_nodes_)
            if (node != facts_.self) send(node, word);
    }
    stop_ordering();
    release_part();
    services_.loop.post([this, alive = alive_] {
        if (*alive) hooks_.over();
    });
}

std::unique_ptr<local::StorageStatusT> GroupStorage::status() const {
    auto out = std::make_unique<local::StorageStatusT>();
    out->ckpt_dir = facts_.options.ckpt_dir;
    if (stored_) out->stored = describe(*stored_, 0);
    if (stored_us_ > 0) out->stored_age_us = wall_clock_us() - stored_us_;
    if (flying_) out->storing = describe(flying_->step.id, flying_->step.world_size);
    if (part_) out->progress.push_back(progress());
    if (flusher_) out->failures = flusher_->failures();
    out->text = flusher_ && !flusher_->trouble().empty() ? flusher_->trouble() : trouble_;
    if (!silence_.is_long()) return out;
    out->silent_us = silence_.lasted().count();
    out->text = silence_text(silence_.lasted());
    return out;
}

}  // namespace dlrover::daemon
