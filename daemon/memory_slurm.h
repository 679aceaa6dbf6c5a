// SPDX-License-Identifier: Apache-2.0
// SlurmClient's in-memory twin for tests: jobs are what the test says, answers come by the loop's time.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "common/event_loop.h"
#include "daemon/slurm.h"

namespace dlrover::daemon {

/// Thread: the loop's.
class MemorySlurm final : public SlurmClient {
  public:
    explicit MemorySlurm(EventLoop &loop, EventLoop::Time delay = std::chrono::milliseconds(5))
        : loop_(loop), delay_(delay) {}

    // ---- the test's side ----
    std::map<JobId, SlurmJob> jobs;
    std::map<std::pair<JobId, StepId>, std::vector<std::string>> steps;  ///< their nodes
    std::map<std::string, std::string> addresses;
    std::map<std::string, std::uint64_t> memory_spec_bytes;
    std::string cluster = "lab";
    SiteCapabilities site;
    unsigned site_asked = 0, addresses_asked = 0;
    std::function<void()> returned;  ///< slurmctld is back: the test says so
    bool away = false;               ///< slurmctld does not answer: unavailable
    bool silent = false;             ///< answers come with speak()
    bool shrink_refused = false;     ///< as under disable_job_shrink
    bool companions_refused = false;
    std::vector<std::string> free_nodes;  ///< for grow_job, in this order
    std::set<JobId> expanding;            ///< allocations whose node was not moved
    std::string no_merge;                 ///< why it fails when the node is allocated
    std::uint32_t next_job = 100;
    unsigned looks_at_end = 0;                           ///< at jobs that may have nobody to end them
    std::map<JobId, CompanionOrder> orders;              ///< by the companion job
    std::map<JobId, std::vector<std::string>> suspects;  ///< what a requeued job's next run is to check
    std::vector<std::string> changes;  ///< "shrink 7 n1,n2", "requeue 7 n3", "complete 7 1", in order

    void speak() {
        silent = false;
        for (auto &answer : std::exchange(held_, {})) answer();
    }

