// SPDX-License-Identifier: Apache-2.0
// What ranks ask of the group: how it stands, other nodes, another beginning. The daemon has the answers.
#include <algorithm>
#include <tuple>
#include <utility>

#include "pmix_server/dlrover_pmix.h"
#include "pmix_server/service.h"

namespace dlrover::pmix {
namespace {

namespace local = proto::local;
constexpr std::chrono::milliseconds answer_limit{5000};
constexpr std::size_t max_asked = 1024;

}  // namespace

template <typename Request>
void Service::ask_daemon(Request request, const std::shared_ptr<QueryCompletion> &done, Answered answered) {
    if (asked_.size() >= max_asked) return done->finish(PMIX_ERR_OUT_OF_RESOURCE, {});
    std::uint64_t number = ++last_token_;
    auto given_up = loop_.after(answer_limit, [this, number, done] {
        auto node = asked_.extract(number);
        done->finish(PMIX_ERR_TIMEOUT, {});
    });
    asked_.emplace(number, Asked{std::move(answered), std::move(given_up)});
    request.number = number;
    tell(std::move(request));
}

void Service::on_answer(std::uint64_t number, const proto::local::BodyUnion &answer) {
    auto node = asked_.extract(number);
    if (!node.empty()) node.mapped().answered(answer);
}

void Service::on_query(Query query, std::shared_ptr<QueryCompletion> done) {
    auto is_other = [this](const std::string &name) { return !is_present(name); };
    if (std::ranges::any_of(query.name_spaces, is_other)) return done->finish(PMIX_ERR_NOT_FOUND, {});
    if (std::ranges::none_of(query.keys, is_of_state)) return answer(query, *done, {});
    ask_daemon(local::PmixStateRequestT(), done, [this, query = std::move(query), done](const auto &body) {
        if (const auto *state = body.AsPmixState()) answer(query, *done, *state);
    });
}

void Service::answer(const Query &query, QueryCompletion &done, const local::PmixStateT &state) const {
    // Of the world that is served, whoever asks: PMIx 4.2.2 does not say it right.
    if (!exchange_) return done.finish(PMIX_ERR_NOT_FOUND, {});
    InfoList found;
    bool known = false;
    for (const std::string &key : query.keys) {
        auto datum = is_of_state(key)              ? state_datum(state, key)
                     : key == DLROVER_PMIX_REFUSAL ? refusal_datum()
                                                   : world_datum(exchange_->world(), key);
        known = known || is_of_state(key) || key == DLROVER_PMIX_REFUSAL;
        if (datum) found.add(*datum);
    }
    if (found.size() == 0) return done.finish(known ? PMIX_ERR_NOT_FOUND : PMIX_ERR_NOT_SUPPORTED, {});
    bool all = found.size() == query.keys.size();
    done.finish(all ? PMIX_SUCCESS : PMIX_ERR_PARTIAL_SUCCESS, std::move(found));
}

/// The newest of this node: PMIx 4.2.2 does not say which rank asks.
std::optional<JobDatum> Service::refusal_datum() const {
    if (refusals_.empty()) return std::nullopt;
    return JobDatum{DLROVER_PMIX_REFUSAL, refusals_.back().text};
}

pmix_status_t Service::note_refusal(std::uint32_t rank, pmix_status_t status, const std::string &text) {
    std::erase_if(refusals_, [rank](const Refusal &refusal) { return refusal.rank == rank; });
    if (status != PMIX_SUCCESS && !text.empty()) refusals_.push_back({rank, text});
    return status;
}

bool Service::goes_on(const std::string &name_space) const {
    return is_present(name_space) && !exchange_->stopped();
}

/// As the group's user, by a process of its own. Of a job that is made after its asker's generation has ended
/// nobody would know.
void Service::ask_slurm(AllocationRequest request, std::shared_ptr<QueryCompletion> done) {
    if (!goes_on(request.name_space)) return done->finish(PMIX_ERR_LOST_CONNECTION, {});
    auto &order = *request.wanted.order;
    std::tie(order.job, order.step) =
        step_of(request.name_space).value_or(std::pair(environment_.job, environment_.step));
    allocator_.ask(order, [this, request, done](Result<proto::AllocationState> state) {
        if (!state) {
            const Status &why = state.status();
            return done->finish(note_refusal(request.rank, refusal_status(why.code()), why.message()), {});
        }
        if (goes_on(request.name_space))
            return done->finish(note_refusal(request.rank, PMIX_SUCCESS, {}),
                                answer_of(*request.wanted.order, *state));
        done->finish(PMIX_ERR_LOST_CONNECTION, {});
        if (request.wanted.order->verb == proto::AllocationOrder::Verb::create)
            allocator_.ask(proto::release_of(*request.wanted.order, *state), [](const auto &) {});
    });
}

/// PMIx 4.2.2 does not say which rank asks: it is none in what is noted of refusals.
void Service::on_status_query(proto::AllocationOrder order, std::shared_ptr<QueryCompletion> done) {
    if (!exchange_) return done->finish(PMIX_ERR_LOST_CONNECTION, {});
    ask_slurm({exchange_->world().name_space, PMIX_RANK_UNDEF, {0, 0, std::move(order)}}, std::move(done));
}

/// Taken or not is told at once: the nodes come, or go, with a later generation.
void Service::on_allocation(AllocationRequest request, std::shared_ptr<QueryCompletion> done) {
    if (!is_present(request.name_space)) return done->finish(PMIX_ERR_LOST_CONNECTION, {});
    if (request.wanted.order) return ask_slurm(std::move(request), std::move(done));
    local::PmixScaleRequestT message;
    message.more = request.wanted.more;
    message.fewer = request.wanted.fewer;
    ask_daemon(std::move(message), done, [this, request = std::move(request), done](const auto &body) {
        const auto *reply = body.AsPmixScaleReply();
        if (!reply) return;
        pmix_status_t status = allocation_status(reply->state, request.wanted);
        done->finish(note_refusal(request.rank, status, reply->text), {});
    });
}

/// That ranks save, or begin again, follows.
void Service::on_control(ControlRequest request, std::shared_ptr<QueryCompletion> done) {
    if (!is_present(request.name_space)) return done->finish(PMIX_ERR_LOST_CONNECTION, {});
    if (request.wanted.checkpoint) return done->finish(ask_for_checkpoint(request.rank), {});
    local::PmixRestartRequestT message;
    if (request.wanted.step) message.step = static_cast<std::int64_t>(*request.wanted.step);
    ask_daemon(std::move(message), done, [this, rank = request.rank, done](const auto &body) {
        const auto *reply = body.AsPmixRestartReply();
        if (reply) done->finish(note_refusal(rank, control_status(reply->state), reply->text), {});
    });
}

/// Of all ranks, the one that asks too: PMIx tells a rank nothing of its own.
pmix_status_t Service::ask_for_checkpoint(std::uint32_t rank) {
    Announcement word{PMIX_JCTRL_CHECKPOINT, rank, false, 0, {}};
    Status status = exchange_->announce(loop_.now(), word);
    schedule();
    if (status.code() == Code::resource_exhausted) return PMIX_ERR_OUT_OF_RESOURCE;
    if (!status.ok()) return PMIX_ERR_LOST_CONNECTION;
    (void)Server::notify(exchange_->world(), PMIX_JCTRL_CHECKPOINT, {}, true, {});
    return PMIX_SUCCESS;
}

}  // namespace dlrover::pmix
