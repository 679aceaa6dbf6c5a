// SPDX-License-Identifier: Apache-2.0
#include "transport/bulk_sender.h"

#include <poll.h>

#include <algorithm>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/signals_blocked.h"
#include "transport/bulk_list.h"
#include "transport/bulk_ucx.h"

namespace dlrover::transport {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto receipt_after_failure = 200ms;

/// Neighbours go one way, so that the receiver can add up a checksum while what it reads is still in the
/// cache. 8 MiB: what has a checksum of its own (1 MiB) is mostly inside.
constexpr std::uint64_t most_blocks_in_a_run = 32;
constexpr std::uint64_t runs_per_stream = 16;  ///< of small transfers, so that all streams end together

/// Blocks that one stream sends, by their turn.
struct Run {
    std::uint64_t next = 0, end = 0;
};

/// What the streams of one job share.
class Work {
  public:
    Work(const BulkJob &job, std::uint16_t streams, std::shared_ptr<Cancellation> failed)
        : job_(job),
          streams_(streams),
          failed_(std::move(failed)),
          spared_(bulk_blocks(job.memory.size())),
          run_blocks_(std::clamp<std::uint64_t>(spared_.size() / streams / runs_per_stream, 1,
                                                most_blocks_in_a_run)) {}

    const BulkJob &job() const noexcept { return job_; }
    std::uint16_t streams() const noexcept { return streams_; }
    Cancellations cancellations() const {
        Cancellations all{failed_};
        if (job_.cancellation) all.push_back(job_.cancellation);
        return all;
    }
    WaitLimits limits() const { return {job_.stall, job_.deadline}; }

    /// Before the first next().
    void leave_out(std::span<const BulkSpared> spared) {
        for (const BulkSpared &run : spared)
            std::fill_n(spared_.begin() + static_cast<std::ptrdiff_t>(run.first), run.count, true);
    }
    /// The next block of a stream's run, or of one that nobody has taken, when the rate allows it. None: all
    /// are taken.
    Result<std::optional<std::span<const std::byte>>> next(Run &run) {
        std::uint64_t number;
        do {
            if (run.next == run.end && !take(run)) return std::optional<std::span<const std::byte>>();
            number = (first() + run.next++) % spared_.size();
        } while (spared_[number]);
        std::uint64_t at = number * bulk_block_bytes;
        auto block = job_.memory.subspan(at, std::min(bulk_block_bytes, job_.memory.size() - at));
        if (job_.rate) DLROVER_TRY(sleep_until(job_.rate->take(block.size(), Clock::now()), cancellations()));
        return std::optional(block);
    }
    std::uint64_t offset(std::span<const std::byte> block) const {
        return static_cast<std::uint64_t>(block.data() - job_.memory.data());
    }
    void sent(std::uint64_t bytes) {
        if (job_.progress != nullptr) *job_.progress += bytes;
    }

    /// The first one counts: the others' are its consequence.
    void fail(Status why) {
        std::lock_guard lock(mutex_);
        if (failure_.ok()) failure_ = std::move(why);
        failed_->cancel();
    }
    bool has_failed() const { return failed_->cancelled(); }
    /// The other side's own word is better than what became of the connections.
    void set_receipt(Status receipt) {
        std::lock_guard lock(mutex_);
        receipt_ = std::move(receipt);
    }
    Status outcome() {
        std::lock_guard lock(mutex_);
        return receipt_.ok() ? std::move(failure_) : std::move(receipt_);
    }

  private:
    std::uint64_t first() const { return job_.begin / bulk_block_bytes; }
    /// What the job begins with, up to the memory's end, all streams bring: the receiver waits for it.
    bool take(Run &run) {
        std::lock_guard lock(mutex_);
        std::uint64_t count = spared_.size();
        bool beginning = job_.begin != 0 && first() + next_ < count;
        run = {next_, std::min(next_ + (beginning ? 1 : run_blocks_), count)};
        next_ = run.end;
        return run.next < run.end;
    }

