// SPDX-License-Identifier: Apache-2.0
#include "ckpt/lineage.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdio>

namespace dlrover::ckpt {

std::string make_lineage(const std::string &cluster, std::uint32_t uid, const std::string &name,
                         std::span<const std::string> argv) {
    std::string command;
    for (const std::string &word : argv) (command += word) += '\0';
    char hash[17];
    std::snprintf(hash, sizeof hash, "%016llx",
                  static_cast<unsigned long long>(XXH3_64bits(command.data(), command.size())));
    return cluster + "/" + std::to_string(uid) + "/" + name + "/" + hash;
}

}  // namespace dlrover::ckpt
