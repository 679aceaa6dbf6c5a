// SPDX-License-Identifier: Apache-2.0
// Nodes that are gone, and Slurm's word about them. The leader in office may ask at once; half of the nodes
// without a leader wait, read the job, and ask then; fewer than half never remove the others. The batch host
// cannot be removed by Slurm and cannot lead: to go on without it is safe. Where Slurm can not take nodes out
// of the job at all, a leader in office leaves a mark with it that the group goes on without them. Where
// Slurm does not do what it was asked for, majorities go on without those that are lost: fewer than half
// never take anybody out.
#include <algorithm>

#include "elastic/member_state.h"

namespace dlrover::elastic {
namespace {

constexpr Duration slurm_retry = std::chrono::milliseconds(500);
constexpr Duration longest_mark_pause = std::chrono::seconds(10);
constexpr std::uint32_t refusals_to_requeue = 2;
constexpr const char *gone_on = "the group has gone on without this node";
constexpr const char *host_gone = "the batch host is gone", *given_back = "given back to Slurm";
constexpr const char *too_few_left = "too few nodes are left", *host_lost = "the batch host is lost";
constexpr int requeue_waits = 4;  ///< fence waits before a minority, or too few nodes, ask for a requeue

}  // namespace

std::string Member::State::names(const std::vector<NodeIndex> &nodes) const {
    std::string text;
    for (NodeIndex n : nodes) {
        const std::string &name = config.nodes[n.value()].name;
        text += (text.empty() ? "" : ", ") + (name.empty() ? "node " + std::to_string(n.value()) : name);
    }
    return text;
}

/// Since a leader's reign began, or for whom it followed before: that one's silence is why it leads. What a
/// node says without an answer to a heartbeat counts no more after that: one that is heard, and hears nobody,
/// would be kept for ever.
Duration Member::State::silence(NodeIndex node) const {
    Time since = began;
    if (followed == node) since = std::clamp(heard_at[node.value()], began - config.timings.election, began);
    return now - std::max({peers[node.value()].alive_at, since, linked_at[node.value()]});
}

/// Its link broke while it was still to be heard: a daemon that fell and comes back, on a node that lives.
bool Member::State::fell(NodeIndex node) const {
    const auto &broken = broken_at[node.value()];
    return broken && *broken - heard_at[node.value()] < config.timings.leader_silence / 2;
}

bool Member::State::may_have_ranks(NodeIndex node) const {
    auto has = [node](const OpenWorld &open) { return contains(open.nodes, node); };
    return (world && contains(world->nodes, node)) || std::ranges::any_of(prepared_before.second, has);
}

/// For a node without ranks that this leader has never heard: soon enough for it not to take the others for
/// dead.
Duration Member::State::absence_limit(NodeIndex node) const {
    const Timings &t = config.timings;
    if (node.value() >= config.step_nodes || whole_at < Time::min() / 4) return t.join;
    return std::min(std::max(t.without_slurm / 2 - (began - whole_at), t.leader_silence * 2), t.join);
}

/// Silence, and a second sign: a broken link, or others that do not reach it either.
bool Member::State::lost(NodeIndex node) const {
    if (is_self(node) || removed(node)) return false;
    if (dismissed(node)) return true;
    const Peer &p = peers[node.value()];
    if (!p.joined && !may_have_ranks(node)) return silence(node) >= absence_limit(node);
    if (fell(node)) return silence(node) >= config.timings.agent_lease;
    Duration limit = config.timings.leader_silence;
    if (silence(node) < limit) return false;
    if (broken_at[node.value()]) return true;
    // On top of what the others need to say come a heartbeat's interval and the answers of Slurm: 2 s in all.
    // Of one that only this leader does not reach the link may be whole again: after 1.4 s without it TCP
    // tries the next time at 3 s. It gets no new lease meanwhile, and is of no use to the group for long.
    return silence(node) * 5 >= limit * (reached_by_others(node) ? 17 : 8);
}

/// May turn out lost within a moment.
bool Member::State::doubtful(NodeIndex node) const {
    const Peer &p = peers[node.value()];
    if (is_self(node) || removed(node) || lost(node) || fell(node)) return false;
    if (reached_by_others(node) || (!p.joined && !may_have_ranks(node))) return false;
    return silence(node) >= config.timings.leader_silence * 7 / 10;
}

void Member::State::look_for_doubts() {
    bool any_lost = false, any_doubtful = false;
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        any_lost = any_lost || lost(NodeIndex(i));
        any_doubtful = any_doubtful || doubtful(NodeIndex(i));
    }
    held_since = any_lost && any_doubtful ? held_since.value_or(now) : std::optional<Time>{};
}

