// SPDX-License-Identifier: Apache-2.0
#include "sim/simulator.h"

#include <algorithm>
#include <iostream>

#include "elastic/large_group.h"
#include "elastic/node_list.h"

namespace dlrover::sim {
namespace {

using namespace elastic;
using std::chrono::milliseconds;
using std::chrono::seconds;

template <typename... Ts>
struct Overload : Ts... {
    using Ts::operator()...;
};
template <typename... Ts>
Overload(Ts...) -> Overload<Ts...>;

constexpr Duration settle_time = seconds(50);  ///< a check that is not answered takes 30 s of them
/// After a node has joined.
constexpr Duration join_time = seconds(10);
/// Slurm has refused to take it out of the job: the leader looks again after a while.
constexpr Duration left_over_time = seconds(120);

const char *const input_names[] = {
    "Tick",         "LocalReady",   "LocalExit",    "LocalFinished", "LocalStopped",
    "LocalSealed",  "LocalParity",  "LocalObjects", "LocalProgress", "LocalProtection",
    "LocalSignal",  "Stored",       "PeerMessage",  "PeerLink",      "SlurmAnswer",
    "LocalStorage", "NodeOffered",  "NodesComing",  "LocalCheck",    "LocalRollback",
    "LocalDamaged", "LocalDurable", "LocalSkipped", "LocalScale",    "LocalDomains"};
const char *const message_names[] = {"VoteRequest",  "VoteReply", "Heartbeat", "HeartbeatReply", "Prepare",
                                     "PrepareReply", "Commit",    "Report",    "Finish",         "CheckOrder",
                                     "CheckReport",  "Dismissal", "Reach",     "Reached"};

}  // namespace

Simulator::Simulator(const Options &options) : options_(options), random_(options.seed) {
    std::uint32_t n = options.nodes;
    config_.nodes.assign(n, NodeSpec{static_cast<std::uint16_t>(n < 20 && random_.chance(30) ? 2 : 1)});
    if (random_.chance(70)) config_.batch_host = NodeIndex(0);
    std::uint32_t spares = random_.chance(50) ? random_.below(n / 2 + 1) : 0;
    config_.spares = spares;
    config_.max_nodes = n - spares;
    config_.min_nodes = 1 + random_.below(config_.max_nodes);
    if (random_.chance(20) && config_.min_nodes % 2 == 0) config_.node_unit = 2;
    config_.max_restarts = random_.chance(20) ? 1 : 50;
    config_.requeues_without_host = options.host_requeues;
    config_.slurm_restart_count = random_.below(2);
    Timings &t = config_.timings;
    t.heartbeat = milliseconds(n > 20 ? 300 : 200);
    t.join = seconds(4);
    t.without_slurm = seconds(10);
    if (n > looks_at_once) suit_size(config_);
    if (options.seed % 4 == 3) config_.look_pause = milliseconds(20);  // as in a large group
    nodes_.resize(n);
    for (std::uint32_t i = 0; i < n; ++i) {
        slurm_.nodes.push_back(NodeIndex(i));
        nodes_[i].offset = Duration(random_.between(0, 1000000000));
        nodes_[i].agent = true;
        push(Time(random_.between(0, 200000)), Kind::daemon_up, i);
    }
    last_step_ = random_.chance(25) ? static_cast<std::uint64_t>(random_.between(5, 60)) : 1u << 30;
    plan_storage();
    plan_copies();
    plan_parities();
    plan_joins();
    plan_faults();
    if (options_.rollbacks) plan_rollbacks();
    if (options_.scales) plan_scales();
    if (options_.damage) plan_damage();
}

Simulator::~Simulator() = default;

/// A third of the runs have a folder, two thirds of these with a checkpoint of an earlier run in it. Of a
/// stream of its own: the other choices of a seed stay what they are.
void Simulator::plan_storage() {
    config_.storage = storage_random_.chance(33);
    if (!config_.storage || !storage_random_.chance(66)) return;
    storage_.newest = CheckpointId{{Term((std::uint64_t{5} << 32) | 3), 7}, TrainStep(3)};
    storage_.world_size = 1 + storage_random_.below(8);
    storage_.next_term = Term(std::uint64_t{6} << 32);
    poison_planned_ = poison_random_.chance(40);
}

void Simulator::look_at_storage(std::uint32_t node, const LookAtStorage &look) {
    LocalStorage answer = storage_;
    answer.request = look.request;
    answer.ok = true;
    if (answer.newest && covers(look.passed_over, *answer.newest)) answer.newest.reset();
    bool slow = storage_random_.chance(5);
    Payload p;
    p.input = std::move(answer);
    push(now_ + Duration(storage_random_.between(1000, slow ? 3000000 : 30000)), Kind::input, node,
         keep(std::move(p)));
}

Outcome Simulator::run() {
    Outcome outcome;
    try {
        Time end = faults_end_ + settle_time, left_over_at{0};
        while (!events_.empty()) {
            Event e = events_.top();
            bool left_over = is_any_left_over();
            if (left_over) left_over_at = now_;
            // What was left over may have become a node of the job, which the group has yet to take.
            Time last = left_over ? end + left_over_time : std::max(end, left_over_at + settle_time);
            if (e.at > last && e.at > std::min(last_joined() + join_time, end + left_over_time)) break;
            events_.pop();
            now_ = e.at;
            ++outcome.events;
            if (e.kind != Kind::fault && e.kind != Kind::heal && e.kind != Kind::check &&
                e.kind != Kind::next_run && e.kind != Kind::cut && e.kind != Kind::cut_check &&
                e.kind != Kind::offer && e.kind != Kind::coming && e.kind != Kind::rollback &&
                e.kind != Kind::scale && e.kind != Kind::damage && e.kind != Kind::expanded &&
                e.kind != Kind::expansion_late && e.kind != Kind::pair &&
                nodes_[e.node].frozen_until > now_) {
                Node &n = nodes_[e.node];
                if (e.kind == Kind::deadline && n.deadline_at == e.at) n.deadline_at = n.frozen_until;
                e.at = n.frozen_until;  // its order keeps it in sequence
                events_.push(e);
                continue;
            }
            handle(e);
            if (e.kind == Kind::check && settled(&outcome.state)) break;
        }
        if (!settled(&outcome.state)) fail("the group does not go on after the faults have ceased");
    } catch (const Violation &v) {
        outcome.violation = v.text;
    }
    outcome.at = now_;
    outcome.messages = messages_;
    return outcome;
}

void Simulator::push(Time at, Kind kind, std::uint32_t node, std::uint32_t payload) {
    events_.push(Event{at, ++order_, kind, node, nodes_[node].incarnation, payload});
}

std::uint32_t Simulator::keep(Payload p) {
    if (free_payloads_.empty()) {
        payloads_.push_back(std::move(p));
        return static_cast<std::uint32_t>(payloads_.size() - 1);
    }
    std::uint32_t at = free_payloads_.back();
    free_payloads_.pop_back();
    payloads_[at] = std::move(p);
    return at;
}

Simulator::Payload Simulator::take(const Event &e) {
    switch (e.kind) {
        case Kind::message:
        case Kind::stored:
        case Kind::input:
        case Kind::start_workers:
        case Kind::stop_workers:
        case Kind::step:
        case Kind::seal:
        case Kind::slurm_arrives:
        case Kind::slurm_answers:
        case Kind::copy:
        case Kind::copied:
        case Kind::fetched:
        case Kind::folded:
        case Kind::rebuilt:
        case Kind::recheck:
        case Kind::offer:
        case Kind::expanded:
        case Kind::expansion_late:
            free_payloads_.push_back(e.payload);
            return std::move(payloads_[e.payload]);
        default:
            return {};
    }
}

void Simulator::handle(const Event &e) {
    Node &n = nodes_[e.node];
    Payload p = take(e);
    bool same = n.incarnation == e.incarnation && n.member && !n.dead;
    switch (e.kind) {
        case Kind::deadline:
            if (!same || n.deadline_at != e.at) return;
            n.deadline_at = Time(0);
            feed(e.node, Tick{});
            return set_deadline(e.node);
        case Kind::message:
            if (n.member && !n.dead && p.number == config_.slurm_restart_count) feed(e.node, p.input);
            return;
        case Kind::stored:
            if (same) n.keeper = std::move(p.promise);
            [[fallthrough]];
        case Kind::input:
            if (same) feed(e.node, p.input);
            return;
        case Kind::slurm_arrives:
            return slurm_arrives(e.node, p.ask);
        case Kind::slurm_answers:
            if (!same) return;
            if (!std::get<SlurmAnswer>(p.input).job_nodes.empty()) n.job_read = now_;
            n.coming_told.reset();
            return feed(e.node, p.input);
        case Kind::daemon_up:
            if (!n.member && !n.dead) start_daemon(e.node);
            return;
        case Kind::reconnect:
            if (same) reconnect(e.node);
            return;
        case Kind::fault:
            return inject(faults_[e.payload]);
        case Kind::heal:
            return heal();
        case Kind::next_run:
            return begin_next_run();
        case Kind::cut:
            return cut_smaller_side();
        case Kind::cut_check:
            return check_larger_side();
        case Kind::offer:
            return offer(p);
        case Kind::expanded:
            return start_expanded(p);
        case Kind::expansion_late:
            return on_late_expansion(p);
        case Kind::coming:
            return look_at_queue();
        case Kind::rollback:
            return roll_back();
        case Kind::scale:
            return scale();
        case Kind::damage:
            return on_damage(e.payload);
        case Kind::pair:
            return cut_pair();
        case Kind::check:
            return push(now_ + milliseconds(500), Kind::check, 0);
        default:
            return handle_copies(e, p);
    }
}

/// Copies and parities.
void Simulator::handle_copies(const Event &e, const Payload &p) {
    Node &n = nodes_[e.node];
    bool same = n.incarnation == e.incarnation && n.member && !n.dead;
    switch (e.kind) {
        case Kind::copy_fault:
            return inject_copy_fault(static_cast<CopyFault>(e.payload), e.node);
        case Kind::objects:
            if (same) feed(e.node, objects_of(n));
            return;
        case Kind::code_fault:
            return inject_code_fault(static_cast<CodeFault>(e.payload), e.node);
        case Kind::copy:
            if (!same || p.number != n.copies.round) return;
            n.copies.under_way = false;
            return copy_next(e.node);
        case Kind::copied:
            if (same) on_copied(e.node, p);
            return;
        case Kind::fetched:
            if (same) on_fetched(e.node, p);
            return;
        case Kind::folded:
            if (same) on_folded(e.node, p);
            return;
        case Kind::rebuilt:
            if (same) on_rebuilt(e.node, p);
            return;
        case Kind::recheck:
            if (same) on_recheck(e.node, p);
            return;
        default:
            return handle_local(e, p);
    }
}

/// Agents and workers.
void Simulator::handle_local(const Event &e, const Payload &p) {
    Node &n = nodes_[e.node];
    switch (e.kind) {
        case Kind::start_workers:
            return start_workers(e.node, p.generation);
        case Kind::stop_workers:
            return stop_workers(e.node, p.generation);
        case Kind::lease:
            return on_lease(e.node);
        case Kind::step:
            return on_step(p.generation);
        case Kind::seal:
            return on_seal(e.node, p.generation, p.number, true);
        case Kind::kill_removed:
            if (n.dead) return;
            halt_workers(e.node);
            n.agent = false;
            if (n.member) feed(e.node, LocalReady{false, {}});
            return;
        case Kind::crash_worker:
            if (!n.dead) fail_worker(e.node, 9, random_.next());
            return;
        default:
            return;
    }
}

void Simulator::feed(std::uint32_t node, const Input &input) {
    Node &n = nodes_[node];
    if (options_.trace) trace("node " + std::to_string(node) + " gets " + input_names[input.index()]);
    if (auto *m = std::get_if<PeerMessage>(&input))
        if (auto *reply = std::get_if<PrepareReply>(&m->message); reply && reply->accepted)
            answered_[reply->generation].insert(m->from);
    if (auto *m = std::get_if<PeerMessage>(&input); m && options_.damage) note_report(node, *m);
    auto actions = n.member->step(now_ + n.offset, input);
    std::uint32_t incarnation = n.incarnation;
    for (Action &a : actions) {
        if (n.incarnation != incarnation) return;
        act(node, a);
    }
    check_heard(n, actions);
    if (codes()) hear_safe(node);
    if (options_.damage && n.member) n.damaged = n.member->view().damaged;
    set_deadline(node);
}

void Simulator::set_deadline(std::uint32_t node) {
    Node &n = nodes_[node];
    if (!n.member) return;
    Time wanted = n.member->next_deadline();
    if (wanted == Time::max()) return;
    Time at = std::max(wanted - n.offset, now_ + Duration(1));
    if (n.deadline_at != Time(0) && n.deadline_at <= at && n.deadline_at > now_) return;
    n.deadline_at = at;
    push(at, Kind::deadline, node);
}

void Simulator::act_store(std::uint32_t node, Store &store) {
    Node &n = nodes_[node];
    check_store(node, store.promise);
    hit_writer(node, store.promise);
    n.removed = store.promise.removed;
    if (options_.trace)
        trace("node " + std::to_string(node) + " stores term " + std::to_string(store.promise.term.value()) +
              ", generation " + to_string(store.promise.generation));
    Payload p;
    p.promise = std::move(store.promise);
    p.input =
        Stored{store.sequence, static_cast<std::uint16_t>(store.want_port ? 1 + random_.below(60000) : 0)};
    n.stored_at = std::max(n.stored_at + Duration(1), now_ + Duration(random_.between(20, 500)));
    push(n.stored_at, Kind::stored, node, keep(std::move(p)));
}

void Simulator::act_freed(std::uint32_t node, const StepFreed &a) {
    Node &n = nodes_[node];
    if (options_.trace)
        trace("node " + std::to_string(node) + " frees what is before step " +
              std::to_string(a.id.step.value()) + " of " + to_string(a.id.generation) +
              (a.keep ? " but for step " + std::to_string(a.keep->step.value()) : ""));
    if (config_.copies > 0) check_freed(node, a);
    std::erase_if(n.objects, [&](const Seal &s) { return a.frees({s.generation, s.step}); });
    std::erase_if(n.parities, [&](const HeldParity &p) { return a.frees(p.parity.id); });
}

void Simulator::act_void(std::uint32_t node, const StepsVoid &a) {
    Node &n = nodes_[node];
    check_void(a);
    if (options_.trace)
        trace("node " + std::to_string(node) + ": steps of " + to_string(a.generation) + " below " +
              std::to_string(a.below.value()) + " are void" +
              (a.complete ? ", after step " + std::to_string(a.complete->value()) : ""));
    auto is_void = [&](const CheckpointId &id) {
        return id.generation == a.generation && id.step < a.below && (!a.complete || id.step > *a.complete);
    };
    // Others may be on their way to fetch what is damaged elsewhere.
    for (const Seal &s : n.objects)
        if (CheckpointId id{s.generation, s.step}; is_void(id) && has_lost_a_part(id))
            note_drop(node, id, s.rank);
    for (const HeldParity &p : n.parities)
        if (is_void(p.parity.id) && has_lost_a_part(p.parity.id)) note_drop(node, p.parity.id, std::nullopt);
    std::erase_if(n.objects, [&](const Seal &s) { return is_void({s.generation, s.step}); });
    std::erase_if(n.parities, [&](const HeldParity &p) { return is_void(p.parity.id); });
}

void Simulator::act_end(std::uint32_t node, const End &a) {
    Node &n = nodes_[node];
    if (options_.trace)
        trace("node " + std::to_string(node) + " ends with " + std::to_string(a.exit_code) + " " + a.message);
    check_job_end(node, a);
    n.ended = true;
    n.exit_code = a.exit_code;
    n.next_run = a.next_run;
    halt_workers(node);
}

void Simulator::act(std::uint32_t node, Action &action) {
    Node &n = nodes_[node];
    std::visit(Overload{
                   [&](SendMessage &a) {
                       a.also.insert(a.also.begin(), a.to);
                       for (NodeIndex to : a.also) {
                           check_send(node, to, a.message);
                           transmit(node, to.value(), a.message);
                       }
                   },
                   [&](Store &a) { act_store(node, a); },
                   [&](Publish &a) {
                       if (options_.trace)
                           trace("node " + std::to_string(node) + " publishes " + to_string(a.world.id));
                       check_publish(node, a.world);
                       publish(node, a.world);
                   },
                   [&](StopWorkers &a) {
                       n.stopping = std::max(n.stopping, a.generation);
                       drop_open_rows(n);
                       Payload p;
                       p.generation = a.generation;
                       push(now_ + Duration(random_.between(500, 30000)), Kind::stop_workers, node,
                            keep(std::move(p)));
                   },
                   [&](RenewLease &) { n.lease_until = now_ + config_.timings.agent_lease; },
                   [&](StepComplete &) {},
                   [&](Protect &a) {
                       if (options_.trace)
                           trace("node " + std::to_string(node) + " protects step " +
                                 std::to_string(a.id.step.value()) + " of " + to_string(a.id.generation));
                       protect(node, a.id);
                   },
                   [&](StepFreed &a) { act_freed(node, a); },
                   [&](StorageAsked &a) { check_asked(node, a.id); },
                   [&](StepSafe &) {},
                   [&](StepDurable &) {},
                   [&](JobEndsSoon &) {},
                   [&](StepsVoid &a) { act_void(node, a); },
                   [&](AskSlurm &a) {
                       if (options_.trace)
                           trace("node " + std::to_string(node) + " asks Slurm " +
                                 std::to_string(static_cast<int>(a.what)));
                       check_ask(node, a);
                       Payload p;
                       p.ask = std::move(a);
                       push(now_ + Duration(random_.between(500, 5000)), Kind::slurm_arrives, node,
                            keep(std::move(p)));
                   },
                   [&](NodesAdded &a) { on_added(node, a); },
                   [&](LookAtStorage &a) { look_at_storage(node, a); },
                   [&](RunCheck &a) { run_check(node, a); },
                   [&](NodeUnfit &a) { nodes_[a.node.value()].dismissed = true; },
                   [&](Tell &) {},
                   [&](End &a) { act_end(node, a); },
                   [&](Note &a) {
                       check_note(a);
                       if (a.text.starts_with("Checkpoints have no copies")) check_given_up(node);
                       if (a.text.find(" given back to Slurm: ") != a.text.npos) check_released();
                       if (a.text.find("not checked in time") != a.text.npos) rest_trusted_ = true;
                       if (options_.trace) trace("node " + std::to_string(node) + ": " + a.text);
                   },
               },
               action);
}

void Simulator::start_daemon(std::uint32_t node) {
    Node &n = nodes_[node];
    ++n.incarnation;
    GroupConfig c = config_;
    c.self = NodeIndex(node);
    c.nodes.resize(step_nodes_);
    // The driver's own record may be older than the promise.
    if (node >= step_nodes_ || !config_.replacements || joins_random_.chance(50))
        c.nodes.insert(c.nodes.end(), n.added.begin(), n.added.end());
    else
        n.added.clear();
    n.deadline_at = Time(0);
    n.asked.reset();
    n.heard.clear();
    n.daemon_at = now_;
    n.removed = n.keeper ? n.keeper->removed : std::vector<NodeIndex>{};
    n.member.emplace(std::move(c), n.keeper, now_ + n.offset, options_.bug);
    if (options_.switches > 0) feed(node, LocalDomains{switches()});
    if (auto damaged = n.damaged) feed(node, LocalDamaged{*damaged});
    if (!n.objects.empty() || !n.parities.empty()) feed(node, objects_of(n));
    Time connected = now_ + Duration(random_.between(1000, 300000));
    push(connected, Kind::reconnect, node);
    set_deadline(node);
    n.broken.clear();
    tell_links();
}

/// In blocks, as sites number their nodes; those that come later hang on the last one.
std::vector<std::uint32_t> Simulator::switches() const {
    std::vector<std::uint32_t> of;
    std::uint32_t each = (step_nodes_ + options_.switches - 1) / options_.switches;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) of.push_back(1 + std::min(i, step_nodes_ - 1) / each);
    return of;
}

