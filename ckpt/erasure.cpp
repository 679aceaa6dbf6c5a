// SPDX-License-Identifier: Apache-2.0
#include "ckpt/erasure.h"

#include <isa-l/erasure_code.h>

#include <algorithm>
#include <set>

namespace dlrover::ckpt {
namespace {

using Matrix = std::vector<std::uint8_t>;  ///< rows of `data` bytes each

/// The unit matrix, then ISA-L's Cauchy matrix with its columns and rows scaled so that the first row and the
/// first column hold ones: every square submatrix still has an inverse.
Matrix generator(CodeShape shape) {
    unsigned k = shape.data;
    Matrix g(std::size_t{shape.parts()} * k);
    gf_gen_cauchy1_matrix(g.data(), static_cast<int>(shape.parts()), static_cast<int>(k));
    auto at = [&](unsigned row, unsigned column) -> std::uint8_t & {
        return g[std::size_t{row} * k + column];
    };
    for (unsigned c = 0; c < k; ++c) {
        std::uint8_t by = gf_inv(at(k, c));
        for (unsigned r = k; r < shape.parts(); ++r) at(r, c) = gf_mul(at(r, c), by);
    }
    for (unsigned r = k; r < shape.parts(); ++r) {
        std::uint8_t by = gf_inv(at(r, 0));
        for (unsigned c = 0; c < k; ++c) at(r, c) = gf_mul(at(r, c), by);
    }
    return g;
}

bool is_possible(CodeShape shape, unsigned target, const std::vector<std::uint16_t> &given) {
    if (shape.data < 1 || shape.data > max_code_data || shape.parity < 1 || shape.parity > max_code_parity)
        return false;
    std::set<std::uint16_t> parts(given.begin(), given.end());
    return target < shape.parts() &&
           (given.empty() ||
            (given.size() == shape.data && parts.size() == shape.data && *parts.rbegin() < shape.parts()));
}

}  // namespace

Result<std::vector<std::uint8_t>> code_factors(CodeShape shape, unsigned target,
                                               const std::vector<std::uint16_t> &given) {
    if (!is_possible(shape, target, given))
        return Status(Code::invalid_argument, "there is no such code, or it has no such parts");
    unsigned k = shape.data;
    Matrix g = generator(shape), from, inverse(std::size_t{k} * k);
    auto row = [&](unsigned part) { return g.begin() + static_cast<std::ptrdiff_t>(part * k); };
    if (given.empty()) return Matrix(row(target), row(target) + k);
    for (auto part : given) from.insert(from.end(), row(part), row(part) + k);
    if (gf_invert_matrix(from.data(), inverse.data(), static_cast<int>(k)) != 0)
        return Status(Code::internal, "the code's parts do not give the others");
    std::vector<std::uint8_t> factors(k, 0);
    for (unsigned i = 0; i < k; ++i)
        for (unsigned j = 0; j < k; ++j)
            factors[i] ^= gf_mul(row(target)[j], inverse[std::size_t{j} * k + i]);
    return factors;
}

void fold_bytes(std::span<std::byte> sum, std::span<const std::byte> source, std::uint8_t factor) {
    std::uint8_t tables[32];
    ec_init_tables(1, 1, &factor, tables);
    for (std::size_t at = 0; at < source.size();) {
        auto n = std::min<std::size_t>(source.size() - at, std::size_t{1} << 20);
        auto *to = reinterpret_cast<unsigned char *>(sum.data() + at);
        auto *from = reinterpret_cast<unsigned char *>(const_cast<std::byte *>(source.data() + at));
        ec_encode_data_update(static_cast<int>(n), 1, 1, 0, tables, from, &to);
        at += n;
    }
}

}  // namespace dlrover::ckpt
