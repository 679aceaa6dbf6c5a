// SPDX-License-Identifier: Apache-2.0
// A reign: heartbeats, reports, completion, the end.
#include <algorithm>
#include <csignal>
#include <utility>

#include "base/units.h"
#include "elastic/member_state.h"

namespace dlrover::elastic {
namespace {

constexpr std::uint32_t finish_repeats = 25;
constexpr std::uint32_t odd_silences = 2;  ///< a restarted daemon's agents get this many to come back

/// A seal's to_storage may change.
template <typename Held, typename Action>
void for_each_gone(const std::vector<Held> &before, const std::vector<Held> &now, Action action) {
    if (before == now) return;
    for (const Held &held : before)
        if (std::ranges::none_of(now, [&](const Held &other) { return other.is_same(held); })) action(held);
}

}  // namespace

void Member::State::begin_reign() {
    generation_seen = std::max(generation_seen, promise.generation);
    if (promise.generation >= prepared_before.first) take_prepared(promise);
    bool again = generation_seen.number > 0;
    role = Role::leader;
    leader = config.self;
    look_due = false;
    began = next_look = now;
    majority_lost.reset();
    held_since.reset();
    reached.assign(node_count(), {});
    for (Peer &p : peers) {
        p.joined = p.granted;
        p.alive_at = p.granted ? stood : Time::min() / 2;
    }
    sequence = removal_sequence = 0;
    heard_from = 1;
    take_over_roster();
    checking = {};
    growing = {};
    growing.pause = config.timings.join;
    releasing = {};
    sent = {};
    preparing.reset();
    incident.reset();
    awaiting.reset();
    awaiting_since = now;
    spares_since.reset();
    base_on_world();
    SlurmTalk fresh;
    fresh.next_request = slurm.next_request + 1;
    // What this node, as a candidate, or a leader before it may have asked.
    fresh.unsure = slurm.pending || slurm.unsure || again;
    fresh.inherited = again;
    fresh.retry_at = now;
    slurm = std::move(fresh);
    bool goes_on = world && world->id == generation_seen;
    if (goes_on) install(*world, true);
    // Most of a large group run it, and say so in their first answer.
    for (Peer &p : peers) p.told = goes_on ? world->id : GenerationId{};
    told_from = 1;
    meter.emplace(goodput.wall > Duration(0) ? goodput_at : now, goodput);
    counted = goodput.counted;
    baseline = goes_on && counted.generation == world->id ? counted : Goodput::Counted{};
    if (goes_on && counted.generation != world->id) meter->begin_generation(now, world->restore_step);
    Note n;
    n.kind = Note::Kind::leader_elected;
    n.node = config.self;
    n.text = again ? "this node leads the group now" : "this node leads the group";
    out.push_back(std::move(n));
    send_heartbeats();
    for (std::uint32_t i = 0; i < node_count(); ++i)
        if (peers[i].granted && !is_self(NodeIndex(i))) count_seals(NodeIndex(i), peers[i].report);
    if (again && !goes_on) awaiting = "a new leader found no world in force";
    on_report(config.self, local);
}

/// What a leader counts, afresh: by the world in force that it has heard of.
void Member::State::base_on_world() {
    tally = new_tally(world ? holders_wanted(*world) : 1);
    rows = world ? RowBook(*world, config.nodes) : RowBook();
    complete.reset();
    protection = {};
    protect_told.reset();
    lost_told.reset();
    void_told.reset();  // an earlier leader's word holds only beside the complete step that it knew
    budget = RestartBudget(config.max_restarts);
    if (world) resume_budget();
}

void Member::State::resume_budget() {
    std::optional<TrainStep> come_to;
    if (!world->suspects.empty() && !world->suspects.back().by_person)
        come_to = world->suspects.back().id.step;
    budget.resume(world->budget_used, come_to);
}

/// True while a majority has answered recently: only then may this node decide anything.
bool Member::State::acting() const {
    if (role != Role::leader) return false;
    if (bugged(PlantedBug::leader_ignores_silence)) return true;
    std::size_t answering = 0;
    for (std::uint32_t i = 0; i < node_count(); ++i)
        answering +=
            counts(NodeIndex(i)) && !contains(promise.settled, NodeIndex(i)) && answers(NodeIndex(i));
    return is_majority(answering, [&](NodeIndex n) { return answers(n); });
}

bool Member::State::answers(NodeIndex node) const {
    return is_self(node) || now - peers[node.value()].alive_at < config.timings.leader_silence;
}

void Member::State::on_tick_leader() {
    if (look_due) look_over();
    if (role != Role::leader || finish) return;
    if (now >= next_look && !look_around()) return;
    if (role == Role::leader && !finish && now >= next_heartbeat) send_heartbeats();
    if (role == Role::leader && !finish) consider();
}

/// In its own time: news make heartbeats earlier, and may come all the time. False: it leads no more.
bool Member::State::look_around() {
    next_look = now + config.timings.heartbeat;
    if (!acting() && now - began >= config.timings.leader_silence) {
        majority_lost = now;
        step_down("no majority of the nodes answers");
        return false;
    }
    consider_check();
    if (role != Role::leader) return false;
    change_roster();
    look_whether_whole();
    if (now >= next_heartbeat) send_heartbeats();
    add_up(false);
    ask_others();
    look_for_doubts();
    fence_lost();
    keep_word();
    consider_missing();
    consider_size(false);
    consider_release();
    if (role == Role::leader && !finish && consider_protection()) send_heartbeats();
    return true;
}

/// Whether what was said waits for look_over(): where each word of each of thousands of nodes had the leader
/// look at all of them, it would do nothing else.
bool Member::State::looks_later() {
    look_due = config.look_pause > Duration(0);
    return look_due;
}

void Member::State::look_over() {
    look_due = false;
    looked_at = now;
    if (role == Role::candidate) return count_votes();
    settle_removed();
    settle_roster();
    if (role == Role::leader && !finish) recount();
    if (role == Role::leader && !finish) consider();
}

void Member::State::send_heartbeats() {
    next_heartbeat = now + config.timings.heartbeat;
    sent.add(++sequence, now);
    bool is_acting = may_act();
    job_end_here(near_job_end());
    std::vector<bool> working(node_count());
    for (NodeIndex n : world ? world->nodes : std::vector<NodeIndex>{}) working[n.value()] = true;
    std::vector<NodeIndex> unprepared;
    for (NodeIndex n : others_left()) {
        send_heartbeat(n, is_acting, working[n.value()]);
        if (lacks_prepare(n, is_acting)) unprepared.push_back(n);
    }
    if (!unprepared.empty()) send_all(unprepared, prepare_word());
    if (is_acting) out.push_back(RenewLease{});
}

void Member::State::send_heartbeat(NodeIndex to, bool is_acting, bool takes_part) {
    Peer &p = peers[to.value()];
    Heartbeat h;
    h.term = promise.term;
    h.sequence = sequence;
    h.acked = p.acked;
    h.acting = is_acting;
    h.removed = promise.removed;
    h.settled = promise.settled.size() == promise.removed.size();
    h.goodput = goodput;
    // The answer to the first heartbeat after its Commit says whether that has come. Until then nothing is
    // said that is about this world.
    bool on_its_way = config.look_pause > Duration(0) && world && p.told == world->id && p.acked < told_from;
    bool lacks = world && !on_its_way &&
                 (p.report.knows != world->id || (takes_part && p.report.running != world->id));
    // While a newer one is prepared nobody is to begin it; who joins has to know it before it counts.
    bool joins = !counts(to) && !bugged(PlantedBug::counted_without_world);
    if (lacks && (world->id == promise.generation || joins)) h.world = world;
    if (complete && !on_its_way) {
        h.complete_step = complete->step;
        h.complete_generation = complete->generation;
    }
    if (void_told && !on_its_way && world && void_told->first == world->id) {
        h.void_generation = void_told->first;
        h.void_below = void_told->second;
    }
    if (!on_its_way) h.lost = lost_told;
    if (!bugged(PlantedBug::asked_not_told)) h.asked = local.asked;
    h.protect = protect_told;
    h.safe = local.safe;
    h.freed = freed_told;
    h.covered = protection.safe;
    if (world) h.of_world = world->id;
    if (p.acked < roster_sequence) h.roster = promise.roster;
    h.whole_ago = whole_ago();
    h.durable = local.durable;
    h.job_ends_in = near_job_end();
    if (!bugged(PlantedBug::scale_not_passed_on)) h.scaling = promise.scaling;
    send(to, std::move(h));
}

/// Whoever has to be told once more.
bool Member::State::lacks_prepare(NodeIndex node, bool is_acting) const {
    return preparing && !peers[node.value()].accepted && is_acting;
}

void Member::State::send_heartbeat_alone(NodeIndex to, bool is_acting) {
    send_heartbeat(to, is_acting, world && contains(world->nodes, to));
    if (lacks_prepare(to, is_acting)) send(to, prepare_word());
}

void Member::State::on_heartbeat_reply(NodeIndex from, const HeartbeatReply &m) {
    term_seen = std::max(term_seen, m.term);
    if (role != Role::leader) return;
    if (removed(from)) {
        if (from != config.batch_host || !may_act()) return;
        // It has voted for one that was out, and believes no lower term.
        if (m.term > promise.term) return step_down("the batch host, which is out, has seen a higher term");
        send_heartbeat_alone(from, true);  // it may not know
        return;
    }
    if (m.term > promise.term) return step_down("another node has seen a higher term");
    auto sent_at = sent.find(m.sequence);
    if (m.term != promise.term || !sent_at) return;
    Peer &p = peers[from.value()];
    p.alive_at = std::max(p.alive_at, *sent_at);
    p.joined = true;
    if (m.sequence >= p.acked) {
        p.acked = m.sequence;
        if (!looks_later()) {
            settle_removed();
            settle_roster();
        }
    }
    if (role == Role::leader) on_report(from, m.report);
}

/// A removal counts for majorities when every survivor has it on record.
void Member::State::settle_removed() {
    if (promise.settled.size() == promise.removed.size()) return;
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        NodeIndex node(i);
        if (!is_self(node) && is_survivor(node) && peers[i].acked < removal_sequence) return;
    }
    promise.settled = promise.removed;
    persist();
}

