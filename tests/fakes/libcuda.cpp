// SPDX-License-Identifier: Apache-2.0
// A CUDA driver that records. See libcuda.h.
#include "tests/fakes/libcuda.h"

#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

using Result = int;
constexpr Result ok = 0, invalid_value = 1, invalid_context = 201, illegal_address = 700,
                 already_registered = 712, not_registered = 713, capture_unsupported = 900,
                 capture_invalidated = 901, capture_implicit = 906, not_supported = 801;

struct Context {
    int device;
    int retained = 0;
};
struct Event;
struct Stream {
    std::string name;
    Context *context;
    bool program, captured = false, spoiled = false;
    std::deque<std::function<Result()>> work;
    Result failed = ok;
};
/// One record of an event: a place in a stream's work.
struct Record {
    Stream *stream;
    bool passed = false;
};
struct Event {
    std::shared_ptr<Record> newest;
};
struct Block {
    std::size_t bytes;
    int device;
    bool pooled;
};

struct World {
    std::mutex mutex;
    std::condition_variable changed;
    Context contexts[2] = {{0}, {1}};
    std::map<Stream *, std::unique_ptr<Stream>> streams;
    std::map<Event *, std::unique_ptr<Event>> events;
    Stream default_streams[2] = {{"default", &contexts[0], true}, {"default", &contexts[1], true}};
    std::map<char *, Block> device_memory;
    std::map<char *, std::size_t> pinned, registered;
    std::map<std::string, Result> failing;
    std::string log, log_given, violations, violations_given;
    int refuse_after = -1, fail_copy_after = -1, next_stream = 0;
    bool hold_registration = false;
};

World &world() {
    static auto *w = new World;  // never destroyed: threads of the library may outlast main()
    return *w;
}

thread_local std::vector<Context *> stack;
thread_local int capture_mode = 0;

using Lock = std::unique_lock<std::mutex>;

/// The entry in the log, and what a test has put in the call's way.
Result enter(const char *name, const std::string &arguments = "") {
    World &w = world();
    w.log += name + (arguments.empty() ? "" : " " + arguments) + "\n";
    auto failing = w.failing.find(name);
    return failing == w.failing.end() ? ok : failing->second;
}

void violation(const std::string &text) {
    world().violations += text + "\n";
}

/// Calls that a driver refuses while any thread captures, unless the caller's mode is relaxed; they spoil the
/// capture.
Result unsafe_in_capture(const char *name) {
    for (auto &[key, stream] : world().streams) {
        if (!stream->captured || capture_mode == 2) continue;
        stream->spoiled = true;
        violation(std::string(name) + " spoiled a capture");
        return capture_unsupported;
    }
    return ok;
}

Result need_context() {
    return stack.empty() || stack.back() == nullptr ? invalid_context : ok;
}

#define TRY(expression)                                    \
    do {                                                   \
        if (Result r_ = (expression); r_ != ok) return r_; \
    } while (0)

Stream *stream_of(void *handle) {
    if (handle != nullptr) {
        auto found = world().streams.find(static_cast<Stream *>(handle));
        return found == world().streams.end() ? nullptr : found->second.get();
    }
    return stack.empty() ? nullptr : &world().default_streams[stack.back()->device];
}

/// Does one stream's work as far as `until` says.
Result advance(Stream &stream, const std::function<bool()> &until) {
    while (!stream.work.empty() && !until()) {
        auto work = std::move(stream.work.front());
        stream.work.pop_front();
        Result result = work();
        if (result != ok) stream.failed = result;
    }
    return std::exchange(stream.failed, ok);  // told once
}

Result reach(const std::shared_ptr<Record> &record) {
    if (!record || record->passed) return ok;
    return advance(*record->stream, [&] { return record->passed; });
}

const std::string &name_of(const std::shared_ptr<Record> &record) {
    static const std::string nothing = "nothing";
    return record ? record->stream->name : nothing;
}

