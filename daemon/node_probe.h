// SPDX-License-Identifier: Apache-2.0
// What a node has, as its kernel and munged say. Calls block: for a thread of their own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "daemon/site.h"
#include "transport/credentials.h"

namespace dlrover::daemon {

/// NodeAddr, a name or numeric: the interface that has it. wanted: the setting network.interface.
void probe_address(const std::string &node_addr, const std::string &wanted, Facts &facts);
/// Makes a credential and reads it.
void probe_credentials(transport::Credentials &credentials, Facts &facts);

}  // namespace dlrover::daemon
