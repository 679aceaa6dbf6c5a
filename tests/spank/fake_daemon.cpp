// SPDX-License-Identifier: Apache-2.0
#include "tests/spank/fake_daemon.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <stdexcept>

using namespace dlrover;
using namespace dlrover::proto;

FakeDaemon::FakeDaemon(Answer answer, std::string path) : answer_(std::move(answer)), path_(std::move(path)) {
    if (path_.empty()) {
        char name[] = "/tmp/dlrover-test-XXXXXX";
        dir_ = ::mkdtemp(name);
        path_ = dir_ + "/s";
    }
    listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    if (::bind(listener_.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) != 0 ||
        ::listen(listener_.get(), 8) != 0)
        throw std::runtime_error(path_ + ": " + std::strerror(errno));
    thread_ = std::thread([this] { accept_connections(); });
}

FakeDaemon::~FakeDaemon() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
    if (!dir_.empty()) std::filesystem::remove_all(dir_);
}

std::vector<FakeDaemon::Message> FakeDaemon::received() {
    std::lock_guard lock(mutex_);
    return received_;
}

std::vector<FakeDaemon::Message> FakeDaemon::agree(const Message &message) {
    std::vector<Message> replies;
    replies.push_back(make_local(message.id, local::DoneT{}));
    return replies;
}

void FakeDaemon::accept_connections() {
    while (true) {
        UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!connection) return;
        serve(connection.get());
    }
}

void FakeDaemon::serve(int connection) {
    FrameReader reader;
    std::uint8_t buffer[65536];
    for (ssize_t n; (n = ::read(connection, buffer, sizeof buffer)) > 0;) {
        if (!reader.feed({buffer, static_cast<std::size_t>(n)}).ok()) return;
        while (auto payload = reader.next()) {
            auto message = decode_local(*payload);
            if (!message.ok()) return;
            std::vector<Message> replies;
            if (message->body.type == local::Body::Hello)
                replies.push_back(make_local(message->id, local::HelloReplyT{}));
            else
                replies = answer_(*message);
            {
                std::lock_guard lock(mutex_);
                received_.push_back(std::move(*message));
            }
            for (const auto &reply : replies) {
                Bytes frame = make_frame(encode_local(reply));
                if (::send(connection, frame.data(), frame.size(), MSG_NOSIGNAL) < 0) return;
            }
        }
    }
}
