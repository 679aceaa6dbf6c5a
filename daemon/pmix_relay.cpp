// SPDX-License-Identifier: Apache-2.0
#include "daemon/pmix_relay.h"

#include <algorithm>
#include <utility>

namespace dlrover::daemon {
namespace {

constexpr std::size_t max_variables = 64, max_variable_bytes = 4096;

/// Agents give them to the workers, over what is there.
bool is_variable(const std::string &text) {
    return text.starts_with("PMIX_") && text.find('=') != std::string::npos &&
           text.size() <= max_variable_bytes && text.find('\0') == std::string::npos;
}

}  // namespace

PmixRelay::~PmixRelay() {
    *alive_ = false;
}

void PmixRelay::later(EventLoop::Task task) {
    services_.loop.post([alive = alive_, task = std::move(task)] {
        if (*alive) task();
    });
}

// ---- the dlrover-pmixd of this node ----

void PmixRelay::on_hello(const Client &from, std::uint32_t id, const local::PmixHelloT &hello) {
    services_.port.answer(from.id, id, local::PmixWelcomeT{});
    if (server_ && *server_ != from.id) services_.port.close(*server_);
    server_ = from.id;
    serves_ = is_present(hello.serving);
    required_ = required_ || hello.used;
    if (!world_ || failed_) return;
    server_timer_.reset();
    if (started_ && !serves_) return fail("dlrover-pmixd has ended");
    expect_server();
    push_world();
}

template <typename Ask, typename Request>
void PmixRelay::push_reply(const Ask &ask, const Request &request) {
    auto reply = ask(request);
    reply.number = request.number;
    services_.port.push(*server_, std::move(reply));
}

bool PmixRelay::on_message(const Client &from, const local::MessageT &message) {
    const auto &body = message.body;
    const auto *ready = body.AsPmixReady();
    const auto *parcel = body.AsPmixParcel();
    const auto *aborted = body.AsPmixAborted();
    const auto *asks = body.AsPmixStateRequest();
    const auto *scales = body.AsPmixScaleRequest();
    const auto *restarts = body.AsPmixRestartRequest();
    const auto *used = body.AsPmixUsed();
    const auto *overdue = body.AsPmixOverdue();
    bool known = ready || parcel || aborted || asks || scales || restarts || used || overdue;
    if (!known) return false;
    if (server_ != from.id) return true;  // of one that has a successor
    required_ = required_ || used != nullptr;
    if (ready != nullptr) on_ready(*ready);
    if (parcel != nullptr) on_parcel(*parcel);
    if (aborted != nullptr && is_present(aborted->generation)) hooks_.aborted(*aborted);
    if (overdue != nullptr && is_present(overdue->generation)) hooks_.overdue(*overdue);
    if (asks != nullptr) push_state(asks->number);
    if (scales != nullptr) push_reply(hooks_.scale, *scales);
    if (restarts != nullptr) push_reply(hooks_.restart, *restarts);
    return true;
}

/// The guard starts it again; a daemon's restart is no reason.
void PmixRelay::on_gone(ConnectionId connection) {
    if (server_ != connection) return;
    server_.reset();
    serves_ = false;
    if (world_) expect_server();
}

void PmixRelay::expect_server() {
    if (failed_) return;
    EventLoop::Time limit = required_ ? patience : was_missing_ ? shortest_patience : short_patience;
    server_timer_ = services_.loop.after(limit, [this] {
        server_timer_.reset();
        fail(server_ ? "dlrover-pmixd does not answer" : "dlrover-pmixd does not run (is it installed?)");
    });
}

void PmixRelay::fail(const std::string &why) {
    if (std::exchange(failed_, true)) return;
    server_timer_.reset();
    if (!required_) return go_without(why);
    later([this, why, generation = from_proto(world_->generation)] {
        if (world_ && from_proto(world_->generation) == generation) hooks_.failed(why);
    });
}

/// Servers elsewhere must not wait for what these ranks would say, and they may hear of this world later.
void PmixRelay::go_without(const std::string &why) {
    was_missing_ = true;
    serves_ = false;
    tell_others();
    bool begin = !started_;
    if (begin) variables_.emplace();
    later([this, why, begin, generation = from_proto(world_->generation)] {
        if (!world_ || from_proto(world_->generation) != generation) return;
        hooks_.missing(why);
        if (begin) hooks_.ready();
    });
}

void PmixRelay::tell_others() {
    for (Place place = 0; place < world_->node_names.size(); ++place)
        if (place != world_->place) send_word(place, {});
    word_timer_ = services_.loop.after(word_interval, [this] { tell_others(); });
}

void PmixRelay::send_word(Place to, proto::Bytes bytes) {
    PmixWord word{from_proto(world_->generation), std::move(bytes)};
    if (!hooks_.send(to, encode_pmix_word(word)))
        tell_unreachable(to, world_->node_names[to] + " has an older dlroverd, which does not carry PMIx");
}

void PmixRelay::push_world() {
    local::PmixWorldT copy = *world_;
    services_.port.push(*server_, std::move(copy));
}

void PmixRelay::on_ready(const local::PmixReadyT &ready) {
    if (!is_present(ready.generation) || failed_) return;
    server_timer_.reset();
    if (!ready.ok) return fail("dlrover-pmixd: " + ready.text.substr(0, 1024));
    if (ready.variables.size() > max_variables || !std::ranges::all_of(ready.variables, is_variable))
        return fail("dlrover-pmixd gives variables that workers may not get");
    serves_ = true;
    variables_ = ready.variables;
    later([this] {
        if (variables_) hooks_.ready();
    });
}

// ---- the group ----

void PmixRelay::on_world(local::PmixWorldT world) {
    on_no_world();
    world_ = std::move(world);
    world_->wait_limit_ms = static_cast<std::uint32_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(services_.settings.pmix.wait_limit).count());
    expect_server();
    if (server_) push_world();
}

