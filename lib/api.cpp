// SPDX-License-Identifier: Apache-2.0
// The C interface: checks of arguments, locks, exceptions and statuses into codes. What happens is elsewhere.
#include <array>
#include <chrono>
#include <optional>
#include <thread>

#include "base/fault.h"
#include "ckpt/checksum.h"
#include "lib/api_chunk.h"
#include "lib/guard.h"
#include "lib/next_generation.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

using namespace dlrover;
using namespace dlrover::lib;

#pragma GCC visibility push(default)
extern "C" {

const char *dlrover_version(void) {
    return PACKAGE_VERSION;
}

const char *dlrover_error_text(void) {
    return last_error_text();
}
}
#pragma GCC visibility pop

namespace {

constexpr int success = DLROVER_OK;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds longest_pause(20);

/// With what the caller need not count of the table: 1 MiB, and 64 bytes for each MiB of data, in which the
/// hashes of its blocks fit, however small the chunks are that have any. None: too large.
std::optional<std::uint64_t> with_table(std::uint64_t bytes) {
    constexpr std::uint64_t allowance = std::uint64_t{1} << 20, bytes_per_block = 64;
    std::uint64_t more = allowance + bytes / (ckpt::checksum_block_bytes / bytes_per_block);
    if (__builtin_add_overflow(bytes, more, &bytes)) return std::nullopt;
    return bytes;
}

ckpt::ObjectIdentity identity_of(const Environment &e, TrainStep step) {
    return {step, Rank(e.rank), e.world_size, e.generation, e.lineage};
}

/// The spans point into `chunk`.
Result<ChunkSource> to_source(const dlrover_chunk &chunk, const void *data, std::uint64_t bytes) {
    auto info = to_info(chunk);
    if (!info) return info.take_status();
    ChunkSource source{*info, nullptr};
    source.info.bytes = bytes;
    source.data = static_cast<const std::byte *>(data);
    return source;
}

void from_info(const ckpt::ChunkInfo &info, dlrover_chunk &out) {
    out = {};
    out.name = info.name.data();  // the table's strings end in a zero byte
    out.dtype = static_cast<std::uint32_t>(info.dtype);
    out.ndim = static_cast<std::uint32_t>(info.local_shape.size());
    out.replica = info.replica;
    std::copy(info.global_shape.begin(), info.global_shape.end(), out.global_shape);
    std::copy(info.global_offset.begin(), info.global_offset.end(), out.global_offset);
    std::copy(info.local_shape.begin(), info.local_shape.end(), out.local_shape);
}

Status may_leave(dlrover_context *context) {
    std::lock_guard lock(context->mutex);
    DLROVER_TRY(context->check_daemon());
    context->drop_peeked();
    if (context->saving || context->restoring)
        return Status(Code::invalid_argument,
                      "a save or a restore is open (in Python the tensors of load(views=True), too)");
    if (!context->environment.stays)
        return Status(Code::invalid_argument, "dlrover_stay was not said: this process is being ended");
    return {};
}

/// The former context ends in any case once the generation is left.
Status go_on(dlrover_context *&context) {
    DLROVER_TRY(may_leave(context));
    Environment environment = context->environment;
    ProtectedMemory protected_memory = std::move(context->protected_memory);
    std::uint32_t save_wait_ms = context->save_wait_ms;
    dlrover_close(std::exchange(context, nullptr));
    auto variables = await_next_generation(environment);
    if (!variables) return variables.take_status();
    DLROVER_TRY(set_variables(*variables));
    auto next = dlrover_context::open(true);
    if (!next) return next.take_status();
    (*next)->protected_memory = std::move(protected_memory);
    (*next)->save_wait_ms = save_wait_ms;
    if (!fork_guard_add(next->get())) return Status(Code::resource_exhausted, "too many open contexts");
    context = next->release();
    return {};
}

int begin_save(dlrover_context *context, std::uint64_t step, std::uint64_t bytes, IfFull if_full,
               Clock::time_point begun_at, dlrover_save **out) {
    if (context->saving) return fail(DLROVER_E_INVALID, "a save is open already");
    context->drop_peeked();
    auto bound = with_table(bytes);
    if (!bound || step > INT64_MAX) return fail(DLROVER_E_INVALID, "step or bytes is too large");
    auto begun = context->store->begin(TrainStep(step), *bound, if_full);
    if (!begun.ok()) {
        context->note_save(step, false);
        return to_code(begun.status());
    }
    if (auto *skipped = std::get_if<SaveSkipped>(&*begun)) {
        if (if_full == IfFull::skip) context->note_save(step, false);
        return fail(DLROVER_E_SKIPPED, skipped->reason.c_str());
    }
    const Environment &e = context->environment;
    *out = new dlrover_save{
        context, ObjectWriter(std::get<SaveTarget>(*begun), identity_of(e, TrainStep(step)), e.copy_threads),
        begun_at};
    context->saving = true;
    return success;
}

int refuse_skipped(std::uint64_t step) {
    std::string text = "this rank has skipped step " + std::to_string(step) +
                       " before, or given it up: the others may have what it was then";
    return fail(DLROVER_E_SKIPPED, text.c_str());
}

/// Asks for a slot until one is free or the context's patience ends; who else calls is not kept waiting.
int begin_patiently(dlrover_context *context, std::uint64_t step, std::uint64_t bytes, dlrover_save **out) {
    auto begun_at = Clock::now();
    std::chrono::milliseconds patience(context->save_wait_ms.load()), pause(1);
    context->progress.save_begin();
    bool is_skipped = false;
    for (;;) {
        IfFull if_full = Clock::now() - begun_at < patience ? IfFull::ask_again : IfFull::skip;
        int code = locked(context, true, [&] {
            is_skipped = context->has_skipped(step);
            return is_skipped ? refuse_skipped(step)
                              : begin_save(context, step, bytes, if_full, begun_at, out);
        });
        if (code == success) return code;
        if (code != DLROVER_E_SKIPPED || is_skipped || if_full == IfFull::skip) {
            context->progress.save_end(Clock::now() - begun_at, false);
            if (code == DLROVER_E_SKIPPED || code == DLROVER_E_NO_MEMORY) context->progress.save_skipped();
            return code;
        }
        std::this_thread::sleep_for(pause);
        pause = std::min(pause * 2, longest_pause);
    }
}

Result<std::vector<ChunkSource>> to_sources(std::uint64_t count, const dlrover_chunk *chunks,
                                            const void *const *data, const std::uint64_t *bytes) {
    if (count > ckpt::max_chunks) return Status(Code::invalid_argument, "too many chunks");
    std::vector<ChunkSource> sources;
    sources.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) {
        auto source = to_source(chunks[i], data[i], bytes[i]);
        if (!source) return source.take_status();
        sources.push_back(*source);
    }
    return sources;
}

