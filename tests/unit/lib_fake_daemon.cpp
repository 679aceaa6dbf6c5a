// SPDX-License-Identifier: Apache-2.0
#include "lib_fake_daemon.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <filesystem>

namespace dlrover::test {

FakeDaemon::FakeDaemon(std::size_t slots, std::uint64_t segment_bytes) : segment_bytes_(segment_bytes) {
    char name[] = "/tmp/dlrover-test-XXXXXX";
    dir_ = ::mkdtemp(name);
    slots_.resize(slots);
    slots_told = static_cast<std::uint32_t>(slots);
    wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    page_fd_.reset(::memfd_create("page", MFD_CLOEXEC));
    BOOST_REQUIRE(::ftruncate(page_fd_.get(), proto::progress_page_bytes) == 0);
    page_ = static_cast<proto::ProgressPage *>(
        ::mmap(nullptr, proto::progress_page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd_.get(), 0));
    listen();
    thread_ = std::thread([this] { run(); });
}

FakeDaemon::~FakeDaemon() {
    {
        std::lock_guard lock(mutex_);
        quit_ = true;
    }
    ::eventfd_write(wake_.get(), 1);
    thread_.join();
    ::munmap(page_, proto::progress_page_bytes);
    std::filesystem::remove_all(dir_);
}

void FakeDaemon::listen() {
    // Not blocking: the listener that poll() saw may have been replaced by another with its number.
    listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un a{};
    a.sun_family = AF_UNIX;
    std::strcpy(a.sun_path, socket_path().c_str());
    ::unlink(a.sun_path);
    BOOST_REQUIRE(::bind(listener_.get(), reinterpret_cast<sockaddr *>(&a), sizeof a) == 0);
    BOOST_REQUIRE(::listen(listener_.get(), 8) == 0);
}

void FakeDaemon::stop_locked(bool keep_grants) {
    listener_.reset();
    ::unlink(socket_path().c_str());
    connections_.clear();
    for (Slot &slot : slots_) {
        slot.holder = -1;
        if (slot.state == SlotState::granted && !keep_grants) slot.state = SlotState::free;
    }
    ::eventfd_write(wake_.get(), 1);
}

void FakeDaemon::stop(bool keep_grants) {
    std::lock_guard lock(mutex_);
    stop_locked(keep_grants);
}

void FakeDaemon::lose_memory() {
    std::lock_guard lock(mutex_);
    stop_locked(false);
    for (Slot &slot : slots_) slot = Slot{};
}

void FakeDaemon::start() {
    std::lock_guard lock(mutex_);
    listen();
    ::eventfd_write(wake_.get(), 1);
}

void FakeDaemon::fail_once(local::Body kind, Fault fault) {
    std::lock_guard lock(mutex_);
    faults_[kind] = fault;
}

void FakeDaemon::refuse(local::Body kind, local::Refusal code, std::string text) {
    std::lock_guard lock(mutex_);
    refusals_[kind] = {code, std::move(text)};
}

void FakeDaemon::allow(local::Body kind) {
    std::lock_guard lock(mutex_);
    refusals_.erase(kind);
}

std::vector<local::SealT> FakeDaemon::sealed() {
    std::lock_guard lock(mutex_);
    std::vector<local::SealT> seals;
    for (Slot &slot : slots_)
        if (slot.state == SlotState::sealed) seals.push_back(slot.seal);
    return seals;
}

std::pair<std::vector<std::byte>, local::SealT> FakeDaemon::newest_object() {
    std::lock_guard lock(mutex_);
    Slot *slot = newest();
    BOOST_REQUIRE(slot != nullptr);
    std::vector<std::byte> bytes;
    for (std::size_t i = 0; i < slot->segments.size(); ++i) {
        std::vector<std::byte> part(slot->sizes[i]);
        auto read = ::pread(slot->segments[i].second.get(), part.data(), part.size(), 0);
        BOOST_REQUIRE(read == static_cast<ssize_t>(part.size()));
        bytes.insert(bytes.end(), part.begin(), part.end());
    }
    return {std::move(bytes), slot->seal};
}

void FakeDaemon::flip(std::size_t slot, std::uint64_t offset) {
    std::lock_guard lock(mutex_);
    std::size_t segment = 0;
    while (offset >= slots_[slot].sizes[segment]) offset -= slots_[slot].sizes[segment++];
    std::uint8_t byte;
    int fd = slots_[slot].segments[segment].second.get();
    BOOST_REQUIRE(::pread(fd, &byte, 1, static_cast<off_t>(offset)) == 1);
    byte ^= 0x10;
    BOOST_REQUIRE(::pwrite(fd, &byte, 1, static_cast<off_t>(offset)) == 1);
}

std::size_t FakeDaemon::granted() {
    std::lock_guard lock(mutex_);
    std::size_t n = 0;
    for (Slot &slot : slots_) n += slot.state == SlotState::granted;
    return n;
}

std::size_t FakeDaemon::connections() {
    std::lock_guard lock(mutex_);
    return connections_.size();
}

std::size_t FakeDaemon::count(local::Body kind) {
    std::lock_guard lock(mutex_);
    return counts_[kind];
}

local::RestoreDoneT FakeDaemon::last_restore_done() {
    std::lock_guard lock(mutex_);
    return restore_done_;
}

void FakeDaemon::restore_from(std::string folder, proto::Generation generation, std::uint64_t step,
                              std::uint32_t world_size) {
    std::lock_guard lock(mutex_);
    stored_folder_ = std::move(folder);
    stored_.generation = std::make_unique<proto::Generation>(generation);
    stored_.train_step = step;
    stored_.world_size = world_size;
}

void FakeDaemon::run() {
    for (;;) {
        std::vector<pollfd> polled;
        std::vector<int> numbers;
        {
            std::lock_guard lock(mutex_);
            if (quit_) return;
            polled.push_back({wake_.get(), POLLIN, 0});
            polled.push_back({listener_ ? listener_.get() : -1, POLLIN, 0});
            for (auto &[number, c] : connections_) {
                polled.push_back({c.fd.get(), POLLIN, 0});
                numbers.push_back(number);
            }
        }
        ::poll(polled.data(), polled.size(), -1);
        std::lock_guard lock(mutex_);
        eventfd_t value;
        ::eventfd_read(wake_.get(), &value);
        if (polled[1].revents != 0 && listener_ && polled[1].fd == listener_.get()) {
            UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
            if (fd) connections_[next_connection_++].fd = std::move(fd);
        }
        for (std::size_t i = 0; i < numbers.size(); ++i)
            if (polled[i + 2].revents != 0 && connections_.contains(numbers[i])) serve(numbers[i]);
    }
}

void FakeDaemon::drop(int number) {
    connections_.erase(number);
    for (Slot &slot : slots_)
        if (slot.state == SlotState::granted && slot.holder == number) slot.state = SlotState::free;
}

void FakeDaemon::serve(int number) {
    std::uint8_t buffer[65536];
    Connection &c = connections_[number];
    ssize_t n = ::recv(c.fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0 || !c.reader.feed({buffer, static_cast<std::size_t>(n)}).ok()) return drop(number);
    while (auto payload = c.reader.next()) {
        auto message = proto::decode_local(*payload);
        if (!message.ok() || !handle(number, *message)) return drop(number);
    }
}

template <typename Body>
void FakeDaemon::answer(int number, std::uint32_t id, Body body, std::vector<int> fds) {
    auto frame = proto::make_frame(proto::encode_local(proto::make_local(id, std::move(body))));
    (void)proto::send_with_fds(connections_[number].fd.get(), frame, fds).ok();
}

bool FakeDaemon::handle(int number, const local::MessageT &message) {
    auto kind = message.body.type;
    ++counts_[kind];
    Fault fault = std::exchange(faults_[kind], Fault::none);
    if (fault == Fault::drop_before) return false;
    if (auto refusal = refusals_.find(kind); refusal != refusals_.end()) {
        local::FailureT failure;
        failure.code = refusal->second.first;
        failure.text = refusal->second.second;
        answer(number, message.id, std::move(failure));
        return true;
    }
    if (kind == local::Body::Hello) answer(number, message.id, local::HelloReplyT{});
    if (kind == local::Body::WorkerHello) {
        for (Slot &slot : slots_)
            if (slot.state == SlotState::granted && slot.holder == -1) slot.holder = number;
        local::WorkerWelcomeT welcome;
        welcome.world_size = 1;
        welcome.storage = storage_told;
        welcome.slots = static_cast<std::uint16_t>(slots_told);
        for (Slot &slot : slots_)
            if (slot.state == SlotState::sealed)
                welcome.restore_step =
                    std::max(welcome.restore_step, static_cast<std::int64_t>(slot.seal.train_step));
        answer(number, message.id, welcome, {page_fd_.get()});
    }
    if (kind == local::Body::LeaveGeneration) {
        local::NextWorldT next;
        next.variables = next_variables;
        answer(number, message.id, std::move(next));
    }
    if (auto *p = message.body.AsPrepare()) prepare(number, message.id, *p);
    if (kind == local::Body::Subscribe) {
        connections_[number].subscribed = true;
        local::PmixWorldT world;
        world.node_names = {"n1", "n2"};
        world.ranks_per_node = {2, 2};
        answer(number, 0, std::move(world));
        answer(number, message.id, local::DoneT{});
    }
    if (auto *b = message.body.AsBeginSave()) begin(number, message.id, *b);
    if (auto *s = message.body.AsSeal()) {
        if (fault == Fault::drop_after) {
            slots_[s->slot].state = SlotState::sealed;
            slots_[s->slot].seal = *s;
            return false;
        }
        seal(number, message.id, *s);
    }
    if (auto *a = message.body.AsAbortSave())
        if (a->slot < slots_.size() && slots_[a->slot].state == SlotState::granted &&
            slots_[a->slot].holder == number)
            slots_[a->slot].state = SlotState::free;
    if (kind == local::Body::Restore) restore(number, message.id);
    if (auto *k = message.body.AsRestoreKept()) restore_kept(number, message.id, k->rank);
    if (auto *d = message.body.AsRestoreDone()) restore_done_ = *d;
    return fault != Fault::drop_after;
}

void FakeDaemon::grow(Slot &slot, std::uint64_t bytes) {
    std::uint64_t have = 0;
    for (auto n : slot.sizes) have += n;
    while (have < bytes) {
        UniqueFd fd(::memfd_create("segment", MFD_CLOEXEC));
        BOOST_REQUIRE(::ftruncate(fd.get(), static_cast<off_t>(segment_bytes_)) == 0);
        slot.segments.emplace_back(next_segment_++, std::move(fd));
        slot.sizes.push_back(segment_bytes_);
        have += segment_bytes_;
    }
}

std::vector<std::unique_ptr<local::SlotSegmentT>> FakeDaemon::describe(int number, Slot &slot,
                                                                       std::vector<int> &fds) {
    std::vector<std::unique_ptr<local::SlotSegmentT>> out;
    for (std::size_t i = 0; i < slot.segments.size(); ++i) {
        auto entry = std::make_unique<local::SlotSegmentT>();
        entry->id = slot.segments[i].first;
        entry->bytes = slot.sizes[i];
        entry->fd = connections_[number].known.emplace(entry->id, true).second;
        if (entry->fd) fds.push_back(slot.segments[i].second.get());
        out.push_back(std::move(entry));
    }
    return out;
}

void FakeDaemon::prepare(int number, std::uint32_t id, const local::PrepareT &prepare) {
    local::PreparedT prepared;
    std::vector<int> fds;
    for (Slot &slot : slots_) {
        if (slot.state != SlotState::free) continue;
        grow(slot, prepare.bytes);
        auto granted = std::make_unique<local::SlotGrantedT>();
        granted->slot = static_cast<std::uint16_t>(&slot - slots_.data());
        for (auto n : slot.sizes) granted->bytes += n;
        granted->segments = describe(number, slot, fds);
        prepared.slots.push_back(std::move(granted));
    }
    answer(number, id, std::move(prepared), fds);
}

void FakeDaemon::begin(int number, std::uint32_t id, const local::BeginSaveT &begin) {
    Slot *chosen = nullptr;
    Slot *newest = nullptr;
    for (Slot &slot : slots_)
        if (slot.state == SlotState::sealed && (!newest || newest->seal.train_step < slot.seal.train_step))
            newest = &slot;
    for (Slot &slot : slots_) {
        if (slot.state == SlotState::granted || &slot == newest) continue;
        if (!chosen || (chosen->state == SlotState::sealed && slot.state == SlotState::free)) chosen = &slot;
    }
    if (!chosen) {
        local::SaveSkippedT skipped;
        skipped.reason = "no slot is free";
        return answer(number, id, std::move(skipped));
    }
    grow(*chosen, begin.bytes);
    chosen->state = SlotState::granted;
    chosen->holder = number;
    chosen->seal.train_step = begin.train_step;
    local::SlotGrantedT granted;
    granted.slot = static_cast<std::uint16_t>(chosen - slots_.data());
    for (auto n : chosen->sizes) granted.bytes += n;
    std::vector<int> fds;
    granted.segments = describe(number, *chosen, fds);
    answer(number, id, std::move(granted), fds);
}

void FakeDaemon::seal(int number, std::uint32_t id, const local::SealT &seal) {
    Slot *slot = seal.slot < slots_.size() ? &slots_[seal.slot] : nullptr;
    if (!slot || slot->state != SlotState::granted || slot->holder != number ||
        slot->seal.train_step != seal.train_step) {
        local::FailureT failure;
        failure.code = local::Refusal::Stale;
        failure.text = "the slot is not granted for this step";
        return answer(number, id, std::move(failure));
    }
    for (Slot &other : slots_)
        if (other.state == SlotState::sealed && other.seal.train_step == seal.train_step)
            other.state = SlotState::free;
    slot->state = SlotState::sealed;
    slot->seal = seal;
    answer(number, id, local::DoneT{});
}

FakeDaemon::Slot *FakeDaemon::newest() {
    Slot *newest = nullptr;
    for (Slot &slot : slots_)
        if (slot.state == SlotState::sealed && (!newest || newest->seal.train_step < slot.seal.train_step))
            newest = &slot;
    return newest;
}

namespace {

local::RestorePlanT plan_of(const local::SealT &seal) {
    local::RestorePlanT plan;
    plan.train_step = static_cast<std::int64_t>(seal.train_step);
    plan.data_bytes = seal.data_bytes;
    plan.table_offset = seal.table_offset;
    plan.table_bytes = seal.table_bytes;
    plan.table_xxh3 = seal.table_xxh3;
    plan.ledger = seal.ledger;
    return plan;
}

}  // namespace

void FakeDaemon::spread(proto::Generation generation, std::uint64_t step,
                        const std::vector<SpreadObject> &objects) {
    std::lock_guard lock(mutex_);
    stored_.generation = std::make_unique<proto::Generation>(generation);
    stored_.train_step = step;
    stored_.world_size = static_cast<std::uint32_t>(objects.size());
    spread_.clear();
    tables_.clear();
    tables_bytes_ = 0;
    auto memory = [](std::span<const std::byte> bytes, std::uint64_t size) {
        UniqueFd fd(::memfd_create("spread", MFD_CLOEXEC));
        BOOST_REQUIRE(::ftruncate(fd.get(), static_cast<off_t>(size)) == 0);
        BOOST_REQUIRE(::pwrite(fd.get(), bytes.data(), bytes.size(), 0) ==
                      static_cast<ssize_t>(bytes.size()));
        return fd;
    };
    std::vector<std::byte> all;
    for (const SpreadObject &object : objects) {
        std::uint64_t size = (object.data.size() / 4096 + 1) * 4096;
        spread_.emplace_back(memory(object.data, size), size);
        local::SpreadTableT table;
        table.offset = all.size();
        table.bytes = object.table.size();
        table.data_bytes = object.data.size();
        table.xxh3 = object.table_xxh3;
        tables_.push_back(table);
        auto bytes = std::as_bytes(std::span(object.table));
        all.insert(all.end(), bytes.begin(), bytes.end());
        all.resize((all.size() + 63) / 64 * 64);
    }
    tables_bytes_ = all.size();
    spread_tables_ = memory(all, all.size());
}

void FakeDaemon::flip_spread(std::uint32_t rank, std::uint64_t offset) {
    std::byte byte{};
    int fd = spread_.at(rank).first.get();
    BOOST_REQUIRE(::pread(fd, &byte, 1, static_cast<off_t>(offset)) == 1);
    byte ^= std::byte{1};
    BOOST_REQUIRE(::pwrite(fd, &byte, 1, static_cast<off_t>(offset)) == 1);
}

std::vector<std::uint32_t> FakeDaemon::given() {
    std::lock_guard lock(mutex_);
    return given_;
}

void FakeDaemon::restore_spread(int number, std::uint32_t id) {
    local::RestorePlanT plan;
    plan.train_step = static_cast<std::int64_t>(stored_.train_step);
    plan.ledger = {1, 2, 3};
    plan.spread = std::make_unique<local::SpreadCheckpointT>();
    plan.spread->checkpoint = std::make_unique<local::StoredCheckpointT>(stored_);
    for (const auto &table : tables_)
        plan.spread->tables.push_back(std::make_unique<local::SpreadTableT>(table));
    plan.segments.push_back(std::make_unique<local::SlotSegmentT>());
    plan.segments.back()->bytes = tables_bytes_;
    plan.segments.back()->fd = true;
    answer(number, id, std::move(plan), {spread_tables_.get()});
}

/// The first time it is on its way.
void FakeDaemon::give_spread(int number, std::uint32_t id, std::uint32_t rank) {
    local::RestorePlanT plan;
    if (asked_[rank]++ == 0) {
        plan.coming = std::make_unique<local::ComingT>();
        return answer(number, id, std::move(plan));
    }
    given_.push_back(rank);
    plan.train_step = static_cast<std::int64_t>(stored_.train_step);
    plan.data_bytes = tables_[rank].data_bytes;
    plan.segments.push_back(std::make_unique<local::SlotSegmentT>());
    plan.segments.back()->id = rank + 1;
    plan.segments.back()->bytes = spread_[rank].second;
    plan.segments.back()->fd = true;
    answer(number, id, std::move(plan), {spread_[rank].first.get()});
}

/// Not for two ranks at a time.
void FakeDaemon::restore_kept(int number, std::uint32_t id, std::uint32_t rank) {
    if (rank < spread_.size()) return give_spread(number, id, rank);
    auto neighbour = neighbours.find(rank);
    local::FailureT failure;
    failure.code = local::Refusal::Internal;
    failure.text = "no object of rank " + std::to_string(rank);
    if (neighbour == neighbours.end()) return answer(number, id, std::move(failure));
    std::lock_guard lock(neighbour->second->mutex_);
    Slot *slot = neighbour->second->newest();
    if (!slot) return answer(number, id, std::move(failure));
    local::RestorePlanT plan = plan_of(slot->seal);
    plan.verified = neighbour->second->verified_told;
    std::vector<int> fds;
    for (std::size_t i = 0; i < slot->segments.size(); ++i) {
        auto entry = std::make_unique<local::SlotSegmentT>();
        entry->id = slot->segments[i].first;
        entry->bytes = slot->sizes[i];
        entry->fd = true;
        fds.push_back(slot->segments[i].second.get());
        plan.segments.push_back(std::move(entry));
    }
    answer(number, id, std::move(plan), fds);
}

void FakeDaemon::fetch_for(std::chrono::milliseconds time) {
    std::lock_guard lock(mutex_);
    fetched_at_ = std::chrono::steady_clock::now() + time;
}

void FakeDaemon::restore(int number, std::uint32_t id) {
    Slot *newest = this->newest();
    local::RestorePlanT plan;
    if (std::chrono::steady_clock::now() < fetched_at_) {
        plan.coming = std::make_unique<local::ComingT>();
        return answer(number, id, std::move(plan));
    }
    if (!spread_.empty()) return restore_spread(number, id);
    if (!stored_folder_.empty()) {
        plan.train_step = static_cast<std::int64_t>(stored_.train_step);
        plan.stored = std::make_unique<local::StoredCheckpointT>(stored_);
        plan.folder = stored_folder_;
        return answer(number, id, std::move(plan));
    }
    if (!newest) return answer(number, id, std::move(plan));
    plan = plan_of(newest->seal);
    plan.slot = static_cast<std::uint16_t>(newest - slots_.data());
    plan.verified = verified_told;
    for (const auto &with : newest->seal.shared)
        if (with->kept_by != 0) plan.keepers.push_back(with->rank);
    std::vector<int> fds;
    plan.segments = describe(number, *newest, fds);
    answer(number, id, std::move(plan), fds);
}

template <typename Body>
void FakeDaemon::push(const Body &body) {
    std::lock_guard lock(mutex_);
    for (auto &[number, c] : connections_)
        if (c.subscribed) answer(number, 0, Body(body));
}

void FakeDaemon::push_event(proto::EventKind kind, std::string text) {
    local::MembershipEventT line;
    line.event = std::make_unique<proto::EventT>();
    line.event->kind = kind;
    line.event->text = std::move(text);
    line.event->rank = 1;
    push(line);
}

void FakeDaemon::push_happened(local::PmixEventKind kind, std::uint64_t number) {
    local::PmixEventT event;
    event.generation = std::make_unique<proto::Generation>(1, 2);
    event.kind = kind;
    event.number = number;
    push(event);
}

void FakeDaemon::push_stop(std::string reason) {
    local::PmixStopT stop;
    stop.generation = std::make_unique<proto::Generation>(1, 2);
    stop.reason = std::move(reason);
    push(stop);
}

}  // namespace dlrover::test
