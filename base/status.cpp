// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <cstring>

namespace dlrover {

const char *code_name(Code code) noexcept {
    switch (code) {
        case Code::ok:
            return "ok";
        case Code::invalid_argument:
            return "invalid argument";
        case Code::not_found:
            return "not found";
        case Code::already_exists:
            return "already exists";
        case Code::permission_denied:
            return "permission denied";
        case Code::unavailable:
            return "unavailable";
        case Code::timeout:
            return "timed out";
        case Code::resource_exhausted:
            return "out of resources";
        case Code::stale:
            return "stale";
        case Code::corrupt:
            return "corrupt";
        case Code::unsupported:
            return "not supported";
        case Code::system:
            return "system error";
        case Code::internal:
            return "internal error";
    }
    return "unknown error";
}

Status Status::from_errno(std::string_view context, int err) {
    char buffer[128] = "";
    const char *text = strerror_r(err, buffer, sizeof buffer);
    Code code = Code::system;
    if (err == ENOENT) code = Code::not_found;
    if (err == EACCES || err == EPERM) code = Code::permission_denied;
    if (err == ENOMEM || err == ENOSPC || err == EMFILE || err == ENFILE) code = Code::resource_exhausted;
    if (err == ECONNREFUSED || err == ECONNRESET || err == EPIPE) code = Code::unavailable;
    if (err == ETIMEDOUT || err == EAGAIN) code = Code::timeout;
    return Status(code, std::string(context) + ": " + text);
}

const std::string &Status::message() const noexcept {
    static const std::string none;
    return error_ ? error_->message : none;
}

std::string Status::to_string() const {
    if (ok()) return "ok";
    return std::string(code_name(code())) + ": " + message();
}

Status Status::with_context(std::string_view context) && {
    if (ok()) return Status();
    return Status(code(), std::string(context) + ": " + message());
}

}  // namespace dlrover