    // ---- SlurmClient ----
    void load_step(JobId job, StepId step, Answer<SlurmStep> answer) override {
        reply(std::move(answer), [this, job, step]() -> Result<SlurmStep> {
            auto found = jobs.find(job);
            auto nodes = steps.find({job, step});
            if (found == jobs.end() || nodes == steps.end()) return Status(Code::not_found, "no such step");
            return SlurmStep{found->second, nodes->second};
        });
    }
    void load_job(JobId job, Answer<SlurmJob> answer, Asker) override {
        reply(std::move(answer), [this, job]() -> Result<SlurmJob> {
            auto found = jobs.find(job);
            if (found == jobs.end()) return Status(Code::not_found, "no such job");
            return found->second;
        });
    }
    void load_jobs(std::vector<JobId> ids, Answer<std::map<JobId, SlurmJob>> answer) override {
        reply(std::move(answer), [this, ids = std::move(ids)]() -> Result<std::map<JobId, SlurmJob>> {
            std::map<JobId, SlurmJob> found;
            for (JobId id : ids)
                if (auto it = jobs.find(id); it != jobs.end()) found.insert(*it);
            return found;
        });
    }
    void load_jobs_of(std::uint32_t uid, Answer<std::vector<SlurmJob>> answer) override {
        reply(std::move(answer), [this, uid]() -> Result<std::vector<SlurmJob>> {
            std::vector<SlurmJob> found;
            for (const auto &[id, job] : jobs)
                if (job.running && (uid == 0 || job.uid == uid)) found.push_back(job);
            return found;
        });
    }
    void load_addresses(std::vector<std::string> nodes, Answer<std::vector<NodeAddress>> answer,
                        Asker) override {
        ++addresses_asked;
        reply(std::move(answer), [this, nodes = std::move(nodes)]() -> Result<std::vector<NodeAddress>> {
            std::vector<NodeAddress> found;
            for (const auto &node : nodes)
                if (auto it = addresses.find(node); it != addresses.end())
                    found.push_back({node, it->second,
                                     memory_spec_bytes.contains(node) ? memory_spec_bytes.at(node) : 0});
            if (found.empty()) return Status(Code::not_found, "no such node");
            return found;
        });
    }
    void shrink_job(JobId job, std::vector<std::string> survivors, Done done) override {
        change(std::move(done), job, [this, job, survivors = std::move(survivors)](SlurmJob &j) {
            auto present = [&](const std::string &n) {
                return std::find(j.nodes.begin(), j.nodes.end(), n) != j.nodes.end();
            };
            bool keeps_host = j.batch_host.empty() ||
                              std::find(survivors.begin(), survivors.end(), j.batch_host) != survivors.end();
            if (shrink_refused || !keeps_host || !std::all_of(survivors.begin(), survivors.end(), present))
                return Status(Code::invalid_argument, "refused");
            j.nodes = survivors;
            note("shrink", job, survivors);
            return Status();
        });
    }
    void mark_left(JobId job, std::uint32_t restart_count, std::vector<std::string> marks,
                   Done done) override {
        change(std::move(done), job, [this, job, restart_count, marks](SlurmJob &j) {
            if (j.restart_count != restart_count) return Status(Code::stale, "it runs again");
            for (const std::string &mark : marks)
                if (std::find(j.left.begin(), j.left.end(), mark) == j.left.end()) j.left.push_back(mark);
            note("without", job, marks);
            return Status();
        });
    }
    void requeue_job(JobId job, RequeueOrder order, Done done) override {
        change(std::move(done), job, [this, job, order = std::move(order)](SlurmJob &j) {
            auto has = [](const std::vector<std::string> &words, const std::string &word) {
                return std::find(words.begin(), words.end(), word) != words.end();
            };
            if ((!order.asker.empty() && !has(j.nodes, order.asker)) || has(j.left, order.mark))
                return Status(Code::invalid_argument, "refused");
            if (j.waiting || j.restart_count != order.restart_count)
                return Status(Code::stale, "it was requeued already");
            j.running = j.preempted = false;
            j.waiting = true;
            j.nodes.clear();
            ++j.restart_count;
            suspects[job] = order.suspects;
            note("requeue", job, order.excluded);
            return Status();
        });
    }
    void hasten_job(JobId job, NextRunOrder order, Done done) override {
        reply(std::move(done), [this, job, order = std::move(order)]() -> Status {
            auto found = jobs.find(job);
            if (found == jobs.end() || !found->second.waiting) return Status(Code::stale, "it does not wait");
            if (found->second.restart_count != order.restart_count)
                return Status(Code::stale, "it ran again");
            found->second.is_held_off = false;
            note("hasten", job, order.preferred);
            return {};
        });
    }
    void free_job(JobId job, std::uint32_t restart_count, bool also_untie, Done done) override {
        reply(std::move(done), [this, job, restart_count, also_untie]() -> Status {
            auto found = jobs.find(job);
            if (found == jobs.end() || !found->second.waiting) return Status(Code::stale, "it does not wait");
            if (found->second.restart_count != restart_count) return Status(Code::stale, "it ran again");
            found->second.has_excluded = false;
            if (also_untie) found->second.is_tied = false;
            note(also_untie ? "untie" : "free", job, {});
            return {};
        });
    }
    void complete_headless(JobId job, HeadlessEnd end, Answer<bool> over) override {
        reply(std::move(over), [this, job, end]() -> Result<bool> {
            ++looks_at_end;
            auto found = jobs.find(job);
            if (found == jobs.end()) return true;
            SlurmJob &j = found->second;
            if (!j.running || j.restart_count != end.restart_count) return true;
            bool has_steps = std::any_of(steps.begin(), steps.end(), [&](const auto &s) {
                return s.first.first == job && s.first.second != end.over;
            });
            bool has_host = std::find(j.nodes.begin(), j.nodes.end(), j.batch_host) != j.nodes.end();
            if (!end.anyhow && (has_host || has_steps)) return false;
            j.running = false;
            note(end.again ? "again" : "complete", job, {std::to_string(end.exit_code)});
            return true;
        });
    }
    void submit_companion(CompanionOrder order, Answer<JobId> answer) override {
        reply(std::move(answer), [this, order = std::move(order)]() -> Result<JobId> {
            auto main = jobs.find(order.job);
            if (main == jobs.end() || !main->second.running)
                return Status(Code::invalid_argument, "the job does not run");
            if (companions_refused) return Status(Code::permission_denied, "refused");
            JobId id(next_job++);
            SlurmJob job;
            job.waiting = true;
            job.uid = main->second.uid;
            job.gid = main->second.gid;
            job.user = main->second.user;
            job.mark = companion_mark(order.job, order.step, order.restart_count);
            jobs[id] = job;
            note("submit", id, order.excluded);
            orders[id] = order;
            return id;
        });
    }
    void grow_job(CompanionOrder order, Answer<Growth> answer) override {
        reply(std::move(answer), [this, order = std::move(order)]() -> Result<Growth> {
            auto main = jobs.find(order.job);
            if (main == jobs.end() || !main->second.running)
                return Status(Code::invalid_argument, "the job does not run");
            if (free_nodes.empty()) return Status(Code::invalid_argument, "no node is free now");
            if (!no_merge.empty()) return Status(Code::invalid_argument, no_merge);
            std::string node = free_nodes.front();
            free_nodes.erase(free_nodes.begin());
            main->second.nodes.push_back(node);
            main->second.grown.push_back(grown_mark(order.step, order.restart_count, node));
            note("grow", order.job, {node});
            return Growth{node, 1};
        });
    }
    void load_companions(std::uint32_t uid, std::string mark,
                         Answer<std::vector<Companion>> answer) override {
        reply(std::move(answer), [this, uid, mark]() -> Result<std::vector<Companion>> {
            std::vector<Companion> found;
            for (const auto &[id, job] : jobs)
                if (job.uid == uid && job.mark == mark && (job.waiting || job.running))
                    found.push_back({id, job.waiting, expanding.contains(id), job.nodes});
            return found;
        });
    }
    void mark_companion(JobId job, std::string mark, Done done) override {
        change(std::move(done), job, [this, job, mark](SlurmJob &j) {
            j.mark = mark;
            note("mark", job, {mark});
            return Status();
        });
    }
    void cancel_job(JobId job, Done done) override {
        reply(std::move(done), [this, job]() -> Status {
            auto found = jobs.find(job);
            if (found == jobs.end()) return Status(Code::not_found, "no such job");
            found->second.running = found->second.waiting = false;
            note("cancel", job, {});
            return {};
        });
    }
    void drain_node(std::string node, std::string reason, Done done) override {
        reply(std::move(done), [this, node, reason]() -> Status {
            changes.push_back("drain " + node + " " + reason);
            return {};
        });
    }
    void load_site(Answer<SiteCapabilities> answer) override {
        ++site_asked;
        reply(std::move(answer), [this]() -> Result<SiteCapabilities> { return site; });
    }
    void on_return(std::function<void()> task) override {
        returned = [before = std::move(returned), task = std::move(task)] {
            if (before) before();
            task();
        };
    }
    std::string cluster_name() override { return cluster; }

