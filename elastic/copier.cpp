// SPDX-License-Identifier: Apache-2.0
#include "elastic/copier.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace dlrover::elastic {

Copier::Job *Copier::find(std::uint64_t number) {
    auto it = std::ranges::find(jobs_, number, &Job::number);
    return number == 0 || it == jobs_.end() ? nullptr : &*it;
}

void Copier::drop(const std::vector<Job> &jobs, Actions &out) const {
    for (const Job &job : jobs)
        if (job.number != 0) out.emplace_back(CopyDrop{job.number});
}

void Copier::say(bool works, const std::string &text, Actions &out) {
    trouble_ = text;
    if (std::exchange(works_, works) != works) out.emplace_back(CopyState{works, text});
}

/// Urgent ones first; of one node's no more than one at a time, so that all partners get theirs.
void Copier::start(Time now, Actions &out) {
    for (bool urgent : {true, false})
        for (Job &job : jobs_) {
            auto flying = static_cast<std::size_t>(
                std::ranges::count_if(jobs_, [](const Job &j) { return j.number != 0; }));
            if (flying >= config_.at_once) return;
            bool taken = std::ranges::any_of(
                jobs_, [&](const Job &j) { return j.number != 0 && !j.urgent && j.copy.to == job.copy.to; });
            if (job.urgent != urgent || job.number != 0 || job.retry_at > now || (taken && !urgent)) continue;
            job.number = ++number_;
            out.emplace_back(CopyBegin{job.number, job.copy, job.urgent});
        }
}

Copier::Actions Copier::protect(Time now, const CheckpointId &id, const std::vector<Rank> &ranks,
                                const std::vector<NodeIndex> &partners) {
    Actions out;
    if (id != protected_) {
        std::vector<Job> old;
        for (const Job &job : jobs_)
            if (!job.urgent) old.push_back(job);
        drop(old, out);
        std::erase_if(jobs_, [](const Job &job) { return !job.urgent; });
        protected_ = id;
        known_.clear();
        done_ = 0;
        if (trouble_.empty()) good_at_ = now;
    }
    for (NodeIndex to : partners)
        for (Rank rank : ranks)
            if (Copy copy{to, rank, id}; known_.insert(copy).second) jobs_.push_back({copy});
    start(now, out);
    return out;
}

Copier::Actions Copier::fetch(Time now, const Copy &copy) {
    Actions out;
    if (std::ranges::any_of(jobs_, [&](const Job &j) { return j.urgent && j.copy == copy; })) return out;
    jobs_.push_back({copy, true});
    start(now, out);
    return out;
}

Copier::Actions Copier::clear(Time now) {
    Actions out;
    drop(jobs_, out);
    jobs_.clear();
    protected_ = {};
    known_.clear();
    settled_.reset();
    done_ = 0;
    good_at_ = now;
    say(true, {}, out);
    return out;
}

Copier::Actions Copier::done(Time now, std::uint64_t number) {
    Actions out;
    Job *job = find(number);
    if (job == nullptr) return out;
    done_ += !job->urgent;
    jobs_.erase(jobs_.begin() + (job - jobs_.data()));
    good_at_ = now;
    say(true, {}, out);
    start(now, out);
    return out;
}

Copier::Actions Copier::failed(Time now, std::uint64_t number, const std::string &text) {
    Actions out;
    Job *job = find(number);
    if (job == nullptr) return out;
    job->number = 0;
    auto wait = config_.retry_min * (std::int64_t{1} << std::min(job->failures++, 16u));
    job->retry_at = now + std::min(wait, config_.retry_max);
    // Whoever asked for it asks again.
    if (job->urgent) jobs_.erase(jobs_.begin() + (job - jobs_.data()));
    trouble_ = text;
    if (now - good_at_ >= config_.patience) say(false, text, out);
    start(now, out);
    return out;
}

Copier::Actions Copier::lost(Time now, Rank rank, const CheckpointId &id) {
    Actions out;
    auto is_lost = [&](const Copy &copy) { return copy.rank == rank && copy.id == id; };
    std::vector<Job> old;
    std::ranges::copy_if(jobs_, std::back_inserter(old), [&](const Job &j) { return is_lost(j.copy); });
    drop(old, out);
    std::erase_if(jobs_, [&](const Job &j) { return is_lost(j.copy); });
    auto waited = std::ranges::count_if(old, [](const Job &j) { return !j.urgent; });
    auto known = std::erase_if(known_, is_lost);
    done_ -= known - static_cast<std::size_t>(waited);
    if (jobs_.empty()) {
        good_at_ = now;
        say(true, {}, out);
    }
    start(now, out);
    return out;
}

/// All is done, but not all of it is safe: asked for once more, it is answered at once where it is there.
void Copier::recheck(Time now) {
    bool open = config_.recheck > Duration(0) && !known_.empty() && settled_ < protected_;
    if (!open || done_ < known_.size() || now - good_at_ < config_.recheck) return;
    for (const Copy &copy : known_) jobs_.push_back({copy});
    done_ = 0;
}

Copier::Actions Copier::tick(Time now) {
    Actions out;
    recheck(now);
    start(now, out);
    return out;
}

Time Copier::deadline() const {
    Time first = Time::max();
    for (const Job &job : jobs_)
        if (job.number == 0 && job.retry_at != Time::min()) first = std::min(first, job.retry_at);
    bool open = config_.recheck > Duration(0) && !known_.empty() && settled_ < protected_;
    return open && done_ >= known_.size() ? std::min(first, good_at_ + config_.recheck) : first;
}

}  // namespace dlrover::elastic
