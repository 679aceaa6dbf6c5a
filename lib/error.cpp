// SPDX-License-Identifier: Apache-2.0
#include "lib/error.h"

#include <cstdio>

namespace dlrover::lib {
namespace {

thread_local char error_text[1024] = "no error";

int code_of(Code code) noexcept {
    switch (code) {
        case Code::ok:
            return DLROVER_OK;
        case Code::invalid_argument:
        case Code::already_exists:
        case Code::permission_denied:
            return DLROVER_E_INVALID;
        case Code::not_found:
            return DLROVER_E_NOT_FOUND;
        case Code::unavailable:
            return DLROVER_E_UNAVAILABLE;
        case Code::timeout:
            return DLROVER_E_TIMEOUT;
        case Code::resource_exhausted:
            return DLROVER_E_NO_MEMORY;
        case Code::stale:
            return DLROVER_E_STALE;
        case Code::corrupt:
            return DLROVER_E_CORRUPT;
        case Code::unsupported:
            return DLROVER_E_UNSUPPORTED;
        case Code::system:
        case Code::internal:
            return DLROVER_E_SYSTEM;
    }
    return DLROVER_E_SYSTEM;
}

}  // namespace

int to_code(const Status &status) noexcept {
    if (status.ok()) return DLROVER_OK;
    return fail(code_of(status.code()), status.message().c_str());
}

int fail(int code, const char *text) noexcept {
    std::snprintf(error_text, sizeof error_text, "%s", text);
    return code;
}

const char *last_error_text() noexcept {
    return error_text;
}

}  // namespace dlrover::lib