/// The range [from, from + bytes) lies in one of these.
template <typename Map, typename Bytes>
bool inside(const Map &map, const char *from, std::size_t bytes, Bytes bytes_of) {
    auto after = map.upper_bound(const_cast<char *>(from));
    if (after == map.begin()) return false;
    auto &[base, entry] = *std::prev(after);
    return from >= base && from + bytes <= base + bytes_of(entry);
}

bool on_device(const void *from, std::size_t bytes) {
    return inside(world().device_memory, static_cast<const char *>(from), bytes,
                  [](const Block &b) { return b.bytes; });
}

bool pinned(const void *to, std::size_t bytes) {
    auto same = [](std::size_t n) { return n; };
    auto *at = static_cast<const char *>(to);
    return inside(world().pinned, at, bytes, same) || inside(world().registered, at, bytes, same);
}

const Block *block_of(std::uint64_t pointer) {
    auto &memory = world().device_memory;
    auto after = memory.upper_bound(reinterpret_cast<char *>(pointer));
    if (after == memory.begin()) return nullptr;
    auto &[base, block] = *std::prev(after);
    return reinterpret_cast<char *>(pointer) < base + block.bytes ? &block : nullptr;
}

Result copy_now(void *to, const void *from, std::size_t bytes) {
    World &w = world();
    if (w.fail_copy_after >= 0 && w.fail_copy_after-- == 0) return illegal_address;
    if (!pinned(to, bytes)) violation("a copy was made into memory that is no longer pinned");
    std::memcpy(to, from, bytes);
    return ok;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// ---- the driver's interface, as far as the library uses it ----

Result cuInit(unsigned) {
    Lock lock(world().mutex);
    return enter("cuInit");
}

Result cuGetErrorName(Result result, const char **name) {
    static const std::map<Result, const char *> names{{invalid_value, "CUDA_ERROR_INVALID_VALUE"},
                                                      {invalid_context, "CUDA_ERROR_INVALID_CONTEXT"},
                                                      {illegal_address, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                                                      {not_supported, "CUDA_ERROR_NOT_SUPPORTED"},
                                                      {2, "CUDA_ERROR_OUT_OF_MEMORY"}};
    auto found = names.find(result);
    *name = found == names.end() ? nullptr : found->second;
    return *name != nullptr ? ok : invalid_value;
}

Result cuPointerGetAttribute(void *out, int attribute, std::uint64_t pointer) {
    Lock lock(world().mutex);
    const Block *block = block_of(pointer);
    if (block == nullptr) return invalid_value;
    if (attribute == 2)
        *static_cast<unsigned *>(out) = 2;
    else if (attribute == 9)
        *static_cast<int *>(out) = block->device;
    else if (attribute == 1 && !block->pooled)
        *static_cast<void **>(out) = &world().contexts[block->device];
    else
        return invalid_value;
    return ok;
}

Result cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < 2 ? ok : 101;
}

Result cuDevicePrimaryCtxRetain(void **context, int device) {
    Lock lock(world().mutex);
    TRY(enter("cuDevicePrimaryCtxRetain", std::to_string(device)));
    ++world().contexts[device].retained;
    *context = &world().contexts[device];
    return ok;
}

Result cuDevicePrimaryCtxRelease_v2(int device) {
    Lock lock(world().mutex);
    TRY(enter("cuDevicePrimaryCtxRelease", std::to_string(device)));
    --world().contexts[device].retained;
    return ok;
}

Result cuCtxPushCurrent_v2(void *context) {
    if (context == nullptr) return invalid_context;
    stack.push_back(static_cast<Context *>(context));
    return ok;
}

Result cuCtxPopCurrent_v2(void **context) {
    if (stack.empty()) return invalid_context;
    *context = stack.back();
    stack.pop_back();
    return ok;
}

Result cuThreadExchangeStreamCaptureMode(int *mode) {
    std::swap(*mode, capture_mode);
    return ok;
}

Result cuStreamIsCapturing(void *handle, int *status) {
    Lock lock(world().mutex);
    Stream *stream = stream_of(handle);
    if (stream == nullptr) return invalid_value;
    bool any = false;
    for (auto &[key, other] : world().streams) any |= other->captured && other->context == stream->context;
    if (handle == nullptr && any) return capture_implicit;
    *status = stream->captured ? 1 : 0;
    return ok;
}

Result cuStreamCreate(void **out, unsigned flags) {
    Lock lock(world().mutex);
    World &w = world();
    TRY(need_context());
    auto stream = std::make_unique<Stream>();
    stream->name = "s" + std::to_string(w.next_stream++);
    stream->context = stack.back();
    stream->program = false;
    TRY(enter("cuStreamCreate", stream->name + (flags == 1 ? " non-blocking" : " blocking")));
    TRY(unsafe_in_capture("cuStreamCreate"));
    *out = stream.get();
    w.streams[stream.get()] = std::move(stream);
    return ok;
}

Result cuStreamDestroy_v2(void *handle) {
    Lock lock(world().mutex);
    Stream *stream = stream_of(handle);
    if (handle == nullptr || stream == nullptr) return invalid_value;
    TRY(enter("cuStreamDestroy", stream->name));
    if (!stream->work.empty()) violation("stream " + stream->name + " was destroyed with work in it");
    for (auto &[key, event] : world().events)
        if (event->newest && event->newest->stream == stream) event->newest.reset();
    world().streams.erase(stream);
    return ok;
}

Result cuStreamSynchronize(void *handle) {
    Lock lock(world().mutex);
    Stream *stream = stream_of(handle);
    if (stream == nullptr) return invalid_value;
    TRY(enter("cuStreamSynchronize", stream->name));
    TRY(unsafe_in_capture("cuStreamSynchronize"));
    return advance(*stream, [] { return false; });
}

Result cuStreamWaitEvent(void *handle, void *event_handle, unsigned) {
    Lock lock(world().mutex);
    Stream *stream = stream_of(handle);
    auto *event = static_cast<Event *>(event_handle);
    if (stream == nullptr || world().events.count(event) == 0) return invalid_value;
    TRY(enter("cuStreamWaitEvent", stream->name + " for " + name_of(event->newest)));
    if (stream->captured) {
        stream->spoiled = true;
        violation("cuStreamWaitEvent in a capture");
        return capture_invalidated;
    }
    stream->work.push_back([record = event->newest] { return reach(record); });
    return ok;
}

Result cuEventCreate(void **out, unsigned) {
    Lock lock(world().mutex);
    TRY(need_context());
    TRY(enter("cuEventCreate"));
    auto event = std::make_unique<Event>();
    *out = event.get();
    world().events[event.get()] = std::move(event);
    return ok;
}

Result cuEventDestroy_v2(void *event) {
    Lock lock(world().mutex);
    TRY(enter("cuEventDestroy"));
    return world().events.erase(static_cast<Event *>(event)) == 1 ? ok : invalid_value;
}

Result cuEventRecord(void *event_handle, void *handle) {
    Lock lock(world().mutex);
    Stream *stream = stream_of(handle);
    auto *event = static_cast<Event *>(event_handle);
    if (stream == nullptr || world().events.count(event) == 0) return invalid_value;
    TRY(need_context());
    if (stream->context != stack.back()) return 400;
    TRY(enter("cuEventRecord", stream->name));
    if (stream->captured) {
        violation("cuEventRecord in a capture");
        return capture_invalidated;
    }
    event->newest = std::make_shared<Record>(Record{stream});
    stream->work.push_back([record = event->newest] {
        record->passed = true;
        return ok;
    });
    return ok;
}

Result cuEventSynchronize(void *event_handle) {
    Lock lock(world().mutex);
    auto *event = static_cast<Event *>(event_handle);
    if (world().events.count(event) == 0) return invalid_value;
    TRY(enter("cuEventSynchronize", name_of(event->newest)));
    TRY(unsafe_in_capture("cuEventSynchronize"));
    return reach(event->newest);
}

Result cuMemcpyDtoHAsync_v2(void *to, std::uint64_t from, std::size_t bytes, void *handle) {
    Lock lock(world().mutex);
    Stream *stream = stream_of(handle);
    auto *source = reinterpret_cast<const void *>(from);
    if (stream == nullptr || !on_device(source, bytes)) return invalid_value;
    bool ring = inside(world().pinned, static_cast<const char *>(to), bytes, [](std::size_t n) { return n; });
    TRY(enter("cuMemcpyDtoHAsync",
              std::to_string(bytes) + " on " + stream->name + (ring ? " ring" : " direct")));
    if (!pinned(to, bytes)) {
        violation("a copy into memory that is not pinned as a whole");
        return invalid_value;
    }
    stream->work.push_back([to, source, bytes] { return copy_now(to, source, bytes); });
    return ok;
}

Result cuMemcpyBatchAsync(std::uint64_t *to, std::uint64_t *from, std::size_t *bytes, std::size_t count,
                          void *, std::size_t *first, std::size_t attributes, std::size_t *failed,
                          void *handle) {
    Lock lock(world().mutex);
    Stream *stream = stream_of(handle);
    if (stream == nullptr || handle == nullptr || attributes != 1 || *first != 0) return invalid_value;
    std::string sizes;
    for (std::size_t i = 0; i < count; ++i) sizes += (i == 0 ? "" : ",") + std::to_string(bytes[i]);
    TRY(enter("cuMemcpyBatchAsync", sizes + " on " + stream->name));
    for (*failed = 0; *failed < count; ++*failed) {
        auto *source = reinterpret_cast<const void *>(from[*failed]);
        if (!on_device(source, bytes[*failed])) return invalid_value;
        if (!pinned(reinterpret_cast<void *>(to[*failed]), bytes[*failed])) {
            violation("a copy of a batch into memory that is not pinned as a whole");
            return invalid_value;
        }
    }
    for (std::size_t i = 0; i < count; ++i)
        stream->work.push_back(
            [to = reinterpret_cast<void *>(to[i]), n = bytes[i],
             source = reinterpret_cast<const void *>(from[i])] { return copy_now(to, source, n); });
    return ok;
}

Result cuMemHostAlloc(void **out, std::size_t bytes, unsigned) {
    Lock lock(world().mutex);
    TRY(need_context());
    TRY(enter("cuMemHostAlloc", std::to_string(bytes)));
    TRY(unsafe_in_capture("cuMemHostAlloc"));
    *out = std::malloc(bytes);
    world().pinned[static_cast<char *>(*out)] = bytes;
    return ok;
}

Result cuMemFreeHost(void *memory) {
    Lock lock(world().mutex);
    TRY(enter("cuMemFreeHost"));
    if (world().pinned.erase(static_cast<char *>(memory)) == 0) return invalid_value;
    std::free(memory);
    return ok;
}

Result cuMemHostRegister_v2(void *memory, std::size_t bytes, unsigned flags) {
    Lock lock(world().mutex);
    World &w = world();
    w.changed.wait(lock, [&] { return !w.hold_registration; });
    TRY(need_context());
    TRY(enter("cuMemHostRegister", std::to_string(bytes)));
    TRY(unsafe_in_capture("cuMemHostRegister"));
    if (w.refuse_after >= 0 && w.refuse_after-- == 0) {
        w.refuse_after = 0;
        return not_supported;
    }
    if (flags != 1) violation("memory was registered for one context only");
    if (!w.registered.emplace(static_cast<char *>(memory), bytes).second) return already_registered;
    return ok;
}

Result cuMemHostUnregister(void *memory) {
    Lock lock(world().mutex);
    TRY(enter("cuMemHostUnregister"));
    return world().registered.erase(static_cast<char *>(memory)) == 1 ? ok : not_registered;
}

// ---- control ----

void fake_cuda_reset() {
    World &w = world();
    Lock lock(w.mutex);
    w.streams.clear();
    w.events.clear();
    for (Stream &stream : w.default_streams) stream.work.clear();
    for (Context &context : w.contexts) context.retained = 0;
    for (auto &[base, block] : w.device_memory) std::free(base);
    for (auto &[base, bytes] : w.pinned) std::free(base);
    w.device_memory.clear();
    w.pinned.clear();
    w.registered.clear();
    w.failing.clear();
    w.log.clear();
    w.violations.clear();
    w.refuse_after = w.fail_copy_after = -1;
    w.next_stream = 0;
    w.hold_registration = false;
    w.changed.notify_all();
    stack.assign(1, &w.contexts[0]);
    capture_mode = 0;
}

void *fake_cuda_allocate(int device, size_t bytes, int is_pooled) {
    Lock lock(world().mutex);
    void *memory = std::calloc(1, bytes);
    world().device_memory[static_cast<char *>(memory)] = {bytes, device, is_pooled != 0};
    return memory;
}

void *fake_cuda_stream(int device) {
    World &w = world();
    Lock lock(w.mutex);
    auto stream = std::make_unique<Stream>();
    stream->name = "s" + std::to_string(w.next_stream++);
    stream->context = &w.contexts[device];
    stream->program = true;
    Stream *handle = stream.get();
    w.streams[handle] = std::move(stream);
    return handle;
}

void fake_cuda_launch_write(void *stream, void *device_memory, const void *bytes, size_t count) {
    Lock lock(world().mutex);
    auto *first = static_cast<const char *>(bytes);
    stream_of(stream)->work.push_back([device_memory, data = std::vector<char>(first, first + count)] {
        std::memcpy(device_memory, data.data(), data.size());
        return ok;
    });
}

void fake_cuda_synchronize(void *stream) {
    Lock lock(world().mutex);
    advance(*stream_of(stream), [] { return false; });
}

void fake_cuda_begin_capture(void *stream) {
    Lock lock(world().mutex);
    stream_of(stream)->captured = true;
}

int fake_cuda_end_capture(void *stream) {
    Lock lock(world().mutex);
    Stream *s = stream_of(stream);
    s->captured = false;
    return std::exchange(s->spoiled, false);
}

void fake_cuda_refuse_registration(int after) {
    Lock lock(world().mutex);
    world().refuse_after = after;
}

void fake_cuda_fail_copy(int after) {
    Lock lock(world().mutex);
    world().fail_copy_after = after;
}

void fake_cuda_fail_call(const char *name, int result) {
    Lock lock(world().mutex);
    if (result == ok)
        world().failing.erase(name);
    else
        world().failing[name] = result;
}

void fake_cuda_hold_registration(int hold) {
    Lock lock(world().mutex);
    world().hold_registration = hold != 0;
    world().changed.notify_all();
}

const char *fake_cuda_log() {
    Lock lock(world().mutex);
    world().log_given = world().log;
    return world().log_given.c_str();
}

size_t fake_cuda_registered_bytes() {
    Lock lock(world().mutex);
    size_t total = 0;
    for (auto &[base, bytes] : world().registered) total += bytes;
    return total;
}

int fake_cuda_left() {
    World &w = world();
    Lock lock(w.mutex);
    int left = static_cast<int>(w.events.size() + w.pinned.size() + w.registered.size());
    for (auto &[key, stream] : w.streams) left += stream->program ? 0 : 1;
    for (const Context &context : w.contexts) left += context.retained;
    return left;
}

const char *fake_cuda_violations() {
    Lock lock(world().mutex);
    world().violations_given = world().violations;
    return world().violations_given.c_str();
}

int fake_cuda_capture_mode() {
    return capture_mode;
}

int fake_cuda_context_depth() {
    return static_cast<int>(stack.size());
}
}
#pragma GCC visibility pop
