// SPDX-License-Identifier: Apache-2.0
// dlrover_restart from a checkpoint on storage that another number of ranks has saved.
#include <numeric>

#include "stored_fixture.h"

using namespace dlrover;
using namespace dlrover::test;

namespace {

constexpr std::uint32_t saved_by = 4;
constexpr std::uint64_t rows = 13, columns = 3;

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T> &values) {
    return std::as_bytes(std::span(values));
}

std::uint64_t first_row(std::uint32_t rank, std::uint32_t world_size) {
    return rows * rank / world_size;
}

/// Every element tells its place.
std::vector<double> rows_of(std::uint32_t rank, std::uint32_t world_size) {
    std::uint64_t first = first_row(rank, world_size), end = first_row(rank + 1, world_size);
    std::vector<double> values((end - first) * columns);
    std::iota(values.begin(), values.end(), static_cast<double>(first * columns));
    return values;
}

/// The field in rows, what all ranks have alike, what each has of its own.
void fill(Maker &maker, std::uint32_t rank) {
    std::vector<double> field = rows_of(rank, saved_by);
    maker.put("field", DType::Float64, {rows, columns}, {first_row(rank, saved_by), 0},
              {field.size() / columns, columns}, 0, bytes_of(field));
    maker.put("step", DType::UInt64, {}, {}, {}, 0, bytes_of(std::vector<std::uint64_t>{40}));
    maker.put("table", DType::Int32, {3}, {0}, {3}, 0, bytes_of(std::vector<std::int32_t>{7, 8, 9}));
    maker.put("seed", DType::UInt64, {}, {}, {}, 0, bytes_of(std::vector<std::uint64_t>{rank}));
    maker.put("protected.7", DType::UInt64, {1}, {0}, {1}, 0, bytes_of(std::vector<std::uint64_t>{rank}));
}

struct Four : Stored {
    Four() { save(saved_by, fill); }
};

/// A rank's variables, protected.
struct Variables {
    Variables(dlrover_context *c, std::uint32_t rank, std::uint32_t world_size)
        : field(rows_of(rank, world_size).size(), -1) {
        const std::uint64_t whole[] = {rows, columns}, begin[] = {first_row(rank, world_size), 0},
                            shape[] = {field.size() / columns, columns}, three[] = {3}, zero[] = {0};
        protect(c, 1, "field", field.data(), DLROVER_FLOAT64, 2, whole, begin, shape);
        protect(c, 2, "step", &step, DLROVER_UINT64, 0, nullptr, nullptr, nullptr);
        protect(c, 3, "table", table.data(), DLROVER_INT32, 1, three, zero, three);
    }
    static void protect(dlrover_context *c, int id, const char *name, void *to, std::uint32_t dtype,
                        std::uint32_t ndim, const std::uint64_t *whole, const std::uint64_t *begin,
                        const std::uint64_t *shape) {
        BOOST_REQUIRE(dlrover_protect_array(c, id, name, to, dtype, ndim, whole, begin, shape) == DLROVER_OK);
    }
    bool untouched() const {
        return step == 0 && table == std::vector<std::int32_t>(3) &&
               std::ranges::all_of(field, [](double value) { return value == -1; });
    }

    std::vector<double> field;
    std::uint64_t step = 0;
    std::vector<std::int32_t> table = std::vector<std::int32_t>(3);
};

void restart_at(Stored &stored, std::uint32_t world_size) {
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
        auto c = stored.context(rank, world_size);
        Variables v(c.get(), rank, world_size);
        std::uint64_t count = 0;
        BOOST_TEST(dlrover_restart_size(c.get(), 1, &count) == DLROVER_OK, dlrover_error_text());
        BOOST_TEST(count == v.field.size());
        BOOST_TEST(dlrover_restart(c.get()) == DLROVER_OK, dlrover_error_text());
        BOOST_TEST((v.field == rows_of(rank, world_size)), "rank " << rank << " of " << world_size);
        BOOST_TEST(v.step == 40u);
        BOOST_TEST((v.table == std::vector<std::int32_t>{7, 8, 9}));
    }
}

