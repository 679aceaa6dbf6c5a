// SPDX-License-Identifier: Apache-2.0
#include "daemon/summary.h"

#include <cstdio>

#include "base/count_of.h"
#include "base/units.h"

namespace dlrover::daemon {

std::string summary_text(const elastic::Goodput &g) {
    if (g.steps == 0 && g.restarts == 0 && g.checkpoints == 0) return {};
    std::string text = count_of(g.restarts, "restart") + ", " + count_of(g.checkpoints, "checkpoint");
    if (g.checkpoints_skipped != 0) text += " (" + std::to_string(g.checkpoints_skipped) + " skipped)";
    if (g.steps == 0) return "dlrover: " + text + "; no steps were reported (report_step), so no goodput";
    text = "dlrover: " + count_of(g.steps, "step") + ", " + text;
    if (g.wall.count() <= 0) return text;
    char percent[32];
    std::snprintf(percent, sizeof percent, "%.1f",
                  100.0 * static_cast<double>(g.productive.count()) / static_cast<double>(g.wall.count()));
    text += "; goodput " + std::string(percent) + " % of " + format_duration(g.wall);
    struct {
        const char *name;
        elastic::Duration time;
    } parts[] = {{"start-up", g.startup},
                 {"recovery", g.recovery},
                 {"repeated steps", g.lost_steps},
                 {"saves", g.save},
                 {"other", g.other}};
    std::string rest;
    for (const auto &part : parts)
        if (part.time.count() > 0)
            rest += (rest.empty() ? "" : ", ") + std::string(part.name) + " " + format_duration(part.time);
    if (!rest.empty()) text += "; the rest: " + rest;
    return text;
}

proto::local::GoodputT to_proto(const elastic::Goodput &g) {
    proto::local::GoodputT out;
    out.wall_us = g.wall.count();
    out.productive_us = g.productive.count();
    out.startup_us = g.startup.count();
    out.lost_steps_us = g.lost_steps.count();
    out.recovery_us = g.recovery.count();
    out.save_us = g.save.count();
    out.other_us = g.other.count();
    out.steps = g.steps;
    out.steps_repeated = g.steps_repeated;
    out.restarts = g.restarts;
    out.checkpoints = g.checkpoints;
    out.checkpoints_skipped = g.checkpoints_skipped;
    return out;
}

elastic::Goodput from_proto(const proto::local::GoodputT &in) {
    elastic::Goodput g;
    g.wall = elastic::Duration(in.wall_us);
    g.productive = elastic::Duration(in.productive_us);
    g.startup = elastic::Duration(in.startup_us);
    g.lost_steps = elastic::Duration(in.lost_steps_us);
    g.recovery = elastic::Duration(in.recovery_us);
    g.save = elastic::Duration(in.save_us);
    g.other = elastic::Duration(in.other_us);
    g.steps = in.steps;
    g.steps_repeated = in.steps_repeated;
    g.restarts = in.restarts;
    g.checkpoints = in.checkpoints;
    g.checkpoints_skipped = in.checkpoints_skipped;
    return g;
}

}  // namespace dlrover::daemon