/// Nodes that go together are taken together. But in a large group on a bad network there is always one that
/// is late, and what is lost does not wait for one after the other.
bool Member::State::waits_for(NodeIndex node) const {
    bool long_since = held_since && now - *held_since >= config.timings.leader_silence;
    return doubtful(node) && !long_since;
}

void Member::State::fence_lost() {
    if (finish || slurm.pending || now < slurm.retry_at || !acting()) return;
    if (generation_seen.number == 0 && !starved()) return;
    std::vector<NodeIndex> gone;
    std::size_t usable = 0;
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        NodeIndex n(i);
        if (waits_for(n)) return;
        if (lost(n)) gone.push_back(n);
        usable += counts(n) && !removed(n) && !lost(n);
    }
    bool too_few = usable < config.min_nodes || starved();
    if (gone.empty() && !too_few) {
        slurm.down = false;
        slurm.refusals = 0;
        slurm.told.clear();
        slurm.unable = false;
        // An answer that got lost may have been a yes.
        if (slurm.unsure && !bugged(PlantedBug::asks_slurm_twice)) ask(AskSlurm::What::read_job, {});
        return;
    }
    slurm.requeue_wanted = too_few || slurm.refusals >= refusals_to_requeue;
    bool must_read = slurm.unsure || slurm.inherited || only_batch_host(gone) || slurm.requeue_wanted;
    if (must_read && !slurm.read_fresh && !bugged(PlantedBug::asks_slurm_twice))
        return ask(AskSlurm::What::read_job, {});
    if (slurm.requeue_wanted) return ask_requeue(too_few_left);
    // Of the job is who is named, and a node that is being added has no index to be named by for a moment.
    if (needs_shrink(gone) && promise.roster.added.size() > promise.roster.firm_added) return;
    take_out(gone);
}

/// What Slurm has to be asked for first.
void Member::State::take_out(const std::vector<NodeIndex> &gone) {
    std::vector<NodeIndex> companions, others;
    for (NodeIndex n : gone)
        if (n != config.batch_host) (is_companion(n) ? companions : others).push_back(n);
    if (!others.empty()) return slurm.unable ? leave_behind(others) : ask_shrink(others);
    if (!companions.empty()) return ask_end(companions);
    if (requeues_for(gone)) return ask_requeue(host_lost);
    leave_behind({*config.batch_host});
}

/// Without the batch host enough are left, but the job is to run again.
bool Member::State::requeues_for(const std::vector<NodeIndex> &gone) const {
    return config.requeues_without_host && !slurm.keeps_job && only_batch_host(gone);
}

bool Member::State::needs_shrink(const std::vector<NodeIndex> &gone) const {
    return std::ranges::any_of(gone, [&](NodeIndex n) { return n != config.batch_host && !is_companion(n); });
}

/// They would have the job requeued, or the batch host end it, where they hear nobody but Slurm: so Slurm
/// tells them.
void Member::State::leave_behind(const std::vector<NodeIndex> &nodes) {
    auto is_marked = [&](NodeIndex n) { return contains(slurm.marked, n); };
    if (std::ranges::all_of(nodes, is_marked) || bugged(PlantedBug::host_not_told))
        return adopt_removal(nodes, only_batch_host(nodes) ? host_gone : "Slurm was told");
    slurm.asked = nodes;
    ask(AskSlurm::What::leave_behind, nodes);
}