/// The agents find the daemon.
void Simulator::reconnect(std::uint32_t node) {
    Node &n = nodes_[node];
    feed(node, LocalReady{n.agent && !n.ended, n.running});
    if (n.pending_exit != GenerationId{} && n.member)
        feed(node, LocalExit{WorkerExit{n.pending_exit, Rank(n.first_rank), 9, now_.count(), 9, false, ""}});
    n.pending_exit = {};
    fetch_all(node);
}

void Simulator::crash_daemon(std::uint32_t node) {
    Node &n = nodes_[node];
    if (!n.member) return;
    n.member.reset();
    n.muted = false;
    ++n.incarnation;
    n.daemon_at = now_;
    n.deadline_at = Time(0);
    // Until its next daemon speaks, a leader goes by what this one has said.
    Time exposed_at = n.copies.exposed ? now_ : n.copies.exposed_at;
    end_copies(node);
    n.copies.exposed_at = exposed_at;
    if (!random_.chance(50)) return;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i)
        if (i != node && nodes_[i].member && linked(i, node)) {
            Payload p;
            p.input = PeerLink{NodeIndex(node), true};
            nodes_[i].broken.insert(node);
            push(now_ + latency(), Kind::input, i, keep(std::move(p)));
        }
}

Duration Simulator::latency() {
    if (chaos_ && random_.chance(20)) return Duration(random_.between(1000, 700000));
    return Duration(random_.between(40, 2000));
}

