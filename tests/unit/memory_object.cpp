// SPDX-License-Identifier: Apache-2.0
#include "memory_object.h"

#include <sys/mman.h>
#include <unistd.h>

namespace dlrover::test {

MemoryObject::MemoryObject(const ckpt::SealedObject &object) {
    data_bytes = object.data.size();
    table_offset = *ckpt::align_object_offset(data_bytes);
    table_bytes = object.table.size();
    table_xxh3 = ckpt::block_kernel().hash(object.table.data(), object.table.size());
    ledger.assign(object.ledger.begin(), object.ledger.end());
    bytes = (table_offset + table_bytes + 4095) / 4096 * 4096;
    memory.reset(::memfd_create("object", MFD_CLOEXEC));
    BOOST_REQUIRE(::ftruncate(memory.get(), static_cast<off_t>(bytes)) == 0);
    BOOST_REQUIRE(::pwrite(memory.get(), object.data.data(), data_bytes, 0) ==
                  static_cast<ssize_t>(data_bytes));
    BOOST_REQUIRE(::pwrite(memory.get(), object.table.data(), table_bytes,
                           static_cast<off_t>(table_offset)) == static_cast<ssize_t>(table_bytes));
}

local::StoreObjectT MemoryObject::order(CheckpointId id, std::uint32_t world_size, std::uint32_t rank) const {
    local::StoreObjectT order;
    order.checkpoint = std::make_unique<local::StoredCheckpointT>();
    order.checkpoint->generation =
        std::make_unique<proto::Generation>(id.generation.term.value(), id.generation.number);
    order.checkpoint->train_step = id.step.value();
    order.checkpoint->world_size = world_size;
    order.rank = rank;
    order.data_bytes = data_bytes;
    order.table_offset = table_offset;
    order.table_bytes = table_bytes;
    order.table_xxh3 = table_xxh3;
    order.ledger = ledger;
    auto segment = std::make_unique<local::SlotSegmentT>();
    segment->id = 1;
    segment->bytes = bytes;
    segment->fd = true;
    order.segments.push_back(std::move(segment));
    return order;
}

void MemoryObject::flip(std::uint64_t at) const {
    char byte;
    BOOST_REQUIRE(::pread(memory.get(), &byte, 1, static_cast<off_t>(at)) == 1);
    byte = static_cast<char>(byte ^ 16);
    BOOST_REQUIRE(::pwrite(memory.get(), &byte, 1, static_cast<off_t>(at)) == 1);
}

CheckpointId checkpoint(std::uint64_t step) {
    return {{Term(3), 2}, TrainStep(step)};
}

MemoryObject make_object(std::uint64_t step, std::uint32_t rank, std::uint32_t world,
                         std::uint64_t elements) {
    ckpt::test::Maker maker(rank, world, step);
    maker.add("w", ckpt::DType::Float32, {elements * world}, {elements * rank}, {elements})
        .add("own." + std::to_string(rank), ckpt::DType::Int64, {3});
    return MemoryObject(maker.object());
}

}  // namespace dlrover::test
