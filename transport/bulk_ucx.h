// SPDX-License-Identifier: Apache-2.0
// Bytes put into another process's memory by UCX. Who connects to a UCX worker over TCP may write anywhere in
// its process: so this is for transports whose hardware checks keys, or where the site says so.
#pragma once

#include <poll.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/bulk_socket.h"

namespace dlrover::transport {

/// Sets environment variables: before there are other threads.
void ucx_tune();

/// `rdma`: InfiniBand's transports (RoCE is one) alone, so that nothing listens on TCP.
enum class UcxNetworks : std::uint8_t { rdma, any };

/// For the whole process, before the first ucx_usable() of it; later it has no effect. Without it: rdma.
void ucx_allow(UcxNetworks networks);

/// unsupported: built without UCX. Else whether it can be used here.
Status ucx_usable();

/// Whether a network is up whose hardware checks keys. `devices`: where the kernel lists them.
bool rdma_present(const std::string &devices = "/sys/class/infiniband");

/// The receiving side of one transfer. One thread.
class UcxSink {
  public:
    static Result<std::unique_ptr<UcxSink>> open(std::span<std::byte> memory);
    virtual ~UcxSink() = default;
    /// What the sending side needs to know: opaque, not empty.
    virtual const std::vector<std::uint8_t> &place() const = 0;
    /// Lets the library work until `control` is ready.
    virtual Status drive(pollfd control, const Cancellations &cancellations, WaitLimits::Time deadline) = 0;
};

/// The sending side. One thread.
class UcxSource {
  public:
    /// `place`: the sink's; corrupt where it can not be read.
    static Result<std::unique_ptr<UcxSource>> open(std::span<const std::uint8_t> place,
                                                   Cancellations cancellations, WaitLimits limits);
    virtual ~UcxSource() = default;
    /// Begins to put `data`, which stays until flush(), at `offset` of the sink's memory. Blocks while too
    /// many are on their way.
    virtual Status put(std::uint64_t offset, std::span<const std::byte> data) = 0;
    /// Until all of it is in the sink's memory.
    virtual Status flush() = 0;
};

}  // namespace dlrover::transport
