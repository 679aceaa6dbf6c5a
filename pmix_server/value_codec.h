// SPDX-License-Identifier: Apache-2.0
// PMIx's values <-> bytes, as PMIx itself packs them.
#pragma once

#include <span>

#include "base/status.h"
#include "pmix_server/info_list.h"
#include "proto/frame.h"

namespace dlrover::pmix {

/// invalid_argument: PMIx can not pack it.
Result<proto::Bytes> pack_value(const pmix_value_t &value);
/// `value` is the caller's to destroy, also after a failure. corrupt: these are no value's bytes.
Status unpack_value(const proto::Bytes &bytes, pmix_value_t &value);

/// invalid_argument: PMIx can not pack them.
Result<proto::Bytes> pack_infos(std::span<const pmix_info_t> infos);
/// Adds them to the list. corrupt: these are not so many infos' bytes.
Status unpack_infos(const proto::Bytes &bytes, std::uint32_t count, InfoList &list);

}  // namespace dlrover::pmix
