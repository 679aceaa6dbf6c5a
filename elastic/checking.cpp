// SPDX-License-Identifier: Apache-2.0
// A node that was lost and comes back is looked at before it is used: it works for a moment, and exchanges
// bytes with one or two others, spares where there are some, which exchange some with each other. Until it
// has passed it is in no world: one that joins has an index and hears the leader, but is not counted
// (roster.cpp); one that the job's run before has lost, and Slurm has given to this run, is counted, and
// passed over where nodes are chosen (generation.cpp).
#include <algorithm>

#include "base/units.h"
#include "elastic/member_state.h"

namespace dlrover::elastic {
namespace {

constexpr Duration order_again = std::chrono::seconds(1);
constexpr Duration order_limit = std::chrono::seconds(20);  ///< the driver gives up before
constexpr Duration gpus_limit = std::chrono::seconds(30);   ///< and so it does with GPUs
constexpr Duration check_again = std::chrono::seconds(5);
constexpr std::uint32_t max_attempts = 2;  ///< of checks that tell nothing
constexpr Duration farewell = std::chrono::seconds(3);

}  // namespace

// ---- on every node --------------------------------------------------------------------------------

void Member::State::on_check_order(NodeIndex from, const CheckOrder &m) {
    if (accept_leader(from, m.term) && m.partner.value() < node_count() && !is_self(m.partner)) take_check(m);
}

/// An order is repeated until it is answered.
void Member::State::take_check(const CheckOrder &m) {
    if (checked && checked->report.term == m.term && checked->report.check == m.check) {
        if (checked->done) report_check();
        return;
    }
    std::uint64_t run = checked ? checked->run + 1 : 1;
    checked = Checked{run, false, {m.term, m.check, false, {}, {}, {}, false}};
    if (!failed_check.empty()) return on_local_check({run, false, {}, {}, failed_check, true});
    out.push_back(RunCheck{run, m.partner, m.work, m.gpus});
}

void Member::State::on_local_check(const LocalCheck &m) {
    if (!checked || checked->run != m.run || checked->done || finish) return;
    checked->done = true;
    checked->report.ok = m.ok;
    checked->report.work = m.work;
    checked->report.exchange = m.exchange;
    checked->report.text = m.text;
    checked->report.unfit = m.unfit;
    report_check();
}

void Member::State::report_check() {
    if (role == Role::leader)
        on_check_report(config.self, checked->report);
    else if (leader)
        send(*leader, checked->report);
}

/// The leader does not take this node in.
void Member::State::on_dismissal(NodeIndex from, const Dismissal &m) {
    if (finish || !accept_leader(from, m.term) || counts(config.self)) return;
    not_let_in = true;
    leave(m.text, 1, NextRun::none);
}

// ---- the leader -----------------------------------------------------------------------------------

/// A node of its name was lost, in this run of the job or the one before, and nobody has looked at it since.
bool Member::State::suspected(NodeIndex node) const {
    const std::string &name = config.nodes[node.value()].name;
    if (!config.checks || name.empty() || contains(promise.roster.counted, node)) return false;
    if (std::ranges::find(config.lost_before, name) != config.lost_before.end()) return !may_have_ranks(node);
    if (node.value() < config.step_nodes) return false;
    return std::ranges::any_of(promise.removed, [&](NodeIndex n) {
        return n.value() < node_count() && n != node && config.nodes[n.value()].name == name &&
               !contains(promise.scaling.released, n);
    });
}

bool Member::State::is_trusted(NodeIndex node) const {
    bool is_own = node.value() < config.step_nodes;
    return !suspected(node) || contains(checking.passed, node) ||
           bugged(is_own ? PlantedBug::lost_before_trusted : PlantedBug::unchecked_let_in);
}

bool Member::State::dismissed(NodeIndex node) const {
    auto it = checking.dismissed.find(node);
    return it != checking.dismissed.end() && now - it->second >= farewell;
}

/// Spares first, this node after the others, and last who is under suspicion itself.
std::vector<NodeIndex> Member::State::check_partners(NodeIndex subject) const {
    std::vector<std::pair<int, NodeIndex>> usable;
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        NodeIndex n(i);
        bool ready = is_self(n) ? local.ready : peers[i].joined && peers[i].report.ready && answers(n);
        bool bad = checking.dismissed.contains(n) || (is_self(n) && !failed_check.empty());
        if (n == subject || removed(n) || !counts(n) || !ready || bad) continue;
        bool works = world && contains(world->nodes, n);
        usable.emplace_back((is_trusted(n) ? 0 : 4) + (works ? 2 : 0) + (is_self(n) ? 1 : 0), n);
    }
    std::ranges::stable_sort(usable, {}, &std::pair<int, NodeIndex>::first);
    std::vector<NodeIndex> partners;
    for (std::size_t i = 0; i < usable.size() && i < 2; ++i) partners.push_back(usable[i].second);
    return partners;
}

