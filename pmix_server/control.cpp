// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/control.h"

#include <cstring>
#include <string_view>

#include "base/units.h"

namespace dlrover::pmix {
namespace {

/// Steps are signed numbers elsewhere.
constexpr std::uint64_t largest_step = static_cast<std::uint64_t>(INT64_MAX) - 1;

/// false: it is none.
bool take_step(const pmix_value_t &value, std::optional<std::uint64_t> &out) {
    if (value.type == PMIX_UNDEF || value.type == PMIX_BOOL) return true;
    if (value.type != PMIX_STRING) return false;
    if (value.data.string == nullptr || value.data.string[0] == '\0') return true;
    constexpr std::size_t most_digits = 20;
    auto step = parse_uint(std::string(value.data.string, strnlen(value.data.string, most_digits + 1)), 0,
                           largest_step);
    if (step) out = *step;
    return step.ok();
}

/// It changes nothing of what is done: PMIx's other words of job control are orders.
bool is_note(const pmix_info_t &info) {
    if (PMIX_CHECK_KEY(&info, PMIX_JOB_CTRL_ID) || PMIX_CHECK_KEY(&info, PMIX_JOB_CTRL_CHECKPOINT_EVENT))
        return true;
    bool order = std::string_view(info.key, strnlen(info.key, PMIX_MAX_KEYLEN)).starts_with("pmix.jctrl.");
    return !order && (info.flags & PMIX_INFO_REQD) == 0;
}

}  // namespace

pmix_status_t parse_control(std::span<const pmix_info_t> directives, Control &out) {
    bool checkpoint = false, restart = false;
    for (const auto &one : directives) {
        if (PMIX_CHECK_KEY(&one, PMIX_JOB_CTRL_CHECKPOINT)) {
            checkpoint = true;
        } else if (PMIX_CHECK_KEY(&one, PMIX_JOB_CTRL_RESTART)) {
            restart = true;
            if (!take_step(one.value, out.step)) return PMIX_ERR_BAD_PARAM;
        } else if (!is_note(one)) {
            return PMIX_ERR_NOT_SUPPORTED;
        }
    }
    out.checkpoint = checkpoint;
    return checkpoint != restart ? PMIX_SUCCESS : PMIX_ERR_NOT_SUPPORTED;
}

pmix_status_t control_status(proto::local::RollbackState state) {
    using State = proto::local::RollbackState;
    switch (state) {
        case State::Begun:
            return PMIX_SUCCESS;
        case State::Refused:
            return PMIX_ERR_NOT_SUPPORTED;
        case State::Unknown:
            return PMIX_ERR_NOT_FOUND;
    }
    return PMIX_ERROR;
}

}  // namespace dlrover::pmix
