// SPDX-License-Identifier: Apache-2.0
// A daemon that says what a test tells it: serves agents on a unix socket, prints what they say, one line a
// message, and takes orders from stdin. For tests of the agent alone.
//   fake_daemon SOCKET [lease_ms=N] [grace_ms=N] [renew_ms=N] [refuse=TEXT]
// Orders: world NUMBER [size=N] [local=N] [first=N] [restart=N] [inactive] | stop NUMBER | ended CODE
// [MESSAGE] |
//         silent | talk | late MS (what is said from now on was said so long ago) | cancel | drop
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>

#include "base/unique_fd.h"
#include "proto/local_codec.h"

using namespace dlrover;
using namespace dlrover::proto;
using Clock = std::chrono::steady_clock;

namespace {

struct Settings {
    std::uint32_t lease_ms = 5000, grace_ms = 500, renew_ms = 100;
    std::string refuse;
};

std::string text_of(const std::unique_ptr<Generation> &g) {
    return g ? std::to_string(g->term()) + ":" + std::to_string(g->number()) : "none";
}

std::unique_ptr<Generation> generation(std::uint64_t number) {
    return std::make_unique<Generation>(1, number);
}

void print(const std::string &line) {
    std::cout << line << std::endl;  // a test reads line by line
}

std::string one_line(std::string text) {
    for (char &c : text)
        if (c == '\n') c = '|';
    return text;
}

class Server {
  public:
    Server(const std::string &path, Settings settings) : settings_(std::move(settings)) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
        ::unlink(path.c_str());
        listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (::bind(listener_.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) != 0 ||
            ::listen(listener_.get(), 8) != 0) {
            std::perror("fake_daemon");
            std::exit(1);
        }
        print("listening");
    }

    void run() {
        while (!done_) {
            std::vector<pollfd> polled{{STDIN_FILENO, POLLIN, 0}, {listener_.get(), POLLIN, 0}};
            for (auto &[fd, reader] : agents_) polled.push_back({fd, POLLIN, 0});
            ::poll(polled.data(), polled.size(), 20);
            if (polled[0].revents) read_orders();
            if (polled[1].revents) accept_agent();
            for (std::size_t i = 2; i < polled.size(); ++i)
                if (polled[i].revents) read_agent(polled[i].fd);
            renew();
        }
    }

  private:
    template <typename BodyT>
    void send(int fd, std::uint32_t id, BodyT body) {
        Bytes frame = make_frame(encode_local(make_local(id, std::move(body))));
        // An agent that is gone shows when it is read from.
        (void)!::send(fd, frame.data(), frame.size(), MSG_NOSIGNAL);
    }
    template <typename BodyT>
    void push(const BodyT &body) {
        for (auto &[fd, reader] : agents_) send(fd, 0, BodyT(body));
    }

    void accept_agent() {
        int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
        if (fd >= 0) agents_[fd];
    }

    void read_agent(int fd) {
        std::uint8_t buffer[65536];
        ssize_t n = ::read(fd, buffer, sizeof buffer);
        if (n <= 0 || !agents_[fd].feed({buffer, static_cast<std::size_t>(n)}).ok()) {
            ::close(fd);
            agents_.erase(fd);
            return print("closed");
        }
        while (auto payload = agents_[fd].next()) {
            auto message = decode_local(*payload);
            if (message.ok())
                on_message(fd, *message);
            else
                print("bad message");
        }
    }

    void on_message(int fd, const local::MessageT &m) {
        std::ostringstream out;
        if (auto *hello = m.body.AsHello()) {
            greet(fd, m.id);
            out << "hello role=" << static_cast<int>(hello->role);
        } else if (auto *agent = m.body.AsAgentHello()) {
            welcome(fd, m.id);
            out << "agent job=" << agent->job_id << " step=" << agent->step_id << " task=" << agent->task
                << " workers=" << agent->workers << " resumed=" << text_of(agent->resumed_generation);
        } else if (auto *start = m.body.AsWorkerStarted()) {
            out << "started gen=" << text_of(start->generation) << " local=" << start->local_rank
                << " pid=" << start->pid << " stayed=" << start->stayed;
            for (const std::string &variable : start->variables) out << ' ' << variable;
        } else if (auto *exit = m.body.AsWorkerExited()) {
            out << "exited gen=" << text_of(exit->generation) << " local=" << exit->local_rank
                << " status=" << exit->wait_status << " stopped=" << exit->stopped_by_us
                << " oom=" << exit->oom << " signature=" << exit->signature
                << " text=" << one_line(exit->error_text);
        } else if (auto *stopped = m.body.AsWorkersStopped()) {
            out << "stopped gen=" << text_of(stopped->generation);
        } else if (auto *signal = m.body.AsAgentSignal()) {
            out << "signal " << signal->signal;
        } else if (auto *bye = m.body.AsAgentBye()) {
            out << "bye " << bye->exit_code;
        } else {
            out << "other " << static_cast<int>(m.body.type);
        }
        print(out.str());
    }