// ---- two sides --------------------------------------------------------------------------------------
// The smaller side may hear Slurm, and the larger one not. So the larger one goes on for without_slurm after
// all nodes were last heard, and the smaller one does nothing for so long and a lease after it heard the
// other.

void Member::State::look_whether_whole() {
    Time oldest = now;
    for (std::uint32_t i = 0; i < node_count(); ++i)
        if (!is_self(NodeIndex(i)) && is_survivor(NodeIndex(i))) oldest = std::min(oldest, peers[i].alive_at);
    whole_at = std::max(whole_at, oldest);
}

std::optional<Duration> Member::State::whole_ago() const {
    if (whole_at < Time::min() / 4 || bugged(PlantedBug::age_of_whole_not_told)) return std::nullopt;
    return now - whole_at;
}

/// That nobody else acts.
bool Member::State::has_word() const {
    if (bugged(PlantedBug::goes_on_for_ever)) return true;
    return now - std::max(whole_at, slurm.word_at) < config.timings.without_slurm;
}

/// Where a node is not heard that Slurm can not take out, or has not to.
void Member::State::keep_word() {
    if (role != Role::leader || finish || slurm.pending || now < slurm.retry_at || !acting()) return;
    if (now - std::max(whole_at, slurm.word_at) < config.timings.without_slurm / 4) return;
    ask(AskSlurm::What::read_job, {});
}

Time Member::State::heard_newest(const std::vector<NodeIndex> &nodes) const {
    Time newest = born;
    for (NodeIndex n : nodes)
        if (n.value() < node_count()) newest = std::max(newest, heard_at[n.value()]);
    return newest;
}

/// Without Slurm's word, beside a side of so many nodes that has last heard them then.
bool Member::State::others_may_act(std::size_t here, Time contact) const {
    const Timings &t = config.timings;
    bool outnumbered = here * 2 < electorate() && !bugged(PlantedBug::minority_requeues);
    Duration limit = t.without_slurm + t.leader_silence + t.agent_lease + t.fence_wait;
    if (promise.generation.number == 0) limit += t.join;  // they have waited for this side
    return outnumbered && now - contact < limit;
}

/// A world is wanted, and too few nodes are ready although they were waited for.
bool Member::State::starved() const {
    if (!preparing && !awaiting && world) return false;
    if (!world && !to_look_at().empty()) return false;
    Time since = preparing ? preparing->since : awaiting_since;
    return now - since >= config.timings.join && choose_nodes().empty();
}

std::vector<NodeIndex> Member::State::unheard() const {
    std::vector<NodeIndex> nodes;
    for (std::uint32_t i = 0; i < node_count(); ++i)
        if (!is_self(NodeIndex(i)) && !peers[i].granted && is_survivor(NodeIndex(i)))
            nodes.push_back(NodeIndex(i));
    return nodes;
}

/// Whether as many are here as gone, so that Slurm's word can decide between them: it does where one side
/// takes nodes of the job out. A side without any of those, but for the batch host, cannot be taken out so,
/// and must not take out others. Half also with a node that another leader may count already.
bool Member::State::holds_half(const std::vector<NodeIndex> &gone) const {
    std::size_t here = 0, all = electorate();
    bool has_own = false;
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        NodeIndex n(i);
        if (!is_survivor(n) || contains(gone, n)) continue;
        has_own = has_own || (!is_companion(n) && (n != config.batch_host || is_self(n)));
        here += counts(n);
    }
    auto next = counted_next();
    if (next && removed(*next)) next.reset();
    bool half_next = !next || (here + !contains(gone, *next)) * 2 >= all + 1;
    return has_own && here * 2 >= all && half_next;
}

/// Lately.
bool Member::State::is_heard(NodeIndex node) const {
    return now - heard_at[node.value()] < config.timings.leader_silence;
}

