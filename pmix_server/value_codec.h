// SPDX-License-Identifier: Apache-2.0
// PMIx's values <-> bytes, as PMIx itself packs them.
#pragma once

#include "base/status.h"
#include "pmix_server/pmix_api.h"
#include "proto/frame.h"

namespace dlrover::pmix {

/// invalid_argument: PMIx can not pack it.
Result<proto::Bytes> pack_value(const pmix_value_t &value);
/// `value` is the caller's to destroy, also after a failure. corrupt: these are no value's bytes.
Status unpack_value(const proto::Bytes &bytes, pmix_value_t &value);

}  // namespace dlrover::pmix
