// SPDX-License-Identifier: Apache-2.0
// The world of a daemon without Slurm: one node, no peers.
#pragma once

#include "daemon/slurm.h"
#include "transport/peer_network.h"

namespace dlrover::daemon {

class NoSlurm final : public SlurmClient {
  public:
    NoSlurm(std::string node, std::uint32_t uid) : node_(std::move(node)), uid_(uid) {}
    void load_step(JobId, StepId, Answer<SlurmStep> answer) override {
        answer(Status(Code::unsupported, "there is no Slurm in standalone mode"));
    }
    void load_job(JobId, Answer<SlurmJob> answer, Asker) override { answer(run()); }
    void load_jobs(std::vector<JobId> jobs, Answer<std::map<JobId, SlurmJob>> answer) override {
        std::map<JobId, SlurmJob> found;
        for (JobId job : jobs) found[job] = run();
        answer(std::move(found));
    }
    void load_jobs_of(std::uint32_t, Answer<std::vector<SlurmJob>> answer) override {
        answer(std::vector<SlurmJob>{});
    }
    void load_addresses(std::vector<std::string> nodes, Answer<std::vector<NodeAddress>> answer,
                        Asker) override {
        std::vector<NodeAddress> addresses;
        for (auto &node : nodes) addresses.push_back({std::move(node), "127.0.0.1", 0});
        answer(std::move(addresses));
    }
    void shrink_job(JobId, std::vector<std::string>, Done done) override { refuse(done); }
    void requeue_job(JobId, RequeueOrder, Done done) override { refuse(done); }
    void hasten_job(JobId, NextRunOrder, Done done) override { refuse(done); }
    void free_job(JobId, std::uint32_t, bool, Done done) override { refuse(done); }
    void mark_left(JobId, std::uint32_t, std::vector<std::string>, Done done) override { refuse(done); }
    void complete_headless(JobId, HeadlessEnd, Answer<bool> over) override { over(true); }
    void submit_companion(CompanionOrder, Answer<JobId> answer) override {
        answer(Status(Code::unsupported, "there is no Slurm in standalone mode"));
    }
    void grow_job(CompanionOrder, Answer<Growth> answer) override { refuse(answer); }
    void load_companions(std::uint32_t, std::string, Answer<std::vector<Companion>> answer) override {
        answer(std::vector<Companion>{});
    }
    void mark_companion(JobId, std::string, Done done) override { refuse(done); }
    void cancel_job(JobId, Done done) override { refuse(done); }
    void drain_node(std::string, std::string, Done done) override { refuse(done); }
    void load_site(Answer<SiteCapabilities> answer) override {
        answer(Status(Code::unsupported, "there is no Slurm in standalone mode"));
    }
    void on_return(std::function<void()>) override {}
    std::string cluster_name() override { return "standalone"; }

  private:
    /// The run itself stands for its job.
    SlurmJob run() const {
        SlurmJob job;
        job.running = true;
        job.uid = uid_;
        job.nodes = {node_};
        return job;
    }
    static void refuse(const Done &done) {
        done(Status(Code::unsupported, "there is no Slurm in standalone mode"));
    }
    std::string node_;
    std::uint32_t uid_;
};

class NoPeers final : public transport::PeerNetwork {
  public:
    void set_callbacks(Callbacks) override {}
    void connect_to(const std::string &, const std::string &) override {}
    void release(const std::string &) override {}
    void send(const std::string &, transport::PeerEnvelope) override {}
    bool up(const std::string &) const override { return false; }
    bool takes(const std::string &, transport::PeerEnvelope::Kind) const override { return true; }
};

}  // namespace dlrover::daemon
