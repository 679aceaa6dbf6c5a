// SPDX-License-Identifier: Apache-2.0
// N members with a perfect network and keeper: messages and stores arrive at once and in order, time stands
// still unless told. Nodes can be cut off, daemons can fall and come back.
#pragma once

#include <algorithm>
#include <deque>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "elastic/member.h"
#include "elastic/node_list.h"

namespace dlrover::elastic {

inline std::vector<NodeIndex> nodes(std::initializer_list<std::uint32_t> list) {
    std::vector<NodeIndex> all;
    for (std::uint32_t n : list) all.emplace_back(n);
    return all;
}

class TestGroup {
  public:
    explicit TestGroup(GroupConfig config) : config_(std::move(config)) {
        grow(config_.nodes.size());
        for (std::uint32_t i = 0; i < members_.size(); ++i) boot(i);
    }
    static GroupConfig config(std::uint32_t nodes, std::uint32_t min, std::uint32_t max) {
        GroupConfig c;
        c.nodes.assign(nodes, NodeSpec{1});
        c.batch_host = NodeIndex(0);
        c.min_nodes = min;
        c.max_nodes = max;
        c.spares = nodes - max;
        return c;
    }
    /// Of nodes whose setting is another one, from their next boot on.
    std::map<std::uint32_t, Duration> without_slurm;
    void boot(std::uint32_t node) {
        GroupConfig c = config_;
        c.self = NodeIndex(node);
        if (auto own = without_slurm.find(node); own != without_slurm.end())
            c.timings.without_slurm = own->second;
        members_[node].emplace(std::move(c), kept_[node], now_);
        if (sums_[node]) members_[node]->resume(sums_[node]->goodput, sums_[node]->goodput_at);
    }
    /// Of a node that is in the leader's table, as its driver would after NodesAdded.
    void join(std::uint32_t node) {
        config_.step_nodes =
            config_.step_nodes == 0 ? static_cast<std::uint32_t>(config_.nodes.size()) : config_.step_nodes;
        auto added = actions<NodesAdded>(leader()).back().added;
        config_.nodes.resize(config_.step_nodes);
        config_.nodes.insert(config_.nodes.end(), added.begin(), added.end());
        grow(config_.nodes.size());
        boot(node);
        feed(node, LocalReady{true, {}});
    }
    /// A node asks the leader to join, gets its index, and joins; then everybody has heard of it.
    std::uint32_t add(const std::string &name, std::uint32_t job) {
        auto node = static_cast<std::uint32_t>(config_.nodes.size());
        feed(leader(), NodeOffered{name, 1, JobId(job)});
        run(std::chrono::milliseconds(100));
        join(node);
        run(std::chrono::milliseconds(500));
        return node;
    }
    void crash(std::uint32_t node) {
        sums_[node] = members_[node]->view();
        members_[node].reset();
    }
    void cut(std::uint32_t node) { cut_.insert(node); }
    /// Between these two.
    void cut(std::uint32_t one, std::uint32_t other) { cut_links_.insert(std::minmax(one, other)); }
    void heal() {
        cut_.clear();
        cut_links_.clear();
    }
    void heal(std::uint32_t node) { cut_.erase(node); }
    void feed(std::uint32_t node, const Input &input) {
        queue_.emplace_back(node, input);
        while (!queue_.empty()) {
            auto [to, in] = std::move(queue_.front());
            queue_.pop_front();
            if (!members_[to]) continue;
            auto actions = members_[to]->step(now_, in);
            for (auto &action : actions) take(to, action);
        }
    }
    void run(Duration d) {
        using namespace std::chrono_literals;
        for (Time end = now_ + d; now_ < end; now_ += 20ms)
            for (std::uint32_t i = 0; i < members_.size(); ++i)
                if (members_[i] && members_[i]->next_deadline() <= now_) feed(i, Tick{});
    }
    void start() {
        using namespace std::chrono_literals;
        for (std::uint32_t i = 0; i < members_.size(); ++i) feed(i, LocalReady{true, {}});
        run(2s);
    }
    template <typename A>
    std::vector<A> actions(std::uint32_t node) const {
        std::vector<A> found;
        for (const auto &a : seen_[node])
            if (auto *wanted = std::get_if<A>(&a)) found.push_back(*wanted);
        return found;
    }
    template <typename A>
    std::size_t count(std::uint32_t node) const {
        return actions<A>(node).size();
    }
    Time now() const { return now_; }
    World world(std::uint32_t node) const { return actions<Publish>(node).back().world; }
    MemberView view(std::uint32_t node) const { return members_[node]->view(); }
    std::uint32_t leader() const {
        for (std::uint32_t i = 0; i < members_.size(); ++i)
            if (members_[i] && members_[i]->view().leader == NodeIndex(i)) return i;
        return static_cast<std::uint32_t>(members_.size());
    }
    void fail(std::uint32_t node, std::uint32_t rank, int status, std::uint64_t signature) {
        feed(node, LocalExit{WorkerExit{world(node).id, Rank(rank), status, 0, signature, false, ""}});
    }

