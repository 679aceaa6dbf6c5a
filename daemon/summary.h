// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "elastic/goodput.h"
#include "local_types.h"

namespace dlrover::daemon {

/// What stands on the job's stderr at its end; empty when nothing worth a line happened.
std::string summary_text(const elastic::Goodput &goodput);
proto::local::GoodputT to_proto(const elastic::Goodput &goodput);
elastic::Goodput from_proto(const proto::local::GoodputT &goodput);

}  // namespace dlrover::daemon
