// SPDX-License-Identifier: Apache-2.0
// A group that was told to end because Slurm wants its nodes for another job, and leaves it time for that
// (GraceTime). Slurm requeues the job only when that time is over: one that has ended by then is gone. So two
// nodes see to the requeue, for one of them may be lost, before their agents are told that the group is over.
#include <utility>

#include "common/log.h"
#include "daemon/group.h"

namespace dlrover::daemon {
namespace {

constexpr EventLoop::Time pause = std::chrono::seconds(1), patience = std::chrono::seconds(20);

}  // namespace

std::uint32_t Group::survivors_before(const std::string &but_for) const {
    std::uint32_t before = 0;
    for (std::uint32_t i = 0; i < registration().node_index; ++i)
        before += !is_removed(NodeIndex(i)) && registration().node_names[i] != but_for;
    return before;
}

bool Group::may_be_preempted() const {
    bool told = record_.next_run == proto::NextRun::Perhaps && record_.removed_us == 0;
    return told && !preemption_asked_ && services_.requeues && !own_step() && survivors_before() < 2;
}

void Group::ask_whether_preempted() {
    if (!std::exchange(preemption_asked_, true)) {
        preemption_until_ = services_.loop.now() + patience;
        record_.ending = true;
        save();
    }
    services_.slurm.load_job(job(), [this, alive = alive_](const Result<SlurmJob> &answer) {
        if (!*alive || record_.ended) return;
        if (!answer.ok() && ask_again(answer.status())) return;
        std::uint32_t mine = registration().restart_count;
        bool preempted = answer.ok() && answer->preempted && answer->running && answer->restart_count == mine;
        preempted ? requeue_preempted() : finish_end();
    });
}

/// Slurm is busiest when it preempts. False: it is no use.
bool Group::ask_again(const Status &status) {
    bool away = status.code() == Code::unavailable || status.code() == Code::timeout;
    if (!away || services_.loop.now() >= preemption_until_) return false;
    preemption_timer_ = services_.loop.after(pause, [this] {
        if (!record_.ended) ask_whether_preempted();
    });
    return true;
}

void Group::requeue_preempted() {
    auto done = [this, alive = alive_](const Status &status) {
        if (!*alive || record_.ended || ask_again(status)) return;
        if (status.ok()) {
            record_.next_run = proto::NextRun::Comes;
            add_event(proto::EventKind::GaveUp,
                      "Slurm takes the nodes for another job (preemption): the job was requeued.");
        }
        // The other node may have been faster; memory is kept until Slurm has said so.
        if (!status.ok() && status.code() != Code::stale)
            log::warning({job(), step()}, "the requeue of a preempted job: " + status.message());
        finish_end();
    };
    request_requeue({}, done);
}

}  // namespace dlrover::daemon
