// SPDX-License-Identifier: Apache-2.0
// The workers of a group on this node: their saves and restores.
#include <algorithm>
#include <utility>

#include "base/fault.h"
#include "base/units.h"
#include "common/log.h"
#include "daemon/group.h"
#include "daemon/segment_fds.h"

namespace dlrover::daemon {
namespace {

constexpr EventLoop::Time progress_interval = std::chrono::milliseconds(500);

local::Refusal refusal_for(Code code) {
    switch (code) {
        case Code::stale:
            return local::Refusal::Stale;
        case Code::resource_exhausted:
            return local::Refusal::NoMemory;
        case Code::invalid_argument:
            return local::Refusal::BadMessage;
        case Code::unavailable:
        case Code::timeout:
            return local::Refusal::NotReady;
        case Code::permission_denied:
            return local::Refusal::NotPermitted;
        case Code::unsupported:
            return local::Refusal::Unsupported;
        case Code::ok:
        case Code::not_found:
        case Code::already_exists:
        case Code::corrupt:
        case Code::system:
        case Code::internal:
            break;
    }
    return local::Refusal::Internal;
}

local::RestorePlanT plan_of(const Arena::Object &object) {
    local::RestorePlanT plan;
    plan.train_step = static_cast<std::int64_t>(object.seal.train_step);
    plan.slot = static_cast<std::uint16_t>(object.place.slot.value());
    plan.data_bytes = object.seal.data_bytes;
    plan.table_offset = object.seal.table_offset;
    plan.table_bytes = object.seal.table_bytes;
    plan.table_xxh3 = object.seal.table_xxh3;
    plan.ledger = object.seal.ledger;
    return plan;
}

local::RestorePlanT plan_while(const GroupCopies::Fetching &fetching) {
    local::RestorePlanT plan;
    plan.coming = std::make_unique<local::ComingT>();
    plan.coming->objects = fetching.objects;
    plan.coming->objects_here = fetching.objects_here;
    plan.coming->bytes = fetching.bytes;
    plan.coming->bytes_here = fetching.bytes_here;
    return plan;
}

std::unique_ptr<local::SpreadCheckpointT> describe_tables(const GroupTables &tables, const Arena &arena,
                                                          const CheckpointId &id) {
    auto spread = std::make_unique<local::SpreadCheckpointT>();
    spread->checkpoint = std::make_unique<local::StoredCheckpointT>();
    spread->checkpoint->generation = to_proto_ptr(id.generation);
    spread->checkpoint->train_step = id.step.value();
    spread->checkpoint->world_size = tables.wanted();
    for (const GroupTables::Table &table : tables.tables()) {
        auto entry = std::make_unique<local::SpreadTableT>();
        entry->offset = table.offset;
        entry->bytes = table.object->table_bytes;
        entry->data_bytes = table.object->data_bytes;
        entry->xxh3 = table.object->table_xxh3;
        entry->here = arena.holds(Rank(static_cast<std::uint32_t>(spread->tables.size())), id);
        spread->tables.push_back(std::move(entry));
    }
    return spread;
}

}  // namespace

void Group::on_worker_message(const Client &from, local::MessageT message) {
    auto &body = message.body;
    if (auto *hello = body.AsWorkerHello()) return on_worker_hello(from, message.id, *hello);
    if (auto *leave = body.AsLeaveGeneration()) return on_leave(from, message.id, *leave);
    auto it = workers_.find(from.id);
    if (it == workers_.end())
        return services_.port.fail(from.id, message.id, local::Refusal::BadMessage, "say WorkerHello first");
    Worker &worker = it->second;
    if (auto *prepare = body.AsPrepare()) return on_prepare(worker, message.id, *prepare);
    if (auto *begin = body.AsBeginSave()) return on_begin_save(worker, message.id, *begin);
    if (auto *seal = body.AsSeal()) return on_seal(worker, message.id, std::move(*seal));
    if (auto *abort = body.AsAbortSave()) {
        (void)arena_.abort(worker.rank, SlotIndex(abort->slot), from.id).ok();
    } else if (body.type == local::Body::Restore) {
        return on_restore(worker, message.id);
    } else if (auto *kept = body.AsRestoreKept()) {
        return on_restore_kept(worker, message.id, Rank(kept->rank));
    } else if (auto *done = body.AsRestoreDone()) {
        on_restore_done(worker, *done);
    } else if (body.type == local::Body::Subscribe) {
        subscribe(worker);
    } else {
        return services_.port.fail(from.id, message.id, local::Refusal::BadMessage,
                                   "a worker has no such message");
    }
    if (message.id != 0) services_.port.done(from.id, message.id);
}

void Group::on_worker_hello(const Client &from, std::uint32_t id, const local::WorkerHelloT &hello) {
    auto refuse = [&](local::Refusal code, std::string text) {
        services_.port.fail(from.id, id, code, std::move(text));
    };
    GenerationId generation = from_proto(hello.generation);
    if (workers_.contains(from.id)) return refuse(local::Refusal::BadMessage, "WorkerHello was said already");
    if (over() || !world_ || generation < world_->id || generation <= stopping_)
        return refuse(local::Refusal::Stale, "generation " + to_string(generation) + " is over");
    if (generation > world_->id)
        return refuse(local::Refusal::NotReady, "generation " + to_string(generation) + " is not known here");
    auto rank = rank_of(hello.local_rank);
    if (!rank || rank->value() != hello.rank)
        return refuse(local::Refusal::BadMessage, "rank " + std::to_string(hello.rank) +
                                                      " is not local rank " +
                                                      std::to_string(hello.local_rank) + " of this node");
    auto page = pages_.page(*rank, generation);
    if (!page) return refuse(local::Refusal::NoMemory, page.status().message());
    Worker &worker = workers_[from.id];
    worker.client = from;
    worker.generation = generation;
    worker.rank = *rank;
    worker.local_rank = hello.local_rank;
    worker.stays = hello.stays;
    if (services_.numa_node_of) arena_.place(*rank, services_.numa_node_of(from.pid));
    arena_.adopt_grants(*rank, from.id, generation);
    local::WorkerWelcomeT welcome;
    welcome.world_size = world_size(*world_);
    if (world_->restore_step) welcome.restore_step = static_cast<std::int64_t>(world_->restore_step->value());
    welcome.storage = storage_ != nullptr;
    welcome.slots = static_cast<std::uint16_t>(arena_.slots(*rank));
    services_.port.answer(from.id, id, std::move(welcome), {*page});
    if (!progress_timer_) poll_progress();
}

bool Group::in_force(const Worker &worker) const {
    return !over() && world_ && worker.generation == world_->id && worker.generation > stopping_;
}

void Group::on_prepare(Worker &worker, std::uint32_t id, const local::PrepareT &prepare) {
    if (!in_force(worker))
        return services_.port.fail(worker.client.id, id, local::Refusal::Stale, "this generation is over");
    Status status = arena_.prepare(worker.rank, prepare.bytes);
    tell_memory(worker, status);
    if (!status.ok())
        return services_.port.fail(worker.client.id, id, refusal_for(status.code()), status.message());
    local::PreparedT prepared;
    std::vector<SharedFd> fds;
    for (const Arena::Place &place : arena_.free_places(worker.rank)) {
        if (fds.size() + place.segments.size() > proto::max_frame_fds) break;
        prepared.slots.push_back(std::make_unique<local::SlotGrantedT>(grant_message(worker, place, fds)));
    }
    services_.port.answer(worker.client.id, id, std::move(prepared), std::move(fds));
}

local::SlotGrantedT Group::grant_message(Worker &worker, const Arena::Place &place,
                                         std::vector<SharedFd> &fds) const {
    local::SlotGrantedT granted;
    granted.slot = static_cast<std::uint16_t>(place.slot.value());
    granted.bytes = place.bytes;
    std::ranges::move(describe(worker, place.segments, granted.segments), std::back_inserter(fds));
    return granted;
}

void Group::on_skipped(Worker &worker, TrainStep step) {
    // Only the first of a row is an event; the summary counts them all.
    auto rank = static_cast<std::int32_t>(worker.rank.value());
    if (!std::exchange(worker.skipping, true))
        add_event(proto::EventKind::CheckpointSkipped, "No slot was free, the save was skipped.",
                  worker.generation, rank, static_cast<std::int64_t>(step.value()));
    if (member_) feed(elastic::LocalSkipped{worker.generation, {worker.rank, step}});
}

void Group::on_begin_save(Worker &worker, std::uint32_t id, const local::BeginSaveT &begin) {
    ConnectionId to = worker.client.id;
    if (!in_force(worker))
        return services_.port.fail(to, id, local::Refusal::Stale, "this generation is over");
    auto place = arena_.begin(worker.rank, to, TrainStep(begin.train_step), worker.generation, begin.bytes);
    tell_memory(worker, place.status());
    if (!place) {
        services_.port.fail(to, id, refusal_for(place.status().code()), place.status().message());
        bool no_memory = place.status().code() == Code::resource_exhausted;
        if (no_memory && member_)
            feed(elastic::LocalSkipped{worker.generation, {worker.rank, TrainStep(begin.train_step)}});
        return;
    }
    if (!place->has_value()) {
        local::SaveSkippedT skipped;
        skipped.reason = "no slot is free: the newest complete step and those after it are kept";
        services_.port.answer(to, id, std::move(skipped));
        if (!begin.again) on_skipped(worker, TrainStep(begin.train_step));
        return;
    }
    worker.skipping = false;
    std::vector<SharedFd> fds;
    auto granted = grant_message(worker, **place, fds);
    fault_point("daemon_before_grant_reply");
    services_.port.answer(to, id, std::move(granted), std::move(fds));
    fault_point("daemon_grant_replied");
    if (!(*place)->overwrites || !member_) return;
    feed(objects_here());
    fault_point("daemon_reuse_told");
}

std::vector<SharedFd> Group::describe(Worker &worker, const std::vector<Arena::Segment> &segments,
                                      std::vector<std::unique_ptr<local::SlotSegmentT>> &out) const {
    std::vector<SharedFd> fds;
    for (const auto &segment : segments) {
        auto entry = std::make_unique<local::SlotSegmentT>();
        entry->id = segment.id.value();
        entry->bytes = segment.bytes;
        entry->fd = worker.known_segments.insert(segment.id).second;
        if (entry->fd) fds.push_back(segment.fd);
        out.push_back(std::move(entry));
    }
    return fds;
}

/// The keepers are ranks of this node, each named once.
Status Group::check_shared(const Worker &worker, const local::SealT &seal) const {
    std::uint32_t first = rank_of(0).value_or(worker.rank).value();
    std::set<std::uint32_t> named{worker.rank.value()};
    bool ok = seal.shared.size() < ranks_of(self()) || seal.shared.empty();
    for (std::size_t i = 0; ok && i < seal.shared.size(); ++i) {
        const auto &with = seal.shared[i];
        ok = with && with->rank >= first && with->rank - first < ranks_of(self()) &&
             named.insert(with->rank).second;
    }
    if (ok) return {};
    return Status(Code::invalid_argument,
                  "a save can share chunks with other ranks of its node only, each named once");
}

void Group::on_seal(Worker &worker, std::uint32_t id, local::SealT seal) {
    fault_point("daemon_seal_received");
    ConnectionId to = worker.client.id;
    if (!in_force(worker))
        return services_.port.fail(to, id, local::Refusal::Stale, "this generation is over");
    if (seal.to_storage && !storage_)
        return services_.port.fail(to, id, local::Refusal::Unsupported,
                                   "this step has no folder for checkpoints (--dlrover-ckpt-dir)");
    if (Status shared = check_shared(worker, seal); !shared.ok()) {
        (void)arena_.abort(worker.rank, SlotIndex(seal.slot), to).ok();
        return services_.port.fail(to, id, refusal_for(shared.code()), shared.message());
    }
    if (arena_.differs(worker.rank, {worker.generation, TrainStep(seal.train_step)}, seal) &&
        !std::exchange(worker.saved_again, true))
        add_event(
            proto::EventKind::Warning,
            "This step was saved before with other data; the first save counts. Save under another step.",
            worker.generation, static_cast<std::int32_t>(worker.rank.value()),
            static_cast<std::int64_t>(seal.train_step));
    elastic::Seal sealed{TrainStep(seal.train_step), worker.rank, world_size(*world_), worker.generation,
                         seal.to_storage};
    Status status =
        arena_.seal(worker.rank, to, worker.generation, sealed.world_size, std::move(seal),
                    [this, alive = alive_, to, id, sealed](Status stored) {
                        if (!*alive) return;
                        if (!stored.ok()) {
                            log::warning({job(), step()}, "a seal is not on record: " + stored.message());
                            // An older object of the same step may have gone with it.
                            if (member_) feed(objects_here());
                            return services_.port.fail(to, id, local::Refusal::NoMemory,
                                                       "the keeper can not hold more: " + stored.message());
                        }
                        fault_point("daemon_seal_on_record");
                        if (world_ && sealed.generation == world_->id && sealed.generation > stopping_)
                            feed(elastic::LocalSealed{sealed});
                        else if (member_ && !over())
                            feed(objects_here());  // the next world may go on from it
                        fault_point("daemon_seal_told");
                        services_.port.done(to, id);
                        fault_point("daemon_seal_replied");
                    });
    if (!status.ok()) services_.port.fail(to, id, refusal_for(status.code()), status.message());
}

/// Where a fetch was given up, that says more than what is missing here.
void Group::refuse_restore(ConnectionId to, std::uint32_t id, const std::string &missing) {
    bool fetched = copies_ && !copies_->trouble_of_fetch().empty();
    std::string text = fetched ? copies_->trouble_of_fetch() : missing;
    log::error({job(), step()}, "restore: " + text);
    services_.port.fail(to, id, local::Refusal::Internal, text);
}

void Group::on_restore(Worker &worker, std::uint32_t id) {
    ConnectionId to = worker.client.id;
    if (!in_force(worker))
        return services_.port.fail(to, id, local::Refusal::Stale, "this generation is over");
    fault_point("daemon_restore_asked");
    end_reading(worker);
    local::RestorePlanT plan;
    if (!world_->restore_step) return services_.port.answer(to, id, std::move(plan));
    worker.reading_stored = world_->stored_world_size > 0;
    if (worker.reading_stored) return services_.port.answer(to, id, plan_from_storage());
    if (world_->memory_world_size > 0) return on_restore_spread(worker, id);
    // Also where this rank's own is here already: its keepers' may not be.
    if (auto fetching = copies_ ? copies_->fetching() : std::nullopt)
        return services_.port.answer(to, id, plan_while(*fetching));
    CheckpointId from{world_->restore_generation, *world_->restore_step};
    auto object = arena_.begin_read(worker.rank, from);
    if (!object) return refuse_restore(to, id, why_missing(worker.rank, object.status()));
    worker.reading = object->place.slot;
    worker.reading_id = from;
    plan = plan_of(*object);
    plan.verified = worker.reading_verified = verify_.take(worker.rank, from, *object);
    for (const auto &with : object->seal.shared) {
        if (!with || with->kept_by == 0) continue;
        worker.keepers[Rank(with->rank)];
        plan.keepers.push_back(with->rank);
    }
    auto fds = describe(worker, object->place.segments, plan.segments);
    services_.port.answer(to, id, std::move(plan), std::move(fds));
    fault_point("daemon_restore_replied");
}

/// Saved by a world of another size: the worker gets the tables of all ranks' objects, and asks for those
/// that it needs.
void Group::on_restore_spread(Worker &worker, std::uint32_t id) {
    ConnectionId to = worker.client.id;
    if (!tables_) return refuse_restore(to, id, "this node has no part in copies");
    tables_->begin();
    if (!tables_->trouble().empty()) return refuse_restore(to, id, tables_->trouble());
    if (!tables_->whole())
        return services_.port.answer(to, id,
                                     plan_while({tables_->wanted(), tables_->here(), tables_->bytes(), 0}));
    auto memory = tables_->memory();
    if (!memory) return refuse_restore(to, id, memory.status().message());
    worker.reading_spread = true;
    worker.reading_id = {world_->restore_generation, *world_->restore_step};
    local::RestorePlanT plan;
    plan.train_step = static_cast<std::int64_t>(world_->restore_step->value());
    plan.spread = describe_tables(*tables_, arena_, worker.reading_id);
    plan.ledger = tables_->tables().front().object->ledger;
    auto segment = std::make_unique<local::SlotSegmentT>();
    segment->bytes = tables_->bytes();
    segment->fd = true;
    plan.segments.push_back(std::move(segment));
    services_.port.answer(to, id, std::move(plan), {std::move(*memory)});
}

void Group::on_restore_kept(Worker &worker, std::uint32_t id, Rank rank) {
    ConnectionId to = worker.client.id;
    auto keeper = worker.keepers.find(rank);
    bool spread = worker.reading_spread && in_force(worker) && rank.value() < world_->memory_world_size;
    if (spread && !arena_.holds(rank, worker.reading_id)) {
        copies_->want(rank);
        auto fetching = copies_->fetching();
        if (fetching) return services_.port.answer(to, id, plan_while(*fetching));
        return refuse_restore(to, id, "the object of rank " + std::to_string(rank.value()) + " is not here");
    }
    if (spread) keeper = worker.keepers.try_emplace(rank).first;
    if (!in_force(worker) || (!worker.reading && !spread) || keeper == worker.keepers.end())
        return services_.port.fail(
            to, id, local::Refusal::BadMessage,
            "rank " + std::to_string(rank.value()) + " keeps nothing of what this one is restoring");
    auto object = arena_.begin_read(rank, worker.reading_id);
    if (!object) return refuse_restore(to, id, why_missing(rank, object.status()));
    if (keeper->second) arena_.end_read(rank, *keeper->second);
    keeper->second = object->place.slot;
    local::RestorePlanT plan = plan_of(*object);
    // Of a spread step it compares the pieces that it reads.
    plan.verified = !spread && verify_.take(rank, worker.reading_id, *object);
    auto fds = describe_read_only(object->place.segments, plan.segments);
    if (!fds) return services_.port.fail(to, id, local::Refusal::Internal, fds.status().message());
    services_.port.answer(to, id, std::move(plan), std::move(*fds));
}

void Group::end_reading(Worker &worker) {
    if (worker.reading) arena_.end_read(worker.rank, *worker.reading);
    for (auto &[rank, slot] : worker.keepers)
        if (slot) arena_.end_read(rank, *slot);
    worker.reading.reset();
    worker.keepers.clear();
    bool tables_wanted = std::ranges::any_of(
        workers_, [&](const auto &entry) { return &entry.second != &worker && entry.second.reading_spread; });
    if (std::exchange(worker.reading_spread, false) && !tables_wanted && tables_) tables_->drop();
}

/// The next world takes a copy, storage or an older step in its place. Where there is none of these the
/// leader ends the group.
void Group::drop_damaged(Rank rank, const CheckpointId &id, std::optional<SlotIndex> slot) {
    verify_.forget(rank);
    if (!arena_.drop_damaged(rank, id, slot)) return;
    verify_.count_damaged();
    std::string what =
        is_rank(rank) ? "What rank " + std::to_string(rank.value()) + " has saved" : "A parity";
    add_event(proto::EventKind::Warning,
              what + " of step " + std::to_string(id.step.value()) + " is damaged in the memory of " +
                  services_.node + " and is not used again: see whether its memory has errors.",
              id.generation, is_rank(rank) ? static_cast<std::int32_t>(rank.value()) : -1,
              static_cast<std::int64_t>(id.step.value()));
    if (is_rank(rank)) feed(elastic::LocalDamaged{{id, rank}});
    if (is_rank(rank) && world_) save_world();
    if (storage_) storage_->on_dropped(rank, id);
    if (copies_) copies_->on_dropped(rank, id);
    feed(objects_here());
}

std::string Group::restore_text(const Worker &worker, bool stored) const {
    if (stored) return "State restored from storage.";
    if (world_ && world_->memory_world_size > 0)
        return "State restored from memory, saved by " + std::to_string(world_->memory_world_size) +
               " ranks.";
    for (const auto &source : world_ ? world_->sources : std::vector<elastic::ObjectSource>{})
        if (source.rank == worker.rank)
            return "State restored from memory, fetched from " + node_name(source.node) + ".";
    return worker.reading_verified
               ? "State restored from the node's memory, verified while the program started."
               : "State restored from the node's memory.";
}

/// Whether it restores from the object of that rank here.
bool Group::was_given(const Worker &worker, std::int64_t rank) {
    if (worker.reading && rank == worker.rank.value()) return true;
    return std::ranges::any_of(worker.keepers,
                               [&](const auto &entry) { return entry.first.value() == rank; });
}

void Group::on_restore_done(Worker &worker, const local::RestoreDoneT &done) {
    bool stored = std::exchange(worker.reading_stored, false);
    if (!worker.reading && !worker.reading_spread && !stored) return;
    fault_point("daemon_restored");
    std::int64_t damaged = done.damaged >= 0 && was_given(worker, done.damaged) ? done.damaged : -1;
    CheckpointId id = worker.reading_id;
    end_reading(worker);
    std::int64_t step =
        world_ && world_->restore_step ? static_cast<std::int64_t>(world_->restore_step->value()) : -1;
    std::string text =
        done.ok ? restore_text(worker, stored) : "State could not be restored: " + done.text.substr(0, 512);
    add_event(done.ok ? proto::EventKind::RestoreDone : proto::EventKind::Warning, std::move(text),
              worker.generation, static_cast<std::int32_t>(worker.rank.value()), step,
              static_cast<std::int64_t>(std::min<std::uint64_t>(done.restore_us, ~0ull >> 1)));
    if (damaged < 0) return;
    // Not at once: what follows from it may end this worker.
    services_.loop.post([this, alive = alive_, rank = Rank(static_cast<std::uint32_t>(damaged)), id] {
        if (*alive && member_ && !over()) drop_damaged(rank, id);
    });
}

void Group::end_worker(Worker &worker) {
    end_reading(worker);
    arena_.release_grants_of(worker.rank, worker.client.id);
}

void Group::poll_progress() {
    tell_progress();
    progress_timer_.reset();
    if (!workers_.empty())
        progress_timer_ = services_.loop.after(progress_interval, [this] { poll_progress(); });
}

void Group::tell_progress() {
    if (!world_ || !member_) return;
    auto now = std::chrono::nanoseconds(services_.loop.now());
    auto progress = pages_.read(world_->id, now);
    if (progress == progress_) return;
    progress_ = std::move(progress);
    feed(elastic::LocalProgress{progress_});
}

}  // namespace dlrover::daemon
