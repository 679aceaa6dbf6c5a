// SPDX-License-Identifier: Apache-2.0
// What a group of thousands of nodes asks of the node that leads it. Simulated: the nodes' time and the
// network between them (latency, bandwidth: options). Measured, while it runs, on this machine: what the
// product's own code takes for each message - the member (elastic/), the codec, frames, MACs, the kernel's
// sockets. The leader and the node that follows it are real members; every other one gives the answers that
// those would give, and is charged what the real follower was.
#include <sys/socket.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <array>
#include <csignal>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <queue>

#include "bench/scale_link.h"
#include "daemon/message_codec.h"
#include "elastic/large_group.h"
#include "elastic/member.h"
#include "elastic/node_list.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;

namespace {

struct Settings {
    std::uint32_t nodes = 10000, ranks = 8, copies = 1, spares = 1;
    double latency_us = 50, gbit = 10, store_us = 300, slurm_ms = 14;
};

constexpr double second = 1e6;
constexpr std::uint32_t batch_host = 0, first_leader = 1, second_leader = 2;

double thread_us() {
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

Time as_time(double us) {
    return Time(static_cast<std::int64_t>(us));
}

/// What a member that is not simulated would answer.
struct Mimic {
    Term term;
    std::uint64_t number = 0;
    GenerationId promised;
    NodeReport report;
    std::optional<CheckpointId> copying;
};

struct Node {
    std::optional<Member> member;
    Mimic mimic;
    struct Work {
        double since;
        std::function<double(double start)> work;
    };
    std::deque<Work> waiting;
    double wire_free_at = 0, busy = 0, deadline = -1;
    bool dead = false, working = false;
};

/// When things came about.
struct Log {
    std::optional<double> asked, answered, published_first, published_last, complete, complete_last, safe;
    std::uint32_t published = 0;
};

class Scale {
  public:
    Scale(const Settings &settings, const bench::LinkCost &link) : s_(settings), link_(link) {
        nodes_.resize(s_.nodes);
        for (std::uint32_t i = 0; i < s_.nodes; ++i) job_.emplace_back(i);
        for (std::uint32_t i = 0; i < s_.nodes; ++i) {
            nodes_[i].mimic.report.ready = true;
            if (is_real(i)) start(i);
        }
    }

    void run_until(double t) {
        while (!events_.empty() && events_.top().at <= t) {
            auto action = std::move(const_cast<Event &>(events_.top()).action);
            now_ = events_.top().at;
            events_.pop();
            action();
        }
        now_ = t;
    }
    void run_for(double us) { run_until(now_ + us); }
    bool run_until(double limit_us, const std::function<bool()> &done) {
        for (double end = now_ + limit_us; now_ < end && !done();) run_until(now_ + 1000);
        return done();
    }

    bool all_published() const { return world_ && log_.published >= world_->nodes.size(); }
    double now() const { return now_; }
    double busy(std::uint32_t node) const { return nodes_[node].busy; }
    /// Leaders that gave up although they lived.
    std::uint32_t lost_leads() const { return lost_leads_; }
    std::uint64_t messages() const { return messages_; }
    std::uint64_t bytes() const { return bytes_; }
    double longest_wait() const { return longest_wait_; }
    void forget_waits() { longest_wait_ = 0; }
    Log &log() { return log_; }
    const std::optional<World> &world() const { return world_; }
    const std::optional<std::uint32_t> &leader() const { return leader_; }

    /// Every rank seals this step, within 20 ms.
    void save(TrainStep step) {
        log_.complete.reset(), log_.complete_last.reset(), log_.safe.reset();
        saved_ = {world_->id, step};
        for (NodeIndex n : world_->nodes)
            push(now_ + 20000 * spread(n),
                 [this, node = n.value()] { hold(node, node, 0, s_.ranks, saved_); });
    }
    void progress(std::uint64_t step) {
        for (NodeIndex n : world_->nodes)
            push(now_ + 500000 * spread(n), [this, node = n.value(), step] { step_all(node, step); });
    }
    /// Every process ends by itself within 100 ms, as they do when a collective call is aborted.
    void end_all() {
        log_ = {};
        log_.asked = now_;
        for (NodeIndex n : world_->nodes)
            push(now_ + 100000 * spread(n),
                 [this, node = n.value(), of = world_->id] { end_ranks(node, of); });
    }
    void power_off(std::uint32_t node) {
        log_ = {};
        if (leader_ == node) leader_.reset();
        nodes_[node].dead = true;
    }

  private:
    struct Event {
        double at;
        std::uint64_t order;
        std::function<void()> action;
        bool operator<(const Event &other) const {
            return at != other.at ? at > other.at : order > other.order;
        }
    };

    /// 0 to 1, by node.
    static double spread(NodeIndex node) { return static_cast<double>((node.value() * 7919) % 1000) / 1000; }
    static bool is_real(std::uint32_t node) { return node == first_leader || node == second_leader; }

    void push(double at, std::function<void()> action) {
        events_.push({at, next_order_++, std::move(action)});
    }

    void start(std::uint32_t node) {
        GroupConfig c;
        c.self = NodeIndex(node);
        c.nodes.assign(s_.nodes, NodeSpec{static_cast<std::uint16_t>(s_.ranks)});
        for (std::uint32_t i = 0; i < s_.nodes; ++i) c.nodes[i].name = "node" + std::to_string(i);
        c.batch_host = NodeIndex(batch_host);
        c.max_nodes = s_.nodes - s_.spares;
        c.min_nodes = c.max_nodes - 2;
        c.spares = s_.spares;
        c.copies = s_.copies;
        c.any_size = s_.copies > 0;
        suit_size(c);
        nodes_[node].member.emplace(std::move(c), std::nullopt, as_time(now_));
        feed(node, LocalReady{true, {}});
    }

    /// The node does this once it is free: `work` says what it took, in microseconds. urgent: before what
    /// waits.
    void occupy(std::uint32_t node, std::function<double(double start)> work, bool urgent = false) {
        Node &n = nodes_[node];
        if (n.dead) return;
        n.waiting.insert(urgent ? n.waiting.begin() : n.waiting.end(), {now_, std::move(work)});
        if (!n.working) go_on(node);
    }
    void go_on(std::uint32_t node) {
        Node &n = nodes_[node];
        n.working = !n.dead && !n.waiting.empty();
        if (!n.working) return;
        Node::Work next = std::move(n.waiting.front());
        n.waiting.pop_front();
        longest_wait_ = std::max(longest_wait_, now_ - next.since);
        double took = next.work(now_);
        n.busy += took;
        push(now_ + took, [this, node] { go_on(node); });
    }

    /// With what it takes to take the input and what comes of it down again. A timer comes before messages:
    /// the daemon's loop looks at its timers after each few of them.
    void feed(std::uint32_t node, Input input, double before = 0, double *charge = nullptr) {
        bool urgent = std::holds_alternative<Tick>(input);
        auto work = [this, node, input = std::move(input), before, charge](double begin) mutable {
            double cursor = begin + before, from = thread_us();
            auto actions = nodes_[node].member->step(as_time(cursor), input);
            cursor += thread_us() - from;
            for (Action &action : actions) cursor += act(node, action, cursor);
            from = thread_us();
            actions.clear();
            input = Tick{};
            set_deadline(node);
            double took = cursor + thread_us() - from - begin;
            if (charge && leader_ != node) *charge = took;
            return took;
        };
        occupy(node, std::move(work), urgent);
    }

    void set_deadline(std::uint32_t node) {
        auto due = static_cast<double>(nodes_[node].member->next_deadline().count());
        Node &n = nodes_[node];
        if (n.deadline >= now_ && n.deadline <= due) return;
        n.deadline = std::max(due, now_);
        push(n.deadline, [this, node, at = n.deadline] {
            if (nodes_[node].deadline != at) return;
            nodes_[node].deadline = -1;
            feed(node, Tick{});
        });
    }

    double act(std::uint32_t node, Action &action, double at) {
        if (auto *m = std::get_if<SendMessage>(&action)) return send(node, *m, at);
        if (auto *store = std::get_if<Store>(&action)) {
            double from = thread_us();
            auto bytes = daemon::encode_promise(store->promise);
            double took = thread_us() - from;
            std::uint16_t port = store->want_port ? 2000 : 0;
            push(at + took + s_.store_us,
                 [this, node, stored = Stored{store->sequence, port}] { feed(node, stored, 0, &stored_); });
            return took;
        }
        if (auto *p = std::get_if<Publish>(&action)) publish(node, p->world, at);
        if (auto *c = std::get_if<StepComplete>(&action)) complete(node, {c->generation, c->step}, at);
        if (auto *safe = std::get_if<StepSafe>(&action); safe && safe->id == saved_ && !log_.safe)
            log_.safe = at;
        if (auto *freed = std::get_if<StepFreed>(&action)) drop(node, freed->id);
        if (auto *protect = std::get_if<Protect>(&action)) copy(node, protect->id);
        if (auto *note = std::get_if<Note>(&action)) {
            if (note->kind == Note::Kind::leader_elected) leader_ = node;
            bool gave_up = note->kind == Note::Kind::leader_lost && leader_ == node;
            if (gave_up) std::printf("  %.2f s, node %u: %s\n", at / second, node, note->text.c_str());
            if (gave_up) leader_.reset();
            lost_leads_ += gave_up;
        }
        if (auto *ask = std::get_if<AskSlurm>(&action)) {
            if (!log_.asked) log_.asked = at;
            push(at + s_.slurm_ms * 1000, [this, node, asked = *ask] { answer(node, asked); });
        }
        return 0;
    }

    void answer(std::uint32_t node, const AskSlurm &asked) {
        if (asked.what == AskSlurm::What::shrink_to) {
            job_ = asked.nodes;
            if (!log_.answered) log_.answered = now_;
        }
        feed(node, SlurmAnswer{asked.request, SlurmAnswer::Result::done, job_, true});
    }

    double send(std::uint32_t node, SendMessage &m, double at) {
        double from = thread_us();
        auto bytes = std::make_shared<proto::Bytes>(daemon::encode_message(m.message));
        double took = thread_us() - from;
        auto message = std::make_shared<Message>(std::move(m.message));
        m.also.insert(m.also.begin(), m.to);
        for (NodeIndex n : m.also) {
            took += link_.send(bytes->size());
            carry(node, n.value(), bytes->size(), at + took, [this, node, to = n.value(), message, bytes] {
                if (is_real(to))
                    receive(node, to, *bytes);
                else
                    hear(to, node, message);
            });
        }
        return took;
    }

    void carry(std::uint32_t node, std::uint32_t to, std::size_t bytes, double at,
               std::function<void()> arrive) {
        Node &n = nodes_[node];
        n.wire_free_at = std::max(n.wire_free_at, at) + static_cast<double>(bytes) * 8 / (s_.gbit * 1000);
        ++messages_;
        bytes_ += bytes;
        if (!nodes_[to].dead) push(n.wire_free_at + s_.latency_us, std::move(arrive));
    }

    void receive(std::uint32_t from, std::uint32_t to, const proto::Bytes &bytes) {
        double begin = thread_us();
        auto message = daemon::decode_message(bytes, s_.nodes);
        double took = thread_us() - begin + link_.receive(bytes.size());
        if (!message) std::abort();
        double *charge = &follower_[message->index()];
        feed(to, PeerMessage{NodeIndex(from), std::move(*message)}, took, charge);
    }

    // ---- the others ----------------------------------------------------------------------------

    void reply(std::uint32_t node, std::uint32_t to, const Message &message, double at) {
        auto bytes = std::make_shared<proto::Bytes>(daemon::encode_message(message));
        carry(node, to, bytes->size(), at, [this, node, to, bytes] { receive(node, to, *bytes); });
    }
    const NodeReport &next_report(Mimic &mimic) {
        mimic.report.number = std::max<std::uint64_t>(mimic.report.number + 1, as_time(now_).count());
        return mimic.report;
    }

    void hear(std::uint32_t node, std::uint32_t from, const std::shared_ptr<Message> &message) {
        occupy(node, [this, node, from, message](double begin) {
            double took = follower_[message->index()];
            answer(node, from, *message, begin + took);
            return took;
        });
    }
    void answer(std::uint32_t node, std::uint32_t from, const Message &message, double at) {
        Mimic &mimic = nodes_[node].mimic;
        if (auto *m = std::get_if<VoteRequest>(&message)) {
            if (m->term <= mimic.term) return;
            mimic.term = m->term;
            VoteReply vote{m->term, true, {}, next_report(mimic)};
            vote.promise.term = m->term;
            vote.promise.voted_for = NodeIndex(from);
            vote.promise.generation = mimic.promised;
            vote.promise.world = world_;
            if (world_) vote.promise.world_nodes = world_->nodes;
            reply(node, from, vote, at + s_.store_us + stored_);
        } else if (auto *h = std::get_if<Heartbeat>(&message)) {
            if (h->world && h->world->id >= mimic.promised) begin(node, *h->world, at);
            if (h->protect && h->protect != mimic.copying) copy(node, *h->protect);
            if (h->freed) drop(node, *h->freed);
            mimic.report.safe = h->safe;
            if (h->complete_step) complete(node, {h->complete_generation, *h->complete_step}, at);
            reply(node, from, HeartbeatReply{h->term, h->sequence, next_report(mimic)}, at);
        } else if (auto *p = std::get_if<Prepare>(&message)) {
            if (p->generation < mimic.promised) return;
            mimic.promised = p->generation;
            mimic.report.running = {};
            mimic.report.progress.clear();
            std::uint16_t port = p->world_nodes.front() == NodeIndex(node) ? 2000 : 0;
            reply(node, from, PrepareReply{p->term, p->generation, true, port, next_report(mimic), {}},
                  at + s_.store_us + stored_);
        } else if (auto *c = std::get_if<Commit>(&message)) {
            begin(node, c->world, at);
        }
    }
    void begin(std::uint32_t node, const World &world, double at) {
        Mimic &mimic = nodes_[node].mimic;
        mimic.report.knows = world.id;
        if (mimic.report.running == world.id || !contains(world.nodes, NodeIndex(node))) return;
        mimic.report.running = world.id;
        mimic.report.exits.clear();
        mimic.copying.reset();
        publish(node, world, at);
        // What it holds, once its agents have been told; as daemon/group.cpp.
        push(at + 20000 * spread(NodeIndex(node)), [this, node] { tell(node); });
    }
    void tell(std::uint32_t node) {
        Mimic &mimic = nodes_[node].mimic;
        if (auto to = leader(); to && !nodes_[node].dead)
            reply(node, *to, Report{mimic.term, next_report(mimic)}, now_);
    }

    // ---- ranks -----------------------------------------------------------------------------------

    void publish(std::uint32_t node, const World &world, double at) {
        if (!contains(world.nodes, NodeIndex(node))) return;
        if (!world_ || world_->id != world.id) {
            world_ = world;
            log_.published = 0;
            log_.published_first = at;
            wards_.assign(s_.nodes, std::nullopt);
            first_rank_.assign(s_.nodes, 0);
            for (std::size_t i = 0; i < world.nodes.size(); ++i) {
                first_rank_[world.nodes[i].value()] = static_cast<std::uint32_t>(i) * s_.ranks;
                if (s_.copies > 0 && !world.partners.empty())
                    wards_[world.partners[i * s_.copies].value()] = world.nodes[i].value();
            }
        }
        // What it goes on from comes from a partner, where it is not there.
        if (world.restore_step)
            push(at + 100000, [this, node, id = CheckpointId{world.restore_generation, *world.restore_step}] {
                hold(node, node, 0, s_.ranks, id);
            });
        ++log_.published;
        log_.published_last = std::max(log_.published_last.value_or(0), at);
    }
    void complete(std::uint32_t, const CheckpointId &id, double at) {
        if (id != saved_) return;
        if (!log_.complete) log_.complete = at;
        log_.complete_last = std::max(log_.complete_last.value_or(0), at);
    }
    void drop(std::uint32_t node, const CheckpointId &freed) {
        std::erase_if(nodes_[node].mimic.report.seals,
                      [&](const Seal &seal) { return seal.step < freed.step; });
    }
    /// The objects of that node's ranks come to be on node `on`.
    void hold(std::uint32_t on, std::uint32_t node, std::uint32_t from, std::uint32_t count,
              const CheckpointId &id) {
        bool news = false;
        auto size = static_cast<std::uint32_t>(world_->nodes.size()) * s_.ranks;
        std::vector<Seal> &held = nodes_[on].mimic.report.seals;
        for (std::uint32_t i = from; i < from + count; ++i) {
            Seal seal{id.step, Rank(first_rank_[node] + i), size, id.generation, false};
            if (std::ranges::any_of(held, [&](const Seal &other) { return other.is_same(seal); })) continue;
            news = true;
            held.push_back(seal);
            if (is_real(on)) feed(on, LocalSealed{seal});
        }
        auto here = std::ranges::count_if(held, [&](const Seal &seal) {
            return CheckpointId{seal.generation, seal.step} == id;
        });
        if (news && !is_real(on) && here % s_.ranks == 0) tell(on);  // as Member does
    }
    /// This node's objects come to its partner, one after the other.
    void copy(std::uint32_t node, const CheckpointId &id) {
        nodes_[node].mimic.copying = id;
        auto partner = std::ranges::find(wards_, std::optional(node));
        if (partner == wards_.end()) return;
        auto to = static_cast<std::uint32_t>(partner - wards_.begin());
        for (std::uint32_t i = 0; i < s_.ranks; ++i)
            push(now_ + 10000.0 * (i + 1), [this, to, node, i, id] { hold(to, node, i, 1, id); });
    }
    void end_ranks(std::uint32_t node, const GenerationId &of) {
        Mimic &mimic = nodes_[node].mimic;
        for (std::uint32_t i = 0; i < s_.ranks; ++i) {
            WorkerExit exit{of, Rank(first_rank_[node] + i), SIGABRT, 0, 7, false, "aborted"};
            if (is_real(node))
                feed(node, LocalExit{exit});
            else if (mimic.report.running == of)
                mimic.report.exits.push_back(exit);
        }
        if (!is_real(node)) tell(node);
    }
    void step_all(std::uint32_t node, std::uint64_t step) {
        std::vector<RankProgress> all;
        for (std::uint32_t i = 0; i < s_.ranks; ++i) {
            RankProgress p;
            p.rank = Rank(first_rank_[node] + i);
            p.step = TrainStep(step);
            p.steps_done = step;
            p.step_sum = Duration(static_cast<std::int64_t>(step) * 100000);
            p.since_first_step = p.step_sum;
            all.push_back(p);
        }
        if (is_real(node))
            feed(node, LocalProgress{std::move(all)});
        else
            nodes_[node].mimic.report.progress = std::move(all);
    }

    Settings s_;
    bench::LinkCost link_;
    std::vector<Node> nodes_;
    std::vector<NodeIndex> job_;  ///< as Slurm has it
    std::priority_queue<Event> events_;
    std::uint64_t next_order_ = 0, messages_ = 0, bytes_ = 0;
    double now_ = 0, longest_wait_ = 0;
    /// What the real follower was last charged, by kind of message, and for a record that is stored.
    std::array<double, std::variant_size_v<Message>> follower_{};
    double stored_ = 0;
    std::optional<std::uint32_t> leader_;
    std::uint32_t lost_leads_ = 0;
    std::optional<World> world_;
    std::vector<std::optional<std::uint32_t>> wards_;  ///< by node: whose copies it keeps
    std::vector<std::uint32_t> first_rank_;
    CheckpointId saved_;
    Log log_;
};

/// Heartbeats, and a step each half a second.
void run_at_rest(Scale &scale) {
    scale.forget_waits();
    double leader = scale.busy(*scale.leader()), from = scale.now();
    std::uint64_t messages = scale.messages(), bytes = scale.bytes();
    for (std::uint64_t step = 1; step <= 8; ++step) {
        scale.progress(step);
        scale.run_for(0.5 * second);
    }
    double took = scale.now() - from;
    std::printf(
        "at rest: the leader is busy %.3f of the time, %.0f messages and %.1f MB a second; the longest that "
        "one "
        "waited %.1f ms\n",
        (scale.busy(*scale.leader()) - leader) / took,
        static_cast<double>(scale.messages() - messages) / took * second,
        static_cast<double>(scale.bytes() - bytes) / took, scale.longest_wait() / 1000);
}

bool run_save(Scale &scale, std::uint64_t step) {
    if (!scale.leader()) return false;
    scale.forget_waits();
    double from = scale.now() + 20000, busy = scale.busy(*scale.leader());
    scale.save(TrainStep(step));
    bool safe = scale.run_until(60 * second, [&] { return scale.log().safe.has_value(); });
    auto ms = [&](const std::optional<double> &at) { return at ? (*at - from) / 1000 : -1; };
    std::printf(
        "a save: complete %.1f ms after the last seal, on the last node %.1f ms, %s %.1f ms; the leader was "
        "busy for "
        "%.1f ms, the longest that a message waited %.1f ms\n",
        ms(scale.log().complete), ms(scale.log().complete_last), safe ? "safe" : "NOT SAFE",
        ms(scale.log().safe), (scale.busy(scale.leader().value_or(first_leader)) - busy) / 1000,
        scale.longest_wait() / 1000);
    return safe && scale.leader();
}

bool run_loss(Scale &scale, std::uint32_t node, const char *what) {
    auto before = scale.world()->id;
    double from = scale.now();
    scale.forget_waits();
    scale.power_off(node);
    bool done = scale.run_until(60 * second, [&] {
        return scale.world()->id != before && scale.all_published() && scale.log().answered;
    });
    const Log &log = scale.log();
    auto s = [&](const std::optional<double> &at) { return at ? (*at - from) / second : -1; };
    double verdict_to_world = s(log.published_last) - s(log.asked);
    std::printf(
        "%s: Slurm asked after %.2f s, its answer %.2f s, the new world on the first node %.2f s, on the "
        "last %.2f s; "
        "verdict to world %.2f s%s; the longest that a message waited %.1f ms\n",
        what, s(log.asked), s(log.answered), s(log.published_first), s(log.published_last), verdict_to_world,
        done && verdict_to_world <= 3 ? "" : " (goal 3 s, MISSED)", scale.longest_wait() / 1000);
    return done && verdict_to_world <= 3;
}

bool run_failure(Scale &scale) {
    auto before = scale.world()->id;
    double from = scale.now();
    scale.forget_waits();
    scale.end_all();
    bool done =
        scale.run_until(60 * second, [&] { return scale.world()->id != before && scale.all_published(); });
    double took = done ? (*scale.log().published_last - from) / second : -1;
    std::printf(
        "every process ends within 0.1 s: the new world on the last node after %.2f s; the longest that a "
        "message "
        "waited %.1f ms\n",
        took, scale.longest_wait() / 1000);
    return done;
}

int run(const Settings &settings) {
    auto link = bench::measure_link();
    if (!link) {
        std::fprintf(stderr, "scale: %s\n", link.status().message().c_str());
        return 2;
    }
    std::printf(
        "a message of n bytes costs its sender %.1f us + %.2f us/KiB, its receiver %.1f us + %.2f us/KiB "
        "(frame, MAC, loopback socket; measured), the codec and the member what they take\n",
        link->send_fixed, link->send_byte * 1024, link->receive_fixed, link->receive_byte * 1024);
    std::printf(
        "assumed: latency %.0f us, %.0f Gbit/s, a record with the keeper %.0f us, Slurm's answer %.0f ms\n",
        settings.latency_us, settings.gbit, settings.store_us, settings.slurm_ms);
    Scale scale(settings, *link);
    bool began = scale.run_until(120 * second, [&] { return scale.all_published(); });
    std::printf("%u nodes with %u ranks: the first world on all nodes after %.2f s\n", settings.nodes,
                settings.ranks, began ? *scale.log().published_last / second : -1);
    if (!began) return 1;
    scale.run_for(second);
    run_at_rest(scale);
    bool good = run_save(scale, 10) && run_save(scale, 20);
    scale.run_for(2 * second);
    good = good && run_failure(scale);
    scale.run_for(3 * second);
    good = good && run_save(scale, 25);
    scale.run_for(2 * second);
    good = good && run_loss(scale, settings.nodes / 2, "a node loses its power, a spare is there");
    scale.run_for(3 * second);
    good = good && run_save(scale, 30);
    scale.run_for(2 * second);
    good = good && run_loss(scale, *scale.leader(), "the node that leads loses its power, no spare is left");
    return good && scale.lost_leads() == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
    CLI::App app("What leading a group of thousands of nodes takes; see docs/benchmarks.md");
    Settings s;
    app.add_option("--nodes", s.nodes, "of the group")->check(CLI::Range(8, 16384));
    app.add_option("--ranks", s.ranks, "of each node")->check(CLI::Range(1, 64));
    app.add_option("--copies", s.copies, "of each object on other nodes")->check(CLI::Range(0, 1));
    app.add_option("--latency-us", s.latency_us, "of the network, one way")->check(CLI::Range(0.0, 1e6));
    app.add_option("--gbit", s.gbit, "a second, of each node's link")->check(CLI::Range(0.1, 1e4));
    app.add_option("--store-us", s.store_us, "until a record is with the keeper")
        ->check(CLI::Range(0.0, 1e6));
    app.add_option("--slurm-ms", s.slurm_ms, "until Slurm has answered")->check(CLI::Range(0.0, 1e6));
    CLI11_PARSE(app, argc, argv);
    return run(s);
}