    void greet(int fd, std::uint32_t id) {
        local::HelloReplyT reply;
        reply.protocol = 1;
        reply.node = "n1";
        send(fd, id, std::move(reply));
    }

    void welcome(int fd, std::uint32_t id) {
        if (!settings_.refuse.empty()) {
            local::FailureT failure;
            failure.code = local::Refusal::NoSuchGroup;
            failure.text = settings_.refuse;
            return send(fd, id, std::move(failure));
        }
        local::AgentWelcomeT reply;
        reply.lease_ms = settings_.lease_ms;
        reply.stop_grace_ms = settings_.grace_ms;
        reply.tasks_here = 1;
        send(fd, id, std::move(reply));
    }

    void read_orders() {
        char buffer[4096];
        ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
        if (n <= 0) done_ = true;
        orders_.append(buffer, n > 0 ? static_cast<std::size_t>(n) : 0);
        for (std::size_t end; (end = orders_.find('\n')) != std::string::npos; orders_.erase(0, end + 1))
            on_order(orders_.substr(0, end));
    }

    void on_order(const std::string &line) {
        std::istringstream in(line);
        std::string verb;
        in >> verb;
        if (verb == "world") push(world_of(in));
        if (verb == "stop") {
            local::StopWorkersT stop;
            std::uint64_t number = 0;
            std::string how;
            in >> number >> how;
            stop.stays = how == "stays";
            stop.generation = generation(number);
            push(stop);
        }
        if (verb == "ending") {
            proto::local::GroupEndingT ending;
            in >> ending.wait_ms;
            push(std::move(ending));
        }
        if (verb == "ended") {
            local::GroupEndedT ended;
            in >> ended.exit_code;
            std::getline(in >> std::ws, ended.message);
            ended.print = true;
            ended.summary = "SUMMARY\n";
            push(ended);
        }
        if (verb == "silent") silent_ = true;
        if (verb == "talk") silent_ = false;
        if (verb == "late") in >> late_ms_;
        if (verb == "cancel") push(local::CancelOrderT{});  // a word that renews nothing
        if (verb == "drop")
            for (auto &[fd, reader] : agents_) ::shutdown(fd, SHUT_RDWR);
    }

    static std::int64_t monotonic_us() {
        auto since = Clock::now().time_since_epoch();
        return std::chrono::duration_cast<std::chrono::microseconds>(since).count();
    }

    local::WorldPublishedT world_of(std::istringstream &in) {
        std::map<std::string, unsigned> values{{"size", 1}, {"local", 1}, {"first", 0}, {"restart", 0}};
        std::uint64_t number = 0;
        in >> number;
        local::WorldPublishedT world;
        for (std::string word; in >> word;) {
            std::size_t equals = word.find('=');
            if (word == "inactive") world.active = false;
            if (equals != std::string::npos)
                values[word.substr(0, equals)] = static_cast<unsigned>(std::stoul(word.substr(equals + 1)));
        }
        world.generation = generation(number);
        world.at_us = monotonic_us() - 1000 * late_ms_;
        world.world_size = values["size"];
        world.local_world_size = values["local"];
        world.first_rank = values["first"];
        world.restart_count = values["restart"];
        world.node_count = 1;
        world.node_names = {"n1"};
        world.ranks_per_node = {static_cast<std::uint16_t>(values["local"])};
        world.master_addr = "127.0.0.1";
        world.master_port = 29999;
        world.max_restarts = 3;
        world.run_id = "lab/0/test";
        return world;
    }

    void renew() {
        auto now = Clock::now();
        if (silent_ || now < next_renewal_) return;
        next_renewal_ = now + std::chrono::milliseconds(settings_.renew_ms);
        local::LeaseRenewedT renewed;
        renewed.at_us = monotonic_us() - 1000 * late_ms_;
        push(renewed);
    }

    Settings settings_;
    UniqueFd listener_;
    std::map<int, FrameReader> agents_;
    std::string orders_;
    Clock::time_point next_renewal_{};
    std::int64_t late_ms_ = 0;
    bool silent_ = false, done_ = false;
};

}  // namespace

int main(int argc, char **argv) {
    Settings settings;
    for (int i = 2; i < argc; ++i) {
        std::string word = argv[i];
        std::string name = word.substr(0, word.find('=')), value = word.substr(word.find('=') + 1);
        if (name == "lease_ms") settings.lease_ms = static_cast<std::uint32_t>(std::stoul(value));
        if (name == "grace_ms") settings.grace_ms = static_cast<std::uint32_t>(std::stoul(value));
        if (name == "renew_ms") settings.renew_ms = static_cast<std::uint32_t>(std::stoul(value));
        if (name == "refuse") settings.refuse = value;
    }
    if (argc < 2) return 2;
    Server(argv[1], settings).run();
}
