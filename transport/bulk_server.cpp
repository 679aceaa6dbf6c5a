// SPDX-License-Identifier: Apache-2.0
#include "transport/bulk_server.h"

#include <poll.h>

#include <algorithm>
#include <map>
#include <system_error>
#include <thread>

#include "base/signals_blocked.h"
#include "transport/bulk_list.h"
#include "transport/bulk_transfer.h"
#include "transport/bulk_ucx.h"

namespace dlrover::transport {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using TransferPointer = std::shared_ptr<BulkTransfer>;

constexpr auto receipt_limit = 5000ms;

/// A stream that has proved itself, with what goes with it.
struct Stream {
    BulkSocket &socket;
    const BulkSession &session;
    const BulkGreeting &greeting;
    BulkMethod method;
    bool spares, unsummed;
    BulkHash hash;
};

bool takes(const BulkTarget &target, const SocketAddress &peer) {
    return target.from.empty() || std::any_of(target.from.begin(), target.from.end(),
                                              [&](const auto &a) { return a.same_host(peer); });
}

/// What stands before a block's data, as far as it has come.
struct Head {
    std::array<std::uint8_t, BulkBlock::wire_bytes + sizeof(BulkMac)> bytes;
    std::size_t here = 0;

    /// And as much of this as has come already, in one call.
    Status read_behind(Stream &stream, std::span<std::byte> data) {
        const iovec parts[] = {{data.data(), data.size()}, {bytes.data(), bytes.size()}};
        auto came = stream.socket.read_some(std::span<const iovec>(parts), data.size());
        if (!came) return came.take_status();
        here = *came - data.size();
        return {};
    }
    /// The rest of it.
    Result<BulkBlock> read(Stream &stream, std::uint32_t number, std::uint64_t total) {
        DLROVER_TRY(stream.socket.read(std::span(bytes).subspan(here)));
        here = 0;
        BlockBytes block;
        BulkMac mac;
        std::copy_n(bytes.begin(), block.size(), block.begin());
        std::copy_n(bytes.begin() + block.size(), mac.size(), mac.begin());
        DLROVER_TRY(stream.session.check(bulk_label::block, block, mac));
        BulkBlock decoded = decode_block(block);
        DLROVER_TRY(check_block(decoded, number, total));
        return decoded;
    }
};

/// What is here already is named, and the sender says what it leaves out.
Status agree(Stream &stream, BulkTransfer &transfer) {
    const BulkTarget &target = transfer.target();
    auto haves = encode(std::span(target.haves));
    DLROVER_TRY(write_list(stream.socket, stream.session, bulk_label::have, haves, BulkHave::wire_bytes));
    auto bytes =
        read_list(stream.socket, stream.session, bulk_label::spared, BulkSpared::wire_bytes, max_bulk_spared);
    if (!bytes) return bytes.take_status();
    auto spared = decode_spared(*bytes, bulk_blocks(target.memory.size()));
    if (!spared) return spared.take_status();
    return transfer.spare(std::move(*spared));
}

/// Behind each block comes another one's head; the last one has no data.
Status receive_blocks(Stream &stream, BulkTransfer &transfer) {
    Head head;
    for (std::uint32_t number = 0;; ++number) {
        auto block = head.read(stream, number, transfer.target().memory.size());
        if (!block) return block.take_status();
        if (block->bytes == 0) return {};
        auto place = transfer.take(*block);
        if (!place) return place.take_status();
        DLROVER_TRY(head.read_behind(stream, *place));
        if (!stream.unsummed && stream.hash(place->data(), place->size()) != block->xxh3)
            return Status(Code::corrupt, "a block was altered on its way");
        if (transfer.target().arrived)
            transfer.target().arrived(stream.greeting.stream, block->offset, block->bytes);
    }
}

/// The sender puts the bytes there by itself; here the library has to be driven until it says that they are.
Status receive_by_ucx(Stream &stream, BulkTransfer &transfer) {
    auto sink = UcxSink::open(transfer.target().memory);
    if (!sink) return sink.take_status();
    DLROVER_TRY(write_list(stream.socket, stream.session, bulk_label::place, (*sink)->place(), 1));
    pollfd control{stream.socket.fd(), POLLIN, 0};
    DLROVER_TRY((*sink)->drive(control, stream.socket.cancellations(), transfer.target().deadline));
    auto end = Head().read(stream, 0, transfer.target().memory.size());
    if (!end) return end.take_status();
    if (end->bytes != 0) return Status(Code::corrupt, "a block where none is sent this way");
    transfer.take_all();
    return {};
}

Status send_receipt(Stream &stream, const Status &outcome) {
    std::string text = outcome.message().substr(0, max_bulk_text_bytes);
    std::span<const std::uint8_t> words(reinterpret_cast<const std::uint8_t *>(text.data()), text.size());
    auto bytes = encode(BulkReceipt{outcome.code(), static_cast<std::uint32_t>(text.size())});
    DLROVER_TRY(stream.socket.write(bytes, stream.session.mac(bulk_label::receipt, bytes, words)));
    return stream.socket.write(words);
}

}  // namespace

