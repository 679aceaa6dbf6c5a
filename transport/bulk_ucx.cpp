// SPDX-License-Identifier: Apache-2.0
#include "transport/bulk_ucx.h"

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>

namespace dlrover::transport {
namespace {

using namespace std::chrono_literals;

using Clock = WaitLimits::Time::clock;

constexpr std::size_t puts_at_once = 16;
constexpr auto close_limit = 1000ms;
constexpr unsigned most_calls = 1000;
constexpr unsigned most_in_vain = 64;  ///< times that a worker wakes for nothing, before it rests
constexpr auto pause = 1ms;

Status ucx_error(const char *what, ucs_status_t status) {
    Code code = status == UCS_ERR_NO_MEMORY ? Code::resource_exhausted : Code::unavailable;
    return Status(code, std::string("UCX: ") + what + ": " + ucs_status_string(status));
}

std::atomic<UcxNetworks> allowed{UcxNetworks::rdma};

/// One a process, never given back: other threads may use it at the end.
class Context {
  public:
    static Result<ucp_context_h> get() {
        static const Context context;
        if (context.status_ != UCS_OK) return ucx_error("it can not be started", context.status_);
        return context.handle_;
    }

  private:
    Context() {
        ucp_config_t *config = nullptr;
        status_ = ucp_config_read(nullptr, nullptr, &config);
        if (status_ != UCS_OK) return;
        // Left to itself, UCX opens TCP's too. Whatever UCX_TLS says: who connects there may write anywhere.
        if (allowed == UcxNetworks::rdma) status_ = ucp_config_modify(config, "TLS", "ib");
        if (status_ == UCS_OK) start(config);
        ucp_config_release(config);
    }
    void start(const ucp_config_t *config) {
        ucp_params_t params{};
        params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
        params.features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
        params.mt_workers_shared = 1;
        status_ = ucp_init(&params, config, &handle_);
    }
    ucp_context_h handle_ = nullptr;
    ucs_status_t status_ = UCS_OK;
};

/// A worker and how to wait for it.
class Worker {
  public:
    static Result<std::unique_ptr<Worker>> create() {
        auto context = Context::get();
        if (!context) return context.take_status();
        ucp_worker_params_t params{};
        params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
        params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
        ucp_worker_h handle = nullptr;
        ucs_status_t status = ucp_worker_create(*context, &params, &handle);
        if (status != UCS_OK) return ucx_error("no worker", status);
        std::unique_ptr<Worker> worker(new Worker(*context, handle));
        status = ucp_worker_get_efd(handle, &worker->event_);
        if (status != UCS_OK) return ucx_error("it can not be waited for", status);
        return worker;
    }
    ~Worker() { ucp_worker_destroy(handle_); }
    Worker(const Worker &) = delete;
    Worker &operator=(const Worker &) = delete;

    ucp_context_h context() const noexcept { return context_; }
    ucp_worker_h get() const noexcept { return handle_; }

    /// Works until `done`, or until the other descriptor is ready. The limits are those of the whole call: a
    /// worker whose other side stands still may say again and again that there is something to do.
    template <typename Done>
    Status drive(Done done, pollfd other, const Cancellations &cancellations, const WaitLimits &limits) {
        auto until = Clock::now() + limits.stall;
        if (limits.deadline) until = std::min(until, *limits.deadline);
        for (unsigned in_vain = 0;; ++in_vain) {
            if (progress()) in_vain = 0;
            if (done()) return {};
            if (Clock::now() >= until)
                return Status(Code::timeout, "the other side took nothing for " +
                                                 std::to_string(limits.stall.count()) + " ms");
            ucs_status_t armed = ucp_worker_arm(handle_);
            bool rests = in_vain >= most_in_vain;
            if (armed == UCS_ERR_BUSY && !rests) continue;
            if (armed != UCS_OK && armed != UCS_ERR_BUSY) return ucx_error("it can not be waited for", armed);
            pollfd polled[] = {other, {event_, POLLIN, 0}};
            Status waited = wait_for({polled, rests ? 1U : 2U}, cancellations,
                                     {rests ? pause : std::chrono::milliseconds(24h), until});
            if (polled[0].revents != 0) return {};
            if (!waited.ok() && waited.code() != Code::timeout) return waited;
        }
    }