void Member::State::consider_check() {
    if (!config.checks || !acting() || finish) return;
    if (checking.subject) return watch_check();
    if (preparing || (awaiting && world) || now < checking.not_before) return;
    bool is_out = checking.dismissed.contains(config.self);
    if (is_out && may_resign()) return resign();
    if (!is_out && !failed_check.empty() && !is_trusted(config.self))
        return dismiss(config.self, CheckVerdict::failed, failed_check);
    if (!world && now - awaiting_since >= config.timings.join * 2) trust_rest();
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        NodeIndex n(i);
        const Peer &p = peers[i];
        bool here = !removed(n) && (is_self(n) || p.acked > 0) && p.report.ready && answers(n);
        if (here && !is_trusted(n) && !checking.dismissed.contains(n)) return begin_check(n);
    }
}

/// Of this run's own nodes those that are here, and that nobody has looked at.
std::vector<NodeIndex> Member::State::to_look_at() const {
    std::vector<NodeIndex> nodes;
    for (std::uint32_t i = 0; i < config.step_nodes; ++i) {
        NodeIndex n(i);
        bool here = !removed(n) && peers[i].report.ready && answers(n);
        if (here && !is_trusted(n) && !checking.dismissed.contains(n)) nodes.push_back(n);
    }
    return nodes;
}

/// There are many, or nobody to check them with: better than no world.
void Member::State::trust_rest() {
    std::vector<NodeIndex> rest = to_look_at();
    if (rest.empty()) return;
    checking.passed.insert(checking.passed.end(), rest.begin(), rest.end());
    note(Note::Kind::warning,
         some_names(rest) + ": lost in the job's run before, not checked in time, and used all the same");
}

void Member::State::begin_check(NodeIndex subject) {
    std::vector<NodeIndex> nodes = check_partners(subject);
    if (nodes.empty()) return;
    nodes.insert(nodes.begin(), subject);
    if (checking.last != subject) checking.attempts = 0;
    checking.last = checking.subject = subject;
    checking.pairs = all_pairs(nodes);
    checking.at = 0;
    checking.book = {};
    checking.text.clear();
    checking.began = now;
    order_check();
}

void Member::State::order_check() {
    ++checking.number;
    checking.ordered_at = now;
    send_check_order();
}

void Member::State::send_check_order() {
    const CheckPair &pair = checking.pairs[checking.at];
    // Ranks of a partner are not to be held up.
    bool works = checking.at == 0 || !world || !contains(world->nodes, pair.first);
    works = works && !checking.book.work_time(pair.first);
    bool gpus = works && checking.at == 0;  // the subject's, once
    checking.limit = gpus ? gpus_limit : order_limit;
    CheckOrder order{promise.term, checking.number, pair.second, works, gpus};
    checking.sent_at = now;
    is_self(pair.first) ? take_check(order) : send(pair.first, std::move(order));
}

/// A partner that goes says nothing about the other.
void Member::State::watch_check() {
    const CheckPair &pair = checking.pairs[checking.at];
    NodeIndex subject = *checking.subject;
    if (removed(subject) || lost(subject)) return checking.subject.reset();
    for (NodeIndex n : {pair.first, pair.second})
        if (n != subject && (removed(n) || lost(n))) return checking.subject.reset();
    if (now - checking.ordered_at < checking.limit) {
        if (now - checking.sent_at >= order_again) send_check_order();
        return;
    }
    CheckReport silence;
    silence.text = "no answer in time";
    on_checked(silence);
}

void Member::State::on_check_report(NodeIndex from, const CheckReport &m) {
    if (role != Role::leader || finish || m.term != promise.term || !checking.subject) return;
    if (m.check != checking.number || from != checking.pairs[checking.at].first) return;
    on_checked(m);
}

void Member::State::on_checked(const CheckReport &m) {
    const CheckPair pair = checking.pairs[checking.at];
    if (m.unfit) return on_unfit(pair.first, m.text);
    checking.book.add(pair, m.ok ? std::optional(m.exchange) : std::nullopt);
    if (m.work > Duration(0)) checking.book.add_work(pair.first, m.work);
    bool about_subject = pair.first == checking.subject || pair.second == checking.subject;
    auto tell = [&](const std::string &what) { checking.text += (checking.text.empty() ? "" : "; ") + what; };
    if (!m.ok && about_subject) tell(names({pair.first}) + " and " + names({pair.second}) + ": " + m.text);
    if (m.ok && pair.first == checking.subject && !m.text.empty()) tell(m.text);
    if (++checking.at < checking.pairs.size()) return order_check();
    conclude_check();
}

