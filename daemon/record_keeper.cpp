// SPDX-License-Identifier: Apache-2.0
#include "daemon/record_keeper.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <deque>

#include "daemon/keeper_link.h"

namespace dlrover::daemon {
namespace {

constexpr std::size_t max_waiting_packets = 65536;

UniqueFd duplicate(int fd) {
    return UniqueFd(fd >= 0 ? ::fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1);
}

}  // namespace

void MemoryKeeper::put(const std::string &name, std::vector<std::uint8_t> value, int fd, Done done) {
    records_[name] = KeptRecord{name, std::move(value), duplicate(fd)};
    if (done) loop_.post([done = std::move(done)] { done(Status()); });
}

void MemoryKeeper::drop(const std::string &name) {
    if (name.empty() || name.back() != '*') {
        records_.erase(name);
        return;
    }
    std::string prefix = name.substr(0, name.size() - 1);
    std::erase_if(records_, [&](const auto &entry) { return entry.first.starts_with(prefix); });
}

std::vector<KeptRecord> MemoryKeeper::copy() const {
    std::vector<KeptRecord> records;
    for (const auto &[name, record] : records_)
        records.push_back({name, record.value, duplicate(record.fd.get())});
    return records;
}

Result<KeeperClient::Kept> KeeperClient::load(int link) {
    timeval patience{10, 0};
    ::setsockopt(link, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    DLROVER_TRY(send_keeper(link, make_keeper(1, keeper::ListT{})));
    Kept kept;
    for (;;) {
        auto packet = receive_keeper(link);
        if (!packet) return packet.take_status().with_context("the keeper's records");
        if (auto *record = packet->message.body.AsRecord()) {
            kept.records.push_back(
                {std::move(record->name), std::move(record->value), std::move(packet->fd)});
        } else if (auto *end = packet->message.body.AsEnd()) {
            kept.restarts = end->restarts;
            return kept;
        }
    }
}

/// Answers come in the order of the requests.
struct KeeperClient::State {
    struct Packet {
        keeper::MessageT message;
        UniqueFd fd;
    };
    struct Answer {
        Done done;
        std::vector<EventLoop::Task> then;
        void come(Status status) {
            if (done) done(std::move(status));
            for (auto &task : then) task();
        }
    };
    State(EventLoop &l, UniqueFd fd, std::function<void(Status)> lost)
        : loop(l), link(std::move(fd)), on_lost(std::move(lost)) {}

    void submit(keeper::MessageT message, UniqueFd fd, Done done) {
        if (!link || waiting.size() >= max_waiting_packets) {
            Status status(Code::unavailable, "the keeper does not take the record");
            if (done)
                loop.post([done = std::move(done), text = status.message()] {
                    done(Status(Code::unavailable, text));
                });
            return;
        }
        if (message.body.type != keeper::Body::Ready) answers.push_back({std::move(done), {}});
        waiting.push_back({std::move(message), std::move(fd)});
        flush();
    }
    void flush() {
        while (link && !waiting.empty()) {
            Status status = send_keeper(link.get(), waiting.front().message, waiting.front().fd.get());
            if (status.code() == Code::timeout) break;
            if (status.code() == Code::resource_exhausted) {
                refuse(waiting.front(), std::move(status));
                waiting.pop_front();
                continue;
            }
            if (!status.ok()) return lose(std::move(status));
            waiting.pop_front();
        }
        if (!link || waiting.empty())
            writable.reset();
        else if (!writable)
            writable = loop.when_writable(link.get(), [this] { flush(); });
    }
    /// Never sent: its answer is the one after those of the packets on the way.
    void refuse(const Packet &packet, Status status) {
        if (packet.message.body.type == keeper::Body::Ready) return;
        std::size_t later = 0;
        for (std::size_t i = 1; i < waiting.size(); ++i)
            later += waiting[i].message.body.type != keeper::Body::Ready;
        auto at = answers.end() - static_cast<std::ptrdiff_t>(later) - 1;
        auto answer = std::make_shared<Answer>(std::move(*at));
        answers.erase(at);
        loop.post(
            [answer, text = status.message()] { answer->come(Status(Code::resource_exhausted, text)); });
    }
    void receive() {
        auto packet = receive_keeper(link.get());
        if (!packet) {
            if (packet.status().code() != Code::timeout) lose(packet.take_status());
            return;
        }
        auto *stored = packet->message.body.AsStored();
        if (!stored || answers.empty()) return;
        Answer answer = std::move(answers.front());
        answers.pop_front();
        answer.come(stored->refused.empty() ? Status() : Status(Code::resource_exhausted, stored->refused));
    }
    void lose(Status status) {
        readable.reset();
        writable.reset();
        link.reset();
        waiting.clear();
        answers.clear();
        on_lost(std::move(status));
    }

    EventLoop &loop;
    UniqueFd link;
    std::function<void(Status)> on_lost;
    std::deque<Packet> waiting;
    std::deque<Answer> answers;
    EventLoop::Handle readable, writable;
};

KeeperClient::KeeperClient(EventLoop &loop, UniqueFd link, std::function<void(Status)> on_lost)
    : state_(std::make_unique<State>(loop, std::move(link), std::move(on_lost))) {
    int fd = state_->link.get();
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
    state_->readable = loop.when_readable(fd, [state = state_.get()] { state->receive(); });
}

KeeperClient::~KeeperClient() = default;

void KeeperClient::put(const std::string &name, std::vector<std::uint8_t> value, int fd, Done done) {
    keeper::PutT put;
    put.name = name;
    put.value = std::move(value);
    put.has_fd = fd >= 0;
    state_->submit(make_keeper(2, std::move(put)), duplicate(fd), std::move(done));
}

void KeeperClient::drop(const std::string &name) {
    keeper::DropT drop;
    drop.name = name;
    state_->submit(make_keeper(2, std::move(drop)), UniqueFd(), {});
}

void KeeperClient::when_stored(EventLoop::Task done) {
    if (state_->answers.empty()) return state_->loop.post(std::move(done));
    state_->answers.back().then.push_back(std::move(done));
}

void KeeperClient::ready() {
    state_->submit(make_keeper(0, keeper::ReadyT{}), UniqueFd(), {});
}

}  // namespace dlrover::daemon