/// What the threads share; they keep it alive.
class BulkServer::State : public std::enable_shared_from_this<BulkServer::State> {
  public:
    State(const BulkServerOptions &options, UniqueFd listener, std::uint16_t port,
          std::shared_ptr<Cancellation> stop)
        : options_(options), listener_(std::move(listener)), port_(port), stop_(std::move(stop)) {}

    std::uint16_t port() const noexcept { return port_; }

    bool launch() {
        return spawn([](State &self) { self.listen(); });
    }

    Status expect(BulkTarget target) {
        if (target.memory.empty()) return Status(Code::invalid_argument, "a transfer into no memory");
        if (target.haves.size() > max_bulk_haves || (!target.haves.empty() && !target.fill))
            return Status(Code::invalid_argument, "more is here than can be said, or nobody fills it in");
        auto cancellation = Cancellation::create();
        if (!cancellation) return cancellation.take_status();
        std::lock_guard lock(mutex_);
        auto [it, added] = transfers_.try_emplace(target.transfer);
        if (!added)
            return Status(Code::already_exists,
                          "transfer " + std::to_string(target.transfer) + " is expected already");
        it->second = std::make_shared<BulkTransfer>(std::move(target), std::move(*cancellation));
        return {};
    }

    void forget(std::uint64_t number) {
        if (TransferPointer transfer = take(number)) transfer->close();
    }

    void stop() {
        stop_->cancel();
        std::map<std::uint64_t, TransferPointer> transfers;
        {
            std::lock_guard lock(mutex_);
            transfers.swap(transfers_);
        }
        for (auto &[number, transfer] : transfers) transfer->close();
        std::unique_lock lock(mutex_);
        idle_.wait(lock, [&] { return threads_ == 0; });
    }

  private:
    /// false: there is no thread to be had.
    template <typename Body>
    bool spawn(Body body) {
        count_thread(1);
        SignalsBlocked guard;
        try {
            std::thread([self = shared_from_this(), body = std::move(body)]() mutable {
                body(*self);
                self->count_thread(-1);
            }).detach();
        } catch (const std::system_error &) {
            count_thread(-1);
            return false;
        }
        return true;
    }
    void count_thread(int by) {
        std::lock_guard lock(mutex_);
        threads_ += static_cast<unsigned>(by);
        idle_.notify_all();
    }

    void listen() {
        while (!stop_->cancelled()) {
            pollfd polled{listener_.get(), POLLIN, 0};
            Status status = wait_for({&polled, 1}, {stop_}, {expire_interval, std::nullopt});
            if (!status.ok() && status.code() != Code::timeout) return;
            expire();
            if (!status.ok() || accept()) continue;
            // No descriptor or memory for it: it waits, and must not keep this thread busy.
            if (!sleep_until(Clock::now() + expire_interval, {stop_}).ok()) return;
        }
    }

    /// False: the system could not.
    bool accept() {
        SocketAddress peer;
        auto socket = accept_from(listener_.get(), peer);
        if (!socket) return false;
        if (!*socket) return true;
        if (!has_room(peer)) return true;
        if (!tune(socket->get(), options_.greeting_limit).ok()) return true;
        auto shared = std::make_shared<UniqueFd>(std::move(*socket));
        return spawn([shared, peer](State &self) { self.serve(std::move(*shared), peer); });
    }

    /// Who is a stranger takes no place of those who are not.
    bool has_room(const SocketAddress &peer) {
        std::lock_guard lock(mutex_);
        return threads_ <= options_.max_connections &&
               std::any_of(transfers_.begin(), transfers_.end(),
                           [&](const auto &entry) { return takes(entry.second->target(), peer); });
    }

    void expire() {
        std::vector<TransferPointer> over;
        {
            std::lock_guard lock(mutex_);
            for (auto &[number, transfer] : transfers_)
                if (transfer->target().deadline <= Clock::now()) over.push_back(transfer);
        }
        for (const TransferPointer &transfer : over)
            if (transfer->expire(Clock::now())) tell(transfer);
    }

    TransferPointer find(std::uint64_t number) {
        std::lock_guard lock(mutex_);
        auto it = transfers_.find(number);
        return it == transfers_.end() ? nullptr : it->second;
    }