void Member::State::on_report(NodeIndex from, const NodeReport &report) {
    Peer &p = peers[from.value()];
    p.joined = true;
    if (p.is_late(report)) return looks_later() ? void() : consider();
    if (report.ready && !p.report.ready) {
        Note n;
        n.kind = Note::Kind::node_ready;
        n.node = from;
        n.text = "all tasks of this node are there";
        out.push_back(std::move(n));
    }
    forget_dropped(from, std::exchange(p.report, report), report);
    compare_setting(from);
    take_scaling(report.scaling);
    count_seals(from, report);
    // What ended after a step was complete counts from there; what was safe is not called so any longer.
    bool ends = report.signal != 0 || (!report.exits.empty() && !incident);
    if (look_due && (ends || protection.dropped)) recount();
    if (role != Role::leader || finish) return;
    if (durable_here(report.durable) && !finish) send_heartbeats();
    // What ends the step of a node that has joined is no word to the group: that node will be gone.
    if (report.signal != 0 && acting() && !has_joined(from))
        return finish_group(128 + report.signal,
                            "the job was told to end by signal " + std::to_string(report.signal),
                            NextRun::perhaps);
    on_exits(from, report);
    if (role != Role::leader || finish) return;
    consider_progress(report);
    if (!looks_later()) consider();
}