    using Storage = LocalStorage;
    /// What every node's writer says; none: it does not answer.
    std::optional<Storage> storage;
    /// What is there, where it is not always the same: `newest` is the newest of it that is not passed over.
    std::vector<CheckpointId> folder;
    void answer_storage(std::uint32_t node) {
        auto asked_now = actions<LookAtStorage>(node);
        if (asked_now.empty() || !storage) return;
        Storage answer = *storage;
        answer.request = asked_now.back().request;
        feed(node, answer);
    }

    /// Slurm's answers; asked() keeps what was wanted.
    SlurmAnswer::Result slurm = SlurmAnswer::Result::done;
    std::string no_change;       ///< why Slurm can be read only; empty: changes are made
    bool no_requeue = false;     ///< it refuses
    bool no_shrink = false;      ///< it can not take nodes out of the job
    bool no_marks = false;       ///< it refuses AskSlurm::What::leave_behind
    bool keeps_answers = false;  ///< until give_answers()
    void give_answers() {
        for (const auto &[node, answer] : std::exchange(late_, {})) feed(node, answer);
    }
    std::vector<NodeIndex> job_nodes, ended, left;
    bool job_running = true;
    std::optional<std::string> no_nodes;      ///< why Slurm adds none
    std::optional<std::string> no_expansion;  ///< the same of nodes of the job itself
    std::vector<AskSlurm> asked;
    std::size_t count_asked(AskSlurm::What what) const {
        return static_cast<std::size_t>(std::ranges::count(asked, what, &AskSlurm::what));
    }

  private:
    void grow(std::size_t nodes) {
        seen_.resize(nodes);
        kept_.resize(nodes);
        sums_.resize(nodes);
        members_.resize(nodes);
    }
    void carry(std::uint32_t node, const SendMessage &m) {
        std::vector<NodeIndex> all{m.to};
        all.insert(all.end(), m.also.begin(), m.also.end());
        for (NodeIndex to : all) {
            seen_[node].push_back(SendMessage{to, m.message});
            bool cut = cut_.contains(node) || cut_.contains(to.value()) ||
                       cut_links_.contains(std::minmax(node, to.value()));
            if (to.value() < members_.size() && !cut)
                queue_.emplace_back(to.value(), PeerMessage{NodeIndex(node), m.message});
        }
    }
    void take(std::uint32_t node, const Action &action) {
        if (auto *m = std::get_if<SendMessage>(&action)) return carry(node, *m);
        seen_[node].push_back(action);
        if (auto *s = std::get_if<Store>(&action)) {
            kept_[node] = s->promise;
            queue_.emplace_back(node,
                                Stored{s->sequence, static_cast<std::uint16_t>(s->want_port ? 2000 : 0)});
        }
        if (auto *a = std::get_if<LookAtStorage>(&action); a && storage) {
            Storage answer = *storage;
            answer.request = a->request;
            for (const CheckpointId &id : folder)
                if (!covers(a->passed_over, id)) answer.newest = std::max(answer.newest, std::optional(id));
            queue_.emplace_back(node, answer);
        }
        if (auto *a = std::get_if<AskSlurm>(&action)) {
            asked.push_back(*a);
            SlurmAnswer answer{a->request, slurm, job_nodes, job_running};
            answer.ended = ended;
            if (a->what == AskSlurm::What::add_nodes && no_nodes) {
                answer.result = SlurmAnswer::Result::refused;
                answer.text = *no_nodes;
            }
            if (a->what == AskSlurm::What::expand_job && no_expansion) {
                answer.result = SlurmAnswer::Result::refused;
                answer.text = *no_expansion;
            }
            answer.left = left;
            if (a->what == AskSlurm::What::leave_behind && no_marks)
                answer.result = SlurmAnswer::Result::refused;
            else if (a->what == AskSlurm::What::leave_behind && slurm == SlurmAnswer::Result::done)
                add_all(left, a->nodes);
            if (no_requeue && a->what == AskSlurm::What::requeue)
                answer.result = SlurmAnswer::Result::refused;
            if (no_shrink && a->what == AskSlurm::What::shrink_to) {
                answer.result = SlurmAnswer::Result::unable;
                answer.text = "it can not take nodes out of this job";
            } else if (!no_change.empty() && a->what != AskSlurm::What::read_job) {
                answer.result = SlurmAnswer::Result::unreachable;
                answer.text = no_change;
            } else if (slurm == SlurmAnswer::Result::done && a->what == AskSlurm::What::shrink_to)
                job_nodes = a->nodes;
            if (keeps_answers)
                late_.emplace_back(node, answer);
            else
                queue_.emplace_back(node, answer);
        }
    }

    GroupConfig config_;
    Time now_{0};
    std::vector<std::optional<Member>> members_;
    std::vector<std::optional<Promise>> kept_;
    std::vector<std::optional<MemberView>> sums_;  ///< of a daemon that fell
    std::vector<std::vector<Action>> seen_;
    std::deque<std::pair<std::uint32_t, Input>> queue_;
    std::vector<std::pair<std::uint32_t, Input>> late_;
    std::set<std::uint32_t> cut_;
    std::set<std::pair<std::uint32_t, std::uint32_t>> cut_links_;
};

}  // namespace dlrover::elastic
