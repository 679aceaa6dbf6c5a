// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/value_codec.h"

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

}  // namespace

Result<proto::Bytes> pack_value(const pmix_value_t &value) {
    Buffer buffer;
    pmix_status_t status =
        PMIx_Data_pack(nullptr, buffer.get(), const_cast<pmix_value_t *>(&value), 1, PMIX_VALUE);
    if (status != PMIX_SUCCESS)
        return Status(Code::invalid_argument,
                      std::string("PMIx could not pack a value: ") + PMIx_Error_string(status));
    const auto *begin = reinterpret_cast<const std::uint8_t *>(buffer.get()->base_ptr);
    return proto::Bytes(begin, begin + buffer.get()->bytes_used);
}

Status unpack_value(const proto::Bytes &bytes, pmix_value_t &value) {
    PMIX_VALUE_CONSTRUCT(&value);
    auto *copy = static_cast<char *>(std::malloc(bytes.size()));  // PMIx frees it
    if (copy == nullptr) return Status(Code::resource_exhausted, "no memory");
    std::memcpy(copy, bytes.data(), bytes.size());
    Buffer buffer;
    buffer.get()->base_ptr = copy;
    buffer.get()->unpack_ptr = copy;
    buffer.get()->pack_ptr = copy + bytes.size();
    buffer.get()->bytes_allocated = buffer.get()->bytes_used = bytes.size();
    std::int32_t count = 1;
    pmix_status_t status = PMIx_Data_unpack(nullptr, buffer.get(), &value, &count, PMIX_VALUE);
    if (status == PMIX_SUCCESS && count == 1) return {};
    return Status(Code::corrupt, std::string("PMIx could not unpack a value: ") + PMIx_Error_string(status));
}

}  // namespace dlrover::pmix
