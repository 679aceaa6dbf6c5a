// SPDX-License-Identifier: Apache-2.0
// Copies on other nodes, and what a node fetches from there: one at a time, each takes a while, and any of
// the two nodes may be gone before it is there.
#include <algorithm>

#include "elastic/placement.h"
#include "sim/simulator.h"

namespace dlrover::sim {

using namespace elastic;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {
constexpr std::ptrdiff_t foreign_slots = 2;     ///< for each rank: what is safe, and what follows it
constexpr Duration silence_limit = seconds(3);  ///< then the partner counts as one that does not answer
constexpr std::uint64_t fetch_attempts = 30;    ///< of an object from a node that does not answer

CheckpointId id_of(const Seal &s) {
    return {s.generation, s.step};
}
}  // namespace

/// Of a stream of its own: runs without copies stay what they are.
void Simulator::plan_copies() {
    config_.copies = options_.copies.value_or(static_cast<std::uint32_t>(options_.seed % 3));
    if (config_.copies == 0) return;
    config_.timings.copy_limit = seconds(8);
    copy_fault_ = static_cast<CopyFault>(copies_random_.below(static_cast<std::uint32_t>(CopyFault::count)));
    if (copies_random_.chance(50)) return;
    copies_end_ = milliseconds(copies_random_.between(1500, 5000));
    auto node = copies_random_.below(nodes_.size());
    push(copies_end_, Kind::copy_fault, node, static_cast<std::uint32_t>(CopyFault::receiver_node));
    copies_end_ += milliseconds(2000);
}

Duration Simulator::copy_time() {
    if (copies_random_.chance(2)) return milliseconds(copies_random_.between(1000, 4000));
    return milliseconds(copies_random_.between(1, 200));
}

std::optional<std::uint32_t> Simulator::first_rank(const World &world, std::uint32_t node) const {
    std::uint32_t first = 0;
    for (NodeIndex w : world.nodes) {
        if (w == NodeIndex(node)) return first;
        first += config_.nodes[w.value()].ranks;
    }
    return std::nullopt;
}

/// Whose objects of this step the node copies to its partners: its ranks', or those that it answers for.
std::vector<Rank> Simulator::copied_ranks(const World &world, std::uint32_t node,
                                          const CheckpointId &id) const {
    std::vector<Rank> ranks;
    bool spread = world.memory_world_size > 0 && world.restore_step == id.step &&
                  world.restore_generation == id.generation;
    if (spread) return answered_ranks(world, NodeIndex(node));
    auto first = first_rank(world, node);
    for (std::uint32_t r = 0; first && r < config_.nodes[node].ranks; ++r) ranks.emplace_back(*first + r);
    return ranks;
}

/// Whose objects its ranks go on from; in a world of another size those that overlap where each rank has an
/// equal part.
std::vector<Rank> Simulator::restored_ranks(const World &world, std::uint32_t node) const {
    std::vector<Rank> ranks;
    auto first = first_rank(world, node);
    if (!first) return ranks;
    std::uint32_t size = size_of(world), saved = world.memory_world_size > 0 ? world.memory_world_size : size;
    std::uint32_t end = *first + config_.nodes[node].ranks;
    for (std::uint32_t r = *first * saved / size; r < (end * saved + size - 1) / size; ++r)
        ranks.emplace_back(r);
    return ranks;
}

std::vector<NodeIndex> Simulator::partners_of(const World &world, std::uint32_t node) {
    auto place = std::find(world.nodes.begin(), world.nodes.end(), NodeIndex(node)) - world.nodes.begin();
    auto each = static_cast<std::ptrdiff_t>(world.partners.size() / world.nodes.size());
    if (place == static_cast<std::ptrdiff_t>(world.nodes.size())) return {};
    return {world.partners.begin() + place * each, world.partners.begin() + (place + 1) * each};
}

const Seal *Simulator::find_object(const Node &n, const CheckpointId &id, Rank rank) {
    auto it = std::find_if(n.objects.begin(), n.objects.end(),
                           [&](const Seal &s) { return id_of(s) == id && s.rank == rank; });
    return it == n.objects.end() ? nullptr : &*it;
}

// ---- copies ----

void Simulator::protect(std::uint32_t node, const CheckpointId &id) {
    Copies &c = nodes_[node].copies;
    if (c.step == id) return;
    c.step = id;
    c.since = now_;
    c.done.clear();
    ++c.round;
    c.under_way = false;
    std::erase_if(nodes_[node].parities, [&](const HeldParity &p) { return !p.whole && p.parity.id != id; });
    copy_next(node);
}

/// In any order: one partner that does not answer must not stop what goes to the others.
void Simulator::copy_next(std::uint32_t node) {
    Node &n = nodes_[node];
    Copies &c = n.copies;
    if (!n.member || n.dead || n.ended || !c.step || c.under_way || !worlds_.contains(n.published)) return;
    const World &world = worlds_.at(n.published);
    std::vector<std::pair<const Seal *, std::uint32_t>> missing;
    for (Rank rank : copied_ranks(world, node, *c.step))
        for (NodeIndex partner : partners_of(world, node)) {
            const Seal *object = find_object(n, *c.step, rank);
            if (object && !c.done.contains({rank, partner.value()}))
                missing.emplace_back(object, partner.value());
        }
    if (missing.empty()) return plan_recheck(node);
    auto [object, other] = missing[copies_random_.below(missing.size())];
    c.under_way = true;
    Payload p;
    p.object = *object;
    p.other = other;
    p.other_incarnation = nodes_[other].incarnation;
    p.number = c.round;
    Duration takes = copy_time();
    plan_copy_fault(node, other, takes);
    if (options_.bug == PlantedBug::copy_counted_early && accepts(nodes_[other], p.object))
        feed(other, LocalSealed{p.object});
    push(now_ + takes, Kind::copied, node, keep(std::move(p)));
}

/// Both daemons are those that began, and hear each other.
bool Simulator::answers(std::uint32_t node, const Payload &p) const {
    const Node &other = nodes_[p.other];
    return linked(node, p.other) && linked(p.other, node) && other.member && !other.ended &&
           other.frozen_until <= now_ && other.incarnation == p.other_incarnation;
}

/// Of a step that is in force, and there is room. After a node has answered to a new generation, what it
/// holds stays what it told.
bool Simulator::accepts(const Node &n, const Seal &object) const {
    bool in_force = object.generation > n.stopping;
    if (!in_force && n.published > n.stopping && worlds_.contains(n.published)) {
        const World &world = worlds_.at(n.published);
        in_force = world.restore_step == object.step && world.restore_generation == object.generation;
    }
    if (!in_force) return false;
    if (find_object(n, id_of(object), object.rank)) return true;
    auto kept = std::count_if(n.objects.begin(), n.objects.end(), [&](const Seal &s) {
        return s.rank == object.rank && n.foreign.contains({id_of(s), s.rank});
    });
    return kept < foreign_slots;
}

void Simulator::on_copied(std::uint32_t node, const Payload &p) {
    Copies &c = nodes_[node].copies;
    if (p.number != c.round) return;
    c.under_way = false;
    bool heard = answers(node, p);
    if (heard)
        c.silent_since.erase(p.other);
    else
        c.silent_since.try_emplace(p.other, now_);
    Taken taken = !heard ? Taken::no : codes() ? take_part(node, p) : take_copy(p);
    if (options_.trace && taken == Taken::no)
        trace("node " + std::to_string(p.other) + (heard ? " refuses" : " does not hear of") + " step " +
              std::to_string(p.object.step.value()) + " of rank " + std::to_string(p.object.rank.value()));
    if (taken == Taken::held) c.done.insert({p.object.rank, p.other});
    tell_exposed(node);
    if (taken == Taken::held) return copy_next(node);
    c.under_way = true;  // waits
    Payload again;
    again.number = c.round;
    push(now_ + milliseconds(taken == Taken::later ? 1500 : 200), Kind::copy, node, keep(std::move(again)));
}

Simulator::Taken Simulator::take_copy(const Payload &p) {
    Node &n = nodes_[p.other];
    // Only of the step that this node was told of as well.
    if (n.copies.step != id_of(p.object) || !accepts(n, p.object)) return Taken::no;
    if (!find_object(n, id_of(p.object), p.object.rank)) {
        n.foreign.insert({id_of(p.object), p.object.rank});
        take_object(p.other, p.object);
    }
    return Taken::held;
}

void Simulator::take_object(std::uint32_t node, const Seal &object) {
    if (options_.trace)
        trace("node " + std::to_string(node) + " has step " + std::to_string(object.step.value()) + " of " +
              to_string(object.generation) + " of rank " + std::to_string(object.rank.value()));
    nodes_[node].objects.push_back(object);
    feed(node, LocalSealed{object});
}

void Simulator::tell_exposed(std::uint32_t node) {
    Copies &c = nodes_[node].copies;
    bool exposed = std::any_of(c.silent_since.begin(), c.silent_since.end(),
                               [&](const auto &entry) { return now_ - entry.second >= silence_limit; });
    if (exposed || c.exposed) c.exposed_at = now_;
    if (exposed == c.exposed || !nodes_[node].member) return;
    c.exposed = exposed;
    feed(node, LocalProtection{!exposed});
}

/// The daemon is gone: what was under way is lost, what is there stays.
void Simulator::end_copies(std::uint32_t node) {
    Copies &c = nodes_[node].copies;
    Copies fresh;
    fresh.fetching = std::move(c.fetching);
    fresh.rebuilding = std::move(c.rebuilding);
    fresh.round = c.round + 1;
    c = std::move(fresh);
    drop_open_rows(nodes_[node]);
}

// ---- what a rank goes on from ----

/// A new world: other partners, and what this node's ranks go on from is fetched where it is elsewhere.
void Simulator::begin_copies(std::uint32_t node, const World &world) {
    Node &n = nodes_[node];
    end_copies(node);
    n.copies.fetching.clear();
    auto ranks = restored_ranks(world, node), answers = answered_ranks(world, NodeIndex(node));
    ranks.insert(ranks.end(), answers.begin(), answers.end());
    for (const ObjectSource &s : world.sources) {
        bool mine = std::find(ranks.begin(), ranks.end(), s.rank) != ranks.end();
        if (mine && !find_object(n, {world.restore_generation, *world.restore_step}, s.rank))
            n.copies.fetching.push_back(s);
    }
    begin_rebuilds(node, world);
    fetch_all(node);
}

void Simulator::fetch_all(std::uint32_t node) {
    for (const ObjectSource &s : nodes_[node].copies.fetching)
        if (s.node != NodeIndex(node)) fetch(node, s, 0);
    for (Rank rank : nodes_[node].copies.rebuilding) rebuild(node, rank, 0);
}

void Simulator::fetch(std::uint32_t node, const ObjectSource &source, std::uint64_t attempt) {
    Node &n = nodes_[node];
    Payload p;
    p.generation = n.published;
    p.object.rank = source.rank;
    p.other = source.node.value();
    p.other_incarnation = nodes_[p.other].incarnation;
    p.number = attempt;
    Duration takes = copy_time();
    plan_fetch_fault(node, takes);
    push(now_ + takes, Kind::fetched, node, keep(std::move(p)));
}

void Simulator::on_fetched(std::uint32_t node, const Payload &p) {
    Node &n = nodes_[node];
    ObjectSource source{p.object.rank, NodeIndex(p.other)};
    auto it = std::find(n.copies.fetching.begin(), n.copies.fetching.end(), source);
    if (n.published != p.generation || n.stopping >= p.generation || it == n.copies.fetching.end()) return;
    const World &world = worlds_.at(p.generation);
    const Seal *object =
        find_object(nodes_[p.other], {world.restore_generation, *world.restore_step}, source.rank);
    if (answers(node, p) && object != nullptr) {
        n.copies.fetching.erase(it);
        // What it needs of another size's world may have come as a copy, too.
        if (find_object(n, id_of(*object), object->rank) == nullptr) take_object(node, *object);
        if (n.running == p.generation && n.copies.fetching.empty()) check_restored(node, world);
        return copy_next(node);
    }
    bool waits = is_rebuilt(world, source.rank, p.other);
    bool dropped = was_dropped(p.other, {world.restore_generation, *world.restore_step}, source.rank);
    check(!answers(node, p) || p.generation != newest_world_->id || waits ||
              names_rebuild(world, source.rank) || dropped,
          "a node is sent for an object to one that does not hold it");
    if (waits && answers(node, p)) return fetch(node, source, 0);
    bool lost = nodes_[p.other].dead || dropped || p.number > fetch_attempts;
    if (lost && n.running == p.generation) return fail_worker(node, 1 << 8, 78);
    fetch(node, source, p.number + 1);
}

// ---- faults that meet a copy ----

void Simulator::plan_copy_fault(std::uint32_t node, std::uint32_t other, Duration takes) {
    if (now_ >= faults_end_ || copy_fault_ == CopyFault::none || copy_fault_ == CopyFault::in_fetch) return;
    if (!copies_random_.chance(10)) return;
    bool sender = copy_fault_ == CopyFault::sender_node || copy_fault_ == CopyFault::sender_daemon;
    push(now_ + takes / 2, Kind::copy_fault, sender ? node : other, static_cast<std::uint32_t>(copy_fault_));
    copy_fault_ = CopyFault::none;
}

/// A second node is lost while the first one's place is taken.
void Simulator::plan_fetch_fault(std::uint32_t node, Duration takes) {
    if (now_ >= faults_end_ || copy_fault_ != CopyFault::in_fetch || !copies_random_.chance(50)) return;
    auto count = static_cast<std::uint32_t>(nodes_.size());
    std::uint32_t hit = (node + 1 + copies_random_.below(count)) % count;
    push(now_ + takes / 2, Kind::copy_fault, hit, static_cast<std::uint32_t>(CopyFault::in_fetch));
    copy_fault_ = CopyFault::none;
}

void Simulator::inject_copy_fault(CopyFault fault, std::uint32_t node) {
    if (smaller_side_ > 0) return;  // nothing else goes wrong
    bool daemon = fault == CopyFault::sender_daemon || fault == CopyFault::receiver_daemon;
    trace(daemon ? "fault: a daemon falls in a copy" : "fault: a node is lost in a copy");
    if (nodes_[node].dead) return;
    if (daemon)
        daemon_falls(node);
    else
        lose_node(node);
}

}  // namespace dlrover::sim
