// SPDX-License-Identifier: Apache-2.0
// Success is free, failure carries a code and a sentence. Functions that can fail return Status or Result<T>;
// neither may be ignored.
#pragma once

#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace dlrover {

enum class Code : unsigned char {
    ok = 0,
    invalid_argument,  ///< the caller's value is wrong; trying again will not help
    not_found,
    already_exists,
    permission_denied,
    unavailable,  ///< the other side is away; trying again may help
    timeout,
    resource_exhausted,  ///< a bound, a quota or memory
    stale,               ///< an old generation, term or lineage
    corrupt,             ///< bytes that fail their check
    unsupported,         ///< not in this version or on this site
    system,              ///< errno, named in the text
    internal,            ///< a broken promise of ours
};

/// Short English name of a code ("not found"); never null.
const char *code_name(Code code) noexcept;

class [[nodiscard]] Status {
  public:
    Status() noexcept = default;
    Status(Code code, std::string message)
        : error_(std::make_unique<Error>(Error{code, std::move(message)})) {}

    /// "context: strerror(err)"; err defaults to errno as it was at the call.
    static Status from_errno(std::string_view context, int err = errno);

    bool ok() const noexcept { return !error_; }
    explicit operator bool() const noexcept { return ok(); }
    Code code() const noexcept { return error_ ? error_->code : Code::ok; }
    /// The sentence; empty on success. The reference lives as long as the Status.
    const std::string &message() const noexcept;
    /// "not found: no such group"
    std::string to_string() const;
    /// The same failure with "context: " in front.
    Status with_context(std::string_view context) &&;

  private:
    struct Error {
        Code code;
        std::string message;
    };
    std::unique_ptr<Error> error_;
};

/// A value or the reason why there is none.
template <typename T>
class [[nodiscard]] Result {
  public:
    Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
    Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)
    Result(Code code, std::string message) : status_(code, std::move(message)) {}

    bool ok() const noexcept { return value_.has_value(); }
    explicit operator bool() const noexcept { return ok(); }
    const Status &status() const &noexcept { return status_; }
    Status take_status() { return std::move(status_); }
    /// Only after ok().
    T &value() &noexcept { return *value_; }
    const T &value() const &noexcept { return *value_; }
    T &&value() &&noexcept { return std::move(*value_); }
    T &operator*() &noexcept { return *value_; }
    const T &operator*() const &noexcept { return *value_; }
    T *operator->() noexcept { return &*value_; }
    const T *operator->() const noexcept { return &*value_; }

  private:
    std::optional<T> value_;
    Status status_;
};

}  // namespace dlrover

/// Leaves the function with the failure of `expression`, a Status.
#define DLROVER_TRY(expression)                                  \
    do {                                                         \
        ::dlrover::Status dlrover_try_status = (expression);     \
        if (!dlrover_try_status.ok()) return dlrover_try_status; \
    } while (0)
