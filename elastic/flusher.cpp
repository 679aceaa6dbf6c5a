// SPDX-License-Identifier: Apache-2.0
#include "elastic/flusher.h"

#include <algorithm>
#include <utility>

namespace dlrover::elastic {
namespace {

/// The last order before the job's end is given at least so long before it.
constexpr Duration shortest_lead = std::chrono::seconds(10);

/// The sentences name ranks, steps and files: the same trouble has other numbers each time.
bool same_reason(std::string a, std::string b) {
    auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    std::erase_if(a, is_digit);
    std::erase_if(b, is_digit);
    return a == b;
}

}  // namespace

Flusher::Flusher(FlushConfig config, std::uint64_t number, Time now)
    : config_(config), number_(number), ordered_at_(now) {}

std::optional<CheckpointId> Flusher::flying() const {
    if (!flight_) return std::nullopt;
    return flight_->id;
}

bool Flusher::settled() const {
    return !newest_ || (stored_ && newest_->id <= *stored_);
}

/// Whether a complete step was asked for that is neither on storage nor on its way there.
bool Flusher::asked_waits() const {
    if (!asked_ || asked_passed_ || !newest_ || newest_->id < *asked_) return false;
    return !(stored_ && *asked_ <= *stored_) && !(flight_ && *asked_ <= flight_->id);
}

void Flusher::pass_asked() {
    if (!asked_waits()) return;
    if (passed_.count++ == 0) passed_.first = *asked_;
    passed_.last = *asked_;
    asked_passed_ = true;
}

/// Twice what an order has taken: storage is slower when all jobs' ends come together.
Time Flusher::last_call() const {
    return *end_ - std::max(2 * longest_, shortest_lead);
}

Time Flusher::first_call() const {
    return last_call() - std::max(2 * longest_, config_.end_lead);
}

/// The one before the job's end that nothing has been ordered after yet.
std::optional<Time> Flusher::next_call() const {
    if (!end_ || ordered_at_ >= last_call()) return std::nullopt;
    if (ordered_at_ < first_call()) return first_call();
    return last_call();
}

bool Flusher::end_near(Time now) const {
    auto call = next_call();
    return call && now >= *call && now < *end_;
}

bool Flusher::due(Time now) const {
    if (flight_ || settled() || now < retry_at_) return false;
    if (end_near(now)) return true;
    if (hurried_ || failures_ > 0 || asked_waits()) return true;
    if (config_.every_steps > 0 && steps_since_ >= config_.every_steps) return true;
    return config_.every > Duration(0) && now - ordered_at_ >= config_.every;
}

void Flusher::consider(Time now, Actions &out) {
    if (!due(now)) return;
    if (asked_ != newest_->id) pass_asked();
    std::optional<Duration> end_in;
    if (end_near(now)) end_in = *end_ - now;
    flight_ = Flight{++number_, newest_->id, now};
    ordered_at_ = now;
    steps_since_ = 0;
    out.emplace_back(FlushBegin{number_, *newest_, end_in});
    passed_.by = newest_->id;
    if (passed_.count > 0) out.emplace_back(std::exchange(passed_, {}));
}

FlushNote Flusher::describe(Time now, bool ok, const std::string &text) const {
    FlushNote note;
    note.ok = ok;
    note.id = flight_->id;
    note.took = now - flight_->since;
    note.text = text;
    return note;
}

void Flusher::land(std::uint64_t number, Actions &out) {
    out.emplace_back(FlushDrop{number});
    flight_.reset();
}

Flusher::Actions Flusher::complete(Time now, CompleteStep step) {
    Actions out;
    if (newest_ && step.id < newest_->id) return out;
    bool is_new = !newest_ || newest_->id != step.id;
    newest_ = std::move(step);  // another world may hold the same one
    steps_since_ += is_new ? 1 : 0;
    consider(now, out);
    return out;
}

Flusher::Actions Flusher::ask(Time now, const CheckpointId &id) {
    Actions out;
    if (asked_ && id <= *asked_) return out;
    pass_asked();
    asked_ = id;
    asked_passed_ = false;
    consider(now, out);
    return out;
}

Flusher::Actions Flusher::known(Time now, const CheckpointId &id) {
    Actions out;
    stored_ = std::max(stored_, std::optional(id));
    if (hurried_ <= stored_) hurried_.reset();
    consider(now, out);
    return out;
}

Flusher::Actions Flusher::hurry(Time now) {
    Actions out;
    if (settled()) return out;
    hurried_ = newest_->id;
    consider(now, out);
    return out;
}

Flusher::Actions Flusher::ends_at(Time now, std::optional<Time> end) {
    Actions out;
    end_ = end > now ? end : std::nullopt;  // Slurm may let it run on
    consider(now, out);
    return out;
}

Flusher::Actions Flusher::done(Time now, std::uint64_t number) {
    Actions out;
    if (!flight_ || flight_->number != number) return out;
    longest_ = std::max(longest_, now - flight_->since);
    stored_ = std::max(stored_, std::optional(flight_->id));
    out.emplace_back(describe(now, true, {}));
    failures_ = 0;
    trouble_.clear();
    retry_at_ = Time::min();
    land(number, out);
    if (hurried_ <= stored_) hurried_.reset();
    consider(now, out);
    return out;
}

void Flusher::fail(Time now, const std::string &text, Actions &out) {
    if (failures_ == 0 || !same_reason(trouble_, text)) out.emplace_back(describe(now, false, text));
    trouble_ = text;
    auto wait = config_.retry_min * (std::int64_t{1} << std::min(failures_, 16u));
    retry_at_ = now + std::min(wait, config_.retry_max);
    ++failures_;
    land(flight_->number, out);
}

Flusher::Actions Flusher::failed(Time now, std::uint64_t number, const std::string &text) {
    Actions out;
    if (flight_ && flight_->number == number) fail(now, text, out);
    return out;
}

Flusher::Actions Flusher::lost(Time now, std::uint64_t number, const std::string &text) {
    Actions out;
    if (!flight_ || flight_->number != number) return out;
    out.emplace_back(describe(now, false, text));
    std::get<FlushNote>(out.back()).lost = true;
    forget(flight_->id);
    land(number, out);
    consider(now, out);
    return out;
}

void Flusher::forget(const CheckpointId &id) {
    if (newest() == id) newest_.reset();
    if (hurried_ <= id) hurried_.reset();
}

Flusher::Actions Flusher::tick(Time now) {
    Actions out;
    if (end_ && now >= *end_) end_.reset();
    if (flight_ && now - flight_->since >= config_.order_limit)
        fail(now,
             "storage has not taken it in " + std::to_string(config_.order_limit.count() / 1000000) + " s",
             out);
    consider(now, out);
    return out;
}

Time Flusher::deadline() const {
    if (flight_) return flight_->since + config_.order_limit;
    if (settled()) return Time::max();
    if (hurried_ || failures_ > 0 || asked_waits()) return retry_at_;
    Time next = next_call().value_or(Time::max());
    if (config_.every > Duration(0)) next = std::min(next, ordered_at_ + config_.every);
    return std::max(retry_at_, next);
}

}  // namespace dlrover::elastic
