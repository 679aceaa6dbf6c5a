// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/value_codec.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace dlrover::pmix {
namespace {

class Buffer {
  public:
    Buffer() { PMIX_DATA_BUFFER_CONSTRUCT(&buffer_); }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    ~Buffer() { PMIX_DATA_BUFFER_DESTRUCT(&buffer_); }
    pmix_data_buffer_t *get() { return &buffer_; }

  private:
    pmix_data_buffer_t buffer_;
};

proto::Bytes bytes_of(Buffer &buffer) {
    const auto *begin = reinterpret_cast<const std::uint8_t *>(buffer.get()->base_ptr);
    return proto::Bytes(begin, begin + buffer.get()->bytes_used);
}

Status fill(Buffer &buffer, const proto::Bytes &bytes) {
    auto *copy = static_cast<char *>(std::malloc(std::max<std::size_t>(bytes.size(), 1)));  // PMIx frees it
    if (copy == nullptr) return Status(Code::resource_exhausted, "no memory");
    if (!bytes.empty()) std::memcpy(copy, bytes.data(), bytes.size());
    auto *b = buffer.get();
    b->base_ptr = b->unpack_ptr = copy;
    b->pack_ptr = copy + bytes.size();
    b->bytes_allocated = b->bytes_used = bytes.size();
    return {};
}

Status failed(Code code, const char *what, pmix_status_t status) {
    return Status(code, std::string("PMIx could not ") + what + ": " + PMIx_Error_string(status));
}

}  // namespace

Result<proto::Bytes> pack_value(const pmix_value_t &value) {
    Buffer buffer;
    pmix_status_t status =
        PMIx_Data_pack(nullptr, buffer.get(), const_cast<pmix_value_t *>(&value), 1, PMIX_VALUE);
    if (status != PMIX_SUCCESS) return failed(Code::invalid_argument, "pack a value", status);
    return bytes_of(buffer);
}

Status unpack_value(const proto::Bytes &bytes, pmix_value_t &value) {
    PMIX_VALUE_CONSTRUCT(&value);
    Buffer buffer;
    DLROVER_TRY(fill(buffer, bytes));
    std::int32_t count = 1;
    pmix_status_t status = PMIx_Data_unpack(nullptr, buffer.get(), &value, &count, PMIX_VALUE);
    if (status == PMIX_SUCCESS && count == 1) return {};
    return failed(Code::corrupt, "unpack a value", status);
}

Result<proto::Bytes> pack_infos(std::span<const pmix_info_t> infos) {
    Buffer buffer;
    if (infos.empty()) return proto::Bytes();
    pmix_status_t status = PMIx_Data_pack(nullptr, buffer.get(), const_cast<pmix_info_t *>(infos.data()),
                                          static_cast<std::int32_t>(infos.size()), PMIX_INFO);
    if (status != PMIX_SUCCESS) return failed(Code::invalid_argument, "pack infos", status);
    return bytes_of(buffer);
}

Status unpack_infos(const proto::Bytes &bytes, std::uint32_t count, InfoList &list) {
    Buffer buffer;
    DLROVER_TRY(fill(buffer, bytes));
    auto all = static_cast<std::int32_t>(count);
    if (all == 0) return {};
    pmix_status_t status = PMIx_Data_unpack(nullptr, buffer.get(), list.add_empty(count), &all, PMIX_INFO);
    if (status == PMIX_SUCCESS && all == static_cast<std::int32_t>(count)) return {};
    return failed(Code::corrupt, "unpack infos", status);
}

}  // namespace dlrover::pmix
