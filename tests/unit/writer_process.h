// SPDX-License-Identifier: Apache-2.0
// The real dlrover-writer, and a daemon for it that does what the test says, in the test's thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/checkpoint_folder.h"
#include "proto/local_codec.h"
#include "storage_fixture.h"

namespace dlrover::test {

namespace local = proto::local;
inline constexpr char lineage[] = "lab/1000/job a";  // of ckpt::test::Maker

/// A sealed object in a memfd, as a daemon has it.
struct MemoryObject {
    explicit MemoryObject(const ckpt::SealedObject &object);
    local::StoreObjectT order(ckpt::CheckpointId id, std::uint32_t world_size, std::uint32_t rank) const;
    void flip(std::uint64_t at) const;

    UniqueFd memory;
    std::uint64_t bytes = 0, data_bytes = 0, table_offset = 0, table_bytes = 0, table_xxh3 = 0;
    std::vector<std::uint8_t> ledger;
};

struct WriterSpec {
    std::uint32_t job = 7, step = 0, restarts = 0;
    std::string fault;                        ///< DLROVER_FAULT
    std::optional<std::uint64_t> file_limit;  ///< RLIMIT_FSIZE
};

/// A node: the daemon's socket, and the writer as its client.
class Node {
  public:
    explicit Node(std::string ckpt_dir, WriterSpec spec = {});
    ~Node();
    Node(const Node &) = delete;
    Node &operator=(const Node &) = delete;

    std::uint64_t keep_last = 0, keep_every = 0;

    void start_writer();
    void start_writer(WriterSpec spec);
    pid_t writer() const { return writer_; }
    void signal_writer(int number) const;
    /// Waits for the writer's end, or (untraced) for its stop; the wait status.
    int wait_writer(bool untraced = false);
    /// Takes the writer's next connection and greets it.
    void greet();
    /// Nobody listens until greet().
    void stop_daemon();
    /// A whole message.
    void push(local::MessageT message, const std::vector<int> &fds = {});
    /// The next message of this kind, which must come; others before it are kept.
    local::MessageT wait_for(local::Body kind);

    std::uint64_t push_store(const MemoryObject &object, ckpt::CheckpointId id, std::uint32_t world,
                             std::uint32_t rank);
    std::uint64_t push_store(local::StoreObjectT order, const std::vector<int> &fds);
    std::uint64_t push_complete(ckpt::CheckpointId id, std::uint32_t world, std::uint32_t wait_ms);
    void push_cancel(std::uint64_t order);
    local::ObjectStoredT stored(std::uint64_t order);
    local::CheckpointStoredT completed(std::uint64_t order);
    local::FolderFoundT look();
    /// Store and wait.
    local::ObjectStoredT store(const MemoryObject &object, ckpt::CheckpointId id, std::uint32_t world,
                               std::uint32_t rank);

    std::uint64_t next_order = 1;

  private:
    void listen();
    void receive();
    local::MessageT greeting(local::Body kind);
    void answer(std::uint32_t id, local::MessageT message);

    std::string ckpt_dir_, dir_;
    WriterSpec spec_;
    UniqueFd listener_, connection_;
    proto::FrameReader reader_;
    std::vector<local::MessageT> received_;
    pid_t writer_ = -1;
};

/// Step `step` of the fixture's generation.
ckpt::CheckpointId checkpoint(std::uint64_t step);
/// Rank `rank`'s object of a world: one half of a tensor of `elements` float32 each, and a value of its own.
MemoryObject make_object(std::uint64_t step, std::uint32_t rank, std::uint32_t world,
                         std::uint64_t elements = 3000);
/// DIR/LINEAGE.
std::string lineage_folder(const std::string &ckpt_dir);
/// The tensor of make_object() is in the file, bit for bit, and so is everything else of the checkpoint.
void check_stored(const std::string &ckpt_dir, std::uint64_t step, std::uint32_t world,
                  std::uint64_t elements = 3000);
/// Paths under the folder that a crashed writer left.
std::vector<std::string> leftovers(const std::string &ckpt_dir);

}  // namespace dlrover::test
