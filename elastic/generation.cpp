// SPDX-License-Identifier: Apache-2.0
// A new world in two phases. Prepared: every node of it has stopped what is older and has the promise on
// record. Committed: majorities of the sets before and after have it on record, so that no later leader can
// miss it.
#include <algorithm>

#include "base/count_of.h"
#include "elastic/member_state.h"
#include "elastic/scaling.h"

namespace dlrover::elastic {
namespace {

/// How long a node that is alive, but not needed for the commit, is waited for: it may hold seals.
constexpr Duration report_grace = std::chrono::milliseconds(300);

}  // namespace

/// At the start: all that are ready, once enough are there or the others have been waited for.
std::vector<NodeIndex> Member::State::first_nodes() const {
    std::vector<NodeIndex> ready;
    std::size_t present = 0;
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        bool is_out = removed(NodeIndex(i)) || checking.dismissed.contains(NodeIndex(i));
        if (is_out || lost(NodeIndex(i)) || !counts(NodeIndex(i))) continue;
        ++present;
        if (peers[i].joined && peers[i].report.ready && is_trusted(NodeIndex(i)))
            ready.push_back(NodeIndex(i));
    }
    bool waited = now - awaiting_since >= config.timings.join;
    std::size_t size = std::min<std::size_t>(ready.size(), wanted_nodes());
    size -= size % std::max(config.node_unit, 1u);
    if (size == 0 || size < config.min_nodes) return {};
    if (ready.size() < present && !waited && size < wanted_nodes()) return {};
    if (begins_again() && !waited && !all_heard()) return {};
    return keep_places(ready, size);
}

/// After the start: the world's nodes in their places, ready ones instead of those that are gone. A node that
/// is alive but not ready keeps its place until it has been waited for.
std::vector<NodeIndex> Member::State::choose_nodes() const {
    std::vector<NodeIndex> before = world ? world->nodes : promise.world_nodes;
    if (before.empty()) return first_nodes();
    bool waited = (preparing || awaiting) &&
                  now - (preparing ? preparing->since : awaiting_since) >= config.timings.join;
    auto ready = [&](NodeIndex n) {
        const Peer &p = peers[n.value()];
        return !removed(n) && answers(n) && p.joined && p.report.ready && is_trusted(n);
    };
    std::vector<NodeIndex> others, leaving, chosen;
    std::vector<bool> was_there(node_count());
    for (NodeIndex n : before) was_there[n.value()] = true;
    for (std::uint32_t i = 0; i < node_count(); ++i)
        if (!was_there[i] && counts(NodeIndex(i)) && ready(NodeIndex(i)))
            (is_leaving(NodeIndex(i)) ? leaving : others).push_back(NodeIndex(i));
    auto spare = others.begin();
    for (NodeIndex n : before) {
        if (!removed(n) && !lost(n) && (!waited || ready(n)))
            chosen.push_back(n);
        else if (spare != others.end())
            chosen.push_back(*spare++);
    }
    while (spare != others.end() && chosen.size() < wanted_nodes()) chosen.push_back(*spare++);
    // Slurm does not say whether it has taken them back: better than no world.
    for (std::size_t i = 0; slurm.down && i < leaving.size() && chosen.size() < config.min_nodes; ++i)
        chosen.push_back(leaving[i]);
    std::size_t size = std::min<std::size_t>(chosen.size(), wanted_nodes());
    size -= size % std::max(config.node_unit, 1u);
    if (size < config.min_nodes) return {};
    std::vector<NodeIndex> last_to_go{config.self};
    if (config.batch_host) last_to_go.push_back(*config.batch_host);
    return stay(chosen, size, last_to_go);
}

void Member::State::await_nodes(std::string reason) {
    if (awaiting) return;
    awaiting = std::move(reason);
    awaiting_since = now;
}

/// Of the world in force.
Losses Member::State::losses() const {
    Losses found;
    if (!world) return found;
    found.of = world->id;
    for (NodeIndex n : world->nodes)
        if ((removed(n) || lost(n)) && found.nodes.size() < Losses::most) found.nodes.push_back(n);
    if (!incident || incident->generation != world->id) return found;
    for (const WorkerExit &e : incident->exits)
        if (found.ranks.size() < Losses::most) found.ranks.push_back(e.rank);
    return found;
}