/// It has said so of itself: no other meeting tells more.
void Member::State::on_unfit(NodeIndex node, const std::string &text) {
    if (node == checking.subject) {
        checking.subject.reset();
        checking.attempts = 0;
        return dismiss(node, CheckVerdict::failed, names({node}) + ": " + text);
    }
    if (!is_trusted(node)) {
        checking.subject.reset();  // it is begun anew with others
        return dismiss(node, CheckVerdict::failed, names({node}) + ": " + text);
    }
    note(Note::Kind::warning, names({node}) + " has failed while it helped to check another node: " + text);
    checking.book.add(checking.pairs[checking.at], std::nullopt);
    if (++checking.at < checking.pairs.size()) return order_check();
    conclude_check();
}

std::string Member::State::describe_check() const {
    NodeIndex subject = *checking.subject;
    const CheckBook &book = checking.book;
    std::string all;
    auto add = [&](const char *what, std::optional<Duration> time, std::optional<Duration> usual) {
        if (!time) return;
        all += (all.empty() ? "" : ", ") + std::string(what) + " " + format_duration(*time);
        if (usual) all += " (others " + format_duration(*usual) + ")";
    };
    add("work", book.work_time(subject), book.usual_work(subject));
    add("exchange", book.exchange_time(subject), book.usual_exchange(subject));
    if (!checking.text.empty()) all += (all.empty() ? "" : ", ") + checking.text;
    return all;
}

void Member::State::conclude_check() {
    NodeIndex subject = *checking.subject;
    CheckVerdict verdict = checking.book.verdict(subject);
    std::string what = describe_check();
    checking.subject.reset();
    if (verdict == CheckVerdict::unknown && ++checking.attempts < max_attempts) {
        checking.not_before = now + check_again;
        return;
    }
    checking.attempts = 0;
    // Of this run's own nodes Slurm has no others to offer: there has to be a reason not to use one.
    bool is_own = subject.value() < config.step_nodes;
    bool passes = verdict == CheckVerdict::sound || (is_own && verdict == CheckVerdict::unknown);
    if (!passes) return dismiss(subject, verdict, what);
    checking.passed.push_back(subject);
    what = "checked in " + format_duration(now - checking.began) + ": " + what;
    if (!is_own) {
        checking.story[subject] = what;
        return change_roster();
    }
    std::string then =
        verdict == CheckVerdict::sound ? "" : ", and it can not be told whose fault it is; it is used";
    note(Note::Kind::warning, names({subject}) + " was lost in the job's run before; " + what + then);
}

/// One that nobody suspects, or two that are unfit would resign in turn.
bool Member::State::others_can_lead() const {
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        NodeIndex n(i);
        bool may = !is_self(n) && n != config.batch_host && counts(n) && !removed(n);
        if (may && answers(n) && is_trusted(n) && !checking.dismissed.contains(n)) return true;
    }
    return false;
}

void Member::State::dismiss(NodeIndex node, CheckVerdict verdict, const std::string &what) {
    bool slow = verdict == CheckVerdict::slow;
    if (is_self(node)) {
        if (failed_check.empty()) failed_check = slow ? "slow: " + what : what;
        if (may_resign()) return resign();
    }
    std::string why = "two-node check failed: " + what;
    if (slow) why = "two-node check failed, it is slow: " + what;
    if (verdict == CheckVerdict::unknown)
        why = "two-node check failed, and it can not be told whose fault it is: " + what;
    checking.dismissed[node] = now;
    note(Note::Kind::warning, names({node}) + " was lost before and is not let in again: " + why);
    out.push_back(NodeUnfit{node, why, verdict != CheckVerdict::unknown});
    std::string word = names({node}) + " is not let into the group again: " + why;
    if (node.value() >= config.step_nodes) send(node, Dismissal{promise.term, word});
}

/// Once in a while: it leads again where none of the others comes to it.
bool Member::State::may_resign() const {
    bool lately = resigned_at && now - *resigned_at < resign_pause;
    return !lately && !preparing && others_can_lead();
}

/// This node has failed. The next leader is told so when it wants to check it, and decides what becomes of
/// it; until then it is heard, and what it holds counts.
void Member::State::resign() {
    resigned_at = now;
    resign_pause = std::max(config.timings.join, resign_pause * 2);
    step_down("it was lost before, and its check has failed: " + failed_check);
}

}  // namespace dlrover::elastic
