// SPDX-License-Identifier: Apache-2.0
#include "lib/daemon_store.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <thread>

#include "base/fault.h"
#include "ckpt/segment_grants.h"
#include "lib/stored_checkpoint.h"
#include "lib/stored_tensors.h"

namespace dlrover::lib {
namespace {

using ckpt::to_grants;
using proto::LocalMessage;
namespace local = proto::local;
using Clock = DaemonLink::Clock;

constexpr std::chrono::milliseconds first_pause{10}, longest_pause{250};  // between two questions
constexpr std::uint64_t slowest_fill_bytes_per_s = 200u << 20;  // of memory that was not made ready before

Status unexpected() {
    return Status(Code::corrupt, "the daemon gave an answer of a wrong kind");
}

local::SealT to_seal(SlotIndex slot, const ObjectLayout &layout, std::uint64_t copy_us) {
    local::SealT seal;
    seal.train_step = layout.train_step.value();
    seal.slot = static_cast<std::uint16_t>(slot.value());
    seal.data_bytes = layout.data_bytes;
    seal.table_offset = layout.table_offset;
    seal.table_bytes = layout.table_bytes;
    seal.table_xxh3 = layout.table_xxh3;
    seal.copy_us = copy_us;
    seal.ledger = layout.ledger;
    seal.to_storage = layout.to_storage;
    for (const SharedWith &with : layout.shared) {
        auto entry = std::make_unique<local::SharedWithT>();
        entry->rank = with.rank;
        entry->kept_by = with.kept_by;
        entry->kept_for = with.kept_for;
        seal.shared.push_back(std::move(entry));
    }
    return seal;
}

ObjectLayout to_layout(local::RestorePlanT &plan) {
    return {TrainStep(static_cast<std::uint64_t>(plan.train_step)),
            plan.data_bytes,
            plan.table_offset,
            plan.table_bytes,
            plan.table_xxh3,
            std::move(plan.ledger),
            false,
            {}};
}

Result<StoredRequest> to_request(const local::RestorePlanT &plan, const Environment &e) {
    const local::StoredCheckpointT &stored = *plan.stored;
    if (!stored.generation || plan.folder.empty() || stored.world_size == 0) return unexpected();
    StoredRequest request;
    request.folder = plan.folder;
    request.id.generation = {Term(stored.generation->term()), stored.generation->number()};
    request.id.step = TrainStep(stored.train_step);
    request.saved_by = stored.world_size;
    request.lineage = e.lineage;
    request.rank = e.rank;
    request.world_size = e.world_size;
    request.threads = e.copy_threads;
    return request;
}

CheckpointId spread_id(const local::RestorePlanT &plan) {
    const auto &checkpoint = *plan.spread->checkpoint;
    return {{Term(checkpoint.generation->term()), checkpoint.generation->number()},
            TrainStep(checkpoint.train_step)};
}

}  // namespace

void DaemonStore::on_welcome(const local::WorkerWelcomeT &welcome) {
    restore_step_ = welcome.restore_step;
    storage_ = welcome.storage;
    if (saving_) return;
    for (std::uint32_t slot = 0; slot < welcome.slots; ++slot) give_back(SlotIndex(slot));
}

void DaemonStore::give_back(SlotIndex slot) {
    local::AbortSaveT abort;
    abort.slot = static_cast<std::uint16_t>(slot.value());
    link_.tell(abort);
}

Status DaemonStore::prepare(std::uint64_t bytes) {
    local::PrepareT prepare;
    prepare.bytes = bytes;
    auto reply = link_.call(prepare, link_.deadline());
    if (!reply) return reply.take_status();
    map_in_good_time(*reply);
    return {};
}

std::vector<SaveTarget> DaemonStore::prepared() {
    std::vector<SaveTarget> targets;
    for (auto &[slot, range] : slots_)
        targets.push_back({range.base(), range.bytes(), TrainStep(0), slot, &range.attached()});
    return targets;
}

void DaemonStore::map_in_good_time(proto::LocalMessage &prepared) {
    auto *answer = prepared.message.body.AsPrepared();
    if (answer == nullptr) return;
    // A daemon that was restarted may not know the slot of an open save, which must stay mapped. What it has
    // sent is sent anew on the next connection.
    if (saving_) {
        if (!prepared.fds.empty()) link_.disconnect();
        return;
    }
    background_.stop();
    auto fd = prepared.fds.begin();
    for (const auto &granted : answer->slots) {
        auto count = std::ranges::count_if(granted->segments, [](const auto &s) { return s && s->fd; });
        if (count == 0 || count > prepared.fds.end() - fd) continue;
        std::vector<UniqueFd> fds(std::make_move_iterator(fd), std::make_move_iterator(fd + count));
        fd += count;
        SlotIndex slot(granted->slot);
        // A failure shows in begin(), which asks for the descriptors on a new connection.
        if (map_for_later(slot, to_grants(granted->segments, std::move(fds))).ok())
            being_populated_.insert(slot);
    }
    populate_in_background();
}

void DaemonStore::populate_in_background() {
    std::vector<std::span<std::byte>> ranges;
    for (SlotIndex slot : being_populated_)
        ranges.emplace_back(slots_.at(slot).base(), slots_.at(slot).bytes());
    if (!ranges.empty()) background_.start(std::move(ranges));
}

Status DaemonStore::make_writable(SegmentRange &range) {
    return range.access() == Access::read_write ? Status() : range.set_access(Access::read_write);
}

Status DaemonStore::map_for_later(SlotIndex slot, std::vector<SegmentGrant> segments) {
    auto found = slots_.find(slot);
    if (found != slots_.end()) {
        DLROVER_TRY(make_writable(found->second));
        return found->second.update(std::move(segments), ckpt::PageTables::later);
    }
    auto range = SegmentRange::map(std::move(segments), Access::read_write, ckpt::PageTables::later);
    if (!range) return range.take_status();
    slots_.emplace(slot, std::move(*range));
    return {};
}

bool DaemonStore::end_populating(SlotIndex slot) {
    if (being_populated_.erase(slot) == 0 || background_.done(slots_.at(slot).base())) return false;
    background_.stop();
    return true;
}

void DaemonStore::finish_populating(SlotIndex slot) {
    if (!end_populating(slot)) return;
    const SegmentRange &range = slots_.at(slot);
    populate_now({range.base(), range.bytes()}, environment_.copy_threads);
}

void DaemonStore::end_save() {
    saving_ = false;
    if (fresh_ && slots_.contains(*fresh_)) {
        being_populated_.insert(*fresh_);
        populate_in_background();
    }
    fresh_.reset();
}

Status DaemonStore::update(SegmentRange &range, std::vector<SegmentGrant> segments) {
    std::byte *base = range.base();
    std::uint64_t bytes = range.bytes();
    DLROVER_TRY(range.update(std::move(segments), ckpt::PageTables::later));
    std::uint64_t kept = range.base() == base ? bytes : 0;
    populate_now(std::span(range.base(), range.bytes()).subspan(kept), environment_.copy_threads);
    return {};
}

Result<SegmentRange> DaemonStore::map(std::vector<SegmentGrant> segments, Access access) {
    auto range = SegmentRange::map(std::move(segments), access, ckpt::PageTables::later);
    if (range.ok()) populate_now({range->base(), range->bytes()}, environment_.copy_threads);
    return range;
}

Result<bool> DaemonStore::map_slot(SlotIndex slot, std::vector<SegmentGrant> segments) {
    bool missing = end_populating(slot);
    auto found = slots_.find(slot);
    if (found != slots_.end()) {
        std::uint64_t before = found->second.bytes();
        std::byte *base = found->second.base();
        DLROVER_TRY(make_writable(found->second));
        DLROVER_TRY(found->second.update(std::move(segments), ckpt::PageTables::later));
        return missing || found->second.base() != base || found->second.bytes() != before;
    }
    for (const auto &s : segments)
        if (!s.fd) return Status(Code::unavailable, "the daemon did not send a segment's descriptor");
    auto range = SegmentRange::map(std::move(segments), Access::read_write, ckpt::PageTables::later);
    if (!range) return range.take_status();
    slots_.emplace(slot, std::move(*range));
    return true;
}

Result<DaemonStore::Begun> DaemonStore::take_slot(TrainStep step, const local::SlotGrantedT &granted,
                                                  std::vector<SegmentGrant> segments) {
    SlotIndex slot(granted.slot);
    if (opened_ && opened_->slot == slot) {
        give_back(slot);
        return Begun(SaveSkipped{"the free slot is still being read"});
    }
    auto missing = map_slot(slot, std::move(segments));
    if (!missing) {
        give_back(slot);
        return missing.take_status();
    }
    if (*missing) fresh_ = slot;
    granted_on_ = link_.connections();
    SegmentRange &range = slots_.at(slot);
    return Begun(SaveTarget{range.base(), range.bytes(), step, slot, &range.attached(), *missing});
}

Result<DaemonStore::Begun> DaemonStore::ask_slot(TrainStep step, std::uint64_t bytes, IfFull if_full,
                                                 Clock::time_point deadline) {
    local::BeginSaveT begin;
    begin.again = if_full == IfFull::ask_again;
    begin.train_step = step.value();
    begin.bytes = bytes;
    auto reply = link_.call(begin, deadline);
    if (!reply) return reply.take_status();
    if (auto *skipped = reply->message.body.AsSaveSkipped()) return Begun(SaveSkipped{skipped->reason});
    auto *granted = reply->message.body.AsSlotGranted();
    if (granted == nullptr) return unexpected();
    return take_slot(step, *granted, to_grants(granted->segments, std::move(reply->fds)));
}

Result<DaemonStore::Begun> DaemonStore::begin(TrainStep step, std::uint64_t bytes, IfFull if_full) {
    auto deadline = link_.deadline() + std::chrono::seconds(bytes / slowest_fill_bytes_per_s);
    auto begun = ask_slot(step, bytes, if_full, deadline);
    // A new connection gets every descriptor anew: once, when what we hold and what the daemon has sent
    // differ.
    if (begun.status().code() == Code::unavailable && link_.connected()) {
        link_.disconnect();
        begun = ask_slot(step, bytes, if_full, deadline);
    }
    saving_ = begun.ok() && std::holds_alternative<SaveTarget>(*begun);
    return begun;
}

Result<DaemonStore::Begun> DaemonStore::regain(const SaveTarget &target, std::uint64_t bytes,
                                               Clock::time_point deadline) {
    finish_populating(target.slot);
    auto old = slots_.extract(target.slot);  // its memory must stay, whatever the slot becomes
    auto begun = ask_slot(target.train_step, bytes, IfFull::skip, deadline);
    if (!begun.ok() || std::holds_alternative<SaveSkipped>(*begun)) {
        slots_.insert(std::move(old));
        return begun;
    }
    auto &fresh = std::get<SaveTarget>(*begun);
    if (fresh.capacity < bytes) return Status(Code::resource_exhausted, "the slot granted anew is too small");
    bool same = !old.empty() && slots_.at(fresh.slot).same_memory(old.mapped());
    if (!same) {
        if (fresh.fresh) populate_now({fresh.base, bytes}, environment_.copy_threads);
        std::memcpy(fresh.base, target.base, bytes);
    }
    if (fresh.slot != target.slot) slots_.insert(std::move(old));
    return begun;
}

Result<DaemonStore::Sealed> DaemonStore::try_seal(const SaveTarget &target, const ObjectLayout &layout,
                                                  std::uint64_t copy_us) {
    auto deadline = link_.deadline();
    SaveTarget current = target;
    for (;;) {
        DLROVER_TRY(link_.connect(deadline));
        std::uint64_t connection = link_.connections();
        fault_point("before_seal");
        auto reply = link_.call_once(to_seal(current.slot, layout, copy_us), deadline);
        if (reply.ok()) return Sealed();
        bool lost = !link_.connected();
        // On a later connection stale may only mean that this grant was not carried over.
        bool grant_gone = reply.status().code() == Code::stale && connection != granted_on_;
        if ((!lost && !grant_gone) || Clock::now() >= deadline) return reply.take_status();
        if (lost) continue;
        auto begun = regain(current, layout.table_offset + layout.table_bytes, deadline);
        if (!begun) return begun.take_status();
        if (auto *skipped = std::get_if<SaveSkipped>(&*begun)) return Sealed(std::move(*skipped));
        current = std::get<SaveTarget>(*begun);
    }
}

Result<DaemonStore::Sealed> DaemonStore::seal(const SaveTarget &target, const ObjectLayout &layout,
                                              std::uint64_t copy_us) {
    auto sealed = try_seal(target, layout, copy_us);
    end_save();
    return sealed;
}

Status DaemonStore::can_go_to_storage() {
    if (storage_) return {};
    return Status(
        Code::unsupported,
        "this step has no folder for checkpoints, so none can go to storage: set --dlrover-ckpt-dir "
        "(or DLROVER_CKPT_DIR where srun or sbatch is called), or save into memory only; with dlrover-run "
        "--standalone there is memory alone");
}

void DaemonStore::abort(const SaveTarget &target) {
    give_back(target.slot);
    end_save();
}

Result<SegmentRange> DaemonStore::map_to_read(SlotIndex slot, std::vector<SegmentGrant> segments,
                                              bool verified) {
    finish_populating(slot);
    auto held = slots_.extract(slot);
    // What nobody reads now needs its page tables as it is read, and for a view of some of it not all.
    if (held.empty() && verified)
        return SegmentRange::map(std::move(segments), Access::read_only, ckpt::PageTables::later);
    if (held.empty()) return map(std::move(segments), Access::read_only);
    SegmentRange range = std::move(held.mapped());
    DLROVER_TRY(update(range, std::move(segments)));
    DLROVER_TRY(range.set_access(Access::read_only));
    return range;
}

/// As long as the daemon says that it is coming from another node: the daemon gives up, not we.
Result<LocalMessage> DaemonStore::ask_plan() {
    for (auto pause = first_pause;; pause = std::min(2 * pause, longest_pause)) {
        auto reply = link_.call(local::RestoreT{}, link_.deadline());
        if (!reply) return reply;
        auto *plan = reply->message.body.AsRestorePlan();
        if (plan == nullptr) return unexpected();
        if (!plan->coming) return reply;
        std::this_thread::sleep_for(pause);
    }
}

Result<ObjectSource> DaemonStore::open_plan(LocalMessage reply) {
    auto *plan = reply.message.body.AsRestorePlan();
    if (plan->train_step < 0)
        return Status(Code::not_found, "there is no checkpoint: start from the beginning");
    if (plan->stored) return open_stored(*plan);
    if (plan->spread) return open_spread(std::move(reply));
    SlotIndex slot(plan->slot);
    auto range = map_to_read(slot, to_grants(plan->segments, std::move(reply.fds)), plan->verified);
    if (!range) return range.take_status();
    opened_.emplace(Opened{slot, std::move(*range), {}});
    ObjectSource source{
        opened_->range.base(), opened_->range.bytes(), to_layout(*plan), plan->verified, nullptr, nullptr};
    for (std::uint32_t rank : plan->keepers) {
        auto keeper = open_keeper(rank);
        if (keeper.ok()) {
            source.keepers.push_back(std::move(*keeper));
            continue;
        }
        close({keeper.status().message(), 0, {}});
        return keeper.take_status();
    }
    return source;
}

Result<KeeperObject> DaemonStore::open_keeper(std::uint32_t rank) {
    local::RestoreKeptT ask;
    ask.rank = rank;
    // Not over a new connection, on which nothing is being restored.
    auto reply = link_.call_once(ask, link_.deadline());
    if (!reply) return reply.take_status();
    return map_kept(std::move(*reply), rank, opened_->kept);
}

Result<KeeperObject> DaemonStore::map_kept(LocalMessage reply, std::uint32_t rank,
                                           std::deque<SegmentRange> &kept) {
    auto *plan = reply.message.body.AsRestorePlan();
    if (plan == nullptr || plan->train_step < 0) return unexpected();
    auto range = SegmentRange::map(to_grants(plan->segments, std::move(reply.fds)), Access::read_only,
                                   plan->verified ? ckpt::PageTables::later : ckpt::PageTables::now);
    if (!range) return range.take_status();
    kept.push_back(std::move(*range));
    return KeeperObject{rank, kept.back().base(), kept.back().bytes(), to_layout(*plan), plan->verified};
}

Result<ObjectSource> DaemonStore::open_stored(const local::RestorePlanT &plan) {
    auto request = to_request(plan, environment_);
    if (!request) return request.take_status();
    auto begun = Clock::now();
    auto opened = open_stored_checkpoint(*request, environment_.verify_parts);
    if (!opened) {
        auto took = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begun).count();
        close({opened.status().message(), static_cast<std::uint64_t>(took), {}});
        return opened.take_status();
    }
    stored_ = std::move(opened->object.memory);
    return ObjectSource{stored_.base(),
                        stored_.bytes(),
                        std::move(opened->object.layout),
                        true,
                        std::move(opened->tensors),
                        std::move(opened->objects),
                        {},
                        std::move(opened->object.places)};
}