void Member::State::propose(std::string reason, bool counts) {
    std::vector<NodeIndex> nodes = choose_nodes();
    if (nodes.empty() || !may_act()) return await_nodes(std::move(reason));
    bool again = preparing.has_value();
    Preparation p;
    generation_seen = std::max(generation_seen, promise.generation);
    p.id = {promise.term, generation_seen.number + 1};
    if (again && bugged(PlantedBug::generation_reuse)) p.id = preparing->id;
    p.nodes = std::move(nodes);
    std::vector<bool> chosen(node_count());
    for (NodeIndex n : p.nodes) chosen[n.value()] = true;
    for (std::uint32_t i = 0; i < node_count(); ++i)
        if (!chosen[i] && !removed(NodeIndex(i)) && this->counts(NodeIndex(i)) && !is_leaving(NodeIndex(i)))
            p.spares.push_back(NodeIndex(i));
    p.from_storage = again ? preparing->from_storage : growing.stored;
    bool first = generation_seen.number == 0;
    p.restart_count = again ? preparing->restart_count : world ? world->restart_count + 1 : first ? 0 : 1;
    p.budget_used = budget.used();
    p.reason = std::move(reason);
    p.losses = losses();
    p.since = now;
    if (!counts && meter && world && !again) meter->fail(now);
    preparing = std::move(p);
    generation_seen = std::max(generation_seen, preparing->id);
    awaiting.reset();
    for (Peer &peer : peers) peer.accepted = false;
    Prepare message = prepare_word();
    send_all(others_left(), message);
    on_prepare(config.self, message);
}

void Member::State::on_prepare_reply(NodeIndex from, const PrepareReply &m) {
    if (role != Role::leader || removed(from)) return;
    if (m.term > promise.term) return step_down("another node has seen a higher term");
    if (m.term != promise.term || !preparing) return;
    generation_seen = std::max(generation_seen, m.generation);
    if (!m.accepted || m.generation != preparing->id) return;
    if (m.world && fits(*m.world) && m.world->id < preparing->id && (!world || world->id < m.world->id))
        return go_on_from(*m.world);
    peers[from.value()].accepted = true;
    if (from == preparing->nodes.front() && m.port != 0) preparing->port = m.port;
    on_report(from, m.report);
}

/// A leader that was cut off has put it in force, and others hear of it only now: what it says of suspect
/// steps and of failures would be forgotten. All is prepared again, as after an election.
void Member::State::go_on_from(const World &newer) {
    std::string reason = preparing->reason;
    world = newer;
    base_on_world();
    incident.reset();
    preparing.reset();
    for (std::uint32_t i = 0; i < node_count(); ++i)
        if (peers[i].joined) count_seals(NodeIndex(i), peers[i].report);
    propose(std::move(reason), true);
}

/// What that promise was given for may be in force, and so may what was before it.
void Member::State::take_prepared(const Promise &given) {
    prepared_before = {given.generation, given.open};
    if (!given.world_nodes.empty()) prepared_before.second.push_back({given.generation, given.world_nodes});
    for (OpenWorld &open : prepared_before.second)
        std::erase_if(open.nodes, [&](NodeIndex n) { return n.value() >= node_count(); });
}

/// Those before the one that is being prepared: who promises that forgets what it has promised before.
std::vector<OpenWorld> Member::State::open_worlds() const {
    std::vector<OpenWorld> found;
    if (world) found.push_back({world->id, world->nodes});
    for (const OpenWorld &open : prepared_before.second)
        if (!world || open.id > world->id) found.push_back(open);
    if (found.size() > max_open_worlds) found.erase(found.begin(), found.end() - max_open_worlds);
    return found;
}

bool Member::State::set_accepted(const std::vector<NodeIndex> &nodes) const {
    std::size_t present = 0, accepted = 0;
    for (NodeIndex n : nodes) {
        if (removed(n)) continue;
        ++present;
        accepted += peers[n.value()].accepted;
    }
    return present == 0 || accepted * 2 > present;
}

/// Where nobody of the world before has stopped it, the leases of one of its nodes have to run out: the
/// others do nothing without that. A node gets its lease within leader_silence of an answer, one of a leader
/// before while that one acts.
Time Member::State::lease_end() const {
    Time heard = Time::max();
    for (NodeIndex n : world->nodes) heard = std::min(heard, heard_at[n.value()]);
    Duration silence = config.timings.leader_silence;
    return std::max(began + silence, heard) + silence + config.timings.agent_lease;
}

