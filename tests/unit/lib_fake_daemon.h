// SPDX-License-Identifier: Apache-2.0
// A daemon for the tests of the library: slots in memfds, as many connections as come, and faults on demand.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "proto/local_codec.h"
#include "proto/progress.h"

namespace dlrover::test {

namespace local = proto::local;

/// One rank's daemon. Its own thread serves; every member may be called from the test's thread.
class FakeDaemon {
  public:
    enum class SlotState { free, granted, sealed };
    struct Slot {
        std::vector<std::pair<std::uint64_t, UniqueFd>> segments;  ///< id, memfd
        std::vector<std::uint64_t> sizes;
        SlotState state = SlotState::free;
        int holder = -1;
        local::SealT seal;
    };
    /// What to do with the connection when a message of this kind comes.
    enum class Fault { none, drop_before, drop_after };

    explicit FakeDaemon(std::size_t slots = 3, std::uint64_t segment_bytes = 1 << 20);
    ~FakeDaemon();

    /// Everybody is cut off; nobody can connect until start(). Granted slots are kept for whoever comes back,
    /// or forgotten.
    void stop(bool keep_grants);
    void start();
    /// stop(), and every slot gets other memory (a daemon without a keeper).
    void lose_memory();
    void fail_once(local::Body kind, Fault fault);
    /// Until allow().
    void refuse(local::Body kind, local::Refusal code, std::string text);
    void allow(local::Body kind);
    void push_event(proto::EventKind kind, std::string text);
    /// To those who have subscribed, and were told that two nodes, n1 and n2, have two ranks each.
    void push_happened(local::PmixEventKind kind, std::uint64_t number);
    void push_stop(std::string reason);

    std::string socket_path() const { return dir_ + "/s"; }
    std::vector<local::SealT> sealed();
    /// The newest sealed object's memory, from its beginning on, and what was said of it.
    std::pair<std::vector<std::byte>, local::SealT> newest_object();
    /// The slot's byte at this offset, to be changed.
    void flip(std::size_t slot, std::uint64_t offset);
    std::size_t granted();
    std::size_t connections();
    std::size_t count(local::Body kind);
    proto::ProgressPage *page() { return page_; }
    local::RestoreDoneT last_restore_done();
    /// The next restores are told for so long that their object is coming from another node.
    void fetch_for(std::chrono::milliseconds time);

    /// From now on the ranks restore that checkpoint of the folder.
    void restore_from(std::string folder, proto::Generation generation, std::uint64_t step,
                      std::uint32_t world_size);

    struct SpreadObject {
        std::vector<std::byte> data;
        std::vector<std::uint8_t> table;
        std::uint64_t table_xxh3 = 0;
    };
    /// From now on the ranks restore that step, whose objects, by rank, are in the memory of several nodes.
    void spread(proto::Generation generation, std::uint64_t step, const std::vector<SpreadObject> &objects);
    /// Of one of those, a byte of its data is changed.
    void flip_spread(std::uint32_t rank, std::uint64_t offset);
    /// Ranks whose objects of it were given out.
    std::vector<std::uint32_t> given();

    std::uint32_t slots_told = 3;
    bool storage_told = false;
    std::vector<std::string> next_variables;  ///< NextWorld
    bool verified_told = false;               ///< RestorePlan.verified, of what is in the slots
    /// The daemons of the other ranks of this node, whose objects are given out as RestoreKept asks.
    std::map<std::uint32_t, FakeDaemon *> neighbours;

  private:
    struct Connection {
        UniqueFd fd;
        proto::FrameReader reader;
        std::map<std::uint64_t, bool> known;
        bool subscribed = false;
    };
    void listen();
    void run();
    void serve(int number);
    bool handle(int number, const local::MessageT &message);
    template <typename Body>
    void answer(int number, std::uint32_t id, Body body, std::vector<int> fds = {});
    void prepare(int number, std::uint32_t id, const local::PrepareT &prepare);
    void begin(int number, std::uint32_t id, const local::BeginSaveT &begin);
    void seal(int number, std::uint32_t id, const local::SealT &seal);
    void restore(int number, std::uint32_t id);
    void restore_spread(int number, std::uint32_t id);
    void give_spread(int number, std::uint32_t id, std::uint32_t rank);
    void restore_kept(int number, std::uint32_t id, std::uint32_t rank);
    Slot *newest();
    void grow(Slot &slot, std::uint64_t bytes);
    std::vector<std::unique_ptr<local::SlotSegmentT>> describe(int number, Slot &slot, std::vector<int> &fds);
    void drop(int number);
    template <typename Body>
    void push(const Body &body);
    void stop_locked(bool keep_grants);

    std::mutex mutex_;
    std::string dir_;
    std::uint64_t segment_bytes_, next_segment_ = 1;
    UniqueFd listener_, wake_, page_fd_;
    proto::ProgressPage *page_ = nullptr;
    std::map<int, Connection> connections_;
    int next_connection_ = 0;
    std::vector<Slot> slots_;
    std::map<local::Body, Fault> faults_;
    std::map<local::Body, std::pair<local::Refusal, std::string>> refusals_;
    std::map<local::Body, std::size_t> counts_;
    local::RestoreDoneT restore_done_;
    std::chrono::steady_clock::time_point fetched_at_{};
    std::string stored_folder_;
    local::StoredCheckpointT stored_;
    std::vector<std::pair<UniqueFd, std::uint64_t>> spread_;  ///< memfds of objects and their sizes
    UniqueFd spread_tables_;
    std::vector<local::SpreadTableT> tables_;
    std::uint64_t tables_bytes_ = 0;
    std::vector<std::uint32_t> given_;
    std::map<std::uint32_t, int> asked_;  ///< how often each was asked for
    bool quit_ = false;
    std::thread thread_;
};

}  // namespace dlrover::test