/// A candidate that finds no majority.
void Member::State::fence_half() {
    if (slurm.pending || now < slurm.retry_at || role != Role::candidate) return;
    Duration waited = now - *majority_lost;
    bool started = generation_seen.number > 0;
    Duration wait = started ? config.timings.fence_wait : config.timings.join;
    std::vector<NodeIndex> gone = unheard();
    if (std::any_of(gone.begin(), gone.end(), [&](NodeIndex n) { return fell(n); }))
        wait = std::max(wait, config.timings.agent_lease);
    // Who answers, and grants nothing yet, is not gone: its daemon has just been started again, for instance.
    if (std::any_of(gone.begin(), gone.end(), [&](NodeIndex n) { return is_heard(n); }))
        wait = std::max(wait, 2 * config.timings.leader_silence);
    if (waited < wait && !bugged(PlantedBug::fence_without_reread)) return;
    if (gone.empty()) return;
    bool half = holds_half(gone) || bugged(PlantedBug::minority_fences);
    std::size_t usable = 0;
    for (std::uint32_t i = 0; i < node_count(); ++i)
        usable += counts(NodeIndex(i)) && !removed(NodeIndex(i)) && !contains(gone, NodeIndex(i));
    bool enough = usable >= config.min_nodes;
    if (slurm.down && bugged(PlantedBug::go_on_without_slurm)) {
        add_all(promise.removed, gone);
        promise.settled = promise.removed;
        persist();
        return begin_reign();
    }
    if (!slurm.read_fresh && !bugged(PlantedBug::fence_without_reread))
        return ask(AskSlurm::What::read_job, {});
    bool marks_only = slurm.unable && needs_shrink(gone) && !bugged(PlantedBug::half_leaves_behind);
    // A host that gives no vote may follow a leader: a requeue for it waits as any other of a candidate.
    bool for_host = enough && requeues_for(gone);
    if (half && enough && !marks_only && !for_host && slurm.refusals < refusals_to_requeue)
        return take_out(gone);
    // Who has granted its vote some time ago may be on another side by now.
    std::size_t here = 0;
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        bool heard = is_self(NodeIndex(i)) || is_heard(NodeIndex(i));
        here += peers[i].granted && heard && counts(NodeIndex(i));
    }
    slurm.retry_at = now + slurm_retry;
    if (others_may_act(here, heard_newest(gone))) return;
    if (now - slurm_reached(*majority_lost) >= config.timings.fence_wait * requeue_waits)
        ask_requeue(for_host ? host_lost : too_few_left);
}

/// Since when Slurm is, after `contact`: a node that was cut off may reach it first, and those that have gone
/// on without this one a moment later.
Time Member::State::slurm_reached(Time contact) {
    if (!slurm.reached || *slurm.reached < contact) slurm.reached = now;
    return *slurm.reached;
}

/// The batch host, when nobody else is to be heard: the others may go on without it at any time, so it can
/// neither lead nor take them out of the job. They have to be asked: nobody speaks to a node that is out.
void Member::State::fence_alone() {
    if (finish) return;
    send_all(all_others(), HeartbeatReply{promise.term, 0, {}});
    if (slurm.pending || now < slurm.retry_at) return;
    Duration wait = promise.generation.number > 0 ? config.timings.fence_wait : config.timings.join;
    Time contact = std::max(peer_contact, leader_contact);
    if (now - contact < wait * (requeue_waits + 1)) return;
    if (!slurm.read_fresh) return ask(AskSlurm::What::read_job, {});
    slurm.retry_at = now + slurm_retry;
    if (now - slurm_reached(contact) >= wait * 2 && !others_may_act(1, contact)) ask_requeue(too_few_left);
}

void Member::State::ask(AskSlurm::What what, std::vector<NodeIndex> nodes) {
    slurm.pending = slurm.next_request++;
    slurm.asked_at = now;
    slurm.what = what;
    slurm.read_fresh = false;
    slurm.known_nodes = bugged(PlantedBug::newcomer_called_absent) ? max_table : node_count();
    out.push_back(AskSlurm{*slurm.pending, what, std::move(nodes)});
}

