// SPDX-License-Identifier: Apache-2.0
// Nodes that join, and those that Slurm is asked for.
//
// The roster is one value that leaders write in turn, as in Paxos: a leader takes over the newest that its
// voters have accepted, writes it again in its own term, and changes it, by one entry at a time, only after
// the one before is firm: on record with a majority of its term's members. So an entry that is firm is in
// every later roster, and who has a roster on record knows that all but its last entry are firm.
//
// First a node gets its index for good; then it hears the leader; then it is counted. Until that is firm
// (on record with majorities of the members without it and with it, and with itself) it takes part in no
// decision. The members that two leaders know of differ by one such entry at most, so their majorities
// overlap. A leader, too, has a majority of both, and two halves are halves of both (fence.cpp): half of the
// members with that node could ask Slurm beside a majority without it.
#include "elastic/roster.h"

#include <algorithm>
#include <utility>

#include "elastic/coding.h"
#include "elastic/member_state.h"

namespace dlrover::elastic {
namespace {

constexpr std::size_t max_offers = 64;
constexpr std::size_t max_told = 64;
constexpr Duration longest_pause = std::chrono::minutes(30);
constexpr Duration drop_pause = std::chrono::seconds(10);

bool later(const Roster &a, const Roster &b) {
    return std::pair(a.term, a.version()) > std::pair(b.term, b.version());
}

template <typename T>
void take_prefix(std::vector<T> &to, const std::vector<T> &from, std::size_t count) {
    to.resize(std::max(to.size(), count));
    std::copy_n(from.begin(), count, to.begin());
}

}  // namespace

bool could_be(const Roster &r, std::size_t step_nodes) {
    if (r.firm_added > r.added.size() || r.firm_counted > r.counted.size()) return false;
    if (r.version() > r.firm_version() + 1 || r.added.size() > max_joined) return false;
    if (step_nodes + r.added.size() > max_table) return false;
    for (auto it = r.counted.begin(); it != r.counted.end(); ++it) {
        bool joined = it->value() >= step_nodes && it->value() < step_nodes + r.firm_added;
        if (!joined || std::find(r.counted.begin(), it, *it) != it) return false;
    }
    return true;
}

bool merge(Roster &mine, const Roster &other) {
    // It cannot be without what is known to be firm.
    if (other.added.size() < mine.firm_added && later(other, mine)) return false;
    if (other.counted.size() < mine.firm_counted && later(other, mine)) return false;
    Roster before = mine;
    if (later(other, mine)) {
        mine = other;
        mine.firm_added = std::max(before.firm_added, other.firm_added);
        mine.firm_counted = std::max(before.firm_counted, other.firm_counted);
    }
    if (other.firm_added > mine.firm_added) {
        take_prefix(mine.added, other.added, other.firm_added);
        mine.firm_added = other.firm_added;
    }
    if (other.firm_counted > mine.firm_counted) {
        take_prefix(mine.counted, other.counted, other.firm_counted);
        mine.firm_counted = other.firm_counted;
    }
    return mine != before;
}

// ---- on every node --------------------------------------------------------------------------------

bool Member::State::counts(NodeIndex node) const {
    if (node.value() < config.step_nodes) return true;
    const auto &voters = promise.roster.counted;
    auto end = voters.begin() + promise.roster.firm_counted;
    return std::find(voters.begin(), end, node) != end;
}

std::optional<NodeIndex> Member::State::counted_next() const {
    const Roster &r = promise.roster;
    return r.counted.size() > r.firm_counted ? std::optional(r.counted.back()) : std::nullopt;
}

/// See above.
bool Member::State::is_majority(std::size_t nodes, const std::function<bool(NodeIndex)> &has) const {
    auto next = counted_next();
    if (!next || removed(*next)) return is_majority(nodes);
    return is_majority(nodes) && (nodes + has(*next)) * 2 > electorate() + 1;
}

/// A node that joins may have been given its index by a leader that is no more: it makes no promise before it
/// has heard one that knows it.
bool Member::State::has_heard() const {
    return config.self.value() < config.step_nodes || reborn || leader_seen;
}

bool Member::State::fits(const World &w) const {
    auto known = [&](NodeIndex n) { return n.value() < node_count(); };
    return has_sound_groups(w) && std::ranges::all_of(w.nodes, known) &&
           std::ranges::all_of(w.spares, known) && std::ranges::all_of(w.partners, known) &&
           std::ranges::all_of(w.sources, [&](const ObjectSource &s) { return known(s.node); }) &&
           std::ranges::all_of(w.rebuilds, [&](const Rebuild &r) {
               return known(r.node) &&
                      std::ranges::all_of(r.parts, [&](const RebuildPart &p) { return known(p.node); });
           });
}

void Member::State::merge_roster(const Roster &r) {
    if (!could_be(r, config.step_nodes) || !merge(promise.roster, r)) return;
    persist();
    extend_table();
}

void Member::State::extend_table() {
    const Roster &r = promise.roster;
    if (node_count() >= config.step_nodes + r.firm_added) return;
    for (std::size_t i = node_count() - config.step_nodes; i < r.firm_added; ++i)
        config.nodes.push_back(r.added[i]);
    count_ranks();
    heard_at.resize(node_count(), now);
    linked_at.resize(node_count(), now);
    broken_at.resize(node_count());
    reached.resize(node_count());
    if (!peers.empty()) peers.resize(node_count());
    tell_added();
}

void Member::State::tell_added() {
    out.push_back(NodesAdded{{config.nodes.begin() + config.step_nodes, config.nodes.end()}});
}

// ---- the leader -----------------------------------------------------------------------------------

void Member::State::write_roster() {
    promise.roster.term = promise.term;
    persist();
    joining.open = true;
    joining.stored_by = store_issued;
    roster_sequence = sequence + 1;
}

/// What an earlier leader has left half done.
void Member::State::take_over_roster() {
    joining = {};
    joining.pause = first_node_pause;
    roster_sequence = promise.roster.version() > 0 ? 1 : 0;
    if (promise.roster.version() > promise.roster.firm_version()) write_roster();
}

bool Member::State::knows_world(NodeIndex node) const {
    return !world || is_self(node) || peers[node.value()].report.knows == world->id ||
           bugged(PlantedBug::counted_without_world);
}

bool Member::State::roster_is_firm() const {
    if (store_done < joining.stored_by) return false;
    auto has = [&](NodeIndex n) { return is_self(n) || peers[n.value()].acked >= roster_sequence; };
    auto next = counted_next();
    // From then on it may lead: with what is in force.
    if (next && !removed(*next) && (!has(*next) || !knows_world(*next))) return false;
    std::size_t have = 0;
    for (std::uint32_t i = 0; i < node_count(); ++i)
        have += counts(NodeIndex(i)) && !contains(promise.settled, NodeIndex(i)) && has(NodeIndex(i));
    return is_majority(have);  // and so it is of the members with `next`
}

void Member::State::settle_roster() {
    if (role != Role::leader || finish || !joining.open) return;
    if (!roster_is_firm() && !bugged(PlantedBug::added_counts_at_once)) return;
    joining.open = false;
    Roster &r = promise.roster;
    if (r.version() > r.firm_version()) {
        if (auto next = counted_next(); next && !removed(*next)) note_joined(*next);
        r.firm_added = static_cast<std::uint32_t>(r.added.size());
        r.firm_counted = static_cast<std::uint32_t>(r.counted.size());
        persist();
        roster_sequence = sequence + 1;
        extend_table();
    }
    if (may_lead()) change_roster();
    send_heartbeats();
    if (!may_lead()) step_down("a node has joined that can lead in place of the batch host");
}

void Member::State::note_joined(NodeIndex node) {
    Note n;
    n.kind = Note::Kind::node_joined;
    n.node = node;
    n.text = names({node}) + " has joined the group";
    const NodeSpec &spec = config.nodes[node.value()];
    if (spec.companion) n.text += " (job " + std::to_string(spec.companion->value()) + ")";
    if (spec.step) n.text += " (by expansion of the job)";
    if (auto story = checking.story.find(node); story != checking.story.end()) n.text += ", " + story->second;
    out.push_back(std::move(n));
    joining.pause = first_node_pause;
}

/// The next entry, if there is one to make.
void Member::State::change_roster() {
    if (joining.open || !acting()) return;
    auto next = joiner_to_count();
    if (!next && joining.offers.empty()) return;
    Roster &r = promise.roster;
    if (r.term != promise.term) return write_roster();
    if (next) {
        r.counted.push_back(*next);
        return write_roster();
    }
    NodeOffered offer = std::move(joining.offers.front());
    joining.offers.erase(joining.offers.begin());
    if (const char *why = why_refused(offer)) return refuse(offer, why);
    r.added.push_back({offer.ranks, offer.name, offer.companion, offer.step});
    if (offer.companion && joining.coming > 0u) --*joining.coming;
    write_roster();
}

/// A node that has its index, and answers.
std::optional<NodeIndex> Member::State::joiner_to_count() const {
    for (std::uint32_t i = config.step_nodes; i < node_count(); ++i)
        if (!counts(NodeIndex(i)) && !removed(NodeIndex(i)) && peers[i].acked > 0 &&
            knows_world(NodeIndex(i)) && is_trusted(NodeIndex(i)))
            return NodeIndex(i);
    return std::nullopt;
}

bool Member::State::in_table(const std::string &name) const {
    auto is = [&](std::uint32_t i, const NodeSpec &spec) {
        return spec.name == name && !removed(NodeIndex(i));
    };
    for (std::uint32_t i = 0; i < node_count(); ++i)
        if (is(i, config.nodes[i])) return true;
    const auto &added = promise.roster.added;
    return added.size() > promise.roster.firm_added && added.back().name == name;
}

bool Member::State::ever_in_table(const std::string &name) const {
    return std::ranges::find(config.nodes, name, &NodeSpec::name) != config.nodes.end();
}

/// In the table, and not removed; with the one that is being added, and without a leader that is unfit: it
/// only leads until somebody else can.
std::size_t Member::State::present() const {
    std::size_t nodes = promise.roster.added.size() - promise.roster.firm_added;
    for (std::uint32_t i = 0; i < node_count(); ++i) nodes += !removed(NodeIndex(i));
    return nodes - checking.dismissed.contains(config.self);
}

const char *Member::State::why_refused(const NodeOffered &offer) const {
    if (in_table(offer.name)) return "";  // an offer is repeated until it is taken
    std::size_t added = promise.roster.added.size();
    if (added >= max_joined || config.step_nodes + added >= max_table)
        return "too many nodes have joined and left";
    if (present() >= std::size_t{wanted_nodes()} + config.spares)
        return "the group has all the nodes that it can use";
    // What a side that was cut off asks Slurm rests on this: who is out of the job stays out of it.
    if (offer.step && ever_in_table(offer.name))
        return "it was a node of the group before, and can come back by a job of its own only";
    return nullptr;
}

void Member::State::refuse(const NodeOffered &offer, const std::string &why) {
    bool told = std::ranges::find(joining.refused, offer.name) != joining.refused.end();
    if (why.empty() || told || joining.refused.size() >= max_told) return;
    joining.refused.push_back(offer.name);
    note(Note::Kind::warning, offer.name + " is not let in: " + why);
}

void Member::State::on_offer(const NodeOffered &m) {
    if (role != Role::leader || finish || !acting() || m.name.empty() || m.ranks == 0) return;
    if (const char *why = why_refused(m)) return refuse(m, why);
    bool waits = std::ranges::find(joining.offers, m.name, &NodeOffered::name) != joining.offers.end();
    if (waits || joining.offers.size() >= max_offers) return;
    joining.offers.push_back(m);
    if (joining.open) return;
    change_roster();
    send_heartbeats();
}

// ---- nodes in place of others ---------------------------------------------------------------------

void Member::State::on_coming(std::uint32_t count) {
    if (role == Role::leader) joining.coming = count;
}

std::uint32_t Member::State::missing_nodes() const {
    std::size_t wanted = std::size_t{wanted_nodes()} + config.spares;
    std::size_t here = present() + joining.offers.size();
    return static_cast<std::uint32_t>(wanted > here ? wanted - here : 0);
}

/// So many are to be on their way. A question that a leader before has asked may reach Slurm only now: its
/// answer would be for the table as it was.
void Member::State::consider_missing() {
    if (!config.replacements || generation_seen.number == 0 || joining.request || !acting()) return;
    if (now - began < config.timings.agent_lease) return;
    std::uint32_t missing = missing_nodes();
    if (now < (missing > 0 ? joining.retry_at : joining.drop_at)) return;
    // What a leader before has moved into the job is nobody's until it joins.
    bool looks = config.expansion && !joining.looked && !promise.removed.empty();
    bool enough = missing == 0 ? joining.coming.value_or(0) == 0 : joining.coming.value_or(0) >= missing;
    if (enough && !looks) return;
    if (missing > 0 && promise.roster.added.size() >= max_joined) return;
    ask_for_nodes(missing);
}

/// A job that can be expanded is; where Slurm refuses, jobs of their own are asked for at once.
void Member::State::ask_for_nodes(std::uint32_t missing) {
    using What = AskSlurm::What;
    joining.request = slurm.next_request++;
    joining.asked = missing;
    joining.expands = missing > 0 && config.expansion && !joining.by_job;
    if (missing > 0 && !joining.expands) joining.by_job = false;  // the next time it may be otherwise
    Time &retry_at = missing > 0 ? joining.retry_at : joining.drop_at;
    retry_at = now + (missing > 0 ? joining.pause : drop_pause);
    if (missing > 0) joining.pause = std::min(joining.pause * 2, longest_pause);
    AskSlurm ask{*joining.request, What::add_nodes, {}, missing};
    if (joining.expands) ask.what = What::expand_job;
    if (missing == 0) ask.what = What::drop_coming;
    out.push_back(std::move(ask));
}

void Member::State::on_unexpanded(const std::string &why) {
    joining.by_job = true;
    joining.looked = joining.looked || why.empty();  // else the refusal may be of what was to be taken out
    joining.pause = std::max(joining.pause / 2, first_node_pause);
    joining.retry_at = now;
    if (why.empty() || why == joining.told_unexpanded) return;
    joining.told_unexpanded = why;
    note(Note::Kind::warning, "the job is not expanded, a job for another node is asked for: " + why);
}

void Member::State::on_nodes_answer(const SlurmAnswer &m) {
    joining.request.reset();
    if (finish || role != Role::leader) return;
    if (m.result == SlurmAnswer::Result::done) {
        joining.told.clear();
        joining.looked = joining.looked || joining.expands || joining.asked == 0;
        if (!joining.expands) joining.coming = joining.asked;
        if (joining.expands) joining.told_unexpanded.clear();  // they are in the table, or have offered
        return;
    }
    joining.coming.reset();  // it may have been done
    if (joining.expands && m.result == SlurmAnswer::Result::refused) return on_unexpanded(m.text);
    std::string why = m.text;
    if (m.result == SlurmAnswer::Result::unreachable) why = "Slurm does not answer";
    // What was done without an answer is nobody's: it is looked for soon, also where no more nodes are wanted
    // then.
    if (joining.expands) {
        joining.retry_at = now + drop_pause;
        joining.pause = std::max(joining.pause / 2, first_node_pause);  // no refusal
        joining.looked = false;
    }
    if (joining.asked == 0 || why == joining.told) return;
    joining.told = why;
    bool scaled = promise.scaling.number > 0;
    note(Note::Kind::warning,
         (scaled ? "Slurm gives no more nodes: " : "Slurm gives no node in place of those that are gone: ") +
             why);
}

/// The group is over: whoever is still to come is not needed.
void Member::State::drop_coming() {
    bool perhaps = !promise.removed.empty() || promise.roster.version() > 0 || joining.request;
    if (!config.replacements || !(joining.coming ? *joining.coming > 0 || joining.request : perhaps)) return;
    out.push_back(AskSlurm{slurm.next_request++, AskSlurm::What::drop_coming, {}, 0});
}

}  // namespace dlrover::elastic
