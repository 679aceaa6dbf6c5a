// SPDX-License-Identifier: Apache-2.0
// A group's checkpoints on storage: what GroupStorage and the rest of the group say to each other, and the
// end, which waits for the last one.
#include "ckpt/storage_name.h"
#include "common/log.h"
#include "daemon/group.h"
#include "elastic/placement.h"

namespace dlrover::daemon {

void Group::create_storage() {
    const auto &options = *registration().options;
    if (storage_ || options.ckpt_dir.empty()) return;
    GroupStorage::Hooks hooks;
    hooks.send = [this](NodeIndex to, const FlushWord &word) {
        send_envelope(node_name(to), transport::PeerEnvelope::Kind::flush, encode_flush_word(word));
    };
    hooks.own_ranks = [this](std::uint32_t size) { return own_ranks(size); };
    hooks.damaged = [this](Rank rank, const CheckpointId &id, SlotIndex slot) {
        if (member_ && !record_.ended) drop_damaged(rank, id, slot);  // also while the last goes there
    };
    hooks.found = [this](const elastic::LocalStorage &found) { feed(found); };
    hooks.tell = [this](proto::EventKind kind, std::string text, const CheckpointId &id, std::int64_t took) {
        bool known = id != CheckpointId{};
        add_event(kind, std::move(text), id.generation, -1,
                  known ? static_cast<std::int64_t>(id.step.value()) : -1, took);
    };
    hooks.say_on_terminal = [this](const std::string &text) { say_on_terminal(text); };
    hooks.name_of = [this](NodeIndex node) { return node_name(node); };
    hooks.stored = [this](const CheckpointId &id) { feed(elastic::LocalDurable{id}); };
    hooks.over = [this] { finish_end(); };
    storage_ = std::make_unique<GroupStorage>(
        GroupStorage::Services{services_.loop, services_.port, services_.settings, arena_},
        GroupStorage::Facts{record_.lineage, options, self(), services_.node}, std::move(hooks));
    for (const auto &event : events_.events())
        if (event.kind == proto::EventKind::CheckpointStored && event.train_step >= 0)
            storage_->restore_stored(
                {from_proto(event.generation), TrainStep(static_cast<std::uint64_t>(event.train_step))},
                event.time_us);
}

/// Those that run here; where a world of another size has saved them nobody knows that.
std::optional<std::vector<Rank>> Group::own_ranks(std::uint32_t size) const {
    if (world_ && world_->memory_world_size == size && size > 0)
        return elastic::answered_ranks(*world_, self());
    if (!world_ || world_size(*world_) != size) return std::nullopt;
    std::vector<Rank> ranks;
    auto place = place_in(*world_);
    std::uint32_t first = place ? first_rank(*world_, *place) : 0;
    for (std::uint32_t i = 0; place && i < ranks_of(self()); ++i) ranks.emplace_back(first + i);
    return ranks;
}

void Group::on_writer_message(const Client &from, const local::MessageT &message) {
    if (!storage_ || record_.ended)
        return services_.port.fail(from.id, message.id, local::Refusal::Stale,
                                   "this step has no checkpoints to put on storage");
    if (message.body.AsWriterHello()) return storage_->on_writer_hello(from, message.id);
    if (!storage_->on_writer_message(from, message))
        services_.port.fail(from.id, message.id, local::Refusal::BadMessage, "a writer has no such message");
}

/// The world goes on from storage: the worker reads there itself, as its user.
local::RestorePlanT Group::plan_from_storage() const {
    local::RestorePlanT plan;
    plan.train_step = static_cast<std::int64_t>(world_->restore_step->value());
    plan.stored = std::make_unique<local::StoredCheckpointT>();
    plan.stored->generation = to_proto_ptr(world_->restore_generation);
    plan.stored->train_step = world_->restore_step->value();
    plan.stored->world_size = world_->stored_world_size;
    plan.folder = registration().options->ckpt_dir + "/" + ckpt::escape_file_name(record_.lineage);
    return plan;
}

void Group::act(elastic::LookAtStorage &action) {
    if (storage_) storage_->look(action);
}

void Group::act(elastic::StorageAsked &action) {
    if (storage_) storage_->on_asked(action.id);
}

/// The newest complete step, as far as this node holds objects of it.
std::optional<elastic::CompleteStep> Group::complete_in_memory() const {
    std::optional<elastic::CompleteStep> found;
    bool restored = complete_ == world_->restore_step;
    if (restored && world_->stored_world_size > 0) return found;
    for (const auto &seal : arena_.seals())
        if (complete_ == seal.step && (!restored || seal.generation == world_->restore_generation) &&
            (!found || found->id.generation < seal.generation))
            found = elastic::CompleteStep{{seal.generation, seal.step}, seal.world_size, world_->nodes};
    return found;
}

void Group::tell_storage_of_world() {
    if (!storage_ || !world_) return;
    storage_->on_world(*world_, complete_in_memory(), world_->restart_count > 0);
    if (!storage_->is_home() || record_.ending) return job_deadline_.reset();
    if (!job_deadline_)
        job_deadline_ = std::make_unique<JobDeadline>(services_.loop, services_.slurm, job(),
                                                      [this](auto end) { storage_->on_job_end(end); });
}

void Group::on_flush_word(const std::string &node, const std::vector<std::uint8_t> &payload) {
    auto from = index_of(node);
    if (!from) return;
    auto word = decode_flush_word(payload);
    if (!word)
        return log::error({job(), step()}, "a word of " + node + " is refused: " + word.status().message());
    if (storage_ && !record_.ended) return storage_->on_word(*from, *word);
    // Nothing is waited for any more, and nothing is kept.
    bool asks = word->kind == FlushWord::Kind::Ask, begins = word->kind == FlushWord::Kind::Begin;
    if (!record_.ended || (!asks && !begins)) return;
    FlushWord answer = *word;
    answer.kind = asks ? FlushWord::Kind::Over : FlushWord::Kind::Gone;
    answer.text = services_.node + " has ended already";
    send_envelope(node, transport::PeerEnvelope::Kind::flush, encode_flush_word(answer));
}

/// Exit code and message are known; the workers end, and the last checkpoint goes to storage.
void Group::begin_ending() {
    record_.ending = true;
    save();
    for (const auto &[task, agent] : agents_) push_ending(agent);
    tell_storage_of_world();
    storage_->end();
    job_deadline_.reset();
}

void Group::push_ending(const Agent &agent) {
    local::GroupEndingT ending;
    auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(services_.settings.storage.end_limit);
    ending.wait_ms = static_cast<std::uint32_t>(limit.count());
    services_.port.push(agent.connection, std::move(ending));
}

}  // namespace dlrover::daemon
