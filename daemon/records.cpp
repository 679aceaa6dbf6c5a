// SPDX-License-Identifier: Apache-2.0
#include "daemon/records.h"

#include <algorithm>

#include "daemon/summary.h"
#include "proto/codec.h"
#include "records_generated.h"

namespace dlrover::daemon {
namespace {

constexpr const char *launch_identifier = "DLS1";

std::vector<NodeIndex> node_list(const std::vector<std::uint32_t> &values) {
    std::vector<NodeIndex> nodes;
    for (std::uint32_t value : values) nodes.emplace_back(value);
    return nodes;
}

std::vector<std::uint32_t> plain_list(const std::vector<NodeIndex> &nodes) {
    std::vector<std::uint32_t> values;
    for (NodeIndex node : nodes) values.push_back(node.value());
    return values;
}

std::unique_ptr<records::RebuildRecordT> to_record(const elastic::Rebuild &rebuild) {
    auto record = std::make_unique<records::RebuildRecordT>();
    record->rank = rebuild.rank.value();
    record->node = rebuild.node.value();
    for (Rank rank : rebuild.row) record->row.push_back(rank.value());
    for (const elastic::RebuildPart &part : rebuild.parts) {
        record->part_units.push_back(part.unit);
        record->part_nodes.push_back(part.node.value());
    }
    return record;
}

elastic::Rebuild from_record(const records::RebuildRecordT &record) {
    elastic::Rebuild rebuild{Rank(record.rank), NodeIndex(record.node), {}, {}};
    for (auto rank : record.row) rebuild.row.emplace_back(rank);
    for (std::size_t i = 0; i < std::min(record.part_units.size(), record.part_nodes.size()); ++i)
        rebuild.parts.push_back({record.part_units[i], NodeIndex(record.part_nodes[i])});
    return rebuild;
}

std::unique_ptr<records::SuspectRecordT> to_record(const elastic::Suspect &suspect) {
    auto record = std::make_unique<records::SuspectRecordT>();
    record->generation = to_proto_ptr(suspect.id.generation);
    record->train_step = suspect.id.step.value();
    record->back_to = suspect.back_to.value();
    record->since = to_proto_ptr(suspect.since);
    return record;
}

elastic::Suspect from_record(const records::SuspectRecordT &record) {
    return {{from_proto(record.generation), TrainStep(record.train_step)},
            TrainStep(record.back_to),
            from_proto(record.since)};
}

}  // namespace

std::string group_key(JobId job, StepId step) {
    return std::to_string(job.value()) + "." + std::to_string(step.value());
}

std::string record_name(const char *kind, const std::string &group_key) {
    return std::string(kind) + "/" + group_key;
}

std::optional<RecordName> parse_record_name(const std::string &name) {
    auto first = name.find('/');
    if (first == std::string::npos) return std::nullopt;
    auto second = std::min(name.find('/', first + 1), name.size());
    RecordName parts{name.substr(0, first), name.substr(first + 1, second - first - 1), ""};
    if (second < name.size()) parts.rest = name.substr(second + 1);
    return parts;
}

proto::Bytes encode_whole_record(const records::RecordT &record) {
    return proto::encode<records::Record>(record, records::RecordIdentifier());
}

Result<records::RecordT> decode_record(std::span<const std::uint8_t> bytes) {
    return proto::decode<records::Record>(bytes, records::RecordIdentifier());
}

proto::Bytes encode_launch(const proto::LaunchSpecT &launch) {
    return proto::encode<proto::LaunchSpec>(launch, launch_identifier);
}

Result<proto::LaunchSpecT> decode_launch(std::span<const std::uint8_t> bytes) {
    return proto::decode<proto::LaunchSpec>(bytes, launch_identifier);
}

proto::Generation to_proto(const GenerationId &id) {
    return proto::Generation(id.term.value(), id.number);
}

GenerationId from_proto(const proto::Generation &id) {
    return {Term(id.term()), id.number()};
}

GenerationId from_proto(const std::unique_ptr<proto::Generation> &id) {
    return id ? from_proto(*id) : GenerationId{};
}

std::unique_ptr<proto::Generation> to_proto_ptr(const GenerationId &id) {
    return std::make_unique<proto::Generation>(to_proto(id));
}

std::unique_ptr<records::DamagedRecordT> to_record(const elastic::Damaged &damaged) {
    auto record = std::make_unique<records::DamagedRecordT>();
    record->generation = to_proto_ptr(damaged.id.generation);
    record->train_step = damaged.id.step.value();
    record->rank = damaged.rank.value();
    return record;
}

elastic::Damaged from_record(const records::DamagedRecordT &record) {
    return {{from_proto(record.generation), TrainStep(record.train_step)}, Rank(record.rank)};
}

records::WorldRecordT to_record(const elastic::World &world) {
    records::WorldRecordT record;
    record.generation = to_proto_ptr(world.id);
    record.nodes = plain_list(world.nodes);
    record.spares = plain_list(world.spares);
    record.restore_step = world.restore_step ? static_cast<std::int64_t>(world.restore_step->value()) : -1;
    record.restore_generation = to_proto_ptr(world.restore_generation);
    record.stored_world_size = world.stored_world_size;
    record.memory_world_size = world.memory_world_size;
    record.restart_count = world.restart_count;
    record.master_port = world.master_port;
    record.reason = world.reason;
    record.partners = plain_list(world.partners);
    for (const elastic::ObjectSource &source : world.sources) {
        record.source_ranks.push_back(source.rank.value());
        record.source_nodes.push_back(source.node.value());
    }
    record.groups = world.groups;
    for (const elastic::Rebuild &rebuild : world.rebuilds) record.rebuilds.push_back(to_record(rebuild));
    for (const elastic::Suspect &suspect : world.suspects) record.suspects.push_back(to_record(suspect));
    return record;
}

elastic::World from_record(const records::WorldRecordT &record) {
    elastic::World world;
    world.id = from_proto(record.generation);
    world.nodes = node_list(record.nodes);
    world.spares = node_list(record.spares);
    if (record.restore_step >= 0)
        world.restore_step = TrainStep(static_cast<std::uint64_t>(record.restore_step));
    world.restore_generation = from_proto(record.restore_generation);
    world.stored_world_size = world.restore_step ? record.stored_world_size : 0;
    world.restart_count = record.restart_count;
    world.master_port = record.master_port;
    world.reason = record.reason;
    world.partners = node_list(record.partners);
    std::size_t sources = std::min(record.source_ranks.size(), record.source_nodes.size());
    for (std::size_t i = 0; i < sources; ++i)
        world.sources.push_back({Rank(record.source_ranks[i]), NodeIndex(record.source_nodes[i])});
    world.memory_world_size = world.restore_step ? record.memory_world_size : 0;
    world.groups = record.groups;
    for (const auto &rebuild : record.rebuilds)
        if (rebuild) world.rebuilds.push_back(from_record(*rebuild));
    for (const auto &suspect : record.suspects)
        if (suspect) world.suspects.push_back(from_record(*suspect));
    return world;
}

std::unique_ptr<records::SumsRecordT> to_record(const elastic::Goodput &goodput, elastic::Time at) {
    auto record = std::make_unique<records::SumsRecordT>();
    record->goodput = std::make_unique<proto::local::GoodputT>(to_proto(goodput));
    record->at_us = at.count();
    record->counted_generation = to_proto_ptr(goodput.counted.generation);
    record->counted_steps = goodput.counted.steps;
    record->counted_save_us = goodput.counted.save.count();
    record->counted_skipped = goodput.counted.skipped;
    if (goodput.counted.step) record->counted_step = static_cast<std::int64_t>(goodput.counted.step->value());
    return record;
}

elastic::Goodput from_record(const records::SumsRecordT &record) {
    elastic::Goodput g = record.goodput ? from_proto(*record.goodput) : elastic::Goodput{};
    g.counted = {from_proto(record.counted_generation), record.counted_steps,
                 elastic::Duration(record.counted_save_us), record.counted_skipped, std::nullopt};
    if (record.counted_step >= 0) g.counted.step = TrainStep(static_cast<std::uint64_t>(record.counted_step));
    return g;
}

Redundancy redundancy_of(const records::GroupRecordT &record) {
    if (record.registration->node_names.size() < 2) return {};
    auto redundancy = parse_redundancy(record.registration->options->redundancy);
    return redundancy.ok() ? *redundancy : Redundancy{};
}

std::uint32_t copies_of(const records::GroupRecordT &record) {
    return redundancy_of(record).copies;
}

}  // namespace dlrover::daemon