    const BulkJob &job_;
    const std::uint16_t streams_;
    const std::shared_ptr<Cancellation> failed_;
    std::vector<bool> spared_;  ///< by block
    const std::uint64_t run_blocks_;
    std::mutex mutex_;
    std::uint64_t next_ = 0;  ///< turn
    Status failure_, receipt_;
};

Result<BulkSocket> connect(const Work &work) {
    auto fd = begin_connect(work.job().to, work.job().from, false);
    if (!fd) return fd.take_status();
    pollfd polled{fd->get(), POLLOUT, 0};
    DLROVER_TRY(wait_for({&polled, 1}, work.cancellations(), work.limits()));
    DLROVER_TRY(connect_result(fd->get()));
    DLROVER_TRY(tune(fd->get(), work.job().stall));
    return BulkSocket(std::move(*fd), work.cancellations(), work.limits());
}

/// The other side proves itself first: what follows shows nothing to who has not the key.
Result<BulkSession> greet(BulkSocket &socket, const Work &work, std::uint16_t stream, BulkAnswer &agreed) {
    bool offers = stream == 0 && work.job().spare;
    BulkGreeting greeting;
    bool tcp = work.job().method == BulkMethod::tcp;
    greeting.methods = static_cast<BulkMethods>(static_cast<BulkMethods>(work.job().method) |
                                                (offers ? bulk_spares : 0) | (tcp ? bulk_unsummed : 0));
    greeting.stream = stream;
    greeting.streams = work.streams();
    greeting.transfer = work.job().transfer;
    greeting.bytes = work.job().memory.size();
    greeting.nonce = make_bulk_nonce();
    auto greeting_bytes = encode(greeting);
    DLROVER_TRY(socket.write(greeting_bytes));
    AnswerBytes answer_bytes;
    BulkMac mac;
    DLROVER_TRY(socket.read(answer_bytes));
    DLROVER_TRY(socket.read(mac));
    auto answer = decode_answer(answer_bytes);
    if (!answer) return answer.take_status();
    BulkSession session(work.job().key, greeting_bytes, answer_bytes);
    DLROVER_TRY(session.check(bulk_label::answer, answer_bytes, mac));
    if (answer->method != work.job().method || (answer->spares && !offers) || (answer->unsummed && !tcp))
        return Status(Code::corrupt, "the other mover chose a way that was not offered");
    agreed = *answer;
    DLROVER_TRY(socket.write(session.mac(bulk_label::proof, {})));
    return session;
}

/// What the other side has already is not sent.
Status agree(BulkSocket &socket, const BulkSession &session, Work &work) {
    auto bytes = read_list(socket, session, bulk_label::have, BulkHave::wire_bytes, max_bulk_haves);
    if (!bytes) return bytes.take_status();
    auto spared = work.job().spare(decode_haves(*bytes));
    if (spared.size() > max_bulk_spared) spared.resize(max_bulk_spared);
    work.leave_out(spared);
    return write_list(socket, session, bulk_label::spared, encode(std::span<const BulkSpared>(spared)),
                      BulkSpared::wire_bytes);
}

Status write_block(BulkSocket &socket, const BulkSession &session, const BulkBlock &block,
                   std::span<const std::byte> data) {
    auto header = encode(block);
    auto mac = session.mac(bulk_label::block, header);
    const iovec parts[] = {{header.data(), header.size()},
                           {mac.data(), mac.size()},
                           {const_cast<std::byte *>(data.data()), data.size()}};
    return socket.write(std::span<const iovec>(parts));
}

Status send_blocks(BulkSocket &socket, const BulkSession &session, Work &work, bool unsummed) {
    Run run;
    for (std::uint32_t number = 0;; ++number) {
        auto next = work.next(run);
        if (!next) return next.take_status();
        if (!*next) return write_block(socket, session, {0, 0, number, 0}, {});
        std::span<const std::byte> data = **next;
        BulkBlock block{work.offset(data), static_cast<std::uint32_t>(data.size()), number,
                        unsummed ? 0 : work.job().hash(data.data(), data.size())};
        DLROVER_TRY(write_block(socket, session, block, data));
        work.sent(data.size());
    }
}

Status send_by_ucx(BulkSocket &socket, const BulkSession &session, Work &work) {
    auto place = read_list(socket, session, bulk_label::place, 1, max_bulk_place_bytes);
    if (!place) return place.take_status();
    auto source = UcxSource::open(*place, work.cancellations(), work.limits());
    if (!source) return source.take_status();
    for (Run run;;) {
        auto next = work.next(run);
        if (!next) return next.take_status();
        if (!*next) break;
        DLROVER_TRY((*source)->put(work.offset(**next), **next));
        work.sent((*next)->size());
    }
    DLROVER_TRY((*source)->flush());
    return write_block(socket, session, {}, {});
}

/// What the other side says of it all, in `said`; not ok: it did not say anything.
Status read_receipt(BulkSocket &socket, const BulkSession &session, Status &said) {
    ReceiptBytes bytes;
    BulkMac mac;
    DLROVER_TRY(socket.read(bytes));
    DLROVER_TRY(socket.read(mac));
    auto receipt = decode_receipt(bytes);
    if (!receipt) return receipt.take_status();
    std::vector<std::uint8_t> words(receipt->text_bytes);
    DLROVER_TRY(socket.read(words));
    DLROVER_TRY(session.check(bulk_label::receipt, bytes, mac, words));
    if (receipt->code != Code::ok) said = Status(receipt->code, std::string(words.begin(), words.end()));
    return {};
}

/// A connection that both sides have proved themselves on.
struct Stream {
    BulkSocket socket;
    BulkSession session;
    bool unsummed;
};

Result<Stream> open_stream(Work &work, std::uint16_t stream) {
    auto socket = connect(work);
    if (!socket) return std::move(socket.take_status()).with_context("connecting to " + work.job().to.host());
    BulkAnswer agreed;
    auto session = greet(*socket, work, stream, agreed);
    Status status = session.take_status();
    if (status.ok() && agreed.spares) status = agree(*socket, *session, work);
    if (!status.ok()) return std::move(status).with_context("greeting the mover of " + work.job().to.host());
    return Stream{std::move(*socket), std::move(*session), agreed.unsummed};
}

Status send_all(Stream &stream, Work &work) {
    return work.job().method == BulkMethod::ucx
               ? send_by_ucx(stream.socket, stream.session, work)
               : send_blocks(stream.socket, stream.session, work, stream.unsummed);
}

/// Stream 0's. Verifying takes as long as it takes: only the job's deadline limits it.
Status run_first(Stream &stream, Work &work) {
    Status status = send_all(stream, work);
    if (status.ok() && !work.has_failed())
        stream.socket.go_on(work.cancellations(), {24h, work.job().deadline});
    else
        stream.socket.go_on({}, {receipt_after_failure, Clock::now() + receipt_after_failure});
    Status said, heard = read_receipt(stream.socket, stream.session, said);
    if (heard.ok()) work.set_receipt(std::move(said));
    return status.ok() ? std::move(heard) : std::move(status);
}

Status run_other(Work &work, std::uint16_t number) {
    auto stream = open_stream(work, number);
    return stream ? send_all(*stream, work) : stream.take_status();
}

/// The other side waits for as many streams as it was told of: with fewer it can not be done.
template <typename Run>
Status start_others(std::vector<std::thread> &threads, std::uint16_t streams, Run run) {
    SignalsBlocked guard;
    try {
        for (std::uint16_t i = 1; i < streams; ++i) threads.emplace_back(run, i);
    } catch (const std::system_error &) {
        return Status(Code::resource_exhausted, "no more threads can be had: see the limit of processes");
    }
    return {};
}

}  // namespace

Status bulk_send(const BulkJob &job) {
    if (job.memory.empty() || job.streams == 0 || job.streams > max_bulk_streams)
        return Status(Code::invalid_argument, "a transfer of nothing, or over too many streams");
    if (job.method == BulkMethod::ucx) DLROVER_TRY(ucx_usable());
    auto failed = Cancellation::create();
    if (!failed) return failed.take_status();
    std::uint64_t blocks = bulk_blocks(job.memory.size());
    auto streams = job.method == BulkMethod::ucx
                       ? std::uint16_t{1}
                       : static_cast<std::uint16_t>(std::min<std::uint64_t>(job.streams, blocks));
    Work work(job, streams, *failed);
    auto first = open_stream(work, 0);  // before the others: by then it is known what is sent
    if (!first) return first.take_status();
    auto end = [&work](Status status) {
        if (!status.ok()) work.fail(std::move(status));
    };
    std::vector<std::thread> others;
    end(start_others(others, streams, [&work, &end](std::uint16_t i) { end(run_other(work, i)); }));
    end(run_first(*first, work));
    for (std::thread &thread : others) thread.join();
    return work.outcome();
}

}  // namespace dlrover::transport