bool Member::State::may_commit() const {
    std::size_t voters = 0, silent_ones = 0;
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        NodeIndex n(i);
        voters += peers[i].accepted && counts(n) && !contains(promise.settled, n);
        // Its vote may be all that was heard of a node that has kept objects of the run before.
        bool waited_for = answers(n) || (begins_again() && peers[i].joined);
        silent_ones += !peers[i].accepted && !removed(n) && waited_for;
    }
    if (!bugged(PlantedBug::no_majority_of_previous) &&
        (!is_majority(voters) || (world && !set_accepted(world->nodes)) ||
         !std::ranges::all_of(prepared_before.second, [&](const OpenWorld &open) {
             return (world && open.id <= world->id) || set_accepted(open.nodes);
         })))
        return false;
    for (NodeIndex n : preparing->nodes) {
        const Peer &p = peers[n.value()];
        if (bugged(PlantedBug::no_majority_of_new) && n != preparing->nodes.front()) continue;
        if (!p.accepted || !p.report.ready) return false;
    }
    if (preparing->port == 0) return false;
    bool stopped_before = !world || bugged(PlantedBug::lease_not_waited_for);
    for (NodeIndex n : world ? world->nodes : std::vector<NodeIndex>{})
        stopped_before = stopped_before || peers[n.value()].accepted;
    if (!stopped_before && now < lease_end()) return false;
    // What a job's run before has left is looked for once, and on all nodes.
    Duration grace = begins_again() ? config.timings.join : report_grace;
    if (config.look_pause > Duration(0)) grace = std::max(grace, config.timings.heartbeat * 2);
    return silent_ones == 0 || now - preparing->since >= grace;
}

void Member::State::try_commit() {
    bool stuck = false;
    for (NodeIndex n : preparing->nodes) stuck = stuck || removed(n) || lost(n);
    if (stuck) return propose(preparing->reason, true);
    if (may_commit()) {
        if (search_settled()) commit();
        return;
    }
    if (now - preparing->since < config.timings.join) return;
    auto others = choose_nodes();
    if (!others.empty() && others != preparing->nodes) propose(preparing->reason, true);
}

/// What the answers of the prepared generation hold, as far as `counts` says.
template <typename Counts>
SealTally Member::State::tally_reported(std::uint32_t holders, Counts counts) const {
    SealTally fresh = new_tally(holders);
    for (std::uint32_t i = 0; i < node_count(); ++i)
        if (peers[i].accepted && !removed(NodeIndex(i)))
            tally_report(fresh, NodeIndex(i), peers[i].report, counts);
    return fresh;
}

/// Copies make a step complete although nodes are gone; also one that is older than what the world before
/// went on from, which may have had no copies yet. What a world of another size has saved counts like any
/// other where objects can be moved; an older step, or one of another size, gives way to a newer one on
/// storage.
std::optional<SealTally::Complete> Member::State::newest_in_memory(
    const std::vector<NodeIndex> &nodes) const {
    if (begins_again()) return newest_kept(nodes);
    std::uint32_t holders = world ? holders_wanted(*world) : 1;
    // Without copies what is older than a complete step is free.
    bool freed = !complete || complete->step >= preparing->blamed;
    if (config.copies == 0 && preparing->search == Search::further_back && freed) return std::nullopt;
    auto passed_over = to_pass_over();
    auto trusted = [&](const CheckpointId &id) { return !covers(passed_over, id); };
    SealTally reported =
        tally_reported(holders, [&](const CheckpointId &id) { return in_force(id) && trusted(id); });
    auto newest = reported.newest(
        {bugged(PlantedBug::restore_mixes_generations), bugged(PlantedBug::restore_older_step)});
    // Nobody moves what is on another node.
    bool fits_all = newest && reported.world_size({newest->generation, newest->step}) == world_size(nodes);
    if (preparing->from_storage && !fits_all) return std::nullopt;
    if (config.copies == 0) return newest;
    bool older = !newest.has_value();
    if (older) {
        reported = tally_reported(holders, trusted);
        newest = reported.newest({});
    }
    // Of a step that was saved again one goes.
    if (newest) newest->generation = reported.best_of(newest->step, world_size(nodes))->generation;
    bool fits = newest && reported.world_size({newest->generation, newest->step}) == world_size(nodes);
    if (!fits && bugged(PlantedBug::other_size_passed_over)) return std::nullopt;
    if (!newest || !config.storage) return newest;
    // Further back, memory may hold an older step alone.
    bool back = preparing->search == Search::further_back;
    if (fits && !older && !back) return newest;
    if (!storage.found) return std::nullopt;
    const auto &stored = storage.found->newest;
    bool is_newer = stored && stored->step > newest->step && (!back || stored->step < preparing->blamed);
    return is_newer ? std::nullopt : newest;
}

