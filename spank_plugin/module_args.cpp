// SPDX-License-Identifier: Apache-2.0
#include "spank_plugin/module_args.h"

#include <string_view>

#include "base/units.h"
#include "proto/local_codec.h"

namespace dlrover::spank {
namespace {

constexpr std::uint64_t shortest_timeout_ms = 100;
constexpr std::uint64_t longest_timeout_ms = 2000;  // a step must not start later than this because of us

bool take_path(std::string_view value, std::string &path) {
    if (value.empty() || value[0] != '/') return false;
    path = value;
    return true;
}

bool take_word(std::string_view key, std::string_view value, ModuleArgs &args) {
    if (key == "agent") return take_path(value, args.agent);
    if (key == "socket") return take_path(value, args.socket);
    if (key == "timeout_ms") {
        auto ms = parse_uint(value, shortest_timeout_ms, longest_timeout_ms);
        if (ms) args.timeout = std::chrono::milliseconds(*ms);
        return ms.ok();
    }
    return false;
}

}  // namespace

ModuleArgs parse_module_args(std::span<char *const> words) {
    ModuleArgs args;
    args.agent = DLROVER_LIBEXECDIR "/dlrover-agent";
    args.socket = proto::default_socket_path;
    for (const char *raw : words) {
        std::string_view word = raw ? raw : "";
        std::size_t equals = word.find('=');
        bool taken = equals != std::string_view::npos &&
                     take_word(word.substr(0, equals), word.substr(equals + 1), args);
        if (!taken)
            args.warnings.push_back(
                "\"" + std::string(word) +
                "\" in plugstack.conf is ignored; known are agent=/PATH, socket=/PATH and "
                "timeout_ms=N (100 to 2000)");
    }
    return args;
}

}  // namespace dlrover::spank