/// After a cut the larger side goes on for its time, and the smaller one waits for its own before it has the
/// job requeued: that is to be the longer one.
void Member::State::compare_setting(NodeIndex node) {
    Peer &p = peers[node.value()];
    Duration here = config.timings.without_slurm, there = p.report.without_slurm;
    bool differs = there != Duration(0) && there != here;
    if (std::exchange(p.setting_told, differs) || !differs) return;
    note(Note::Kind::warning,
         names({node}) + " has timing.without_slurm = " + format_duration(there) + ", " +
             names({config.self}) + " has " + format_duration(here) +
             ": after a cut both sides of the group may act at once. Give all nodes the same (dlrover.toml)");
}

/// Sealed in this world, or what it goes on from. A node that comes back may still hold what was given up
/// since: were it called complete, the others' newer objects would go.
bool Member::State::in_force(const CheckpointId &id) const {
    if (!world || id.generation >= world->id || bugged(PlantedBug::restore_mixes_generations)) return true;
    return world->restore_step == id.step && world->restore_generation == id.generation;
}

void Member::State::count_ranks() {
    all_ranks = 0;
    for (const NodeSpec &n : config.nodes) all_ranks += n.ranks;
}

/// What that node has told of before and tells of no more it does not hold any more.
void Member::State::forget_dropped(NodeIndex from, const NodeReport &before, const NodeReport &report) {
    if (bugged(PlantedBug::dropped_counts_on)) return;
    for_each_gone(before.seals, report.seals, [&](const Seal &seal) {
        tally.remove(seal, from);
        on_dropped({seal.generation, seal.step});
    });
    for_each_gone(before.parities, report.parities, [&](const Parity &parity) {
        tally.remove(parity, from);
        on_dropped(parity.id);
    });
}