bool Simulator::linked(std::uint32_t from, std::uint32_t to) const {
    if (nodes_[from].dead || nodes_[to].dead || nodes_[from].side != nodes_[to].side) return false;
    if (is_cut_pair(from, to) && now_ < pair_cut_->until) return false;
    return one_way_.empty() || !one_way_.contains({from, to});
}

void Simulator::transmit(std::uint32_t from, std::uint32_t to, Message message) {
    ++messages_;
    if (options_.trace)
        trace("node " + std::to_string(from) + " -> " + std::to_string(to) + ": " +
              message_names[message.index()]);
    if (!linked(from, to) || (chaos_ && random_.chance(10))) return;
    if (nodes_[from].muted && joins_random_.chance(70)) return;
    Payload p;
    p.input = PeerMessage{NodeIndex(from), std::move(message)};
    p.number = config_.slurm_restart_count;
    if (chaos_ && random_.chance(5)) push(now_ + latency(), Kind::message, to, keep(p));
    push(now_ + latency(), Kind::message, to, keep(std::move(p)));
}

bool Simulator::in_job(std::uint32_t node) const {
    if (elastic::contains(slurm_.left, NodeIndex(node))) return false;
    if (const Companion *c = companion_of(node)) return slurm_.running && !c->over;
    return std::find(slurm_.nodes.begin(), slurm_.nodes.end(), NodeIndex(node)) != slurm_.nodes.end();
}

void Simulator::trace(const std::string &text) const {
    if (options_.trace) std::cout << now_.count() << " " << text << "\n";
}

}  // namespace dlrover::sim