void Member::State::ask_shrink(const std::vector<NodeIndex> &lost_nodes) {
    if (slurm.told.empty() || slurm.asked != lost_nodes)
        note(Note::Kind::warning, names(lost_nodes) + " gone" + signs(lost_nodes) +
                                      ": Slurm is asked to take them out of the job");
    slurm.asked = lost_nodes;
    ask_for_rest(lost_nodes);
}

/// The job is to have the others only.
void Member::State::ask_for_rest(const std::vector<NodeIndex> &without) {
    std::vector<NodeIndex> survivors;
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        NodeIndex n(i);
        bool stays = n == config.batch_host || (!removed(n) && !contains(without, n) && !is_companion(n));
        if (stays) survivors.push_back(n);
    }
    ask(AskSlurm::What::shrink_to, std::move(survivors));
}

void Member::State::ask_end(const std::vector<NodeIndex> &companions) {
    if (slurm.told.empty() || slurm.asked != companions)
        note(Note::Kind::warning,
             names(companions) + " gone" + signs(companions) + ": Slurm is asked to end their jobs");
    slurm.asked = companions;
    ask(AskSlurm::What::end_companion, companions);
}

void Member::State::ask_requeue(const char *why) {
    std::vector<NodeIndex> bad = role == Role::candidate ? unheard() : std::vector<NodeIndex>{};
    for (std::uint32_t i = 0; i < node_count() && role != Role::candidate; ++i) {
        NodeIndex n(i);
        bool alone = role == Role::follower;  // the batch host
        if (alone ? !is_self(n) && !is_heard(n) : lost(n)) bad.push_back(n);
    }
    if (role == Role::leader && checking.dismissed.contains(config.self)) bad.push_back(config.self);
    add_all(bad, promise.removed);
    std::erase_if(bad, [&](NodeIndex n) { return n.value() >= node_count(); });
    note(Note::Kind::warning, std::string(why) + ": Slurm is asked to requeue the job");
    slurm.excluded = bad;
    slurm.requeue_why = why;
    ask(AskSlurm::What::requeue, std::move(bad));
}

void Member::State::wait_for_slurm(const std::string &why) {
    if (!slurm.down && slurm.told != why) note(Note::Kind::warning, "waiting for Slurm: " + why);
    slurm.told = why;
    slurm.down = true;
    slurm.reached.reset();
    slurm.unsure = slurm.unsure || slurm.what != AskSlurm::What::read_job;
    slurm.retry_at = now + slurm_retry;
}

/// Slurm does not answer, or does not take lost nodes out now: majorities of the group and of the world go on
/// without them. They stay members until Slurm's word. False: the world needs no change, or there is none.
bool Member::State::go_on_without_slurm() {
    if (bugged(PlantedBug::waits_for_slurm)) return false;
    bool silent = slurm.pending && now - slurm.asked_at >= config.timings.leader_silence;
    // A requeue takes Slurm longer, and would end that world at once.
    bool requeues = slurm.pending && slurm.what == AskSlurm::What::requeue;
    if (requeues && now - slurm.asked_at < config.timings.agent_lease) return false;
    if ((!silent && slurm.told.empty()) || slurm.requeue_wanted) return false;
    std::vector<NodeIndex> gone;
    std::size_t present = 0, here = 0;
    for (NodeIndex n : world->nodes) {
        if (waits_for(n)) return false;
        present += !removed(n);
        here += answers(n);
        if (lost(n)) gone.push_back(n);
    }
    if (gone.empty() || here * 2 <= present || choose_nodes().empty()) return false;
    propose(names(gone) + " lost, Slurm's word awaited", false);
    return true;
}

