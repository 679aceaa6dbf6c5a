// SPDX-License-Identifier: Apache-2.0
#include "spank_plugin/faults.h"

#include <poll.h>

#include <stdexcept>
#include <string_view>

namespace dlrover::spank {

Status inject_fault(const char *hook, const ModuleArgs &args) {
    std::string_view fault = args.fault;
    std::size_t colon = fault.find(':');
    if (colon == std::string_view::npos || fault.substr(0, colon) != hook) return {};
    std::string_view kind = fault.substr(colon + 1);
    if (kind == "throw") throw std::runtime_error("injected exception");
    if (kind == "throw-int") throw 42;
    if (kind == "error") return Status(Code::internal, "injected error");
    if (kind == "hang") ::poll(nullptr, 0, static_cast<int>(args.timeout.count()) + 1000);
    return {};
}

}  // namespace dlrover::spank
