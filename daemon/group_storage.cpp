// SPDX-License-Identifier: Apache-2.0
#include "daemon/group_storage.h"

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "common/log.h"
#include "daemon/records.h"
#include "daemon/storage_text.h"
#include "daemon/wall_clock.h"

namespace dlrover::daemon {
namespace {

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
    ask_for_mark();
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
    auto *tested = body.AsFolderTested();
    if (!found && !object && !checkpoint && !progress && !tested && !body.AsStorageAnswered()) return false;
    if (!is_writer(from.id)) return true;  // its successor does it again
    silence_.on_answer();
    if (found) on_folder_found(*found);
    if (object) on_object_stored(*object);
    if (progress) on_progress(*progress);
    if (tested) on_folder_tested(*tested);
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
    test_folder();
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
    if (is_home()) heard_[from] = services_.loop.now();
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
            if (is_home() && word.order == no_order && word.kind == Kind::Trouble)
                return on_mark_not_seen(from);
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
