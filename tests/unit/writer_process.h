// SPDX-License-Identifier: Apache-2.0
// The real dlrover-writer, and a daemon for it that does what the test says, in the test's thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/checkpoint_folder.h"
#include "helper_process.h"
#include "memory_object.h"
#include "storage_fixture.h"

namespace dlrover::test {

struct WriterSpec {
    std::uint32_t job = 7, step = 0, restarts = 0;
    std::string fault;                        ///< DLROVER_FAULT
    std::string fault_error = {};             ///< DLROVER_FAULT_ERROR
    std::optional<std::uint64_t> file_limit;  ///< RLIMIT_FSIZE
};

/// A node with a writer.
class Node : public HelperNode {
  public:
    explicit Node(std::string ckpt_dir, WriterSpec spec = {});

    std::uint64_t keep_last = 0, keep_every = 0;

    void start_writer();
    void start_writer(WriterSpec spec);
    pid_t writer() const { return pid(); }
    void signal_writer(int number) const { signal(number); }
    int wait_writer(bool untraced = false) { return wait(untraced); }

    std::uint64_t push_store(const MemoryObject &object, ckpt::CheckpointId id, std::uint32_t world,
                             std::uint32_t rank);
    std::uint64_t push_store(local::StoreObjectT order, const std::vector<int> &fds);
    std::uint64_t push_complete(ckpt::CheckpointId id, std::uint32_t world, std::uint32_t wait_ms);
    local::ObjectStoredT stored(std::uint64_t order);
    local::CheckpointStoredT completed(std::uint64_t order);
    local::FolderFoundT look(std::optional<std::uint64_t> after = {});  ///< steps after it are passed over
    local::FolderTestedT test_folder(const std::string &node, bool make);
    /// Store and wait.
    local::ObjectStoredT store(const MemoryObject &object, ckpt::CheckpointId id, std::uint32_t world,
                               std::uint32_t rank);

  private:
    void welcome() override;

    std::string ckpt_dir_;
    WriterSpec spec_;
};

/// DIR/LINEAGE.
std::string lineage_folder(const std::string &ckpt_dir);
/// The tensor of make_object() is in the file, bit for bit, and so is everything else of the checkpoint.
void check_stored(const std::string &ckpt_dir, std::uint64_t step, std::uint32_t world,
                  std::uint64_t elements = 3000);
/// Paths under the folder that a crashed writer left.
std::vector<std::string> leftovers(const std::string &ckpt_dir);

}  // namespace dlrover::test
