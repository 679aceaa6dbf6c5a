// SPDX-License-Identifier: Apache-2.0
// Nodes in place of lost ones that the group's own job is expanded by. The leader's daemon has Slurm move a
// node into the job, and an agent here start a step on it, which asks to join. Between these a leader may
// die: what it has moved in is written beside the job (grown_mark), so that the next one
// lets it join or takes it out again.
#include <algorithm>

#include "common/log.h"
#include "daemon/companion.h"
#include "daemon/group.h"

namespace dlrover::daemon {
namespace {

/// A step that a leader before has started there may be asking already.
constexpr EventLoop::Time left_over_patience = std::chrono::seconds(5);
/// From srun's start to the new node's question.
constexpr EventLoop::Time start_patience = std::chrono::seconds(30);
/// Until a node that has asked is in the table.
constexpr EventLoop::Time count_after = std::chrono::seconds(10);

}  // namespace

/// Where the site can not do it that is no news: refused without a word.
void Group::expand_job(std::uint64_t request, std::uint32_t wanted) {
    expansion_ = Expansion{};
    expansion_->request = request;
    if (!launch_) return end_expansion(Status(Code::unsupported, ""));
    services_.slurm.load_site([this, alive = alive_, wanted](Result<SiteCapabilities> site) {
        if (!*alive || !expansion_) return;
        if (!site.ok() && site.status().code() != Code::unsupported) return end_expansion(site.status());
        if (!site.ok() || !site->can_expand()) return end_expansion(Status(Code::unsupported, ""));
        look_for_grown(wanted);
    });
}

void Group::look_for_grown(std::uint32_t wanted) {
    services_.slurm.load_companions(
        uid(), mark(), [this, alive = alive_, wanted](Result<std::vector<Companion>> found) {
            if (!*alive || !expansion_) return;
            if (!found.ok()) return end_expansion(found.status());
            cancel_expanding(*found);
            coming_told_.reset();
            know_coming(*found);
            services_.slurm.load_job(job(), [this, alive, wanted](Result<SlurmJob> job) {
                if (!*alive || !expansion_) return;
                if (!job.ok()) return end_expansion(job.status());
                begin_expansion(wanted, left_over(*job));
            });
        });
}

/// In the job, and not in the table.
std::vector<std::string> Group::left_over(const SlurmJob &job) const {
    std::vector<std::string> nodes;
    for (const std::string &node : job.nodes) {
        std::string its_mark = grown_mark(step(), registration().restart_count, node);
        const auto &names = registration().node_names;
        if (std::ranges::find(job.grown, its_mark) != job.grown.end() &&
            std::ranges::find(names, node) == names.end())
            nodes.push_back(node);
    }
    return nodes;
}

/// Allocations whose node did not come into the job, and will not any more.
void Group::cancel_expanding(const std::vector<Companion> &found) {
    for (const Companion &one : found)
        if (one.expands)
            services_.slurm.cancel_job(one.job, [one](const Status &status) {
                if (!status.ok())
                    log::warning("slurm: job " + std::to_string(one.job.value()) +
                                 " could not be cancelled, it ends within a minute: " + status.message());
            });
}

void Group::begin_expansion(std::uint32_t wanted, const std::vector<std::string> &left_over) {
    if (over() || !leads()) return end_expansion(Status(Code::unavailable, "another node leads"));
    auto coming = static_cast<std::uint32_t>(coming_.size());
    expansion_->left = wanted > coming ? wanted - coming : 0;
    if (expansion_->left == 0)
        return remove_grown(left_over, [this, alive = alive_](const Status &status) {
            if (*alive && expansion_) end_expansion(status);
        });
    if (left_over.empty()) return grow();
    expansion_->node.node = left_over.front();
    expansion_->timer = services_.loop.after(left_over_patience, [this, left_over] {
        auto nodes = left_over;  // the timer that holds them is dropped
        expansion_->node = {};
        remove_grown(nodes, [this, alive = alive_](const Status &status) {
            if (!*alive || !expansion_) return;
            status.ok() ? grow() : end_expansion(status);
        });
    });
}

void Group::grow() {
    services_.slurm.grow_job(companion_order(true), [this, alive = alive_](Result<Growth> grown) {
        if (!*alive || !expansion_) return;
        if (grown.status().code() == Code::not_found)  // a partition, not the job
            return end_expansion(Status(Code::invalid_argument, grown.status().message()));
        if (!grown.ok()) return end_expansion(grown.status());
        add_event(proto::EventKind::NodeAsked,
                  "Slurm has expanded the job" + in_place_of() + ": by " + grown->node + ".");
        expansion_->node = std::move(*grown);
        start_grown();
    });
}

/// srun runs beside an agent here: as the user, in the step's cgroup, with its limits.
void Group::start_grown() {
    Expansion &e = *expansion_;
    if (over() || !leads()) return drop_grown("another node leads now");
    auto agent =
        std::ranges::find_if(agents_, [](const auto &entry) { return entry.second.connection != 0; });
    if (agent == agents_.end() || !launch_) return drop_grown("no agent on this node can start it");
    CompanionOrder order = companion_order();
    local::StartStepT start;
    start.order = e.start = ++last_start_;
    start.argv = growth_words(order, e.node);
    start.environment = companion_environment(order.environment);
    start.cwd = order.cwd;
    services_.port.push(agent->second.connection, std::move(start));
    e.timer =
        services_.loop.after(start_patience, [this] { drop_grown("it has not asked to join in time"); });
}

void Group::on_step_ended_there(const local::StepEndedT &ended) {
    if (!expansion_ || expansion_->start == 0 || expansion_->start != ended.order) return;
    drop_grown(ended.text.empty() ? "it has ended at once" : ended.text.substr(0, 512));
}

/// It is a matter of the member's now.
void Group::on_grown_asks(const std::string &node) {
    if (!expansion_ || expansion_->node.node != node) return;
    expansion_->timer.reset();
    expansion_->node = {};
    expansion_->start = 0;
    coming_told_.reset();
    coming_timer_ = services_.loop.after(count_after, [this] { count_coming(); });
    if (--expansion_->left > 0) return grow();
    end_expansion(Status());
}

void Group::drop_grown(const std::string &why) {
    std::string text = "its step on " + expansion_->node.node + " does not start: " + why;
    expansion_->start = 0;
    expansion_->timer.reset();
    remove_grown({expansion_->node.node}, [this, alive = alive_, text](const Status &status) {
        if (!*alive) return;
        if (!status.ok())
            log::warning({job(), step()},
                         "a node without a part in it stays in the job: " + status.message());
        if (expansion_) end_expansion(Status(Code::unsupported, text));
    });
}

void Group::end_expansion(const Status &status) {
    auto request = expansion_->request;
    expansion_.reset();
    answer_slurm(request, status);
}

/// Slurm does it only while the others are all in the job.
void Group::remove_grown(std::vector<std::string> nodes, SlurmClient::Done done) {
    if (nodes.empty()) return done(Status());
    services_.slurm.load_job(job(), [this, alive = alive_, nodes, done](Result<SlurmJob> job) {
        if (!*alive || !job.ok()) return done(*alive ? job.take_status() : Status());
        auto before = job->nodes.size();
        std::erase_if(job->nodes, [&](const auto &n) { return std::ranges::find(nodes, n) != nodes.end(); });
        if (job->nodes.empty() || job->nodes.size() == before) return done(Status());
        services_.slurm.shrink_job(this->job(), job->nodes, done);
    });
}

void Group::drop_grown_nodes(std::uint64_t request) {
    if (!services_.settings.slurm.expansion) return answer_slurm(request, Status());
    services_.slurm.load_job(job(), [this, alive = alive_, request](Result<SlurmJob> job) {
        if (!*alive) return;
        if (!job.ok()) return answer_slurm(request, job.status());
        auto nodes = job->running ? left_over(*job) : std::vector<std::string>{};
        if (nodes.empty()) return answer_slurm(request, Status());
        remove_grown(nodes, [this, alive, request](const Status &status) {
            if (*alive) answer_slurm(request, status);
        });
    });
}

}  // namespace dlrover::daemon
