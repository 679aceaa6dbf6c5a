// SPDX-License-Identifier: Apache-2.0
// The agent's end of one stream of one worker.
#pragma once

#include <memory>
#include <string>

#include "agent/file_writer.h"
#include "agent/loop.h"
#include "agent/sink.h"

namespace dlrover::agent {

struct StreamPlan {
    Sink *sink = nullptr;              ///< null: not shown
    SpillFile *spill = nullptr;        ///< for what the sink can not take
    bool by_lines = false;             ///< several workers share the sink
    std::string prefix;                ///< in front of every line; needs by_lines
    std::unique_ptr<FileWriter> copy;  ///< a file that gets everything, or none
    std::string name;                  ///< "rank 3": of whom is said that it waits for a file
    Sink *said_on = nullptr;           ///< where that is said; null: nowhere
};

/// Reads whatever the worker writes, at once, so that the worker does not wait for whoever reads us. A file
/// that its output goes to it does wait for, as if it wrote there itself: nothing is lost then.
class Stream {
  public:
    static constexpr std::size_t tail_bytes = 64 << 10;
    static constexpr std::size_t longest_line_bytes = 64 << 10;
    Stream(Loop &loop, UniqueFd pipe, StreamPlan plan);
    ~Stream();
    Stream(const Stream &) = delete;
    Stream &operator=(const Stream &) = delete;

    /// Takes what is in the pipe now.
    void drain();
    /// drain(), and an unfinished line too.
    void finish();
    /// The newest output, at most tail_bytes.
    std::string_view tail() const;

  private:
    bool read_some();
    void take(std::string_view data);
    void emit(std::string_view lines);
    void emit_partial();
    void on_readable();
    bool is_full() const;
    void listen();
    void pause();
    void look_again();
    void close();

    Loop &loop_;
    UniqueFd pipe_;
    StreamPlan plan_;
    std::string tail_, partial_;
    Loop::Timer partial_timer_ = 0, pause_timer_ = 0;
    Loop::Time paused_at_{};
    bool told_ = false;
};

}  // namespace dlrover::agent