void PmixRelay::on_no_world() {
    world_.reset();
    variables_.reset();
    serves_ = started_ = failed_ = false;
    allowances_.clear();
    unreachable_.clear();
    server_timer_.reset();
    word_timer_.reset();
}

void PmixRelay::on_stop(local::PmixStopT stop) {
    if (server_) services_.port.push(*server_, std::move(stop));
}

void PmixRelay::on_event(local::PmixEventT event) {
    if (server_ && world_ && !failed_) services_.port.push(*server_, std::move(event));
}

std::unique_ptr<local::PmixStatusT> PmixRelay::status() const {
    auto out = std::make_unique<local::PmixStatusT>();
    if (!world_) return out;
    out->name_space = world_->name_space;
    out->nodes = static_cast<std::uint32_t>(world_->node_names.size());
    out->up = server_ && serves_ ? 1 : 0;
    return out;
}

void PmixRelay::push_state(std::uint64_t number) {
    local::PmixStateT state = hooks_.state();
    state.number = number;
    services_.port.push(*server_, std::move(state));
}

void PmixRelay::on_resumed() {
    started_ = true;
    if (world_ && server_ && !serves_) fail("dlrover-pmixd has ended");
}

// ---- from server to server ----

/// Best effort, as the links are: what goes over the allowance is dropped, and sent again by the server.
bool PmixRelay::allow(Place to, std::size_t bytes) {
    std::uint64_t most = services_.settings.network.peer_queue.value / 2;
    auto [it, fresh] = allowances_.try_emplace(to, Allowance{most, services_.loop.now()});
    Allowance &left = it->second;
    auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(services_.loop.now() - left.at);
    left.bytes =
        std::min(most, left.bytes + static_cast<std::uint64_t>(passed.count()) * bytes_per_second / 1000);
    left.at += passed;
    if (left.bytes < bytes) return false;
    left.bytes -= bytes;
    return true;
}

void PmixRelay::on_parcel(const local::PmixParcelT &parcel) {
    bool known = is_present(parcel.generation) && parcel.place < world_->node_names.size();
    bool fits = !parcel.bytes.empty() && parcel.bytes.size() <= max_parcel_bytes;
    if (!known || !fits || parcel.place == world_->place || !allow(parcel.place, parcel.bytes.size())) return;
    send_word(parcel.place, parcel.bytes);
}

void PmixRelay::tell_unreachable(Place place, const std::string &why) {
    if (!server_ || !unreachable_.insert(place).second) return;
    local::PmixUnreachableT lost;
    lost.generation = std::make_unique<proto::Generation>(*world_->generation);
    lost.place = place;
    lost.text = why;
    services_.port.push(*server_, std::move(lost));
}

void PmixRelay::on_word(Place from, std::span<const std::uint8_t> payload) {
    auto word = decode_pmix_word(payload);
    if (!word || !world_ || !server_ || word->generation != from_proto(world_->generation)) return;
    if (word->bytes.empty()) return tell_unreachable(from, world_->node_names[from] + " has no PMIx server");
    local::PmixParcelT parcel;
    parcel.generation = std::make_unique<proto::Generation>(*world_->generation);
    parcel.place = from;
    parcel.bytes = std::move(word->bytes);
    services_.port.push(*server_, std::move(parcel));
}

}  // namespace dlrover::daemon
