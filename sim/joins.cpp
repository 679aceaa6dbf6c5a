// SPDX-License-Identifier: Apache-2.0
// Nodes that Slurm grants in place of others: each is a job of its own, which starts late or never, asks to
// join, and may die at any point of it.
#include <algorithm>
#include <utility>

#include "sim/simulator.h"

namespace dlrover::sim {

using namespace elastic;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {
constexpr std::uint32_t first_job = 1000;
constexpr Duration expansion_patience = seconds(8);
constexpr Duration gives_up = seconds(20);  ///< a node that asks to join and is not let in
}  // namespace

/// Of a stream of its own: runs without joins stay what they are.
void Simulator::plan_joins() {
    step_nodes_ = static_cast<std::uint32_t>(nodes_.size());
    config_.step_nodes = step_nodes_;
    bool joins = options_.joins.value_or(joins_random_.chance(33));
    if (!joins || step_nodes_ > 30) return;
    config_.replacements = true;
    config_.checks = checks_random_.chance(70);
    config_.expansion = expansion_random_.chance(50);
    config_.any_size = joins_random_.chance(80);
    config_.min_nodes = 1 + joins_random_.below(std::min(config_.min_nodes, 2u));
    config_.node_unit = config_.min_nodes % config_.node_unit == 0 ? config_.node_unit : 1;
    if (joins_random_.chance(70)) config_.max_restarts = 50;
    calm_start_ = joins_random_.chance(60);
    for (std::uint32_t i = 0; i < step_nodes_; ++i) config_.nodes[i].name = "n" + std::to_string(i);
    push(seconds(1), Kind::coming, 0);
    std::uint32_t losses = step_nodes_ > 4 && joins_random_.chance(50) ? 2 : 1;
    for (std::uint32_t i = 0; i < losses; ++i)
        push(milliseconds(joins_random_.between(1500, 4000)), Kind::copy_fault,
             (1 + joins_random_.below(step_nodes_)) % step_nodes_,
             static_cast<std::uint32_t>(CopyFault::receiver_node));
    Time at = seconds(5);
    std::uint32_t count = joins_random_.below(4);
    for (std::uint32_t i = 0; i < count; ++i) {
        at += milliseconds(joins_random_.between(0, 4000));
        faults_.push_back(static_cast<Fault>(joins_random_.below(static_cast<std::uint32_t>(Fault::count))));
        push(at, Kind::fault, 0, static_cast<std::uint32_t>(faults_.size() - 1));
    }
    joins_end_ = std::max(at, Time(seconds(9)));
}

Simulator::Companion *Simulator::companion_of(std::uint32_t node) {
    if (node < step_nodes_ || node >= config_.nodes.size() || !config_.nodes[node].companion) return nullptr;
    return &slurm_.companions[config_.nodes[node].companion->value() - first_job];
}

const Simulator::Companion *Simulator::companion_of(std::uint32_t node) const {
    return const_cast<Simulator *>(this)->companion_of(node);
}

// ---- Slurm ------------------------------------------------------------------------------------------

/// One that was lost may come back by the same name.
bool Simulator::is_of(const NodeSpec &spec, const Companion &c) {
    return c.merged ? spec.step == StepId(c.job.value()) : spec.companion == c.job;
}

bool Simulator::is_known(std::uint32_t node, const Companion &c) const {
    return std::ranges::any_of(nodes_[node].added, [&](const NodeSpec &s) { return is_of(s, c); });
}

/// As the driver of this node sees it.
std::uint32_t Simulator::count_coming(std::uint32_t node) const {
    return static_cast<std::uint32_t>(std::ranges::count_if(
        slurm_.companions, [&](const Companion &c) { return !c.over && !is_known(node, c); }));
}

Simulator::Companion &Simulator::add_companion(bool merged) {
    Companion c;
    auto number = static_cast<std::uint32_t>(slurm_.companions.size());
    c.job = JobId(first_job + number);
    c.name = "new" + std::to_string(number);
    c.merged = merged;
    slurm_.companions.push_back(c);
    return slurm_.companions.back();
}

bool Simulator::grant_nodes(std::uint32_t node, std::uint32_t count) {
    if (joins_random_.chance(10)) return false;
    for (std::uint32_t coming = count_coming(node); coming < count; ++coming) {
        Companion &c = add_companion(false);
        c.starts = !joins_random_.chance(10);
        if (auto old = lost_name(); old && checks_random_.chance(60)) {
            c.name = *old;
            c.returns = true;
            c.unfit = checks_random_.chance(25);
        }
        trace("Slurm queues job " + std::to_string(c.job.value()));
        if (!c.starts) continue;
        Payload p;
        p.number = slurm_.companions.size() - 1;
        p.other = config_.slurm_restart_count;
        push(now_ + milliseconds(joins_random_.between(100, joins_random_.chance(20) ? 12000 : 2500)),
             Kind::offer, 0, keep(std::move(p)));
    }
    check_companions();
    return true;
}

/// Of a node that is no part of the job any more.
std::optional<std::string> Simulator::lost_name() const {
    if (!config_.checks) return std::nullopt;
    for (std::uint32_t i = 0; i < config_.nodes.size(); ++i) {
        const std::string &name = config_.nodes[i].name;
        auto taken = [&](const Companion &c) { return !c.over && c.name == name; };
        if (NodeIndex(i) != config_.batch_host && given_up(i) && !is_released(i) &&
            !std::ranges::any_of(slurm_.companions, taken))
            return name;
    }
    return std::nullopt;
}

bool Simulator::is_unfit(std::uint32_t node) const {
    const Companion *c = companion_of(node);
    return c ? c->unfit : nodes_[node].unfit;
}

/// Some take long, and of some nothing is heard.
void Simulator::run_check(std::uint32_t node, const RunCheck &check) {
    std::uint32_t partner = check.partner.value();
    bool says_so = nodes_[node].says_so;
    bool ok = !nodes_[partner].dead && linked(node, partner) && !is_unfit(node) && !is_unfit(partner);
    bool faults = now_ < faults_end_;
    if (check.gpus) nodes_[node].looked_at = true;  // the subject's part of it
    if (faults && checks_random_.chance(10)) return;
    for (std::uint32_t i : {node, partner})
        if (Companion *c = companion_of(i); c && ok) c->has_met = true;
    Payload p;
    auto exchange = ok ? milliseconds(checks_random_.between(50, 400)) : milliseconds(0);
    const char *text = ok ? "" : says_so ? "it miscalculates" : "no answer";
    p.input = LocalCheck{check.run, ok, milliseconds(check.work ? 150 : 0), exchange, text, says_so};
    std::uint32_t late = faults && checks_random_.chance(5) ? 35000 : 0;
    push(now_ + exchange + milliseconds(late + checks_random_.between(1, 300)), Kind::input, node,
         keep(std::move(p)));
}

/// Never more than the group can use; but one may have been let in while the question was on its way.
void Simulator::check_companions() const {
    std::size_t coming = 0, joined = 0;
    for (const Companion &c : slurm_.companions) {
        coming += !c.over && !c.node;
        joined += c.joined_at > now_ - seconds(2);
    }
    std::size_t gone = 0, here = 0;
    for (std::uint32_t i = 0; i < step_nodes_; ++i) here += in_job(i) && !given_up(i) && !nodes_[i].dismissed;
    for (std::uint32_t i = step_nodes_; i < nodes_.size(); ++i) here += in_job(i);
    check(here + coming <= std::size_t{config_.max_nodes} + config_.spares + gone + joined,
          "Slurm is asked for more nodes than are gone");
}

/// By anybody: the batch host stays in Slurm's job.
bool Simulator::given_up(std::uint32_t node) const {
    return std::ranges::any_of(nodes_, [&](const Node &n) {
        return n.keeper && std::ranges::find(n.keeper->removed, NodeIndex(node)) != n.keeper->removed.end();
    });
}

void Simulator::end_companion(Companion &c, bool reached) {
    if (c.over) return;
    trace("job " + std::to_string(c.job.value()) + " is over");
    c.over = true;
    if (c.merged && c.node) std::erase(slurm_.nodes, NodeIndex(*c.node));
    if (c.node && reached)
        push(now_ + milliseconds(joins_random_.between(1, 1000)), Kind::kill_removed, *c.node);
}

bool Simulator::slurm_does_companions(std::uint32_t node, const AskSlurm &ask) {
    if (ask.what == AskSlurm::What::add_nodes) return grant_nodes(node, ask.count);
    if (ask.what == AskSlurm::What::drop_coming) {
        for (Companion &c : slurm_.companions)
            if (!is_known(node, c)) end_companion(c, false);
        return true;
    }
    for (NodeIndex n : ask.nodes) {
        Companion *c = companion_of(n.value());
        check(c != nullptr, "a node of the group's own job is to be ended as one of another");
        const Node &target = nodes_[n.value()];
        end_companion(*c, !target.dead && target.side == nodes_[node].side && joins_random_.chance(50));
    }
    return true;
}

// ---- expansion of the job ----------------------------------------------------------------------------

/// The driver's first step: what Slurm has done before its answer is heard, or is not.
bool Simulator::expand_job(std::uint32_t node, const AskSlurm &ask) {
    Expansion e{node, nodes_[node].incarnation, ask.request, {}};
    auto start = [&](std::uint32_t number, std::uint32_t least) {
        e.numbers.insert(number);
        Payload p;
        p.number = number;
        p.ask = ask;
        p.other = node;
        p.other_incarnation = nodes_[node].incarnation;
        push(now_ + milliseconds(expansion_random_.between(least, least + 400)), Kind::expanded, 0,
             keep(std::move(p)));
    };
    std::uint32_t coming = 0;
    std::vector<std::uint32_t> left_over;
    for (std::uint32_t i = 0; i < slurm_.companions.size(); ++i) {
        const Companion &c = slurm_.companions[i];
        if (c.over || is_known(node, c)) continue;
        coming += !c.merged;
        if (c.merged) left_over.push_back(i);
    }
    std::uint32_t left = ask.count > coming ? ask.count - coming : 0;
    for (std::uint32_t i : left_over)  // by a leader before
        left > 0 ? start(i, 1000) : end_companion(slurm_.companions[i], false);
    if (left_over.empty() && left > 0 && expansion_random_.chance(25)) return false;
    for (auto granted = static_cast<std::uint32_t>(e.numbers.size()); granted < left; ++granted) {
        Companion &c = add_companion(true);
        trace("Slurm expands the job by " + c.name);
        start(static_cast<std::uint32_t>(slurm_.companions.size() - 1), 1);
    }
    check_companions();
    slurm_.expansions.push_back(e);
    if (e.numbers.empty()) {
        end_expansion(slurm_.expansions.size() - 1, true);
        return true;
    }
    Payload p;
    p.number = ask.request;
    p.other = node;
    push(now_ + expansion_patience, Kind::expansion_late, 0, keep(std::move(p)));
    return true;
}

/// Its daemon lives, and leads.
bool Simulator::waits_for(const Expansion &e) const {
    const Node &n = nodes_[e.node];
    return !n.dead && n.member && n.incarnation == e.incarnation &&
           n.member->view().leader == NodeIndex(e.node);
}

/// The driver has heard that the node is in the job, and starts a step there: unless it is gone.
void Simulator::start_expanded(const Payload &p) {
    Companion &c = slurm_.companions[p.number];
    Expansion e{p.other, p.other_incarnation, p.ask.request, {}};
    bool away = slurm_.mode == Slurm::Mode::unreachable || slurm_.mode == Slurm::Mode::answer_lost;
    if (c.over || away || !waits_for(e) || expansion_random_.chance(10)) return;
    Payload offer;
    offer.number = p.number;
    offer.other = config_.slurm_restart_count;
    push(now_ + milliseconds(expansion_random_.between(50, 1500)), Kind::offer, 0, keep(std::move(offer)));
}

void Simulator::note_asked(std::uint32_t number) {
    for (std::size_t i = slurm_.expansions.size(); i-- > 0;)
        if (slurm_.expansions[i].numbers.erase(number) > 0 && slurm_.expansions[i].numbers.empty())
            end_expansion(i, true);
}

void Simulator::end_expansion(std::size_t at, bool done) {
    Expansion e = slurm_.expansions[at];
    slurm_.expansions.erase(slurm_.expansions.begin() + static_cast<std::ptrdiff_t>(at));
    if (!waits_for(e)) return;
    for (std::uint32_t number : e.numbers)
        if (!is_known(e.node, slurm_.companions[number])) end_companion(slurm_.companions[number], false);
    nodes_[e.node].coming_told.reset();
    Payload p;
    SlurmAnswer answer;
    answer.request = e.request;
    answer.result = done ? SlurmAnswer::Result::done : SlurmAnswer::Result::refused;
    answer.text = done ? "" : "no step starts there";
    p.input = std::move(answer);
    push(now_ + Duration(expansion_random_.between(500, 20000)), Kind::slurm_answers, e.node,
         keep(std::move(p)));
}

void Simulator::on_late_expansion(const Payload &p) {
    for (std::size_t i = 0; i < slurm_.expansions.size(); ++i)
        if (slurm_.expansions[i].node == p.other && slurm_.expansions[i].request == p.number)
            return end_expansion(i, false);
}

/// Not in one of its own.
bool Simulator::in_groups_job(std::uint32_t node) const {
    return node < step_nodes_ || (node < config_.nodes.size() && !config_.nodes[node].companion);
}

/// In the job, and nobody's.
bool Simulator::is_left_over(const Companion &c) const {
    return c.merged && !c.over && !c.node;
}

// ---- drivers ------------------------------------------------------------------------------------------

/// The leader's driver looks at the queue now and then.
void Simulator::look_at_queue() {
    push(now_ + milliseconds(300), Kind::coming, 0);
    auto head = leader();
    if (!head || nodes_[*head].dead || nodes_[*head].frozen_until > now_) return;
    Node &n = nodes_[*head];
    auto count = static_cast<std::uint32_t>(std::ranges::count_if(
        slurm_.companions, [&](const Companion &c) { return !c.merged && !c.over && !is_known(*head, c); }));
    if (!slurm_reaches(*head) || !slurm_.running || n.coming_told == count) return;
    n.coming_told = count;
    feed(*head, NodesComing{count});
}

void Simulator::on_added(std::uint32_t node, const NodesAdded &m) {
    Node &n = nodes_[node];
    check(m.added.size() >= n.added.size(), "a node's table gets shorter");
    n.added = m.added;
    n.coming_told.reset();
    for (std::size_t i = 0; i < m.added.size(); ++i) {
        std::size_t index = step_nodes_ + i;
        if (index == config_.nodes.size()) {
            config_.nodes.push_back(m.added[i]);
            Node fresh;  // until it starts
            fresh.dead = true;
            fresh.offset = Duration(joins_random_.between(0, 1000000000));
            if (index == nodes_.size()) nodes_.push_back({});
            fresh.incarnation = nodes_[index].incarnation + 1;
            nodes_[index] = std::move(fresh);
            auto c = std::ranges::find_if(slurm_.companions,
                                          [&](const Companion &one) { return is_of(m.added[i], one); });
            c->node = static_cast<std::uint32_t>(index);
            c->joined_at = now_;
            if (c->merged && !c->over) slurm_.nodes.push_back(NodeIndex(*c->node));
        }
        check(config_.nodes[index] == m.added[i], "two nodes have one index");
    }
    if (options_.switches == 0) return;
    Payload p;
    p.input = LocalDomains{switches()};
    push(now_ + Duration(1), Kind::input, node, keep(std::move(p)));
}

/// A granted node asks the leader, again and again, until it is in the table; then its daemon starts.
void Simulator::offer(const Payload &p) {
    if (p.other != config_.slurm_restart_count || !slurm_.running) return;
    Companion &c = slurm_.companions[p.number];
    if (c.started == Time(0)) c.started = now_;
    if (c.over) return;
    if (joins_random_.chance(4) || now_ - c.started > gives_up) return end_companion(c, false);
    auto head = leader();
    bool heard = head && !nodes_[*head].dead && nodes_[*head].side == 0 && nodes_[*head].frozen_until <= now_;
    if (heard && is_known(*head, c)) return start_joiner(*c.node, nodes_[*head].added);
    if (heard) {
        NodeOffered offered{c.name, config_.nodes[0].ranks, c.job};
        if (c.merged) offered = {c.name, config_.nodes[0].ranks, {}, StepId(c.job.value())};
        note_asked(static_cast<std::uint32_t>(p.number));
        feed(*head, offered);
    }
    push(now_ + milliseconds(joins_random_.between(200, 1000)), Kind::offer, 0, keep(p));
}

void Simulator::start_joiner(std::uint32_t node, const std::vector<NodeSpec> &added) {
    trace("node " + std::to_string(node) + " joins");
    Node &n = nodes_[node];
    n.dead = false;
    n.agent = !joins_random_.chance(5);
    n.added = added;
    start_daemon(node);
    if (joins_random_.chance(10))
        push(now_ + milliseconds(joins_random_.between(0, 400)), Kind::copy_fault, node,
             static_cast<std::uint32_t>(CopyFault::receiver_node));
}

/// A leader dies between having the roster on record and telling it, or tells only some.
void Simulator::hit_writer(std::uint32_t node, const Promise &promise) {
    Node &n = nodes_[node];
    std::size_t version = promise.roster.version();
    bool writes = version > std::exchange(n.roster_version, version) && promise.roster.term == promise.term &&
                  n.member->view().leader == NodeIndex(node);
    if (!writes || now_ > faults_end_ || !joins_random_.chance(25)) return;
    n.muted = true;
    bool falls = joins_random_.chance(30);
    push(now_ + Duration(joins_random_.between(0, 6000)), Kind::copy_fault, node,
         static_cast<std::uint32_t>(falls ? CopyFault::sender_daemon : CopyFault::sender_node));
}

// ---- rules ----------------------------------------------------------------------------------------------

/// For somebody: then it may take part in majorities.
bool Simulator::truly_counts(std::uint32_t node) const {
    return node < step_nodes_ || firm_counted_.contains(NodeIndex(node));
}

/// What is called firm is on record with majorities; a node that is counted, with itself as well.
void Simulator::check_roster(std::uint32_t node, const Promise &promise) {
    const Roster &r = promise.roster;
    auto has = [&](std::uint32_t i, bool is_counted) {
        const auto &keeper = nodes_[i].keeper;
        if (!keeper) return false;
        const Roster &other = keeper->roster;
        if (!is_counted) return other.added.size() >= r.firm_added;
        return other.counted.size() >= r.firm_counted &&
               other.counted[r.firm_counted - 1] == r.counted[r.firm_counted - 1];
    };
    auto majority = [&](bool is_counted, std::optional<std::uint32_t> with) {
        std::size_t all = 0, have = 0;
        for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
            if (!truly_counts(i) && with != i) continue;
            bool out = !in_job(i) || NodeIndex(i) == config_.batch_host;
            have += has(i, is_counted);
            all += !out || has(i, is_counted);
        }
        return have * 2 > all;
    };
    if (r.firm_added > firm_added_) {
        check(majority(false, {}), "a node is in the table for good before a majority has it on record");
        firm_added_ = r.firm_added;
    }
    if (r.firm_counted <= firm_counted_.size()) return;
    check(r.firm_counted == firm_counted_.size() + 1, "two nodes are counted at once");
    std::uint32_t next = r.counted[r.firm_counted - 1].value();
    check(majority(true, {}) && majority(true, next),
          "a node is counted before majorities have it on record");
    check(has(next, true) || !in_job(next), "a node is counted that does not know it");
    const auto &keeper = nodes_[next].keeper;
    bool knows = !promise.world || (keeper && keeper->world && keeper->world->id >= promise.world->id);
    check(knows || next == node || !in_job(next), "a node is counted that does not know the world in force");
    const Companion *c = companion_of(next);
    check(!c || !c->returns || c->has_met, "a node that was lost is counted without a check");
    firm_counted_.insert(NodeIndex(next));
}

/// Where Slurm can not take nodes out, it keeps one that was added for nobody until the job's end.
bool Simulator::is_any_left_over() const {
    return !options_.no_shrink &&
           std::ranges::any_of(slurm_.companions, [&](auto &c) { return is_left_over(c); });
}

Time Simulator::last_joined() const {
    Time last{0};
    for (const Companion &c : slurm_.companions) last = std::max(last, c.joined_at);
    return last;
}

/// After the faults: as many nodes take part as can.
bool Simulator::grown_back() const {
    if (config_.replacements && is_any_left_over()) return false;
    if (!config_.replacements || !config_.any_size || !newest_world_) return true;
    for (const Companion &c : slurm_.companions)
        if (c.starts && !c.over && !c.node && !(options_.no_shrink && c.merged)) return false;
    std::size_t usable = 0;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
        const Node &n = nodes_[i];
        usable += in_job(i) && !n.dead && !n.ended && n.agent && n.member && !n.dismissed && !given_up(i);
    }
    usable = std::min(usable, wanted_nodes());
    return newest_world_->nodes.size() >= usable - usable % config_.node_unit;
}

}  // namespace dlrover::sim