  private:
    /// Whether anything was done; now and then it is looked at the time.
    bool progress() {
        unsigned calls = 0;
        while (calls < most_calls && ucp_worker_progress(handle_) != 0) ++calls;
        return calls != 0;
    }
    Worker(ucp_context_h context, ucp_worker_h handle) : context_(context), handle_(handle) {}
    ucp_context_h context_;
    ucp_worker_h handle_;
    int event_ = -1;  ///< the worker's
};

constexpr pollfd nothing_else{-1, 0, 0};

void append(std::vector<std::uint8_t> &out, const void *bytes, std::size_t count) {
    auto *from = static_cast<const std::uint8_t *>(bytes);
    out.insert(out.end(), from, from + count);
}

/// In the byte order of both sides, which UCX wants to be the same anyway.
struct PlaceStart {
    std::uint64_t address;
    std::uint64_t rkey_bytes;
};

class Sink final : public UcxSink {
  public:
    explicit Sink(std::unique_ptr<Worker> worker) : worker_(std::move(worker)) {}
    ~Sink() override {
        ucp_context_h context = worker_->context();
        worker_.reset();  // nobody puts anything any more
        if (memory_ != nullptr) ucp_mem_unmap(context, memory_);
    }

    Status make_place(std::span<std::byte> memory) {
        ucp_mem_map_params_t params{};
        params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
        params.address = memory.data();
        params.length = memory.size();
        ucs_status_t status = ucp_mem_map(worker_->context(), &params, &memory_);
        if (status != UCS_OK) return ucx_error("memory can not be registered", status);
        void *rkey = nullptr;
        std::size_t rkey_bytes = 0, address_bytes = 0;
        status = ucp_rkey_pack(worker_->context(), memory_, &rkey, &rkey_bytes);
        if (status != UCS_OK) return ucx_error("no key for memory", status);
        PlaceStart start{reinterpret_cast<std::uintptr_t>(memory.data()), rkey_bytes};
        append(place_, &start, sizeof start);
        append(place_, rkey, rkey_bytes);
        ucp_rkey_buffer_release(rkey);
        ucp_address_t *address = nullptr;
        status = ucp_worker_get_address(worker_->get(), &address, &address_bytes);
        if (status != UCS_OK) return ucx_error("no address", status);
        append(place_, address, address_bytes);
        ucp_worker_release_address(worker_->get(), address);
        return {};
    }

    const std::vector<std::uint8_t> &place() const override { return place_; }

    Status drive(pollfd control, const Cancellations &cancellations, WaitLimits::Time deadline) override {
        return worker_->drive([] { return false; }, control, cancellations, {24h, deadline});
    }

  private:
    std::unique_ptr<Worker> worker_;
    ucp_mem_h memory_ = nullptr;
    std::vector<std::uint8_t> place_;
};

class Source final : public UcxSource {
  public:
    Source(std::unique_ptr<Worker> worker, Cancellations cancellations, WaitLimits limits)
        : worker_(std::move(worker)), cancellations_(std::move(cancellations)), limits_(limits) {}
    ~Source() override {
        if (endpoint_ != nullptr) close_endpoint();
        for (void *request : puts_) ucp_request_free(request);
        if (rkey_ != nullptr) ucp_rkey_destroy(rkey_);
    }

    Status connect(std::span<const std::uint8_t> place) {
        PlaceStart start;
        if (place.size() < sizeof start) return Status(Code::corrupt, "a place that is cut short");
        std::memcpy(&start, place.data(), sizeof start);
        auto rest = place.subspan(sizeof start);
        if (start.rkey_bytes == 0 || start.rkey_bytes >= rest.size())
            return Status(Code::corrupt, "a place that is cut short");
        remote_ = start.address;
        ucp_ep_params_t params{};
        params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                            UCP_EP_PARAM_FIELD_ERR_HANDLER;
        params.address = reinterpret_cast<const ucp_address_t *>(rest.data() + start.rkey_bytes);
        params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
        params.err_handler = {on_error, this};
        ucs_status_t status = ucp_ep_create(worker_->get(), &params, &endpoint_);
        if (status != UCS_OK) return ucx_error("the other node can not be reached", status);
        status = ucp_ep_rkey_unpack(endpoint_, rest.data(), &rkey_);
        return status == UCS_OK ? Status() : ucx_error("the memory's key can not be used", status);
    }