Status add_chunks(dlrover_save *save, std::uint64_t count, const dlrover_chunk *chunks,
                  const void *const *data, const std::uint64_t *bytes) {
    auto sources = to_sources(count, chunks, data, bytes);
    return sources.ok() ? save->writer.add(*sources) : sources.take_status();
}

Status add_cuda_chunks(dlrover_save *save, std::uint64_t count, const dlrover_chunk *chunks,
                       const void *const *data, const std::uint64_t *bytes, void *stream) {
    auto sources = to_sources(count, chunks, data, bytes);
    if (!sources) return sources.take_status();
    auto stage = save->context->stage();
    if (!stage) return stage.take_status();
    return save->writer.add_cuda(*sources, **stage, stream);
}

void give_up(const dlrover_save &save) {
    const SaveTarget &target = save.writer.target();
    save.context->end_staging();
    save.context->store->abort(target);
    save.context->note_save(target.train_step.value(), false);
}

int commit_save(dlrover_save *save) {
    dlrover_context *context = save->context;
    const SaveTarget &target = save->writer.target();
    if (save->failed) {
        give_up(*save);
        return fail(DLROVER_E_INVALID, save_given_up);
    }
    auto layout = save->writer.finish();
    if (!layout) {
        give_up(*save);
        return to_code(layout.status());
    }
    context->end_staging();
    layout->to_storage = save->to_storage;
    auto copy_us = std::chrono::duration_cast<std::chrono::microseconds>(save->writer.copy_time()).count();
    auto sealed = context->store->seal(target, *layout, static_cast<std::uint64_t>(copy_us));
    auto *skipped = sealed.ok() ? std::get_if<SaveSkipped>(&*sealed) : nullptr;
    context->note_save(target.train_step.value(), sealed.ok() && skipped == nullptr);
    if (!sealed.ok()) return to_code(sealed.status());
    fault_point("after_seal");
    if (skipped == nullptr) return success;
    context->progress.save_skipped();
    return fail(DLROVER_E_SKIPPED, skipped->reason.c_str());
}

void end_save(std::unique_ptr<dlrover_save> save, bool saved) {
    save->context->saving = false;
    bool here = save->thread == std::this_thread::get_id();
    auto until = here ? std::chrono::steady_clock::now() : save->left_at;
    save->context->progress.save_end(until - save->begun, saved);
}

