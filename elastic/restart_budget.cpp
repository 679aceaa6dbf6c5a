// SPDX-License-Identifier: Apache-2.0
#include "elastic/restart_budget.h"

#include <sys/wait.h>

#include <algorithm>
#include <cstring>

namespace dlrover::elastic {

RestartBudget::Verdict RestartBudget::on_failure(std::uint64_t signature, bool stepped, bool may_go_back) {
    bool same = signature_ == signature && !stepped;
    repeats_ = same ? repeats_ + 1 : 0;
    signature_ = signature;
    if (hopeless() && !may_go_back) return Verdict::hopeless;
    if (used_ >= max_restarts_) return Verdict::exhausted;
    ++used_;
    return Verdict::restart;
}

void RestartBudget::on_complete(TrainStep step) {
    if (step <= progress_) return;
    progress_ = step;
    repeats_ = 0;
    signature_.reset();
    if (step <= newest_) return;
    newest_ = step;
    used_ = 0;
}

int exit_code_of(int wait_status) noexcept {
    if (WIFSIGNALED(wait_status)) return 128 + WTERMSIG(wait_status);
    int code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 1;
    return code == 0 ? 1 : code;
}

std::string describe_exit(const WorkerExit &exit) {
    if (exit.oom) return "ran out of memory";
    if (!WIFSIGNALED(exit.wait_status))
        return "exited with code " + std::to_string(WEXITSTATUS(exit.wait_status));
    int signal = WTERMSIG(exit.wait_status);
    const char *name = ::sigdescr_np(signal);
    return "was killed by signal " + std::to_string(signal) + (name ? " (" + std::string(name) + ")" : "");
}

std::size_t first_cause(const std::vector<WorkerExit> &exits, Duration same_time) {
    auto earliest = std::min_element(exits.begin(), exits.end(),
                                     [](auto &a, auto &b) { return a.wall_time_us < b.wall_time_us; });
    auto weight = [](const WorkerExit &e) {
        return e.oom || WIFSIGNALED(e.wait_status) ? 2 : e.error_text.empty() ? 0 : 1;
    };
    auto best = earliest;
    for (auto it = exits.begin(); it != exits.end(); ++it) {
        bool together = it->wall_time_us - earliest->wall_time_us <= same_time.count();
        if (!together) continue;
        if (weight(*it) == 2 && weight(*best) != 2)
            best = it;
        else if (weight(*it) == weight(*best) && it->wall_time_us < best->wall_time_us)
            best = it;
    }
    return static_cast<std::size_t>(best - exits.begin());
}

}  // namespace dlrover::elastic