    Status put(std::uint64_t offset, std::span<const std::byte> data) override {
        while (puts_.size() >= puts_at_once) {
            void *oldest = puts_.front();
            DLROVER_TRY(wait(oldest));
            puts_.pop_front();
            ucp_request_free(oldest);
        }
        ucp_request_param_t params{};
        return keep(ucp_put_nbx(endpoint_, data.data(), data.size(), remote_ + offset, rkey_, &params));
    }

    Status flush() override {
        ucp_request_param_t params{};
        DLROVER_TRY(keep(ucp_ep_flush_nbx(endpoint_, &params)));
        for (; !puts_.empty(); puts_.pop_front()) {
            DLROVER_TRY(wait(puts_.front()));
            ucp_request_free(puts_.front());
        }
        return {};
    }

  private:
    static void on_error(void *self, ucp_ep_h, ucs_status_t status) {
        static_cast<Source *>(self)->broken_ = status;
    }

    Status keep(ucs_status_ptr_t request) {
        if (UCS_PTR_IS_ERR(request)) return ucx_error("sending", UCS_PTR_STATUS(request));
        if (request != nullptr) puts_.push_back(request);
        return {};
    }

    Status wait(void *request) {
        auto over = [&] { return broken_ != UCS_OK || ucp_request_check_status(request) != UCS_INPROGRESS; };
        DLROVER_TRY(worker_->drive(over, nothing_else, cancellations_, limits_));
        if (broken_ != UCS_OK) return ucx_error("the connection is lost", broken_);
        ucs_status_t status = ucp_request_check_status(request);
        return status == UCS_OK ? Status() : ucx_error("sending", status);
    }

    void close_endpoint() {
        ucp_request_param_t params{};
        params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
        params.flags = UCP_EP_CLOSE_FLAG_FORCE;
        ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint_, &params);
        if (request == nullptr || UCS_PTR_IS_ERR(request)) return;
        auto over = [&] { return ucp_request_check_status(request) != UCS_INPROGRESS; };
        (void)worker_->drive(over, nothing_else, {}, {close_limit, std::nullopt}).ok();
        ucp_request_free(request);
    }

    std::unique_ptr<Worker> worker_;
    const Cancellations cancellations_;
    const WaitLimits limits_;
    ucp_ep_h endpoint_ = nullptr;
    ucp_rkey_h rkey_ = nullptr;
    std::uint64_t remote_ = 0;
    std::deque<void *> puts_;
    ucs_status_t broken_ = UCS_OK;
};

}  // namespace

/// Larger segments than UCX's own choice: 0.22 instead of 0.09 of memcpy over TCP. What the site has set
/// stays. (ucp_config_modify() does not know the names.)
void ucx_tune() {
    for (const char *name : {"UCX_TCP_TX_SEG_SIZE", "UCX_TCP_RX_SEG_SIZE"}) ::setenv(name, "512k", 0);
}

void ucx_allow(UcxNetworks networks) {
    allowed = networks;
}

Status ucx_usable() {
    return Context::get().take_status();
}

Result<std::unique_ptr<UcxSink>> UcxSink::open(std::span<std::byte> memory) {
    auto worker = Worker::create();
    if (!worker) return worker.take_status();
    auto sink = std::make_unique<Sink>(std::move(*worker));
    DLROVER_TRY(sink->make_place(memory));
    return std::unique_ptr<UcxSink>(std::move(sink));
}

Result<std::unique_ptr<UcxSource>> UcxSource::open(std::span<const std::uint8_t> place,
                                                   Cancellations cancellations, WaitLimits limits) {
    auto worker = Worker::create();
    if (!worker) return worker.take_status();
    auto source = std::make_unique<Source>(std::move(*worker), std::move(cancellations), limits);
    DLROVER_TRY(source->connect(place));
    return std::unique_ptr<UcxSource>(std::move(source));
}

}  // namespace dlrover::transport
