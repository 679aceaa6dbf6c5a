// SPDX-License-Identifier: Apache-2.0
// This process's side of the progress page. Without a daemon the page is private memory.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "ckpt/mapping.h"
#include "proto/progress.h"

namespace dlrover::lib {

/// Any thread; never waits for the daemon.
class Progress {
  public:
    Progress();
    /// Goes on in the daemon's page (after the first and after each later connection), with the values so
    /// far.
    Status attach(UniqueFd page);

    void report_step(std::uint64_t step);
    void phase_begin();
    /// False: none is open.
    bool phase_end();
    void restore_begin();
    void restore_end();
    void save_begin();
    /// lost: what the training loop waited for this save.
    void save_end(std::chrono::nanoseconds lost, bool saved);
    void save_skipped();

  private:
    void show_phase();

    std::mutex mutex_;
    proto::ProgressPage own_{};
    proto::ProgressPage *page_ = &own_;  ///< under mutex_
    ckpt::Mapping mapped_;
    std::uint64_t page_inode_ = 0;
    int declared_ = 0, saving_ = 0, restoring_ = 0;
    std::uint64_t declared_since_ns_ = 0;
    std::uint64_t not_stepping_ns_ = 0;  ///< since the last step: in save() and in declared phases
};

}  // namespace dlrover::lib
