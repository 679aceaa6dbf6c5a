// SPDX-License-Identifier: Apache-2.0
// What every entry point of the C interface does around its body.
#pragma once

#include <exception>
#include <new>
#include <type_traits>
#include <utility>

#include "lib/context.h"
#include "lib/error.h"
#include "lib/fork_guard.h"

namespace dlrover::lib {

/// body() -> Status or int, in a process that may, with valid handles, without letting an exception out.
template <typename Body>
int guarded(bool arguments, Body &&body) noexcept {
    if (forked())
        return fail(DLROVER_E_FORKED, "this process is a forked child: the checkpoint belongs to its parent");
    if (!arguments) return fail(DLROVER_E_INVALID, "an argument is NULL or out of range");
    try {
        if constexpr (std::is_same_v<decltype(body()), int>)
            return body();
        else
            return to_code(body());
    } catch (const std::bad_alloc &) {
        return fail(DLROVER_E_NO_MEMORY, "out of memory");
    } catch (const std::exception &e) {
        return fail(DLROVER_E_SYSTEM, e.what());
    } catch (...) {
        return fail(DLROVER_E_SYSTEM, "unexpected failure");
    }
}

/// The same under the context's lock; afterwards the event descriptor is brought up to date.
template <typename Body>
int locked(dlrover_context *context, bool arguments, Body &&body) noexcept {
    return guarded(context != nullptr && arguments, [&] {
        std::lock_guard lock(context->mutex);
        auto result = body();
        if (context->events) context->events->refresh();
        return result;
    });
}

/// guarded() for one part of a save: after a failure the save takes nothing more.
template <typename Body>
int save_part(dlrover_save *save, bool arguments, Body &&body) noexcept {
    int code = guarded(save != nullptr && arguments, [&] {
        if (save->failed) return Status(Code::invalid_argument, save_given_up);
        return body();
    });
    if (code != DLROVER_OK && save != nullptr) save->failed = true;
    if (save != nullptr && save->thread == std::this_thread::get_id())
        save->left_at = std::chrono::steady_clock::now();
    return code;
}

}  // namespace dlrover::lib