int give_restore(Result<std::unique_ptr<dlrover_restore>> restore, dlrover_restore **out) {
    if (restore.ok()) *out = restore->release();
    return to_code(restore.take_status());
}

int give_chunk(const dlrover_restore *restore, std::uint64_t index, dlrover_chunk *chunk, const void **data,
               std::uint64_t *bytes) {
    ckpt::ChunkInfo info = restore->reader.chunk(index);
    from_info(info, *chunk);
    *data = restore->reader.data(index);
    *bytes = info.bytes;
    return success;
}

/// Damage that shows after the opening is told to the daemon when the restore is closed.
Status noted(dlrover_restore *restore, Status status) {
    if (status.code() == Code::corrupt) restore->damage = status.message();
    return status;
}

Status give_tensor(dlrover_restore *restore, std::uint64_t index, dlrover_chunk *out) {
    auto count = restore->global().count();
    if (!count) return noted(restore, count.take_status());
    if (index >= *count) return Status(Code::not_found, "no global tensor of that number");
    auto tensor = restore->global().tensor(index);
    if (!tensor) return noted(restore, tensor.take_status());
    const std::array<std::uint64_t, DLROVER_MAX_DIMS> origin{};
    ckpt::ChunkInfo info;
    info.name = tensor->name;
    info.dtype = tensor->dtype;
    info.global_shape = info.local_shape = tensor->shape;
    info.global_offset = std::span(origin).first(tensor->shape.size());
    from_info(info, *out);
    return {};
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int dlrover_open(dlrover_context **out) {
    return guarded(out != nullptr, [&] {
        auto context = dlrover_context::open();
        if (!context) return context.take_status();
        if (!fork_guard_add(context->get()))
            return Status(Code::resource_exhausted, "too many open contexts");
        *out = context->release();
        return Status();
    });
}

void dlrover_close(dlrover_context *context) {
    if (context == nullptr || forked()) return;
    fork_guard_remove(context);
    delete context;
}

int dlrover_stay(dlrover_context *context) {
    return locked(context, true, [&] {
        if (context->saving || context->restoring)
            return Status(Code::invalid_argument, "a save or a restore is open");
        return context->stay();
    });
}

int dlrover_next_generation(dlrover_context **context) {
    return guarded(context != nullptr && *context != nullptr, [&] { return go_on(*context); });
}

int dlrover_get_world(dlrover_context *context, dlrover_world *out) {
    return locked(context, out != nullptr, [&] {
        auto world = context->world();
        if (world.ok()) *out = *world;
        return world.take_status();
    });
}

int dlrover_prepare(dlrover_context *context, uint64_t bytes) {
    auto bound = with_table(bytes);
    return locked(context, bound.has_value(), [&] { return context->store->prepare(*bound); });
}

int dlrover_prepare_cuda(dlrover_context *context, uint64_t bytes, const void *pointer) {
    auto bound = with_table(bytes);
    return locked(context, bound.has_value() && pointer != nullptr, [&] {
        auto stage = context->stage();
        if (!stage) return stage.take_status();
        DLROVER_TRY(context->store->prepare(*bound));
        return (*stage)->prepare(reinterpret_cast<dlrover::lib::cuda::Pointer>(pointer),
                                 context->store->prepared());
    });
}

int dlrover_save_wait(dlrover_context *context, uint32_t milliseconds) {
    return guarded(context != nullptr, [&] {
        context->save_wait_ms = milliseconds;
        return success;
    });
}

int dlrover_save_begin(dlrover_context *context, uint64_t step, uint64_t bytes, dlrover_save **out) {
    return guarded(context != nullptr && out != nullptr,
                   [&] { return begin_patiently(context, step, bytes, out); });
}

int dlrover_save_add(dlrover_save *save, const dlrover_chunk *chunk, const void *data, uint64_t bytes) {
    return save_part(save, chunk != nullptr, [&] { return add_chunks(save, 1, chunk, &data, &bytes); });
}

int dlrover_save_add_many(dlrover_save *save, uint64_t count, const dlrover_chunk *chunks,
                          const void *const *data, const uint64_t *bytes) {
    bool arrays = chunks != nullptr && data != nullptr && bytes != nullptr;
    return save_part(save, count == 0 || arrays,
                     [&] { return add_chunks(save, count, chunks, data, bytes); });
}

int dlrover_save_add_cuda(dlrover_save *save, uint64_t count, const dlrover_chunk *chunks,
                          const void *const *data, const uint64_t *bytes, void *stream) {
    bool arrays = chunks != nullptr && data != nullptr && bytes != nullptr;
    return save_part(save, count == 0 || arrays,
                     [&] { return add_cuda_chunks(save, count, chunks, data, bytes, stream); });
}

int dlrover_wait_staged(dlrover_context *context) {
    return guarded(context != nullptr, [&] {
        CudaStage *stage = context->stage_if_used();
        return stage != nullptr ? stage->wait() : Status();
    });
}

int dlrover_fence_staged(dlrover_context *context, void *stream) {
    return guarded(context != nullptr, [&] {
        CudaStage *stage = context->stage_if_used();
        return stage != nullptr ? stage->fence(stream) : Status();
    });
}

int dlrover_save_skeleton(dlrover_save *save, const char *json, uint64_t bytes) {
    return save_part(save, json != nullptr || bytes == 0, [&] {
        return save->writer.set_skeleton({json, bytes});
    });
}

int dlrover_save_ledger(dlrover_save *save, const void *data, uint64_t bytes) {
    return save_part(save, data != nullptr || bytes == 0, [&] {
        return save->writer.set_ledger({static_cast<const std::uint8_t *>(data), bytes});
    });
}

int dlrover_save_to_storage(dlrover_save *save) {
    return locked(save != nullptr ? save->context : nullptr, true, [&] {
        Status possible = save->context->store->can_go_to_storage();
        save->to_storage = possible.ok();
        return possible;
    });
}

int dlrover_save_commit(dlrover_save *save) {
    // Without the context's lock: the copies of a GPU may take a while.
    if (save != nullptr && !save->failed) {
        int settled = save_part(save, true, [&] { return save->writer.settle(); });
        if (settled != DLROVER_OK) {
            dlrover_save_abort(save);
            return settled;
        }
    }
    return locked(save != nullptr ? save->context : nullptr, true, [&] {
        int code = commit_save(save);
        end_save(std::unique_ptr<dlrover_save>(save), code == DLROVER_OK);
        return code;
    });
}

void dlrover_save_abort(dlrover_save *save) {
    (void)locked(save != nullptr ? save->context : nullptr, true, [&] {
        give_up(*save);
        end_save(std::unique_ptr<dlrover_save>(save), false);
        return success;
    });
}

int dlrover_restore_open(dlrover_context *context, dlrover_restore **out) {
    return locked(context, out != nullptr, [&] { return give_restore(context->open_restore(), out); });
}

int dlrover_restore_open_folder(dlrover_context *context, const char *folder, dlrover_restore **out) {
    return locked(context, folder != nullptr && out != nullptr,
                  [&] { return give_restore(context->open_folder(folder), out); });
}

int64_t dlrover_restore_step(const dlrover_restore *restore) {
    if (restore == nullptr) return -1;
    return static_cast<int64_t>(restore->reader.train_step().value());
}

uint64_t dlrover_restore_count(const dlrover_restore *restore) {
    return restore == nullptr ? 0 : restore->reader.count();
}

int dlrover_restore_chunk(const dlrover_restore *restore, uint64_t index, dlrover_chunk *chunk,
                          const void **data, uint64_t *bytes) {
    bool arguments = restore != nullptr && chunk != nullptr && data != nullptr && bytes != nullptr;
    return guarded(arguments, [&] {
        if (index >= restore->reader.count()) return fail(DLROVER_E_NOT_FOUND, "no chunk of that number");
        return give_chunk(restore, index, chunk, data, bytes);
    });
}

int dlrover_restore_find(const dlrover_restore *restore, const char *name, dlrover_chunk *chunk,
                         const void **data, uint64_t *bytes) {
    bool arguments =
        restore != nullptr && name != nullptr && chunk != nullptr && data != nullptr && bytes != nullptr;
    return guarded(arguments, [&] {
        auto index = restore->reader.find(name);
        if (!index) return fail(DLROVER_E_NOT_FOUND, "no chunk of that name");
        return give_chunk(restore, *index, chunk, data, bytes);
    });
}

int dlrover_restore_skeleton(const dlrover_restore *restore, const char **json, uint64_t *bytes) {
    return guarded(restore != nullptr && json != nullptr && bytes != nullptr, [&] {
        std::string_view text = restore->reader.skeleton();
        *json = text.data() != nullptr ? text.data() : "";
        *bytes = text.size();
        return success;
    });
}

int dlrover_restore_ledger(const dlrover_restore *restore, const void **data, uint64_t *bytes) {
    return guarded(restore != nullptr && data != nullptr && bytes != nullptr, [&] {
        *data = restore->reader.ledger().data();
        *bytes = restore->reader.ledger().size();
        return success;
    });
}

int dlrover_restore_world_size(const dlrover_restore *restore) {
    if (restore == nullptr) return DLROVER_E_INVALID;
    return static_cast<int>(restore->saved_by());
}

int dlrover_restore_global_count(dlrover_restore *restore, uint64_t *count) {
    return guarded(restore != nullptr && count != nullptr, [&] {
        auto result = restore->global().count();
        if (result.ok()) *count = *result;
        return noted(restore, result.take_status());
    });
}

int dlrover_restore_global(dlrover_restore *restore, uint64_t index, dlrover_chunk *chunk) {
    return guarded(restore != nullptr && chunk != nullptr,
                   [&] { return give_tensor(restore, index, chunk); });
}

int dlrover_restore_read(dlrover_restore *restore, const char *name, uint32_t dtype, uint32_t ndim,
                         const uint64_t *global_offset, const uint64_t *local_shape, void *out,
                         uint64_t bytes) {
    bool places = ndim == 0 || (global_offset != nullptr && local_shape != nullptr);
    bool arguments = restore != nullptr && name != nullptr && ndim <= DLROVER_MAX_DIMS && places &&
                     (out != nullptr || bytes == 0) && ckpt::to_dtype(dtype).has_value();
    return guarded(arguments, [&] {
        TensorBox box{name,
                      *ckpt::to_dtype(dtype),
                      {global_offset, ndim},
                      {local_shape, ndim},
                      {static_cast<std::byte *>(out), bytes}};
        return noted(restore, restore->global().read(box));
    });
}

int dlrover_restore_rank_count(dlrover_restore *restore, uint32_t rank, uint64_t *count) {
    return guarded(restore != nullptr && count != nullptr, [&] {
        auto result = restore->of_ranks().count(rank);
        if (result.ok()) *count = *result;
        return noted(restore, result.take_status());
    });
}

int dlrover_restore_rank_chunk(dlrover_restore *restore, uint32_t rank, uint64_t index, dlrover_chunk *chunk,
                               uint64_t *bytes) {
    return guarded(restore != nullptr && chunk != nullptr && bytes != nullptr, [&] {
        auto info = restore->of_ranks().chunk(rank, index);
        if (!info) return noted(restore, info.take_status());
        from_info(*info, *chunk);
        *bytes = info->bytes;
        return Status();
    });
}

int dlrover_restore_rank_read(dlrover_restore *restore, uint32_t rank, uint64_t index, void *out,
                              uint64_t bytes) {
    return guarded(restore != nullptr && (out != nullptr || bytes == 0), [&] {
        return noted(restore, restore->of_ranks().read(rank, index, {static_cast<std::byte *>(out), bytes}));
    });
}

int dlrover_restore_rank_skeleton(dlrover_restore *restore, uint32_t rank, const char **json,
                                  uint64_t *bytes) {
    return guarded(restore != nullptr && json != nullptr && bytes != nullptr, [&] {
        auto text = restore->of_ranks().skeleton(rank);
        if (!text) return noted(restore, text.take_status());
        *json = text->data() != nullptr ? text->data() : "";
        *bytes = text->size();
        return Status();
    });
}

void dlrover_restore_close(dlrover_restore *restore) {
    (void)locked(restore != nullptr ? restore->context : nullptr, true, [&] {
        restore->context->close_restore(std::unique_ptr<dlrover_restore>(restore));
        return success;
    });
}

int dlrover_report_step(dlrover_context *context, uint64_t step) {
    return guarded(context != nullptr && step < UINT64_MAX, [&] {
        context->progress.report_step(step);
        return success;
    });
}

int dlrover_phase_begin(dlrover_context *context, const char *name) {
    return guarded(context != nullptr && name != nullptr, [&] {
        context->progress.phase_begin();
        return success;
    });
}

int dlrover_phase_end(dlrover_context *context) {
    return guarded(context != nullptr, [&] {
        if (!context->progress.phase_end()) return fail(DLROVER_E_INVALID, "no phase is open");
        return success;
    });
}

int dlrover_event_fd(dlrover_context *context) {
    int fd = -1;
    (void)locked(context, true, [&] {
        if (!context->events) return Status(Code::unsupported, "there are no events without a daemon");
        auto result = context->events->fd();
        if (result.ok()) fd = *result;
        return result.take_status();
    });
    return fd;
}

int dlrover_next_event(dlrover_context *context, dlrover_event *out) {
    return locked(context, out != nullptr, [&] {
        if (!context->events) return Status(Code::not_found, "there are no events without a daemon");
        auto event = context->events->next();
        if (event.ok()) *out = *event;
        return event.take_status();
    });
}
}
#pragma GCC visibility pop
