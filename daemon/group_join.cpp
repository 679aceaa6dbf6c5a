// SPDX-License-Identifier: Apache-2.0
// Nodes that join a group while it runs: jobs of one node that are submitted in place of lost ones, and their
// daemons' questions. What such jobs there are is Slurm's to know (companion_mark), so a new leader asks it.
#include <algorithm>

#include "base/units.h"
#include "common/log.h"
#include "daemon/group.h"
#include "daemon/registration.h"

namespace dlrover::daemon {
namespace {

constexpr std::size_t piece_bytes = 128u << 10;
constexpr std::size_t max_pieces = 32;
constexpr EventLoop::Time leader_look = std::chrono::seconds(2);
constexpr EventLoop::Time count_again = std::chrono::seconds(5);
constexpr EventLoop::Time leader_patience = std::chrono::seconds(60);

bool is_over(const Status &cancelled) {
    return cancelled.ok() || cancelled.code() == Code::not_found;
}

}  // namespace

// ---- the launch specification: the user's words, for the job that starts a node ----

void Group::keep_launch(std::unique_ptr<proto::LaunchSpecT> launch) {
    if (!launch) return;
    auto bytes = encode_launch(*launch);
    std::size_t count = (bytes.size() + piece_bytes - 1) / piece_bytes;
    if (count > max_pieces) return;
    for (std::size_t i = 0; i < count; ++i) {
        records::LaunchRecordT piece;
        piece.count = static_cast<std::uint32_t>(count);
        auto first = bytes.begin() + static_cast<std::ptrdiff_t>(i * piece_bytes);
        auto length = std::min(piece_bytes, bytes.size() - i * piece_bytes);
        piece.bytes.assign(first, first + static_cast<std::ptrdiff_t>(length));
        services_.keeper.put(record_name("launch", key_) + "/" + std::to_string(i),
                             encode_record(std::move(piece)));
    }
    launch_bytes_ = bytes.size();
    launch_ = std::move(launch);
}

void Group::restore_launch(const RecordName &name, records::LaunchRecordT piece) {
    auto number = parse_uint(name.rest, 0, max_pieces - 1);
    if (number.ok()) launch_pieces_[static_cast<unsigned>(*number)] = std::move(piece);
}

/// A part that is missing means none: a daemon died before all were on record.
void Group::put_together_launch() {
    auto pieces = std::exchange(launch_pieces_, {});
    proto::Bytes bytes;
    for (const auto &[number, piece] : pieces) {
        if (piece.count != pieces.size()) return;
        bytes.insert(bytes.end(), piece.bytes.begin(), piece.bytes.end());
    }
    if (bytes.empty()) return;
    auto launch = decode_launch(bytes);
    if (!launch.ok()) return;
    launch_bytes_ = bytes.size();
    launch_ = std::make_unique<proto::LaunchSpecT>(std::move(*launch));
}

void Group::drop_launch() {
    if (launch_) services_.keeper.drop(record_name("launch", key_) + "/*");
    launch_.reset();
    launch_bytes_ = 0;
}

// ---- the table ----

bool Group::leads() const {
    return member_ && member_->view().leader == self();
}

void Group::act(elastic::NodesAdded &action) {
    auto &r = *record_.registration;
    bool news = action.added.size() > r.companion_jobs.size();
    for (std::size_t i = r.companion_jobs.size(); i < action.added.size(); ++i) {
        const elastic::NodeSpec &spec = action.added[i];
        r.node_names.push_back(spec.name);
        r.tasks_per_node.push_back(
            static_cast<std::uint16_t>(spec.ranks / std::max<std::uint16_t>(record_.workers, 1)));
        r.join_steps.resize(r.companion_jobs.size());
        r.companion_jobs.push_back(spec.companion ? spec.companion->value() : r.job_id);
        r.join_steps.push_back(spec.step ? spec.step->value() : 0);
    }
    if (!news) return;
    save();
    tell_allocation();
    tell_switches();
    find_addresses();
    if (leads())
        services_.loop.post([this, alive = alive_] {
            if (*alive) count_coming();
        });
}

// ---- a node asks ----

void Group::answer_newcomer(const std::string &node, StepKey joins, join::Kind kind,
                            const std::string &text) {
    join::WordT word;
    word.kind = kind;
    word.companion_job = joins.first.value();
    word.companion_step = joins.second.value();
    word.text = text;
    auto leader = member_ ? member_->view().leader : std::nullopt;
    if (kind == join::Kind::Wait && leader) word.leader = node_name(*leader);
    send_envelope(node, transport::PeerEnvelope::Kind::join, encode_join_word(word));
}

void Group::welcome(const std::string &node, StepKey joins) {
    join::WordT word;
    word.kind = join::Kind::Welcome;
    word.companion_job = joins.first.value();
    word.companion_step = joins.second.value();
    word.step = std::make_unique<proto::StepRegistrationT>(registration());
    word.lineage = record_.lineage;
    word.user = record_.user;
    word.workers = record_.workers;
    send_envelope(node, transport::PeerEnvelope::Kind::join, encode_join_word(word));
}

void Group::on_newcomer(const std::string &node, const join::WordT &word) {
    StepKey joins(word.companion_job, word.companion_step);
    if (over() && record_.evicted) return;  // others may know better
    if (over()) return answer_newcomer(node, joins, join::Kind::Refused, "the step ends");
    if (!leads()) return answer_newcomer(node, joins, join::Kind::Wait);
    for (std::uint32_t i = own_nodes(); i < node_count(); ++i) {
        if (joined_by(registration(), i - own_nodes()) != joins) continue;
        if (node_name(NodeIndex(i)) != node || is_removed(NodeIndex(i)))
            return answer_newcomer(node, joins, join::Kind::Refused, "this step has been a node of it");
        return welcome(node, joins);
    }
    auto step = std::make_shared<proto::StepRegistrationT>(*word.step);
    Status fits = check_registration(*step, node);
    bool own = joins.first == job();
    bool first = own ? joins.second != this->step() : joins.second == StepId(0);
    if (fits.ok() && (StepKey(step->job_id, step->step_id) != joins || !first || step->uid != uid()))
        fits = Status(Code::permission_denied, "only first steps of its user's jobs can join a step");
    if (fits.ok()) fits = check_newcomer(registration(), *step);
    if (!fits.ok()) return answer_newcomer(node, joins, join::Kind::Refused, fits.message());
    if (offered_.contains(joins)) return offer(node, *step);
    check_newcomer_with_slurm(node, std::move(step));
}

/// A job of its own is for one node, once; a step of the group's job runs on a node of it.
Status Group::check_newcomer_with_job(const SlurmStep &slurm, const std::string &node, StepKey joins) const {
    const SlurmJob &by = slurm.job;
    bool own = joins.first == job();
    bool fresh = by.running && by.restart_count == (own ? registration().restart_count : 0);
    bool fits = own ? std::ranges::find(by.nodes, node) != by.nodes.end() : by.nodes.size() == 1;
    bool ours = own || by.mark.empty() || by.mark == mark();
    if (fresh && fits && ours) return {};
    return Status(Code::permission_denied, "its job is not for this step");
}

/// The asking daemon has done the same; but its node is not yet one of ours.
void Group::check_newcomer_with_slurm(const std::string &node,
                                      std::shared_ptr<proto::StepRegistrationT> step) {
    StepKey joins(step->job_id, step->step_id);
    if (!checking_.insert(joins).second) return;
    services_.slurm.load_step(
        joins.first, joins.second, [this, alive = alive_, node, step, joins](Result<SlurmStep> slurm) {
            if (!*alive) return;
            checking_.erase(joins);
            if (over() || !slurm.ok()) return;  // it asks again
            Status status = check_with_slurm(*step, *slurm);
            if (status.ok()) status = check_newcomer_with_job(*slurm, node, joins);
            if (!status.ok()) return answer_newcomer(node, joins, join::Kind::Refused, status.message());
            if (joins.first == job() || !slurm->job.mark.empty()) return offer(node, *step);
            // One that the user has submitted. Without the mark it would be taken for one that is over.
            services_.slurm.mark_companion(joins.first, mark(),
                                           [this, alive, node, step](const Status &marked) {
                                               if (*alive && !over() && marked.ok()) offer(node, *step);
                                           });
        });
}

void Group::offer(const std::string &node, const proto::StepRegistrationT &step) {
    StepKey joins(step.job_id, step.step_id);
    offered_.insert(joins);
    answer_newcomer(node, joins, join::Kind::Wait);
    auto ranks = static_cast<std::uint16_t>(std::uint32_t{step.tasks_per_node.front()} * record_.workers);
    if (joins.first == job()) {
        feed(elastic::NodeOffered{node, ranks, {}, joins.second});
        return on_grown_asks(node);
    }
    coming_.insert(joins.first);
    feed(elastic::NodeOffered{node, ranks, joins.first});
}

// ---- jobs for more nodes ----

std::vector<Companion> Group::coming(const std::vector<Companion> &all) const {
    std::vector<Companion> result;
    const auto &joined = registration().companion_jobs;
    for (const Companion &one : all)
        if (!one.expands && std::ranges::find(joined, one.job.value()) == joined.end()) result.push_back(one);
    return result;
}

void Group::know_coming(const std::vector<Companion> &all) {
    coming_known_ = promise_ ? std::optional(promise_->term) : std::nullopt;
    coming_.clear();
    for (const Companion &one : coming(all)) coming_.insert(one.job);
    tell_coming();
}

void Group::tell_coming() {
    auto count = static_cast<std::uint32_t>(coming_.size());
    coming_timer_.reset();
    if (count > 0) coming_timer_ = services_.loop.after(count_again, [this] { count_coming(); });
    if (coming_told_ == count) return;
    coming_told_ = count;
    feed_later(elastic::NodesComing{count});
}

/// Those that a leader before has asked for, too.
void Group::load_coming() {
    services_.slurm.load_companions(
        uid(), mark(), [this, alive = alive_](const Result<std::vector<Companion>> &found) {
            if (!*alive || over()) return;
            if (found.ok()) return know_coming(*found);
            coming_timer_ = services_.loop.after(count_again, [this] { count_coming(); });
        });
}

/// Of those that are known: a timer does not look through all of the user's jobs.
void Group::count_coming() {
    coming_timer_.reset();
    if (!leads() || over()) return;
    for (std::uint32_t joined : registration().companion_jobs) coming_.erase(JobId(joined));
    if (!promise_ || coming_known_ != promise_->term) return load_coming();
    if (coming_.empty()) return tell_coming();
    services_.slurm.load_jobs(
        {coming_.begin(), coming_.end()},
        [this, alive = alive_, asked = coming_](const Result<std::map<JobId, SlurmJob>> &found) {
            if (!*alive || over()) return;
            if (!found.ok()) {
                coming_timer_ = services_.loop.after(count_again, [this] { count_coming(); });
                return;
            }
            for (JobId one : asked) {
                auto job = found->find(one);
                if (job == found->end() || !(job->second.waiting || job->second.running)) coming_.erase(one);
            }
            tell_coming();
        });
}

std::string Group::in_place_of() const {
    bool lost = promise_ && !promise_->removed.empty();
    return lost ? " in place of " + node_name(promise_->removed.back()) : "";
}

/// Excluded: who is in the job now, and who is gone for some time: Slurm may not know that these are dead. By
/// expansion nobody comes back.
CompanionOrder Group::companion_order(bool expands) const {
    const auto &r = registration();
    CompanionOrder order;
    order.job = job();
    order.step = step();
    order.restart_count = r.restart_count;
    order.tasks = r.tasks_per_node.front();
    for (const auto &node : r.node_names)
        if (expands || is_excluded(node)) order.excluded.push_back(node);
    std::sort(order.excluded.begin(), order.excluded.end());
    order.excluded.erase(std::unique(order.excluded.begin(), order.excluded.end()), order.excluded.end());
    if (!r.options->ckpt_dir.empty()) order.options.push_back("--dlrover-ckpt-dir=" + r.options->ckpt_dir);
    order.options.push_back("--dlrover-redundancy=" + r.options->redundancy);
    order.options.push_back(std::string("--dlrover-pmix=") + text_of(r.options->pmix));
    order.argv = launch_->argv;
    order.environment = launch_->environment;
    order.cwd = r.cwd;
    return order;
}

/// `wanted`: those included that wait or run already.
void Group::add_companions(std::uint64_t request, std::uint32_t wanted, std::uint32_t tries) {
    const auto *site = services_.site && services_.site->known() ? &*services_.site->known() : nullptr;
    if (site && site->bound_fabric())
        return answer_slurm(request, Status(Code::unsupported, "the fabric (switch/" + site->switch_type +
                                                                   ") keeps nodes of different jobs apart"));
    if (!services_.settings.slurm.companion_jobs)
        return answer_slurm(
            request,
            Status(Code::unsupported, "this site has no companion jobs (companion_jobs in dlrover.toml)"));
    if (!launch_)
        return answer_slurm(request, Status(Code::unsupported,
                                            "the step's command and environment were too long to be kept"));
    services_.slurm.load_companions(
        uid(), mark(), [this, alive = alive_, request, wanted, tries](Result<std::vector<Companion>> found) {
            if (!*alive) return;
            if (!found.ok()) return answer_slurm(request, found.status());
            coming_told_.reset();
            know_coming(*found);
            if (over() || !launch_ || tries == 0 || coming(*found).size() >= wanted)
                return answer_slurm(request, Status());
            services_.slurm.submit_companion(companion_order(), [this, alive, request, wanted,
                                                                 tries](Result<JobId> submitted) {
                if (!*alive) return;
                if (submitted.status().code() == Code::not_found)  // a node or a partition, not the job
                    return answer_slurm(request,
                                        Status(Code::invalid_argument, submitted.status().message()));
                if (!submitted.ok()) return answer_slurm(request, submitted.status());
                add_event(proto::EventKind::NodeAsked, "Asked Slurm for a node" + in_place_of() + ": job " +
                                                           std::to_string(submitted->value()) + ".");
                add_companions(request, wanted, tries - 1);
            });
        });
}

void Group::drop_coming(std::uint64_t request) {
    services_.slurm.load_companions(
        uid(), mark(), [this, alive = alive_, request](Result<std::vector<Companion>> found) {
            if (!*alive) return;
            if (!found.ok()) return answer_slurm(request, found.status());
            cancel_expanding(*found);
            // One that runs is refused when it asks, and may be more than ours.
            for (const Companion &one : coming(*found))
                if (one.waiting)
                    services_.slurm.cancel_job(one.job, [one](const Status &status) {
                        if (!is_over(status))
                            log::warning("slurm: job " + std::to_string(one.job.value()) +
                                         " is not needed and could not be cancelled: " + status.message());
                    });
            know_coming({});
            drop_grown_nodes(request);
        });
}

/// One answer when all of them are over, or the first failure.
void Group::end_companions(std::uint64_t request, const std::vector<NodeIndex> &nodes) {
    struct Left {
        std::size_t count;
        Status worst;
    };
    auto left = std::make_shared<Left>();
    std::vector<JobId> jobs;
    for (NodeIndex node : nodes)
        if (node.value() >= own_nodes() && node.value() < node_count())
            jobs.emplace_back(registration().companion_jobs[node.value() - own_nodes()]);
    std::erase(jobs, job());  // that one is the others', too
    left->count = jobs.size();
    if (jobs.empty()) return answer_slurm(request, Status());
    for (JobId companion : jobs)
        services_.slurm.cancel_job(companion, [this, alive = alive_, left, request](const Status &status) {
            if (!is_over(status)) left->worst = Status(status.code(), status.message());
            if (--left->count == 0 && *alive) answer_slurm(request, left->worst);
        });
}

/// The main job's nodes; of those that have joined, whose own job is over. The mark does not count here: a
/// site may overwrite it.
void Group::read_job(std::uint64_t request) {
    std::vector<JobId> jobs{job()};
    const auto &companions = registration().companion_jobs;
    for (std::uint32_t i = 0; i < companions.size(); ++i)
        if (!is_removed(NodeIndex(own_nodes() + i)) && JobId(companions[i]) != job())
            jobs.emplace_back(companions[i]);
    services_.slurm.load_jobs(jobs, [this, alive = alive_, request, joined = companions.size()](
                                        const Result<std::map<JobId, SlurmJob>> &found) {
        if (!*alive) return;
        if (!found.ok()) return answer_slurm(request, found.status());
        auto main = found->find(job());
        if (main == found->end())
            return answer_slurm(request, Status(Code::not_found, "Slurm does not know the job"));
        std::vector<NodeIndex> over;
        for (std::uint32_t i = 0; i < joined; ++i) {
            JobId by(registration().companion_jobs[i]);
            if (by == job()) continue;
            auto own = found->find(by);
            bool runs = own != found->end() && own->second.running && own->second.uid == uid();
            if (!runs) over.emplace_back(own_nodes() + i);
        }
        answer_slurm(request, Status(), &main->second, std::move(over));
    });
}

// ---- on a node that has joined ----

/// Nobody but the group ends its job: without a leader for so long there is none any more.
void Group::watch_for_leader() {
    if (!own_step() || over()) return leader_timer_.reset();
    if (services_.loop.now() - leader_heard_ >= leader_patience)
        return end_here(1,
                        "No leader of the group was heard for a minute: this node, which had joined, ends.");
    leader_timer_ = services_.loop.after(leader_look, [this] { watch_for_leader(); });
}

}  // namespace dlrover::daemon