Result<SpreadStep> DaemonStore::to_spread(LocalMessage &reply) const {
    auto *plan = reply.message.body.AsRestorePlan();
    const auto &checkpoint = plan->spread->checkpoint;
    bool whole = checkpoint && checkpoint->generation && !plan->spread->tables.empty() &&
                 checkpoint->world_size == plan->spread->tables.size() && plan->segments.size() == 1 &&
                 reply.fds.size() == 1;
    if (!whole) return unexpected();
    SpreadStep step;
    step.id = spread_id(*plan);
    step.lineage = environment_.lineage;
    auto memory = ckpt::Mapping::file(reply.fds.front().get(), plan->segments.front()->bytes);
    if (!memory) return memory.take_status();
    step.memory = std::move(*memory);
    for (const auto &table : plan->spread->tables) {
        if (!table) return unexpected();
        step.tables.push_back({table->offset, table->bytes, table->data_bytes, table->xxh3, table->here});
    }
    return step;
}

/// In memory, but saved by a world of another size: as from storage there, all ranks' pieces are in reach.
Result<ObjectSource> DaemonStore::open_spread(LocalMessage reply) {
    auto step = to_spread(reply);
    if (!step) return step.take_status();
    CheckpointId id = step->id;
    auto pieces = std::make_shared<MemoryPieces>(
        std::move(*step), [this, id](std::uint32_t rank, bool wait) { return fetch_object(rank, wait, id); });
    pieces_ = pieces;
    auto like = pieces->find_table(0);
    if (!like) {
        Status why = pieces->judge(like.take_status());
        close({why.message(), 0, {}});
        return why;
    }
    ckpt::ObjectIdentity who = (*like)->identity();
    who.rank = Rank(environment_.rank);
    who.world_size = environment_.world_size;
    auto own = empty_object(std::move(who), (*like)->skeleton(), reply.message.body.AsRestorePlan()->ledger);
    if (!own) return own.take_status();
    stored_ = std::move(own->memory);
    unsigned threads = environment_.copy_threads;
    return ObjectSource{stored_.base(),
                        stored_.bytes(),
                        std::move(own->layout),
                        true,
                        std::make_unique<StoredTensors>(pieces, threads, environment_.verify_parts),
                        all_objects(pieces, threads),
                        {},
                        std::move(own->places)};
}

