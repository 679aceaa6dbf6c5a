// SPDX-License-Identifier: Apache-2.0
#include "lib/save.h"

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <random>

#include "ckpt/checksum.h"
#include "ckpt/mapping.h"

using namespace dlrover;
using namespace dlrover::lib;
using ckpt::checksum_block_bytes;

namespace {

constexpr std::uint64_t room = std::uint64_t{64} << 20;

/// Lengths in an order in which blocks that are copied together come from different chunks.
const std::vector<std::uint64_t> lengths = {100,
                                            3 * checksum_block_bytes + 7,
                                            0,
                                            checksum_block_bytes,
                                            checksum_block_bytes - 1,
                                            9000,
                                            5 * checksum_block_bytes,
                                            65536,
                                            checksum_block_bytes + 65536,
                                            1,
                                            2 * checksum_block_bytes + 20000};

struct Program {
    std::vector<std::vector<std::byte>> tensors;
    std::vector<std::string> names;
    std::vector<std::uint64_t> shapes, zero{0};

    Program() {
        std::mt19937 random(1);
        for (std::uint64_t n : lengths) {
            auto &tensor = tensors.emplace_back(n);
            for (auto &b : tensor) b = static_cast<std::byte>(random());
            names.push_back("tensor " + std::to_string(names.size()));
        }
        shapes = lengths;
    }
    std::vector<ChunkSource> sources() const {
        std::vector<ChunkSource> all;
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            ckpt::ChunkInfo info;
            info.name = names[i];
            info.dtype = ckpt::DType::Bytes;
            info.global_shape = info.local_shape = std::span(shapes).subspan(i, 1);
            info.global_offset = zero;
            info.bytes = tensors[i].size();
            all.push_back({info, tensors[i].data()});
        }
        return all;
    }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(save)

BOOST_AUTO_TEST_CASE(chunks_of_any_lengths_by_any_number_of_threads) {
    Program program;
    auto memory = ckpt::Mapping::anonymous(room);
    BOOST_REQUIRE(memory.ok());
    for (unsigned threads : {1u, 2u, 3u, 16u}) {
        std::memset(memory->base(), 0, room);
        ObjectWriter writer(SaveTarget{memory->base(), room, TrainStep(1), SlotIndex(0)},
                            ckpt::ObjectIdentity{TrainStep(1), Rank(0), 1, {Term(1), 1}, "lineage"}, threads);
        auto sources = program.sources();
        BOOST_REQUIRE(writer.add(sources).ok());
        for (std::size_t i = 0; i < sources.size(); ++i) {
            const auto &tensor = program.tensors[i];
            const auto &info = sources[i].info;
            BOOST_TEST(info.checksum == ckpt::chunk_checksum(tensor),
                       info.name << ", " << threads << " threads");
            BOOST_TEST((tensor.empty() ||
                        std::memcmp(memory->base() + info.offset, tensor.data(), tensor.size()) == 0));
        }
        BOOST_TEST(writer.finish().ok());
    }
}

BOOST_AUTO_TEST_SUITE_END()