void Member::State::on_dropped(const CheckpointId &id) {
    Protection &p = protection;
    bool newest = complete && *complete == SealTally::Complete{id.step, id.generation};
    p.dropped = p.dropped || newest || id == p.safe || id == p.kept || id == p.target;
    p.hurt = p.hurt || id == p.target;
    if (p.dropped) heard_from = sequence + 1;
}

void Member::State::count_seals(NodeIndex from, const NodeReport &report) {
    bool says_nothing = report.seals.empty() && report.parities.empty() && report.skips.empty() &&
                        !report.asked && !report.exposed;
    if (says_nothing && !protection.dropped) return;
    if (begins_again()) return;  // the first world decides what counts
    tally_seals(from, report);
    if (!looks_later()) recount();
}

void Member::State::tally_seals(NodeIndex from, const NodeReport &report) {
    // The complete step itself may be saved again: asked for on storage only now, or in a newer generation,
    // whose objects may follow those that it goes on from.
    auto oldest = oldest_wanted();
    tally_report(tally, from, report, [&](const CheckpointId &id) {
        return in_force(id) && (!oldest || SealTally::Complete{id.step, id.generation} >= *oldest);
    });
    asked_since = std::max(asked_since, report.asked);
}

/// What the objects that were told of make complete, safe or void.
void Member::State::recount() {
    if (begins_again()) return;
    bool news = recount_dropped();
    news = count_complete() || news;
    news = count_asked(std::exchange(asked_since, {})) || news;
    news = count_void() || news;
    news = count_lost() || news;
    news = consider_protection() || news;
    // Slots wait for this word: it does not wait for the next heartbeat.
    if (news && role == Role::leader && !finish) send_heartbeats();
}

/// Whether a newer complete step is asked for on storage.
bool Member::State::count_asked(const std::optional<CheckpointId> &asked) {
    auto before = local.asked;
    asked_here(std::max(asked, tally.newest_asked({.asked_early = bugged(PlantedBug::asked_too_early)})));
    return local.asked != before;
}

/// Whether a rank's skipped save made more objects void.
bool Member::State::count_void() {
    if (!world || role != Role::leader) return false;
    std::vector<Skip> skips;
    for (const Peer &p : peers)
        if (p.report.running == world->id)
            skips.insert(skips.end(), p.report.skips.begin(), p.report.skips.end());
    auto after = last_kept(complete, world->id);
    auto below = tally.void_below(world->id, after, skips, {.early = bugged(PlantedBug::void_too_early)});
    if (!below || (void_told && void_told->first == world->id && void_told->second >= *below)) return false;
    if (!knows_all_holders(world->id)) return false;
    void_told = {world->id, *below};
    tally.drop_void(world->id, *below);
    void_here(*below, world->id, after);
    return true;
}

