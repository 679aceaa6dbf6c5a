// SPDX-License-Identifier: Apache-2.0
// One of the agent's own streams (stdout or stderr), written without ever waiting for its reader.
#pragma once

#include <deque>
#include <string>

#include "agent/loop.h"
#include "agent/nonblocking_writer.h"
#include "agent/spill.h"

namespace dlrover::agent {

/// Keeps at most `limit_bytes`; when that is full, output goes to the spill file of the rank it came from
/// until the reader has caught up; then one line says so and the newest output follows. A broken stream stays
/// with the files. Where the stream is itself a file, is_full() says when to write no more.
class Sink {
  public:
    static constexpr std::size_t default_limit_bytes = std::size_t{4} << 20;
    /// `program` begins our own lines ("dlrover-agent"). `fd` is not owned.
    Sink(Loop &loop, int fd, std::string program, std::size_t limit_bytes = default_limit_bytes);
    ~Sink();
    Sink(const Sink &) = delete;
    Sink &operator=(const Sink &) = delete;

    /// `spill` may be null (our own lines): then what does not fit is dropped. It outlives what is buffered:
    /// call flush_now or let_go before it ends.
    void write(std::string_view data, SpillFile *spill);
    /// "program: text\n"
    void say(std::string_view text);
    /// Waits for the reader so long, or for the file that this stream is as long as it moves; then moves the
    /// rest to the files of its ranks. Returns where, if that is not said yet: empty, or "SIZE of output are
    /// in PATH".
    std::string flush(Loop::Duration limit);
    /// A file that takes less than is written: who writes more had better wait, as it would write it itself.
    bool is_full() const noexcept { return writer_.is_file() && 2 * buffered_ >= limit_; }

    std::size_t buffered_bytes() const noexcept { return buffered_; }
    bool broken() const noexcept { return broken_; }

  private:
    struct Chunk {
        std::string data;
        SpillFile *spill;
    };
    void keep(std::string_view data, SpillFile *spill);
    void spill_over(std::string_view data, SpillFile *spill);
    void on_writable();
    bool drain();
    void drain_within(Loop::Duration limit);
    void go_broken();
    void end_overflow();
    std::size_t write_some(std::string_view data, SpillFile *spill);

    NonblockingWriter writer_;
    std::string program_;
    std::size_t limit_, buffered_ = 0, offset_ = 0;  // offset_: sent of the first chunk
    std::deque<Chunk> chunks_;
    std::uint64_t spilled_ = 0;
    SpillFile *spilled_to_ = nullptr, *on_its_way_ = nullptr;  // on_its_way_: of what a file was given last
    bool overflow_ = false, broken_ = false, line_open_ = false;
};

}  // namespace dlrover::agent