/// As a planted bug.
void Member::State::tally_other_steps() {
    for (std::uint32_t i = 0; i < node_count(); ++i)
        for (Parity p : peers[i].accepted ? peers[i].report.parities : std::vector<Parity>{}) {
            p.id = {complete->generation, complete->step};
            tally.add(p, all_ranks, NodeIndex(i), true);
        }
}

/// The prepared world, with the newest step that is complete in the nodes' memory, or else on storage.
World Member::State::decide_world() {
    World w;
    w.id = preparing->id;
    w.nodes = preparing->nodes;
    w.spares = preparing->spares;
    w.restart_count = preparing->restart_count;
    w.master_port = preparing->port;
    w.reason = preparing->reason;
    w.budget_used = preparing->budget_used;
    if (config.copies > 0) choose_holders(w);
    Strikes strikes = count_strikes();
    auto left = left_for(strikes);
    complete = newest_in_memory(w.nodes);
    auto is_complete = [&](const CheckpointId &id) {
        return complete && *complete == SealTally::Complete{id.step, id.generation};
    };
    tally = tally_reported(holders_wanted(w), is_complete);
    if (complete && bugged(PlantedBug::rebuild_from_other_step)) tally_other_steps();
    protection = {};
    if (complete) {
        w.restore_step = complete->step;
        w.restore_generation = complete->generation;
    } else if (auto *stored = stored_choice(); stored && !bugged(PlantedBug::storage_passed_over)) {
        w.restore_step = stored->step;
        w.restore_generation = stored->generation;
        w.stored_world_size = storage.found->world_size;
    }
    name_sources(w);
    if (config.code.data > 0) {
        rows = RowBook(w, config.nodes);
        tally = tally_reported(holders_wanted(w), is_complete);
    }
    if (begins_again()) note_unused(w);
    note_suspects(w, strikes, std::move(left));
    return w;
}

void Member::State::commit() {
    World w = decide_world();
    Duration took = now - (incident ? incident->opened : preparing->since);
    bool slow = now - preparing->since >= config.timings.leader_silence;
    preparing.reset();
    prepared_before = {w.id, {}};
    for (Peer &p : peers) {
        p.odd_since.reset();
        p.report.exits.clear();
        p.report.finished.clear();
        p.report.progress.clear();
        p.report.skips.clear();
    }
    for (Peer &p : peers) p.told = slow ? GenerationId{} : w.id;
    told_from = sequence + 1;
    send_all(others_left(), Commit{promise.term, w});
    meter->begin_generation(now, w.restore_step);
    if (w.restart_count > 0) meter->on_restart();
    add_up(false);
    if (incident) {
        incident->committed = now;
        const auto &exits = incident->exits;
        if (!exits.empty())
            budget.correct(exits[first_cause(exits, config.timings.incident_window)].signature);
    }
    note_world(w, took);
    install(w, true);
    peers[config.self.value()].report = local;
    if (slow) send_heartbeats();  // the others wait for it: see on_commit()
}

void Member::State::note_world(const World &w, Duration took) {
    Note n;
    n.kind = Note::Kind::world_published;
    n.generation = w.id;
    n.step = w.restore_step;
    n.duration = took;
    n.text = count_of(world_size(w.nodes), "rank") + " on " + count_of(w.nodes.size(), "node") + ", ";
    n.text += w.restore_step ? "from step " + std::to_string(w.restore_step->value()) : "from the beginning";
    if (w.stored_world_size > 0) n.text += " on storage";
    if (w.memory_world_size > 0) n.text += " in memory, saved by " + count_of(w.memory_world_size, "rank");
    n.text += " (" + w.reason + ")";
    out.push_back(std::move(n));
}

}  // namespace dlrover::elastic
