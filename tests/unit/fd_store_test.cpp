// SPDX-License-Identifier: Apache-2.0
// The keeper's records in the service manager's descriptor store.
#include "daemon/fd_store.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>

#include "proto/frame.h"

using namespace dlrover;
using namespace dlrover::daemon;

namespace {

/// What systemd does with the messages of a service.
class Manager {
  public:
    Manager() {
        char name[] = "/tmp/dlrover-manager-XXXXXX";
        dir_ = ::mkdtemp(name);
        std::string path = dir_ + "/notify";
        socket_.reset(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strcpy(address.sun_path, path.c_str());
        BOOST_REQUIRE(::bind(socket_.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) == 0);
        ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
        notifier = std::make_unique<Notifier>();
        ::unsetenv("NOTIFY_SOCKET");
        thread_ = std::thread([this] { run(); });
    }
    ~Manager() {
        notifier->send("STOPPING=1");
        thread_.join();
        std::filesystem::remove_all(dir_);
    }
    /// What it holds, as the next keeper would get it; in another order than it came.
    std::vector<std::pair<std::string, UniqueFd>> hand_over() {
        settle();
        std::vector<std::pair<std::string, UniqueFd>> copy;
        for (auto it = stored_.rbegin(); it != stored_.rend(); ++it)
            copy.emplace_back(it->first, UniqueFd(::fcntl(it->second.get(), F_DUPFD_CLOEXEC, 3)));
        return copy;
    }
    std::size_t count() {
        settle();
        return stored_.size();
    }
    std::size_t longest_name() {
        settle();
        std::size_t longest = 0;
        for (const auto &[name, fd] : stored_) longest = std::max(longest, name.size());
        return longest;
    }
    std::unique_ptr<Notifier> notifier;

  private:
    void run() {
        std::uint8_t buffer[4096];
        for (;;) {
            auto got = proto::receive_with_fds(socket_.get(), buffer);
            if (!got) return;
            std::string text(reinterpret_cast<char *>(buffer), got->bytes);
            if (text == "STOPPING=1") return;
            if (text == "BARRIER") ++barriers_;
            auto at = text.find("FDNAME=");
            std::string name = at == text.npos ? "" : text.substr(at + 7);
            if (text.starts_with("FDSTOREREMOVE=1")) stored_.erase(name);
            if (text.starts_with("FDSTORE=1")) stored_.emplace(name, std::move(got->fds.at(0)));
        }
    }
    /// What was sent so far has come.
    void settle() {
        int next = barriers_ + 1;
        notifier->send("BARRIER");
        while (barriers_ < next) std::this_thread::yield();
    }
    std::string dir_;
    UniqueFd socket_;
    std::thread thread_;
    std::atomic<int> barriers_{0};
    std::multimap<std::string, UniqueFd> stored_;
};

UniqueFd file_with(const char *text) {
    char name[] = "/tmp/dlrover-fd-XXXXXX";
    UniqueFd fd(::mkostemp(name, O_CLOEXEC));
    ::unlink(name);
    BOOST_REQUIRE(::write(fd.get(), text, std::strlen(text)) == static_cast<ssize_t>(std::strlen(text)));
    return fd;
}

std::string text_of(const UniqueFd &fd) {
    char buffer[64];
    auto n = fd ? ::pread(fd.get(), buffer, sizeof buffer, 0) : 0;
    return std::string(buffer, static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
}

using Value = std::vector<std::uint8_t>;

}  // namespace

BOOST_AUTO_TEST_SUITE(fd_store)

BOOST_AUTO_TEST_CASE(records_outlive_the_keeper) {
    Manager manager;
    {
        FdStore store(*manager.notifier);
        store.put("segment/1.0/7", Value{1, 2}, file_with("seven").get());
        store.put("segment/1.0/8", Value{3}, file_with("eight").get());
        store.put("group/1.0", Value(100000, 9), -1);
        store.put("slot/1.0/0/0", Value{}, -1);
        store.put("slot/1.0/0/1", Value{4}, -1);
        store.drop("slot/1.0/0/1");
        store.put("segment/1.0/8", Value{5, 6, 7}, file_with("new").get());
    }
    for (int keeper = 0; keeper < 3; ++keeper) {
        FdStore store(*manager.notifier);
        RecordStore records;
        store.load(manager.hand_over(), records);
        BOOST_TEST(records.records().size() == 4u);
        auto &seven = records.records().at("segment/1.0/7"), &eight = records.records().at("segment/1.0/8");
        BOOST_TEST((seven.value == Value{1, 2} && text_of(seven.fd) == "seven"));
        BOOST_TEST((eight.value == Value{5, 6, 7} && text_of(eight.fd) == "new"));
        BOOST_TEST((records.records().at("group/1.0").value == Value(100000, 9)));
        BOOST_TEST(records.records().at("slot/1.0/0/0").value.empty());
        BOOST_TEST(manager.count() == 6u);
        // The next one gives and takes numbers among those of the former.
        store.put("promise/" + std::to_string(keeper), Value{1}, file_with("x").get());
        store.put("promise/" + std::to_string(keeper), Value{1}, -1);
        BOOST_TEST(manager.count() == 7u);
        store.drop("promise/" + std::to_string(keeper));
    }
}

BOOST_AUTO_TEST_CASE(names_stay_short_however_many_records_come_and_go) {
    Manager manager;
    FdStore store(*manager.notifier);
    for (int round = 0; round < 30; ++round) {
        for (int i = 0; i < 50; ++i)
            store.put("slot/123456.4294967295/1000/" + std::to_string(round * 50 + i), Value{1}, -1);
        BOOST_TEST(manager.count() == 50u);
        BOOST_TEST(manager.longest_name() == 3u);
        for (int i = 0; i < 50; ++i)
            store.drop("slot/123456.4294967295/1000/" + std::to_string(round * 50 + i));
    }
    BOOST_TEST(manager.count() == 0u);
}

BOOST_AUTO_TEST_CASE(what_makes_no_record_is_given_up) {
    Manager manager;
    auto other = file_with("this is not a record of ours at all");
    for (const char *name : {"stored", "vslot/1.0/0/0", "v1", "f2", "vzzzz", "v", "f-1"})
        manager.notifier->send(std::string("FDSTORE=1\nFDPOLL=0\nFDNAME=") + name, other.get());
    FdStore store(*manager.notifier);
    store.put("group/1.0", Value{1}, -1);
    BOOST_TEST(manager.count() == 8u);
    FdStore next(*manager.notifier);
    RecordStore records;
    next.load(manager.hand_over(), records);
    BOOST_TEST(records.records().size() == 1u);
    BOOST_TEST(manager.count() == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