/// Whether what no report tells of is nowhere, as long as this world goes on: a copy that had come before
/// the object was dropped is told with the next heartbeat. Of a generation of this reign a node that has not
/// answered in it has nothing: a spare that never comes holds nobody up.
bool Member::State::knows_all_holders(const GenerationId &generation) const {
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        NodeIndex node(i);
        bool may_hold = peers[i].joined || generation.term != promise.term;
        if (removed(node) || is_self(node) || !counts(node) || !may_hold) continue;
        if (peers[i].acked < heard_from) return false;
    }
    return std::ranges::none_of(world->nodes, [&](NodeIndex n) { return removed(n); });
}

/// What the world goes on from, where a part of it was damaged and is nowhere any more: it only takes slots.
bool Member::State::count_lost() {
    bool in_memory = world && world->restore_step && world->stored_world_size == 0;
    if (config.copies == 0 || !in_memory || complete || preparing || lost_told) return false;
    CheckpointId from{world->restore_generation, *world->restore_step};
    bool damaged = std::ranges::any_of(
        peers, [&](const Peer &p) { return p.joined && p.report.damaged && p.report.damaged->id == from; });
    if (!damaged || !knows_all_holders(from.generation)) return false;
    lost_here(from);
    return true;
}

/// Whether a newer step is complete, or the same one again.
bool Member::State::count_complete() {
    auto newest = tally.newest({});
    if (!newest || newest <= complete) return false;
    bool again = complete && newest->step == complete->step;
    complete = newest;
    if (again) {
        complete_here(newest->step, newest->generation);
        return true;
    }
    if (config.copies == 0) tally.drop_older_than(newest->step);
    if (world && newest->generation == world->id) growing.pause = config.timings.join;
    if (config.copies == 0 || protection.given_up != Protection::GivenUp::no)
        growing.moment = world && newest->generation == world->id;
    // Found only now, but not of this world: an earlier reign has counted it.
    if (world && newest->generation == world->id) budget.on_complete(newest->step);
    if (meter) meter->on_checkpoint();
    add_up(false);
    complete_here(newest->step, newest->generation);
    Note n;
    n.kind = Note::Kind::checkpoint_complete;
    n.generation = newest->generation;
    n.step = newest->step;
    n.text = "every rank has sealed step " + std::to_string(newest->step.value());
    out.push_back(std::move(n));
    return true;
}

void Member::State::consider_progress(const NodeReport &report) {
    if (!world || report.running != world->id || preparing) return;
    warn_of_idle_savers(report);
    Goodput::Counted before = baseline.generation == world->id ? baseline : Goodput::Counted{};
    skipped.begin(world->id, before.step);
    for (const Skip &s : report.skips) skipped.add(s.step);
    for (const RankProgress &p : report.progress) {
        skipped.at_least(p.saves_skipped);
        if (p.rank != Rank(0) || p.steps_done == 0 || !meter) continue;
        RankProgress mine = p;
        std::uint64_t all_skipped = skipped.total(before.skipped);
        mine.steps_done -= std::min(before.steps, p.steps_done);
        mine.save_sum -= std::min(before.save, p.save_sum);
        mine.saves_skipped = all_skipped - before.skipped;
        meter->on_progress(now, mine);
        if (mine.steps_done > 0) counted = {world->id, p.steps_done, p.save_sum, all_skipped, p.step};
        if (incident && incident->committed) close_incident(p.since_first_step);
    }
}

/// Where the time went, for the followers' sake too.
void Member::State::add_up(bool ended) {
    if (!meter) return;
    goodput = meter->snapshot(now, ended);
    goodput.counted = counted;
    goodput_at = now;
}

