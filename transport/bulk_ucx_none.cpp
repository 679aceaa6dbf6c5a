// SPDX-License-Identifier: Apache-2.0
// Instead of bulk_ucx.cpp where there is no UCX.
#include "transport/bulk_ucx.h"

namespace dlrover::transport {

void ucx_tune() {}

void ucx_allow(UcxNetworks) {}

Status ucx_usable() {
    return Status(Code::unsupported, "this program was built without UCX: use tcp");
}

Result<std::unique_ptr<UcxSink>> UcxSink::open(std::span<std::byte>) {
    return ucx_usable();
}

Result<std::unique_ptr<UcxSource>> UcxSource::open(std::span<const std::uint8_t>, Cancellations, WaitLimits) {
    return ucx_usable();
}

}  // namespace dlrover::transport
