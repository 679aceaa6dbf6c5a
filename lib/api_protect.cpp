// SPDX-License-Identifier: Apache-2.0
// The C interface to protected memory, on top of saves and restores.
#include "lib/guard.h"

using namespace dlrover;
using namespace dlrover::lib;

namespace {

ProtectedPiece to_piece(const char *name, void *ptr, ckpt::DType dtype, std::uint32_t ndim,
                        const std::uint64_t *global_shape, const std::uint64_t *global_offset,
                        const std::uint64_t *local_shape) {
    auto copy = [ndim](const std::uint64_t *numbers) {
        return ndim == 0 ? std::vector<std::uint64_t>() : std::vector<std::uint64_t>(numbers, numbers + ndim);
    };
    return {name,
            dtype,
            copy(global_shape),
            copy(global_offset),
            copy(local_shape),
            static_cast<std::byte *>(ptr),
            0};
}

/// The save, begun and filled; its commit needs the memory no more.
int copy_protected(dlrover_context *context, std::uint64_t step, dlrover_save **out) {
    std::lock_guard lock(context->protected_mutex);
    const ProtectedMemory &memory = context->protected_memory;
    auto sources = memory.sources();  // before a slot is asked for: a mistake of the program costs nothing
    if (!sources) return to_code(sources.take_status());
    dlrover_save *save = nullptr;
    int code = dlrover_save_begin(context, step, memory.save_bound(), &save);
    if (code != DLROVER_OK) return code;
    code = save_part(save, true, [&] { return save->writer.add(*sources); });
    if (code == DLROVER_OK)
        *out = save;
    else
        dlrover_save_abort(save);
    return code;
}

/// Under `mutex`: what is restarted from, opened once for all sizes and the restart.
Result<dlrover_restore *> peek(dlrover_context *context) {
    if (!context->peeked) {
        auto restore = context->open_restore();
        if (!restore) return restore.take_status();
        context->peeked = std::move(*restore);
    }
    return context->peeked.get();
}

OtherWorld saving_world(const dlrover_context &context, const dlrover_restore &opened) {
    return {opened.reader.train_step().value(), opened.saved_by(), context.environment.world_size};
}

/// Under `protected_mutex`.
Status fill(const dlrover_context &context, dlrover_restore &opened) {
    const ProtectedMemory &memory = context.protected_memory;
    OtherWorld world = saving_world(context, opened);
    if (world.saved_by != world.world_size) return memory.gather(opened.global(), world);
    return memory.fill(opened.reader, context.environment.copy_threads);
}

/// Under both.
Result<std::uint64_t> saved_count(const dlrover_context &context, dlrover_restore &opened, int id) {
    const ProtectedMemory &memory = context.protected_memory;
    OtherWorld world = saving_world(context, opened);
    if (world.saved_by != world.world_size) return memory.gathered_count(opened.global(), world, id);
    return memory.saved_count(opened.reader, id);
}

/// Under `protected_mutex`; the bytes are copied without `mutex`.
int restart(dlrover_context *context) {
    std::unique_ptr<dlrover_restore> opened;
    int code = locked(context, true, [&] {
        auto peeked = peek(context);
        if (peeked.ok()) opened = std::move(context->peeked);
        return peeked.take_status();
    });
    if (code != DLROVER_OK) return code;
    Status filled = fill(*context, *opened);
    (void)locked(context, true, [&] {
        context->close_restore(std::move(opened), filled.ok() ? "" : filled.message());
        return Status();
    });
    return to_code(filled);
}

/// -1 also where it can not be told: `code` says why.
std::int64_t restart_step(dlrover_context *context, int &code) {
    dlrover_world world{};
    code = dlrover_get_world(context, &world);
    return code == DLROVER_OK ? world.restore_step : -1;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int dlrover_protect(dlrover_context *context, int id, void *ptr, uint64_t count, uint32_t dtype) {
    return guarded(context != nullptr, [&] {
        std::lock_guard lock(context->protected_mutex);
        return context->protected_memory.protect(id, ptr, count, dtype);
    });
}

int dlrover_protect_array(dlrover_context *context, int id, const char *name, void *ptr, uint32_t dtype,
                          uint32_t ndim, const uint64_t *global_shape, const uint64_t *global_offset,
                          const uint64_t *local_shape) {
    bool shapes = global_shape != nullptr && global_offset != nullptr && local_shape != nullptr;
    auto type = ckpt::to_dtype(dtype);
    bool arguments = context != nullptr && name != nullptr && type && ndim <= DLROVER_MAX_DIMS;
    return guarded(arguments && (shapes || ndim == 0), [&] {
        auto piece = to_piece(name, ptr, *type, ndim, global_shape, global_offset, local_shape);
        std::lock_guard lock(context->protected_mutex);
        return context->protected_memory.protect_array(id, std::move(piece));
    });
}

int dlrover_unprotect(dlrover_context *context, int id) {
    return guarded(context != nullptr, [&] {
        std::lock_guard lock(context->protected_mutex);
        return context->protected_memory.unprotect(id);
    });
}

uint64_t dlrover_protected_bytes(dlrover_context *context) {
    std::uint64_t bytes = 0;
    (void)guarded(context != nullptr, [&] {
        std::lock_guard lock(context->protected_mutex);
        bytes = context->protected_memory.save_bound();
        return Status();
    });
    return bytes;
}

int dlrover_save_add_protected(dlrover_save *save) {
    return save_part(save, true, [&] {
        std::lock_guard lock(save->context->protected_mutex);
        auto sources = save->context->protected_memory.sources();
        return sources.ok() ? save->writer.add(*sources) : sources.take_status();
    });
}

int dlrover_checkpoint(dlrover_context *context, uint64_t step) {
    return guarded(context != nullptr, [&] {
        dlrover_save *save = nullptr;
        int code = copy_protected(context, step, &save);
        return code == DLROVER_OK ? dlrover_save_commit(save) : code;
    });
}

int dlrover_restart_available(dlrover_context *context) {
    int code = DLROVER_OK;
    std::int64_t step = restart_step(context, code);
    return code == DLROVER_OK ? step >= 0 : code;
}

int64_t dlrover_restart_step(dlrover_context *context) {
    int code = DLROVER_OK;
    return restart_step(context, code);
}

int dlrover_restart_size(dlrover_context *context, int id, uint64_t *count) {
    return guarded(context != nullptr && count != nullptr, [&] {
        std::lock_guard protection(context->protected_mutex);
        return locked(context, true, [&] {
            auto opened = peek(context);
            if (!opened) return opened.take_status();
            auto saved = saved_count(*context, **opened, id);
            if (saved.ok()) *count = *saved;
            return saved.take_status();
        });
    });
}

int dlrover_restart(dlrover_context *context) {
    return guarded(context != nullptr, [&] {
        std::lock_guard protection(context->protected_mutex);
        return restart(context);
    });
}
}
#pragma GCC visibility pop