void Member::State::consider() {
    if (look_due) return look_over();  // nothing is decided without what was said
    if (!acting()) return;
    if (!has_word()) look_whether_whole();
    if (!has_word()) {
        // A new leader asks first; meanwhile the leases run.
        if (now - began >= config.timings.agent_lease) await_word();
        return;
    }
    if (incident && incident->giving_up) {
        if (now - incident->opened >= config.timings.incident_window) give_up();
        return;
    }
    if (preparing) return try_commit();
    if (awaiting && world && all_finished()) return finish_group(0, "");
    if (awaiting) return propose(*awaiting, false);
    if (!world) return consider_start();
    consider_running();
}

/// The ranks end with their leases.
void Member::State::await_word() {
    if (!world || awaiting) return;
    note(Note::Kind::warning,
         "waiting for Slurm: not all nodes are heard, and without its word the group goes on for " +
             std::to_string(config.timings.without_slurm.count() / 1000000) + " s only");
    preparing.reset();
    await_nodes("Slurm's word was awaited");
}

void Member::State::consider_start() {
    if (generation_seen.number > 0) return propose("a new leader found no world in force", false);
    std::size_t nodes = first_nodes().size();
    if (nodes > 0 && !waits_for_spares(nodes)) propose("start", false);
}

/// Where copies or parities need them: they come with the others, or do not come at all.
bool Member::State::waits_for_spares(std::size_t nodes) {
    std::size_t wanted = config.code.data > 0 ? config.code.data + config.code.parity : config.copies + 1;
    std::size_t here = 0, present = 0;
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        bool is_one = !removed(NodeIndex(i)) && counts(NodeIndex(i));
        present += is_one;
        here += is_one && peers[i].joined;
    }
    if (config.copies == 0 || nodes >= wanted || here >= std::min(wanted, present)) return false;
    if (!spares_since) spares_since = now;
    return now - *spares_since < config.timings.leader_silence;
}

void Member::State::consider_running() {
    if (all_finished()) return finish_group(0, "");
    if (std::exchange(growing.moment, false)) consider_size(true);
    growing.stored = false;
    if (preparing) return;
    for (NodeIndex n : world->nodes)
        if (removed(n)) return propose(names({n}) + " lost", false);
    if (go_on_without_slurm()) return;
    if (const Rollback *word = rollback_wanted())
        return propose("rolled back to step " + std::to_string(word->to.value()), false);
    for (NodeIndex n : world->nodes) {
        Peer &p = peers[n.value()];
        bool odd = p.joined && (is_self(n) || p.acked > 0) && answers(n) &&
                   (p.report.running != world->id || !p.report.ready);
        if (!odd) {
            p.odd_since.reset();
            continue;
        }
        if (!p.odd_since) p.odd_since = now;
        if (now - *p.odd_since < config.timings.leader_silence * odd_silences) continue;
        p.odd_since.reset();
        std::string what = "the workers of " + names({n}) + " are gone";
        open_incident(what);
        if (budget.on_failure(0, true) == RestartBudget::Verdict::restart) return propose(what, true);
        return finish_group(1, what + ", and no restart is left (--dlrover-max-restarts)");
    }
}

bool Member::State::all_finished() const {
    std::size_t finished = 0;
    for (NodeIndex n : world->nodes) {
        const NodeReport &r = peers[n.value()].report;
        if (r.running == world->id) finished += r.finished.size();
    }
    return finished >= world_size(world->nodes);
}

void Member::State::finish_group(int code, std::string message, NextRun next_run,
                                 std::vector<NodeIndex> excluded) {
    add_up(true);
    note(code == 0 ? Note::Kind::group_finished : Note::Kind::gave_up,
         code == 0 ? "all ranks finished" : message);
    drop_coming();
    Finish f{promise.term, code, std::move(message), goodput, next_run, std::move(excluded)};
    send_all(all_others(), f);
    end(std::move(f));
    finish_rounds = finish_repeats;
    next_heartbeat = now + config.timings.heartbeat;
}

/// Again for a while: a message can be lost.
void Member::State::send_finish() {
    if (role != Role::leader || finish_rounds == 0 || now < next_heartbeat) return;
    --finish_rounds;
    next_heartbeat = now + config.timings.heartbeat;
    send_all(all_others(), *finish);
}

}  // namespace dlrover::elastic