/// What this extra piece makes of a restart with two ranks: the code, and that nothing is written.
struct Refused {
    Refused(Stored &stored, const std::function<void(dlrover_context *)> &protect) {
        auto c = stored.context(1, 2);
        Variables v(c.get(), 1, 2);
        protect(c.get());
        code = dlrover_restart(c.get());
        text = dlrover_error_text();
        BOOST_TEST(v.untouched());
    }
    bool says(const std::string &part) const { return text.find(part) != std::string::npos; }
    int code = 0;
    std::string text;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(stored_protect)

BOOST_FIXTURE_TEST_CASE(arrays_restart_at_any_number_of_ranks, Four) {
    for (std::uint32_t world_size : {1, 2, 3, 4, 6, 16}) restart_at(*this, world_size);
    BOOST_TEST(complete());
}

BOOST_FIXTURE_TEST_CASE(from_the_memory_of_several_nodes_as_well, Stored) {
    std::vector<FakeDaemon::SpreadObject> objects;
    for (std::uint32_t rank = 0; rank < saved_by; ++rank) {
        Maker maker(rank, saved_by, stored_step);
        fill(maker, rank);
        auto object = maker.object();
        auto hash = ckpt::block_kernel().hash(object.table.data(), object.table.size());
        objects.push_back({maker.data, {object.table.begin(), object.table.end()}, hash});
    }
    daemon.spread({3, 2}, stored_step, objects);
    for (std::uint32_t world_size : {2, 6}) restart_at(*this, world_size);
}

BOOST_FIXTURE_TEST_CASE(a_ranks_own_memory_does_not, Four) {
    std::uint64_t own = 99;
    auto protect = [&](dlrover_context *c) {
        BOOST_REQUIRE(dlrover_protect(c, 7, &own, 1, DLROVER_UINT64) == DLROVER_OK);
        std::uint64_t count = 0;
        BOOST_TEST(dlrover_restart_size(c, 7, &count) == DLROVER_E_UNSUPPORTED);
        BOOST_TEST(dlrover_restart_size(c, 8, &count) == DLROVER_E_INVALID, "nobody has protected it");
    };
    Refused refused(*this, protect);
    BOOST_TEST(refused.code == DLROVER_E_UNSUPPORTED);
    BOOST_TEST(refused.says("id 7"), refused.text);
    BOOST_TEST(refused.says("dlrover_protect_array"), refused.text);
    BOOST_TEST(refused.says("step 7 was saved by 4 ranks, this world has 2"), refused.text);
    BOOST_TEST(refused.says("nothing was restored"), refused.text);
    BOOST_TEST(own == 99u);
    // At the same number it does.
    auto c = context(2, 4);
    Variables v(c.get(), 2, 4);
    BOOST_REQUIRE(dlrover_protect(c.get(), 7, &own, 1, DLROVER_UINT64) == DLROVER_OK);
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_OK, dlrover_error_text());
    BOOST_TEST(own == 2u);
}

/// "Start from the beginning" is never the answer where there is a checkpoint.
BOOST_FIXTURE_TEST_CASE(what_is_no_such_array_is_refused, Four) {
    std::uint64_t other = 99;
    const std::uint64_t three[] = {3}, zero[] = {0}, one[] = {1};
    struct Case {
        const char *name;
        std::uint32_t dtype, ndim;
        int code;
        const char *part;
    };
    for (const Case &wrong :
         {Case{"seed", DLROVER_UINT64, 0, DLROVER_E_UNSUPPORTED, "the ranks' values under this name differ"},
          Case{"none", DLROVER_UINT64, 0, DLROVER_E_INVALID, "no tensor \"none\""},
          Case{"step", DLROVER_INT64, 0, DLROVER_E_INVALID, "another type or global shape"},
          Case{"step", DLROVER_UINT64, 1, DLROVER_E_INVALID, "another type or global shape"}}) {
        Refused refused(*this, [&](dlrover_context *c) {
            BOOST_TEST(dlrover_unprotect(c, 2) == DLROVER_OK);
            Variables::protect(c, 5, wrong.name, &other, wrong.dtype, wrong.ndim, three, zero, one);
        });
        BOOST_TEST(refused.code == wrong.code);
        BOOST_TEST(refused.says("id 5"), refused.text);
        BOOST_TEST(refused.says(wrong.part), refused.text);
        BOOST_TEST(other == 99u);
    }
}

BOOST_FIXTURE_TEST_CASE(damage_leaves_the_memory_as_it_was, Four) {
    ckpt::StorageHeader header{};
    std::ifstream file(rank_path(3), std::ios::binary);
    file.read(reinterpret_cast<char *>(&header), sizeof header);
    std::uint64_t place = 0;  // of the first chunk, the field's
    file.seekg(static_cast<std::streamoff>(header.places_offset));
    file.read(reinterpret_cast<char *>(&place), sizeof place);
    ckpt::test::flip_bit(rank_path(3), place);
    Refused refused(*this, [](dlrover_context *) {});
    BOOST_TEST(refused.code == DLROVER_E_CORRUPT);
    BOOST_TEST(refused.says("rank-3.h5"), refused.text);
    BOOST_TEST(suspect());
}

BOOST_AUTO_TEST_SUITE_END()
