// SPDX-License-Identifier: Apache-2.0
#include "ckpt/erasure.h"

#include <boost/test/unit_test.hpp>
#include <random>

using namespace dlrover;
using namespace dlrover::ckpt;

namespace {

using Part = std::vector<std::byte>;

/// Objects of these lengths, and their parities; what is shorter counts as padded with zeros.
struct Coded {
    CodeShape shape;
    std::vector<Part> parts;
    std::size_t longest = 0;

    Coded(CodeShape s, const std::vector<std::size_t> &lengths, unsigned seed) : shape(s) {
        std::mt19937 random(seed);
        for (std::size_t bytes : lengths) {
            longest = std::max(longest, bytes);
            parts.emplace_back(bytes);
            for (auto &b : parts.back()) b = static_cast<std::byte>(random());
        }
        for (unsigned p = 0; p < shape.parity; ++p) parts.push_back(made(shape.data + p, {}));
    }
    Part made(unsigned target, const std::vector<std::uint16_t> &given) const {
        auto factors = code_factors(shape, target, given);
        BOOST_REQUIRE_MESSAGE(factors.ok(), factors.status().message());
        Part sum(longest);
        for (unsigned i = 0; i < shape.data; ++i) {
            const Part &part = parts[given.empty() ? i : given[i]];
            fold_bytes(std::span(sum).first(part.size()), part, (*factors)[i]);
        }
        return sum;
    }
    /// The object, and zeros after it.
    bool gives(unsigned target, const std::vector<std::uint16_t> &given) const {
        Part want = parts[target];
        want.resize(longest);
        return made(target, given) == want;
    }
    /// Without these every one of them can be made again.
    bool survives(const std::vector<std::uint16_t> &lost) const {
        std::vector<std::uint16_t> given;
        for (std::uint16_t i = 0; i < shape.parts() && given.size() < shape.data; ++i)
            if (std::ranges::find(lost, i) == lost.end()) given.push_back(i);
        return std::ranges::all_of(lost, [&](auto target) { return gives(target, given); });
    }
};

std::vector<std::uint16_t> some_of(unsigned all, unsigned count, std::mt19937 &random) {
    std::vector<std::uint16_t> parts;
    for (std::uint16_t i = 0; i < all; ++i) parts.push_back(i);
    std::ranges::shuffle(parts, random);
    parts.resize(count);
    return parts;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(erasure)

BOOST_AUTO_TEST_CASE(every_code_survives_what_it_promises) {
    std::mt19937 random(7);
    for (unsigned k = 1; k <= max_code_data; ++k)
        for (unsigned m = 1; m <= max_code_parity; ++m) {
            std::vector<std::size_t> lengths;
            for (unsigned i = 0; i < k; ++i) lengths.push_back(random() % 200);
            Coded coded({k, m}, lengths, k * 100 + m);
            for (int sample = 0; sample < 12; ++sample) {
                auto lost = some_of(k + m, m, random);
                BOOST_TEST(coded.survives(lost), "rs:" << k << "+" << m);
            }
        }
}

BOOST_AUTO_TEST_CASE(every_loss_of_small_codes) {
    for (auto [k, m] : {std::pair(2u, 1u), std::pair(2u, 2u), std::pair(4u, 2u), std::pair(3u, 3u)}) {
        Coded coded({k, m}, std::vector<std::size_t>(k, 1000), k);
        for (unsigned set = 0; set < 1u << (k + m); ++set) {
            std::vector<std::uint16_t> lost;
            for (std::uint16_t i = 0; i < k + m; ++i)
                if ((set >> i & 1) != 0) lost.push_back(i);
            if (lost.size() <= m) BOOST_TEST(coded.survives(lost), "rs:" << k << "+" << m << " set " << set);
        }
    }
}

BOOST_AUTO_TEST_CASE(lengths_that_differ_and_are_odd) {
    for (std::size_t bytes : {0u, 1u, 31u, 33u, 4095u, 65537u, 3u << 20}) {
        Coded coded({3, 2}, {bytes, bytes / 2 + 1, 0}, 3);
        BOOST_TEST(coded.survives({0, 1}));
        BOOST_TEST(coded.survives({0, 2}));
        BOOST_TEST(coded.survives({2, 4}));
    }
}

BOOST_AUTO_TEST_CASE(of_one_object_each_parity_is_a_copy) {
    Coded coded({1, 8}, {777}, 1);
    for (unsigned p = 1; p <= 8; ++p) BOOST_TEST((coded.parts[p] == coded.parts[0]));
}

BOOST_AUTO_TEST_CASE(the_first_parity_is_the_xor) {
    Coded coded({4, 3}, {100, 100, 100, 100}, 1);
    for (std::size_t i = 0; i < 100; ++i) {
        auto all = coded.parts[0][i] ^ coded.parts[1][i] ^ coded.parts[2][i] ^ coded.parts[3][i];
        BOOST_TEST((all == coded.parts[4][i]));
    }
    BOOST_TEST((coded.parts[5] != coded.parts[4]));
}

BOOST_AUTO_TEST_CASE(what_can_not_be_is_refused) {
    using Given = std::vector<std::uint16_t>;
    auto refused = [](CodeShape shape, unsigned target, Given given) {
        return code_factors(shape, target, given).status().code() == Code::invalid_argument;
    };
    BOOST_TEST(refused({0, 1}, 0, {}));
    BOOST_TEST(refused({33, 1}, 0, {}));
    BOOST_TEST(refused({2, 0}, 0, {}));
    BOOST_TEST(refused({2, 9}, 0, {}));
    BOOST_TEST(refused({2, 2}, 4, {}));
    BOOST_TEST(refused({2, 2}, 0, Given{1}));
    BOOST_TEST(refused({2, 2}, 0, Given{1, 1}));
    BOOST_TEST(refused({2, 2}, 0, Given{1, 4}));
    BOOST_TEST(!refused({2, 2}, 0, Given{3, 2}));
}

BOOST_AUTO_TEST_SUITE_END()
