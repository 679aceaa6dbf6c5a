// SPDX-License-Identifier: Apache-2.0
#include "ckpt/checksum.h"

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <random>

using namespace dlrover::ckpt;

namespace {

std::vector<std::byte> random_bytes(std::size_t n, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::byte> bytes(n);
    for (auto &b : bytes) b = static_cast<std::byte>(random());
    return bytes;
}

std::vector<const BlockKernel *> kernels() {
    std::vector<const BlockKernel *> all{&portable_block_kernel};
#if defined(__x86_64__)
    all.push_back(&sse2_block_kernel);
    if (__builtin_cpu_supports("avx2"))
        for (auto *kernel : {&avx2_block_kernel, &avx2_amd_block_kernel}) all.push_back(kernel);
#endif
    return all;
}

std::uint64_t copy_hash(const BlockKernel &kernel, void *to, const void *from, std::size_t bytes) {
    BlockCopy block{to, from, bytes};
    kernel.copy_hash(&block, 1);
    return block.hash;
}

/// Blocks of these lengths, one behind the other as in a slot, in one call; the source of each is shifted
/// otherwise.
void check_together(const BlockKernel &kernel, const std::vector<std::size_t> &lengths) {
    constexpr std::size_t room = 16384, most = 16;
    alignas(64) static std::byte target[most * room];
    static const auto source = random_bytes(most * room, 7);
    std::memset(target, 0x5a, sizeof target);
    std::vector<BlockCopy> blocks;
    for (std::size_t n : lengths) {
        std::size_t at = blocks.size() * room;
        blocks.push_back({target + at, source.data() + at + blocks.size() % 3, n});
    }
    kernel.copy_hash(blocks.data(), blocks.size());
    for (const BlockCopy &block : blocks) {
        auto *to = static_cast<std::byte *>(block.to);
        std::uint64_t expected = portable_block_kernel.hash(block.from, block.bytes);
        if (block.hash != expected || std::memcmp(to, block.from, block.bytes) != 0 ||
            to[block.bytes] != std::byte{0x5a})
            BOOST_ERROR(kernel.name << ": block " << (to - target) / room << " of " << blocks.size() << ", "
                                    << block.bytes << " bytes");
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(checksum)

BOOST_AUTO_TEST_CASE(the_hash_is_xxh3_64) {
    // The published test vector of XXH3-64 with seed 0 for no input.
    for (auto *kernel : kernels()) BOOST_TEST(kernel->hash("", 0) == 0x2d06800538d394c2ull, kernel->name);
}

BOOST_AUTO_TEST_CASE(all_kernels_copy_and_agree) {
    alignas(64) static std::byte target[300000 + 64];
    auto source = random_bytes(300000 + 64, 1);
    for (std::size_t n : {0u, 1u, 63u, 64u, 65u, 8191u, 8192u, 8193u, 32768u, 32769u, 100001u, 300000u})
        for (std::size_t shift : {0u, 1u, 7u, 33u}) {
            std::uint64_t expected = portable_block_kernel.hash(source.data() + shift, n);
            for (auto *kernel : kernels()) {
                std::memset(target, 0x5a, sizeof target);
                BOOST_TEST(copy_hash(*kernel, target, source.data() + shift, n) == expected, kernel->name);
                BOOST_TEST(kernel->hash(source.data() + shift, n) == expected, kernel->name);
                BOOST_TEST(std::memcmp(target, source.data() + shift, n) == 0);
                BOOST_TEST((target[n] == std::byte{0x5a}), "wrote past the end");
            }
        }
}

BOOST_AUTO_TEST_CASE(a_hash_in_parts_is_that_of_the_whole) {
    auto source = random_bytes(300000, 9);
    std::mt19937 random(10);
    for (auto *kernel : kernels())
        for (std::size_t n : {0u, 1u, 240u, 241u, 1024u, 8193u, 100001u, 300000u})
            for (int i = 0; i < 8; ++i) {
                PartialHash hash;
                std::memset(&hash, 0x5a, sizeof hash);
                kernel->hash_begin(hash);
                for (std::size_t at = 0, part; at < n; at += part) {
                    part = std::min<std::size_t>(n - at, random() % (std::size_t{1} << (4 + random() % 14)));
                    kernel->hash_add(hash, source.data() + at, part);
                }
                BOOST_TEST(kernel->hash_end(hash) == portable_block_kernel.hash(source.data(), n),
                           kernel->name << ", " << n << " bytes");
            }
}

BOOST_AUTO_TEST_CASE(all_kernels_agree_at_every_length_of_two_rounds) {
    alignas(64) static std::byte target[16384];
    auto source = random_bytes(sizeof target, 6);
    for (std::size_t n = 8192 - 130; n <= 8192 + 2 * 1024 + 130; ++n) {
        std::uint64_t expected = portable_block_kernel.hash(source.data(), n);
        for (auto *kernel : kernels())
            if (copy_hash(*kernel, target, source.data(), n) != expected ||
                std::memcmp(target, source.data(), n) != 0)
                BOOST_ERROR(kernel->name << " at " << n);
    }
}

BOOST_AUTO_TEST_CASE(all_kernels_copy_any_number_of_blocks_at_a_time) {
    for (auto *kernel : kernels())
        for (std::size_t count = 0; count <= 9; ++count) {
            check_together(*kernel, std::vector<std::size_t>(count, 10000));
            check_together(*kernel, std::vector<std::size_t>(count, 100));
        }
}

BOOST_AUTO_TEST_CASE(blocks_of_any_lengths_are_copied_together) {
    std::mt19937 random(8);
    for (auto *kernel : kernels()) {
        check_together(*kernel, {16000, 8192, 12000, 9216, 0, 8193, 100, 16000, 8191, 15999});
        check_together(*kernel, {8256, 8255, 8257, 8192});
        for (std::size_t n = 9000; n <= 9000 + 1024 + 130; ++n)
            check_together(*kernel, {n, 9500, n + 1, 10000});
        for (int i = 0; i < 500; ++i) {
            std::vector<std::size_t> lengths(1 + random() % 9);
            for (auto &n : lengths) n = random() % 4 == 0 ? random() % 8192 : 8192 + random() % 8000;
            check_together(*kernel, lengths);
        }
    }
}

BOOST_AUTO_TEST_CASE(all_kernels_copy_from_and_to_any_address) {
    alignas(64) static std::byte target[100001 + 128];
    auto source = random_bytes(100001 + 64, 5);
    for (std::size_t n : {0u, 1u, 8191u, 8192u, 8193u, 8255u, 32769u, 100001u})
        for (std::size_t shift : {0u, 1u, 32u, 63u})
            for (auto *kernel : kernels()) {
                std::memset(target, 0x5a, sizeof target);
                kernel->copy(target + shift, source.data() + (shift * 7) % 64, n);
                BOOST_TEST(std::memcmp(target + shift, source.data() + (shift * 7) % 64, n) == 0,
                           kernel->name);
                BOOST_TEST((target[shift + n] == std::byte{0x5a}), "wrote past the end");
                BOOST_TEST((shift == 0 || target[shift - 1] == std::byte{0x5a}),
                           "wrote before the beginning");
            }
}

BOOST_AUTO_TEST_CASE(small_chunks_have_the_plain_hash) {
    auto bytes = random_bytes(checksum_block_bytes, 2);
    BOOST_TEST(chunk_checksum(bytes) == portable_block_kernel.hash(bytes.data(), bytes.size()));
    BOOST_TEST(chunk_checksum({}) == 0x2d06800538d394c2ull);
}

BOOST_AUTO_TEST_CASE(large_chunks_are_hashed_by_blocks) {
    auto bytes = random_bytes(2 * checksum_block_bytes + 5, 3);
    std::uint64_t hashes[3];
    for (std::size_t i = 0; i < 3; ++i)
        hashes[i] = portable_block_kernel.hash(bytes.data() + i * checksum_block_bytes,
                                               i < 2 ? checksum_block_bytes : 5);
    BOOST_TEST(chunk_checksum(bytes) == portable_block_kernel.hash(hashes, sizeof hashes));
    BOOST_TEST(checksum_blocks(bytes.size()) == 3u);
}

BOOST_AUTO_TEST_CASE(every_byte_counts) {
    auto bytes = random_bytes(checksum_block_bytes + 100, 4);
    std::uint64_t before = chunk_checksum(bytes);
    for (std::size_t at :
         {std::size_t{0}, checksum_block_bytes - 1, checksum_block_bytes, bytes.size() - 1}) {
        bytes[at] ^= std::byte{1};
        BOOST_TEST(chunk_checksum(bytes) != before);
        bytes[at] ^= std::byte{1};
    }
}

BOOST_AUTO_TEST_SUITE_END()
