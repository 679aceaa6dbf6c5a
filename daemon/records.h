// SPDX-License-Identifier: Apache-2.0
// What the daemon keeps with its keeper, by name and as bytes (proto/records.fbs).
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/redundancy.h"
#include "elastic/goodput.h"
#include "elastic/types.h"
#include "proto/frame.h"
#include "records_types.h"

namespace dlrover::daemon {

namespace records = proto::records;

/// "JOB.STEP"
std::string group_key(JobId job, StepId step);
/// "promise/12.0", "slot/12.0/3/1"
std::string record_name(const char *kind, const std::string &group_key);
/// The parts of a record's name: kind, group key and the rest ("3/1"), which may be empty.
struct RecordName {
    std::string kind, group, rest;
};
std::optional<RecordName> parse_record_name(const std::string &name);

proto::Bytes encode_whole_record(const records::RecordT &record);
template <typename BodyT>
proto::Bytes encode_record(BodyT body) {
    records::RecordT record;
    record.body.Set(std::move(body));
    return encode_whole_record(record);
}
Result<records::RecordT> decode_record(std::span<const std::uint8_t> bytes);

/// What LaunchRecords hold parts of.
proto::Bytes encode_launch(const proto::LaunchSpecT &launch);
Result<proto::LaunchSpecT> decode_launch(std::span<const std::uint8_t> bytes);

proto::Generation to_proto(const GenerationId &id);
GenerationId from_proto(const proto::Generation &id);
/// Absent: {0,0}.
GenerationId from_proto(const std::unique_ptr<proto::Generation> &id);
std::unique_ptr<proto::Generation> to_proto_ptr(const GenerationId &id);

std::unique_ptr<records::DamagedRecordT> to_record(const elastic::Damaged &damaged);
elastic::Damaged from_record(const records::DamagedRecordT &record);
records::WorldRecordT to_record(const elastic::World &world);
elastic::World from_record(const records::WorldRecordT &record);

std::unique_ptr<records::SumsRecordT> to_record(const elastic::Goodput &goodput, elastic::Time at);
elastic::Goodput from_record(const records::SumsRecordT &record);

/// What is kept on other nodes; nothing where there are none.
Redundancy redundancy_of(const records::GroupRecordT &record);
/// Of each object, on other nodes, or of its parities; 0: none are kept.
std::uint32_t copies_of(const records::GroupRecordT &record);

}  // namespace dlrover::daemon
