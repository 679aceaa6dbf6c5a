// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/announcement.h"

#include <algorithm>

#include "pmix_generated.h"
#include "proto/codec.h"

namespace dlrover::pmix {
namespace {

namespace wire = proto::pmix;
constexpr const char *identifier = "DLX6";

}  // namespace

proto::Bytes encode_announcement(const Announcement &announcement) {
    wire::AnnouncementT table;
    table.code = announcement.code;
    table.rank = announcement.rank;
    table.custom = announcement.custom;
    table.count = announcement.count;
    table.infos = announcement.infos;
    return proto::encode<wire::Announcement>(table, identifier);
}

Result<Announcement> decode_announcement(std::span<const std::uint8_t> bytes) {
    auto table = proto::decode<wire::Announcement>(bytes, identifier);
    if (!table) return table.take_status();
    if (table->count > max_infos || table->infos.size() > max_info_bytes ||
        table->infos.empty() != (table->count == 0))
        return Status(Code::corrupt, "an event that can not be");
    return Announcement{table->code, table->rank, table->custom, table->count, std::move(table->infos)};
}

bool EventAllowance::take(Time now, std::size_t bytes) {
    bytes += around_event_bytes;
    auto passed = static_cast<std::uint64_t>(std::max(now - at_, Time(0)).count());
    constexpr std::uint64_t longest = 1000000 * most / bytes_per_second;
    left_ = std::min(most, left_ + std::min(passed, longest) * bytes_per_second / 1000000);
    at_ = now;
    if (left_ < bytes) return false;
    left_ -= bytes;
    return true;
}

}  // namespace dlrover::pmix