void Member::State::on_slurm(const SlurmAnswer &m) {
    if (joining.request == m.request) return on_nodes_answer(m);
    if (slurm.pending != m.request) return;
    slurm.pending.reset();
    if (finish) return;
    if (m.result == SlurmAnswer::Result::unreachable)
        return wait_for_slurm(m.text.empty() ? "it does not answer" : m.text);
    bool releases = slurm.what != AskSlurm::What::read_job && !releasing.nodes.empty();
    if (releases && m.result != SlurmAnswer::Result::done) return on_held(m.text);
    if (m.result == SlurmAnswer::Result::unable) return on_unable(m);
    slurm.down = false;
    if (slurm.what == AskSlurm::What::read_job) return on_job(m);
    if (m.result == SlurmAnswer::Result::refused) {
        ++slurm.refusals;
        slurm.unsure = true;
        slurm.retry_at = now + (slurm.refusals > 1 ? slurm_retry : Duration(0));
        // Each once more after a look at the job: it may be over, or this node out of it.
        if (slurm.what == AskSlurm::What::leave_behind && slurm.refusals > 1) return on_mark_refused(m);
        if (slurm.what == AskSlurm::What::requeue && slurm.refusals > 1) return on_requeue_refused();
        return;
    }
    if (slurm.what == AskSlurm::What::requeue)
        return finish_group(1, slurm.requeue_why + ": the job was requeued", NextRun::comes, slurm.excluded);
    if (slurm.what == AskSlurm::What::shrink_to) {
        slurm.inherited = false;
        slurm.unsure = node_count() > slurm.known_nodes;  // who came since was not named, and may be out too
        return adopt_removal(slurm.asked, releases ? given_back : "Slurm took them out of the job");
    }
    if (slurm.what == AskSlurm::What::leave_behind) {
        add_all(slurm.marked, slurm.asked);
        slurm.unsure = true;  // until it is read
        if (role == Role::leader && !acting()) return;
        return ask(AskSlurm::What::read_job, {});
    }
    if (slurm.what == AskSlurm::What::end_companion)
        adopt_removal(slurm.asked, releases ? given_back : "their jobs are over");
}

/// Of a job that has lost its batch host alone the group goes on.
void Member::State::on_requeue_refused() {
    if (slurm.requeue_why != host_lost)
        return finish_group(1,
                            "too few nodes are left to go on (a majority of the job's nodes is needed), "
                            "and Slurm refuses to requeue the job");
    slurm.keeps_job = true;
    slurm.refusals = 0;
    note(Note::Kind::warning, "Slurm refuses to requeue the job: the group goes on without its batch host");
}

/// A leader in office goes on all the same. Marks are no compare-and-swap: of two halves each could leave the
/// other behind, so half of the nodes have the job requeued.
void Member::State::on_unable(const SlurmAnswer &m) {
    slurm.down = false;
    if (role == Role::follower) return;
    slurm.unable = true;
    slurm.retry_at = now;
    bool leads = role == Role::leader;
    if (slurm.told != m.text)
        note(Note::Kind::warning, m.text + (leads ? ": it is told that the group goes on without them"
                                                  : ": too few to go on without them"));
    slurm.told = m.text;
}

/// The batch host can not act alone. Others may, so they stay members, and the world alone goes on.
void Member::State::on_mark_refused(const SlurmAnswer &m) {
    if (only_batch_host(slurm.asked)) return adopt_removal(slurm.asked, host_gone);
    slurm.refusals = 0;
    pause_marks("it does not note that the group goes on without them (" + m.text + ")");
}

void Member::State::pause_marks(const std::string &why) {
    wait_for_slurm(why);
    slurm.mark_pause = std::clamp(slurm.mark_pause * 2, slurm_retry, longest_mark_pause);
    slurm.retry_at = now + slurm.mark_pause;
}

/// Somebody has written over them. The batch host can not act alone: for it, once is enough.
bool Member::State::lost_marks(const SlurmAnswer &m) {
    if (bugged(PlantedBug::mark_not_read_back)) return false;
    return std::erase_if(slurm.marked, [&](NodeIndex n) {
               return n != config.batch_host && !contains(m.left, n) && !removed(n);
           }) != 0;
}

