// SPDX-License-Identifier: Apache-2.0
#include "daemon/group_mover.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "daemon/interfaces.h"
#include "daemon/records.h"
#include "proto/frame.h"

namespace dlrover::daemon {
namespace {

constexpr std::uint16_t by_tcp = 1, by_ucx = 2;  // docs/protocol-mover.md
constexpr std::size_t key_bytes = 32, max_text_bytes = 1024;
constexpr std::chrono::milliseconds longest_wait{UINT32_MAX};
constexpr EventLoop::Time call_interval = std::chrono::seconds(1);
constexpr std::uint64_t longest_work_us = 3'600'000'000;

Status failure(Code code, const std::string &text) {
    return Status(code, text.empty() ? "dlrover-mover gives no reason" : text.substr(0, max_text_bytes));
}

Status copy_of(const Status &status) {
    return status.ok() ? Status() : Status(status.code(), status.message());
}

std::uint32_t to_ms(std::chrono::milliseconds wait) {
    return static_cast<std::uint32_t>(std::clamp(wait, std::chrono::milliseconds(0), longest_wait).count());
}

std::vector<SharedFd> describe(const std::vector<ArenaSegment> &segments,
                               std::vector<std::unique_ptr<local::SlotSegmentT>> &out) {
    std::vector<SharedFd> fds;
    for (const auto &segment : segments) {
        auto entry = std::make_unique<local::SlotSegmentT>();
        entry->id = segment.id.value();
        entry->bytes = segment.bytes;
        entry->fd = true;
        fds.push_back(segment.fd);
        out.push_back(std::move(entry));
    }
    return fds;
}

std::unique_ptr<local::StoredCheckpointT> to_message(const CheckpointId &id, std::uint32_t world_size) {
    auto out = std::make_unique<local::StoredCheckpointT>();
    out->generation = to_proto_ptr(id.generation);
    out->train_step = id.step.value();
    out->world_size = world_size;
    return out;
}

local::ExpectObjectT to_message(const ObjectToReceive &object) {
    local::ExpectObjectT out;
    out.transfer = object.transfer;
    out.key = object.key;
    out.from = object.from;
    out.checkpoint = to_message(object.id, object.world_size);
    out.rank = object.rank.value();
    out.data_bytes = object.data_bytes;
    out.table_offset = object.table_offset;
    out.table_bytes = object.table_bytes;
    out.table_xxh3 = object.table_xxh3;
    out.parity = object.parity;
    out.chunks_only = object.chunks_only;
    out.wait_ms = to_ms(object.wait);
    return out;
}

std::unique_ptr<local::OwnObjectT> to_message(const LentObject &object, std::vector<SharedFd> &fds) {
    auto out = std::make_unique<local::OwnObjectT>();
    out->rank = object.rank.value();
    out->data_bytes = object.data_bytes;
    out->table_offset = object.table_offset;
    out->table_bytes = object.table_bytes;
    out->table_xxh3 = object.table_xxh3;
    auto its = describe(object.segments, out->segments);
    fds.insert(fds.end(), its.begin(), its.end());
    return out;
}

template <typename MessageT>
void set_object(MessageT &out, const NamedObject &object) {
    out.checkpoint = to_message(object.id, object.world_size);
    out.rank = object.rank.value();
    out.data_bytes = object.data_bytes;
    out.table_offset = object.table_offset;
    out.table_bytes = object.table_bytes;
    out.table_xxh3 = object.table_xxh3;
}

local::SendObjectT to_message(const ObjectToSend &object) {
    local::SendObjectT out;
    if (object.object) {
        set_object(out, *object.object);
        out.parity = object.object->parity;
    }
    out.transfer = object.transfer;
    out.key = object.key;
    out.bytes = object.bytes;
    out.address = object.address;
    out.port = object.port;
    out.way = object.way;
    out.wait_ms = to_ms(object.wait);
    return out;
}

local::FoldObjectT to_message(const PartToFold &part) {
    local::FoldObjectT out;
    out.sum_bytes = part.sum_bytes;
    out.bytes = part.bytes;
    out.data = part.data;
    out.target = part.target;
    out.source = part.source;
    out.given = part.given;
    out.last = part.last;
    out.wait_ms = to_ms(part.wait);
    if (part.object) set_object(out, *part.object);
    return out;
}

}  // namespace

GroupMover::GroupMover(Services services, std::string address, Hooks hooks)
    : services_(services), address_(std::move(address)), hooks_(std::move(hooks)) {}

GroupMover::~GroupMover() {
    *alive_ = false;
}

void GroupMover::later(EventLoop::Task task) {
    services_.loop.post([alive = alive_, task = std::move(task)] {
        if (*alive) task();
    });
}

// ---- the mover of this node ----

std::uint16_t GroupMover::allowed_ways() const {
    return services_.settings.transfer.ucx == UseUcx::never ? by_tcp : by_tcp | by_ucx;
}

local::MoverWelcomeT GroupMover::welcome() const {
    const auto &transfer = services_.settings.transfer;
    local::MoverWelcomeT welcome;
    welcome.address = address_;
    welcome.ways = allowed_ways();
    welcome.ucx_anywhere = transfer.ucx == UseUcx::always;
    welcome.streams = transfer.streams;
    welcome.bytes_per_second = transfer.rate.value;
    return welcome;
}

void GroupMover::on_hello(const Client &from, std::uint32_t id) {
    if (mover_ && connected_.at(*mover_).pid != from.pid)
        expel();
    else if (mover_)
        forget(from.id);
    mover_ = from.id;
    connected_[from.id] = {from.pid, services_.port.process(from.id)};
    services_.port.answer(from.id, id, welcome());
}

/// A mover that connects anew has forgotten its orders.
void GroupMover::forget(ConnectionId successor) {
    ConnectionId old = *mover_;
    if (old != successor) services_.port.close(old);
    leave();
    connected_.erase(old);
    end_orders_of(old);
}

void GroupMover::leave() {
    mover_.reset();
    called_at_.reset();
    call_timer_.reset();
    if (std::exchange(ready_, std::nullopt)) later([this] { hooks_.changed(); });
}

void GroupMover::expel() {
    const auto &process = connected_.at(*mover_).process;
    bool killed = process && process->kill();
    leave();
    if (hooks_.ended) later([this, killed] { hooks_.ended(killed); });
}

/// Its process may be alive, if its connection was cut for another reason than its end.
void GroupMover::on_gone(ConnectionId connection) {
    auto it = connected_.find(connection);
    if (it == connected_.end()) return;
    bool writes = std::ranges::any_of(open_, [&](const auto &entry) {
        return entry.second.mover == connection &&
               (entry.second.arrived || entry.second.folded || entry.second.measured);
    });
    if (writes && it->second.process) (void)it->second.process->kill();
    connected_.erase(it);
    if (is_mover(connection)) leave();
    end_orders_of(connection);
}

void GroupMover::end_orders_of(ConnectionId mover) {
    Status gone(Code::unavailable, "dlrover-mover has ended");
    std::vector<Order> orders;
    for (const auto &[order, entry] : open_)
        if (entry.mover == mover) orders.push_back(order);
    for (Order order : orders) close(order, gone, true);
}

bool GroupMover::on_message(const Client &from, const local::MessageT &message) {
    const auto &body = message.body;
    auto *ready = body.AsMoverReady();
    auto *expecting = body.AsExpectingObject();
    auto *arrived = body.AsObjectArrived();
    auto *sent = body.AsObjectSent();
    auto *folded = body.AsObjectFolded();
    auto *measured = body.AsNodeMeasured();
    auto *answer = body.AsMoverAnswer();
    if (!ready && !expecting && !arrived && !sent && !folded && !measured && !answer) return false;
    // Of another one what it had to do has ended, or ends with it.
    if (ready && is_mover(from.id)) on_ready(*ready);
    if (answer && is_mover(from.id)) called_at_.reset();
    if (expecting && is_open(expecting->order, from.id)) on_expecting(*expecting);
    if (arrived && is_open(arrived->order, from.id)) on_arrived(*arrived);
    if (sent && is_open(sent->order, from.id)) on_sent(*sent);
    if (folded && is_open(folded->order, from.id)) on_folded(*folded);
    if (measured && is_open(measured->order, from.id)) on_measured(*measured);
    return true;
}

/// The mover is a process of the user: nothing in its words is believed.
void GroupMover::on_ready(const local::MoverReadyT &ready) {
    if (ready_) return;
    ready_ = ready;
    ready_->ways &= allowed_ways();
    ready_->text = ready.text.substr(0, max_text_bytes);
    if (ready_->ways == 0) ready_->port = 0;
    later([this] { hooks_.changed(); });
}

const std::string &GroupMover::text() const {
    static const std::string none;
    return ready_ ? ready_->text : none;
}

// ---- orders ----

Status GroupMover::check_order(const std::vector<ArenaSegment> &segments) const {
    if (!ready_) return Status(Code::unavailable, "dlrover-mover does not run here");
    if (open_.size() >= max_orders)
        return Status(Code::resource_exhausted, "dlrover-mover has too many orders already");
    if (segments.empty() || segments.size() > proto::max_frame_fds)
        return Status(Code::invalid_argument, "an order for dlrover-mover that can not be");
    return {};
}

Status GroupMover::check_transfer(const std::vector<ArenaSegment> &segments,
                                  const std::vector<std::uint8_t> &key) const {
    DLROVER_TRY(check_order(segments));
    if (key.size() == key_bytes) return {};
    return Status(Code::invalid_argument, "an order for dlrover-mover that can not be");
}

std::size_t GroupMover::room_for_own(std::size_t segments) const {
    bool takes = ready_ && ready_->takes_own && segments < proto::max_frame_fds;
    return takes ? proto::max_frame_fds - segments : 0;
}

GroupMover::Order GroupMover::receive(ObjectToReceive object, std::function<void(Status)> expecting,
                                      std::function<void(Status, std::uint64_t spared)> arrived) {
    Order order = ++last_order_;
    Entry entry{std::move(expecting), std::move(arrived)};
    Status status = check_transfer(object.segments, object.key);
    if (status.ok() && ready_->port == 0)
        status = failure(Code::unavailable, "dlrover-mover does not listen here: " + ready_->text);
    if (!status.ok()) {
        end(entry, status, false);
        return order;
    }
    auto message = to_message(object);
    message.order = order;
    auto fds = describe(object.segments, message.segments);
    for (const LentObject &own : object.own) message.own.push_back(to_message(own, fds));
    add(order, std::move(entry), object.wait);
    services_.port.send(*mover_, proto::make_local(0, std::move(message)), std::move(fds));
    return order;
}

GroupMover::Order GroupMover::send(ObjectToSend object, std::function<void(Status, bool retry)> sent) {
    Order order = ++last_order_;
    Entry entry;
    entry.sent = std::move(sent);
    if (Status status = check_transfer(object.segments, object.key); !status.ok()) {
        end(entry, status, status.code() != Code::invalid_argument);
        return order;
    }
    auto message = to_message(object);
    message.order = order;
    auto fds = describe(object.segments, message.segments);
    add(order, std::move(entry), object.wait);
    services_.port.send(*mover_, proto::make_local(0, std::move(message)), std::move(fds));
    return order;
}

GroupMover::Order GroupMover::measure(NodeToMeasure what, std::function<void(const NodeMeasure &)> measured) {
    Order order = ++last_order_;
    Entry entry;
    entry.measured = std::move(measured);
    if (Status status = check_order(what.segments); !status.ok()) {
        end(entry, status, false);
        return order;
    }
    local::MeasureNodeT message;
    message.order = order;
    message.bytes = what.bytes;
    message.work = what.work;
    message.gpus = what.gpus;
    message.wait_ms = to_ms(what.wait);
    auto fds = describe(what.segments, message.segments);
    add(order, std::move(entry), what.wait);
    services_.port.send(*mover_, proto::make_local(0, std::move(message)), std::move(fds));
    return order;
}

GroupMover::Order GroupMover::fold(PartToFold part, std::function<void(Status, std::uint64_t xxh3)> folded) {
    Order order = ++last_order_;
    Entry entry;
    entry.folded = std::move(folded);
    auto segments = part.into;
    segments.insert(segments.end(), part.from.begin(), part.from.end());
    Status status = part.into.empty() || part.from.empty()
                        ? Status(Code::invalid_argument, "an order for dlrover-mover that can not be")
                        : check_order(segments);
    if (!status.ok()) {
        end(entry, status, false);
        return order;
    }
    auto message = to_message(part);
    message.order = order;
    (void)describe(part.into, message.into);
    (void)describe(part.from, message.from);
    std::vector<SharedFd> fds;
    for (const auto &segment : segments) fds.push_back(segment.fd);
    add(order, std::move(entry), part.wait);
    services_.port.send(*mover_, proto::make_local(0, std::move(message)), std::move(fds));
    return order;
}

void GroupMover::cancel(Order order) {
    if (!open_.contains(order)) return;
    push_cancel(order);
    watch(order, patience);
}

void GroupMover::push_cancel(Order order) {
    local::CancelOrderT cancel;
    cancel.order = order;
    services_.port.push(open_.at(order).mover, std::move(cancel));
}

bool GroupMover::is_open(Order order, ConnectionId mover) const {
    auto it = open_.find(order);
    return it != open_.end() && it->second.mover == mover;
}

void GroupMover::add(Order order, Entry entry, std::chrono::milliseconds wait) {
    entry.mover = *mover_;
    open_.emplace(order, std::move(entry));
    if (!call_timer_) call_mover();
    watch(order, std::chrono::milliseconds(to_ms(wait)) + patience);
}

void GroupMover::watch(Order order, EventLoop::Time time) {
    open_.at(order).timer = services_.loop.after(time, [this, order] { on_overdue(order); });
}

void GroupMover::call_mover() {
    call_timer_.reset();
    bool works = std::ranges::any_of(open_, [&](const auto &entry) { return is_mover(entry.second.mover); });
    if (!works || !ready_ || !ready_->answers) return called_at_.reset();
    if (called_at_ && services_.loop.now() - *called_at_ >= call_limit) {
        const auto &process = connected_.at(*mover_).process;
        if (!process || !process->is_suspended()) return expel();
        called_at_ = services_.loop.now();
    }
    if (!called_at_) {
        called_at_ = services_.loop.now();
        local::CallMoverT call;
        call.order = ++last_order_;
        services_.port.push(*mover_, std::move(call));
    }
    call_timer_ = services_.loop.after(call_interval, [this] { call_mover(); });
}

bool GroupMover::is_worked_on(Order order) const {
    auto it = open_.find(order);
    return it != open_.end() && is_mover(it->second.mover);
}

/// It may go on at any time, and would write into memory that has become another object's: what it was given
/// stays its own until it is gone.
void GroupMover::on_overdue(Order order) {
    if (is_mover(open_.at(order).mover)) expel();
}

// ---- answers: of unknown orders, or given twice, they are nobody's ----

void GroupMover::on_expecting(const local::ExpectingObjectT &answer) {
    auto it = open_.find(answer.order);
    if (it == open_.end() || !it->second.expecting) return;
    if (!answer.ok) return close(answer.order, failure(Code::unavailable, answer.text), false);
    later([expecting = std::exchange(it->second.expecting, {})] { expecting({}); });
}

void GroupMover::on_arrived(const local::ObjectArrivedT &answer) {
    auto it = open_.find(answer.order);
    if (it == open_.end() || !it->second.arrived) return;
    // Nobody has been told to send it.
    bool possible = answer.ok && !it->second.expecting;
    std::string text = answer.ok ? "dlrover-mover says what can not be" : answer.text;
    if (!possible) return close(answer.order, failure(Code::unavailable, text), false);
    auto node = open_.extract(it);
    later([arrived = node.mapped().arrived, spared = answer.spared_bytes] { arrived({}, spared); });
}

void GroupMover::on_sent(const local::ObjectSentT &answer) {
    auto it = open_.find(answer.order);
    if (it == open_.end() || !it->second.sent) return;
    Code code = answer.damaged ? Code::corrupt : Code::unavailable;
    close(answer.order, answer.ok ? Status() : failure(code, answer.text), answer.retry);
}

void GroupMover::on_folded(const local::ObjectFoldedT &answer) {
    auto it = open_.find(answer.order);
    if (it == open_.end() || !it->second.folded) return;
    if (!answer.ok) return close(answer.order, failure(Code::unavailable, answer.text), false);
    auto node = open_.extract(it);
    later([folded = node.mapped().folded, xxh3 = answer.xxh3] { folded({}, xxh3); });
}

void GroupMover::on_measured(const local::NodeMeasuredT &answer) {
    auto it = open_.find(answer.order);
    if (it == open_.end() || !it->second.measured) return;
    Code why = answer.unfit ? Code::corrupt : Code::unavailable;
    if (!answer.ok) return close(answer.order, failure(why, answer.text), false);
    auto node = open_.extract(it);
    later([measured = node.mapped().measured, work = std::min(answer.work_us, longest_work_us),
           xxh3 = answer.xxh3, note = log::one_line(answer.text.substr(0, max_text_bytes))] {
        measured({{}, work, xxh3, note});
    });
}

void GroupMover::close(Order order, const Status &status, bool retry) {
    auto node = open_.extract(order);
    end(node.mapped(), status, retry);
}

void GroupMover::end(const Entry &entry, const Status &status, bool retry) {
    bool again = retry && !status.ok();
    auto told = std::make_shared<Status>(copy_of(status));
    if (entry.measured)
        return later([measured = entry.measured, told] { measured({std::move(*told), 0, 0, {}}); });
    if (entry.folded) return later([folded = entry.folded, told] { folded(std::move(*told), 0); });
    if (entry.sent) return later([sent = entry.sent, told, again] { sent(std::move(*told), again); });
    if (entry.expecting) return later([expecting = entry.expecting, told] { expecting(std::move(*told)); });
    later([arrived = entry.arrived, told] { arrived(std::move(*told), 0); });
}

std::unique_ptr<local::MoverStatusT> GroupMover::status() const {
    auto out = std::make_unique<local::MoverStatusT>();
    out->ready = ready();
    out->address = address_;
    out->port = port();
    out->listening = port() != 0;
    out->ways = ways();
    out->text = text();
    std::string own = address_.empty() && hooks_.own_address ? hooks_.own_address() : address_;
    // UCX chooses its own, among those for RDMA.
    bool is_ucx = (ways() & by_ucx) != 0 && services_.settings.transfer.ucx != UseUcx::always;
    if (!is_ucx) out->interface = network_text(read_interfaces(), own);
    return out;
}

}  // namespace dlrover::daemon