  private:
    /// State is looked at when the answer comes, not when it was asked for.
    template <typename R, typename Make>
    void reply(std::function<void(R)> answer, Make make) {
        auto key = next_++;
        handles_[key] = loop_.after(delay_, [this, key, answer = std::move(answer), make] {
            auto handle = std::move(handles_[key]);
            handles_.erase(key);
            auto say = [this, answer, make] {
                answer(away ? R(Status(Code::unavailable, "slurmctld is away")) : make());
            };
            silent ? held_.push_back(say) : say();
        });
    }
    template <typename Apply>
    void change(Done done, JobId job, Apply apply) {
        reply(std::move(done), [this, job, apply]() -> Status {
            auto found = jobs.find(job);
            if (found == jobs.end()) return Status(Code::not_found, "no such job");
            if (!found->second.running) return Status(Code::stale, "the job does not run");
            return apply(found->second);
        });
    }
    void note(const std::string &what, JobId job, const std::vector<std::string> &words) {
        std::string line = what + " " + std::to_string(job.value());
        for (std::size_t i = 0; i < words.size(); ++i) line += (i == 0 ? " " : ",") + words[i];
        changes.push_back(line);
    }

    EventLoop &loop_;
    EventLoop::Time delay_;
    std::map<std::uint64_t, EventLoop::Handle> handles_;
    std::vector<std::function<void()>> held_;
    std::uint64_t next_ = 0;
};

}  // namespace dlrover::daemon
