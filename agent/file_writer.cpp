// SPDX-License-Identifier: Apache-2.0
#include "agent/file_writer.h"

#include <cerrno>
#include <mutex>
#include <utility>

#include "agent/files.h"

namespace dlrover::agent {

struct FileWriter::State {
    Open open;
    UniqueFd fd;  ///< the calls' alone: to close it may hang, too
    std::mutex mutex;
    // Guarded by mutex:
    std::string waiting, path;
    std::size_t in_work = 0;
    bool tried = false, under_way = false;
    std::uint64_t dropped = 0;

    void open_it() {
        Opened opened = std::exchange(open, nullptr)();
        fd = std::move(opened.fd);
        std::lock_guard lock(mutex);
        path = std::move(opened.path);
        tried = true;
    }

    /// Also what comes meanwhile: there may be no loop any more that would ask for another call.
    void write_waiting() {
        if (open) open_it();
        for (std::string data;;) {
            {
                std::lock_guard lock(mutex);
                in_work = waiting.size();
                under_way = in_work != 0;
                if (!under_way) return;
                data = std::exchange(waiting, {});
            }
            std::size_t written = write_all(fd.get(), data);
            std::lock_guard lock(mutex);
            dropped += data.size() - written;
        }
    }
};

FileWriter::FileWriter(Loop &loop, Open open, std::size_t limit_bytes)
    : state_(std::make_shared<State>()), limit_(limit_bytes), aside_(loop) {
    state_->open = std::move(open);
}

FileWriter::FileWriter(Loop &loop, UniqueFd file, std::size_t limit_bytes)
    : state_(std::make_shared<State>()), limit_(limit_bytes), aside_(loop) {
    state_->fd = std::move(file);
    state_->tried = true;
    aside_.start_early();
}

FileWriter::~FileWriter() {
    if (is_idle() && !is_tried()) return;  // it was never needed
    aside_.run([state = state_] { state->fd.reset(); });
}

void FileWriter::write(std::string_view data) {
    if (data.empty()) return;
    {
        std::lock_guard lock(state_->mutex);
        state_->waiting += data;
        if (std::exchange(state_->under_way, true)) return;
    }
    aside_.run([state = state_] { state->write_waiting(); });
}

bool FileWriter::is_idle() const {
    std::lock_guard lock(state_->mutex);
    return !state_->under_way;
}

bool FileWriter::is_full() const {
    std::lock_guard lock(state_->mutex);
    return state_->waiting.size() + state_->in_work >= limit_;
}

bool FileWriter::is_tried() const {
    std::lock_guard lock(state_->mutex);
    return state_->tried;
}

std::string FileWriter::path() const {
    std::lock_guard lock(state_->mutex);
    return state_->path;
}

std::uint64_t FileWriter::dropped_bytes() const {
    std::lock_guard lock(state_->mutex);
    return state_->dropped;
}

}  // namespace dlrover::agent