bool Member::State::in_job(const SlurmAnswer &m, NodeIndex node) const {
    if (contains(m.left, node)) return false;
    if (is_companion(node) || node.value() >= slurm.known_nodes) return !contains(m.ended, node);
    return contains(m.job_nodes, node);
}

/// What the job looks like now: Slurm's word is final.
void Member::State::on_job(const SlurmAnswer &m) {
    if (m.result == SlurmAnswer::Result::refused) {
        slurm.retry_at = now + slurm_retry;
        return;
    }
    if (!m.job_running) {
        if (role != Role::follower) drop_coming();
        return leave("the job has ended", 1, NextRun::perhaps);
    }
    if (!in_job(m, config.self)) {
        if (role != Role::follower) leave_to_others(m);
        bool left = contains(m.left, config.self);
        return leave(left ? gone_on : "Slurm has taken this node out of the job", 0, NextRun::none);
    }
    slurm.unsure = false;
    slurm.word_at = slurm.asked_at;
    bool marks_lost = lost_marks(m);
    std::vector<NodeIndex> absent;
    for (std::uint32_t i = 0; i < node_count(); ++i)
        if (!in_job(m, NodeIndex(i)) && !removed(NodeIndex(i))) absent.push_back(NodeIndex(i));
    slurm.read_fresh = absent.empty();
    if (role == Role::leader && acting() && requeues_for(absent)) return ask_requeue(host_lost);
    if (!absent.empty())
        return adopt_removal(absent,
                             only_batch_host(absent) ? host_gone : "they are no longer part of the job");
    releasing.nodes.clear();  // they are all still there
    if (marks_lost) {
        slurm.read_fresh = false;
        return pause_marks("somebody writes over what it notes of nodes that the group goes on without");
    }
    if (role == Role::leader) fence_lost();
    if (role == Role::candidate && look_due) look_over();
    if (role == Role::candidate) fence_half();
    if (role == Role::follower && !may_lead()) fence_alone();
    slurm.read_fresh = false;  // what was read is worth nothing later
}

/// The others say how the group has fared: what ends here is no failure of the job.
void Member::State::leave(const std::string &why, int code, NextRun next_run) {
    evicted = true;
    out.push_back(StopWorkers{promise.generation, why});
    end(Finish{promise.term, code, why, goodput, next_run});
}

/// The last word of one that leads or wants to, and is out of the job: who else is, so that none of them
/// stands next.
void Member::State::leave_to_others(const SlurmAnswer &m) {
    for (std::uint32_t i = 0; i < node_count(); ++i)
        if (!in_job(m, NodeIndex(i))) add_all(promise.removed, {NodeIndex(i)});
    VoteRequest last{promise.term, promise.generation, promise.removed};
    send_all(all_others(), last);
}

void Member::State::adopt_removal(const std::vector<NodeIndex> &nodes, const std::string &why) {
    add_all(promise.removed, nodes);
    note_released(nodes);
    persist();
    note(Note::Kind::warning, names(nodes) + " removed: " + why);
    slurm.refusals = 0;
    slurm.told.clear();
    slurm.unable = false;  // the next time it may be
    slurm.mark_pause = {};
    // One that joined and was lost at once may be lost again: it is not replaced at once.
    if (!std::ranges::any_of(nodes, [&](NodeIndex n) { return has_joined(n); })) joining.retry_at = now;
    if (role == Role::candidate) return stand();  // again, for the votes of every survivor
    if (role != Role::leader) return;
    removal_sequence = sequence + 1;
    send_heartbeats();
    bool hit = false;
    for (NodeIndex n : nodes)
        hit = hit || (world && contains(world->nodes, n)) || (preparing && contains(preparing->nodes, n));
    if (hit && acting()) {
        if (incident && incident->committed) incident.reset();
        propose(names(nodes) + " lost", false);
    }
}

}  // namespace dlrover::elastic