    TransferPointer take(std::uint64_t number) {
        std::lock_guard lock(mutex_);
        auto it = transfers_.find(number);
        if (it == transfers_.end()) return nullptr;
        TransferPointer transfer = std::move(it->second);
        transfers_.erase(it);
        return transfer;
    }

    /// The key has done its work.
    void tell(const TransferPointer &transfer) {
        take(transfer->target().transfer);
        if (transfer->target().done) transfer->target().done(transfer->outcome());
    }

    /// Who is refused hears nothing: it may be anybody.
    void serve(UniqueFd fd, const SocketAddress &peer) {
        BulkSocket socket(std::move(fd), {stop_},
                          {options_.greeting_limit, Clock::now() + options_.greeting_limit});
        GreetingBytes bytes;
        if (!socket.read(bytes).ok()) return;
        auto greeting = decode_greeting(bytes);
        if (!greeting) return;
        TransferPointer transfer = find(greeting->transfer);
        auto method = choose(greeting->methods);
        if (!transfer || !takes(transfer->target(), peer) || !method ||
            greeting->bytes != transfer->target().memory.size())
            return;
        bool spares = greeting->stream == 0 && (greeting->methods & bulk_spares) != 0 &&
                      !transfer->target().haves.empty();
        bool unsummed = *method == BulkMethod::tcp && (greeting->methods & bulk_unsummed) != 0 &&
                        transfer->target().compared;
        auto answer = encode(BulkAnswer{*method, spares, make_bulk_nonce(), unsummed});
        BulkSession session(transfer->target().key, bytes, answer);
        Stream stream{socket, session, *greeting, *method, spares, unsummed, options_.hash};
        if (!prove(stream, answer).ok() || !transfer->join(*greeting).ok()) return;
        receive(stream, *transfer);
        if (transfer->leave()) tell(transfer);
    }

    std::optional<BulkMethod> choose(BulkMethods offered) const {
        for (BulkMethod method : {BulkMethod::ucx, BulkMethod::tcp})
            if (contains(offered, method) && contains(options_.methods, method)) return method;
        return {};
    }

    static Status prove(Stream &stream, const AnswerBytes &answer) {
        DLROVER_TRY(stream.socket.write(answer, stream.session.mac(bulk_label::answer, answer)));
        BulkMac proof;
        DLROVER_TRY(stream.socket.read(proof));
        return stream.session.check(bulk_label::proof, {}, proof);
    }

    void receive(Stream &stream, BulkTransfer &transfer) {
        const BulkTarget &target = transfer.target();
        stream.socket.go_on({stop_, transfer.cancellation()}, {target.stall, target.deadline});
        Status status = stream.spares ? agree(stream, transfer) : Status();
        if (status.ok())
            status = stream.method == BulkMethod::ucx ? receive_by_ucx(stream, transfer)
                                                      : receive_blocks(stream, transfer);
        if (status.ok()) transfer.end_stream();
        if (status.ok() && stream.greeting.stream == 0) status = transfer.finish();
        if (!status.ok()) transfer.fail(std::move(status));
        if (stream.greeting.stream != 0) return;
        stream.socket.go_on({stop_}, {receipt_limit, Clock::now() + receipt_limit});
        (void)send_receipt(stream, transfer.outcome()).ok();
    }

    static constexpr auto expire_interval = 200ms;
    const BulkServerOptions options_;
    const UniqueFd listener_;
    const std::uint16_t port_;
    const std::shared_ptr<Cancellation> stop_;
    std::mutex mutex_;
    std::condition_variable idle_;
    std::map<std::uint64_t, TransferPointer> transfers_;
    unsigned threads_ = 0;
};

Result<std::unique_ptr<BulkServer>> BulkServer::start(const BulkServerOptions &options) {
    if (contains(options.methods, BulkMethod::ucx)) DLROVER_TRY(ucx_usable());
    auto listener = listen_on(options.listen);
    if (!listener) return listener.take_status();
    auto address = local_address(listener->get());
    if (!address) return address.take_status();
    auto stop = Cancellation::create();
    if (!stop) return stop.take_status();
    auto state = std::make_shared<State>(options, std::move(*listener), address->port(), *stop);
    if (!state->launch()) return Status(Code::resource_exhausted, "no thread can be had");
    return std::unique_ptr<BulkServer>(new BulkServer(std::move(state)));
}

BulkServer::~BulkServer() {
    state_->stop();
}

std::uint16_t BulkServer::port() const noexcept {
    return state_->port();
}

Status BulkServer::expect(BulkTarget target) {
    return state_->expect(std::move(target));
}

void BulkServer::forget(std::uint64_t transfer) {
    state_->forget(transfer);
}

}  // namespace dlrover::transport
