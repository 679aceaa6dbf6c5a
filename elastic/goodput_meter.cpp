// SPDX-License-Identifier: Apache-2.0
#include "elastic/goodput_meter.h"

#include <algorithm>

namespace dlrover::elastic {

GoodputMeter::GoodputMeter(Time now, const Goodput &base)
    : sum_(base), start_(now), base_wall_(base.wall), waiting_since_(now), stepped_ever_(base.steps > 0) {
    if (base.counted.step) counted_until_ = base.counted.step->value();
}

void GoodputMeter::settle(Goodput &sum, const Stretch &stretch, std::optional<std::uint64_t> kept_until) {
    if (stretch.steps == 0) return;
    std::uint64_t kept = 0;
    if (kept_until && *kept_until >= stretch.first_step) {
        std::uint64_t beyond_first = *kept_until - stretch.first_step;
        kept = beyond_first < stretch.steps ? beyond_first + 1 : stretch.steps;
    }
    Duration whole = std::max(stretch.end - stretch.first_step_end, Duration(0));
    Duration save = std::clamp(stretch.save, Duration(0), whole);
    double share = static_cast<double>(kept) / static_cast<double>(stretch.steps);
    auto productive =
        Duration(static_cast<Duration::rep>(static_cast<double>((whole - save).count()) * share));
    sum.productive += productive;
    sum.lost_steps += whole - save - productive;
    sum.save += save;
    sum.steps += kept;
    sum.steps_repeated += stretch.steps - kept;
    sum.checkpoints_skipped += stretch.skipped;
}

void GoodputMeter::begin_generation(Time now, std::optional<TrainStep> restore_step) {
    if (open_) fail(now);
    std::optional<std::uint64_t> kept;
    if (restore_step) kept = restore_step->value();
    if (failed_) {
        // A checkpoint proves steps that the last look at the progress had not seen yet.
        if (kept && *kept >= failed_->first_step)
            failed_->steps = std::max(failed_->steps, *kept - failed_->first_step + 1);
        settle(sum_, *failed_, kept);
    } else if (kept && counted_until_ && *kept > *counted_until_) {
        sum_.steps += *kept - *counted_until_;  // nobody looked at that generation before it failed
    }
    failed_.reset();
    counted_until_ = kept;
}

void GoodputMeter::on_progress(Time now, const RankProgress &progress) {
    if (progress.steps_done == 0 || !progress.step) return;
    if (!open_) {
        Time first = now - std::clamp(progress.since_first_step, Duration(0),
                                      waiting_since_ ? now - *waiting_since_ : Duration(0));
        if (waiting_since_) (stepped_ever_ ? sum_.recovery : sum_.startup) += first - *waiting_since_;
        waiting_since_.reset();
        stepped_ever_ = true;
        open_.emplace();
        open_->first_step_end = first;
    }
    open_->steps = progress.steps_done;
    std::uint64_t last = progress.step->value();
    open_->first_step = last - std::min(last, progress.steps_done - 1);
    open_->save = progress.save_sum;
    open_->skipped = progress.saves_skipped;
    open_->end = now;
}

void GoodputMeter::fail(Time now) {
    if (!waiting_since_) waiting_since_ = now;
    if (!open_) return;
    open_->end = now;
    failed_ = open_;
    open_.reset();
}

Goodput GoodputMeter::snapshot(Time now, bool ended) const {
    Goodput g = sum_;
    auto all = std::optional<std::uint64_t>(~std::uint64_t{0});
    if (failed_) settle(g, *failed_, all);
    if (open_) {
        Stretch stretch = *open_;
        if (!ended) stretch.end = now;
        settle(g, stretch, all);
    }
    if (waiting_since_) (stepped_ever_ ? g.recovery : g.startup) += now - *waiting_since_;
    g.wall = base_wall_ + (now - start_);
    Duration named = g.productive + g.startup + g.lost_steps + g.recovery + g.save;
    g.other = std::max(g.wall - named, Duration(0));
    return g;
}

}  // namespace dlrover::elastic