/// None: it is on its way.
Result<std::optional<KeeperObject>> DaemonStore::ask_object(std::uint32_t rank, const CheckpointId &id) {
    local::RestoreKeptT ask;
    ask.rank = rank;
    std::lock_guard lock(mutex_);
    auto reply = link_.call_once(ask, link_.deadline());
    if (!reply.ok() && !link_.connected()) {
        DLROVER_TRY(renew_plan(id));
        reply = link_.call_once(ask, link_.deadline());
    }
    if (!reply) return reply.take_status();
    auto *plan = reply->message.body.AsRestorePlan();
    if (plan != nullptr && plan->coming) return std::optional<KeeperObject>();
    auto object = map_kept(std::move(*reply), rank, spread_);
    if (!object) return object.take_status();
    return std::optional(std::move(*object));
}

/// Another daemon does not know what is being restored here.
Status DaemonStore::renew_plan(const CheckpointId &id) {
    auto reply = ask_plan();
    if (!reply) return reply.take_status();
    auto *plan = reply->message.body.AsRestorePlan();
    if (plan->spread && plan->spread->checkpoint && plan->spread->checkpoint->generation &&
        spread_id(*plan) == id)
        return {};
    return Status(Code::stale, "the daemon goes on from another step now");
}

Result<std::optional<KeeperObject>> DaemonStore::fetch_object(std::uint32_t rank, bool wait,
                                                              const CheckpointId &id) {
    for (auto pause = first_pause;; pause = std::min(2 * pause, longest_pause)) {
        auto object = ask_object(rank, id);
        if (!object || *object || !wait) return object;
        std::this_thread::sleep_for(pause);
    }
}

Result<ObjectSource> DaemonStore::open() {
    auto plan = ask_plan();
    if (!plan) return plan.take_status();
    auto source = open_plan(std::move(*plan));
    if (source.status().code() != Code::unavailable) return source;
    link_.disconnect();  // as in begin()
    plan = ask_plan();
    if (!plan) return plan.take_status();
    return open_plan(std::move(*plan));
}

void DaemonStore::close(const RestoreEnd &end) {
    local::RestoreDoneT done;
    done.ok = end.text.empty();
    done.restore_us = end.took_us;
    done.text = end.text;
    auto damaged = end.damaged || !pieces_ ? end.damaged : pieces_->damaged();
    done.damaged = damaged ? std::int64_t{*damaged} : -1;
    link_.tell(done);
    stored_ = ckpt::Mapping();
    spread_.clear();
    pieces_.reset();
    if (!opened_) return;
    // The daemon does not send the descriptors of this slot again: the mapping serves the next save there.
    // Until then nobody writes: what was verified is believed by later restores, and by ranks that it keeps
    // bytes for.
    slots_.insert_or_assign(opened_->slot, std::move(opened_->range));
    opened_.reset();
}

}  // namespace dlrover::lib
