// SPDX-License-Identifier: Apache-2.0
// Global tensors read from storage and from memory at other world sizes and cut otherwise.
#include <functional>
#include <numeric>
#include <thread>

#include "stored_fixture.h"

using namespace dlrover;
using namespace dlrover::test;

namespace {

constexpr std::uint32_t saved_by = 8;

/// What the daemon hears comes to it a moment later.
bool wait_until(const std::function<bool()> &condition) {
    for (int i = 0; i < 500; ++i) {
        if (condition()) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
}

struct Tensor {
    const char *name;
    DType dtype;
    Numbers shape;
    std::size_t saved_dim, read_dim;  ///< along which it is cut
};

/// Cut along the first, the last, a middle dimension; read along another; one with a length that many ranks
/// do not share; one whose pieces have several blocks.
const Tensor tensors[] = {
    {"rows", DType::Float32, {37, 6}, 0, 0},    {"cols", DType::UInt8, {5, 41}, 1, 0},
    {"cube", DType::Int64, {3, 26, 7}, 1, 2},   {"back", DType::Complex128, {4, 3, 31}, 2, 1},
    {"short", DType::BFloat16, {3, 5}, 0, 1},   {"line", DType::Int16, {1000}, 0, 0},
    {"large", DType::UInt8, {2048, 9000}, 0, 1}};

std::uint64_t elements(const Numbers &shape) {
    return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
}

/// The content of a box: every element tells its place in the whole tensor.
std::vector<std::byte> content(const Tensor &tensor, const Numbers &offset, const Numbers &shape) {
    std::uint32_t unit = ckpt::element_bytes(tensor.dtype);
    std::vector<std::byte> out(elements(shape) * unit);
    for (std::uint64_t i = 0; i < elements(shape); ++i) {
        std::uint64_t rest = i, place = 0, step = 1;
        for (std::size_t d = shape.size(); d-- > 0; step *= tensor.shape[d]) {
            place += (offset[d] + rest % shape[d]) * step;
            rest /= shape[d];
        }
        for (std::uint32_t b = 0; b < unit; ++b)
            out[i * unit + b] = std::byte((place * 0x9E3779B97F4A7C15u + tensor.name[0]) >> (8 * (b % 7)));
    }
    return out;
}

/// Where rank's piece of `length` begins: ranks get shares of 1 : 2 : 10 : 1 : 2 : 10 …
std::uint64_t begin_of(std::uint64_t length, std::uint32_t rank, std::uint32_t world_size) {
    auto share = [](std::uint32_t r) { return r % 3 == 0 ? 1u : r % 3 == 1 ? 2u : 10u; };
    std::uint64_t before = 0, all = 0;
    for (std::uint32_t r = 0; r < world_size; ++r) {
        if (r < rank) before += share(r);
        all += share(r);
    }
    return length * before / all;
}

struct Box {
    Numbers offset, shape;
};
Box piece_of(const Tensor &tensor, std::size_t dim, std::uint32_t rank, std::uint32_t world_size) {
    Box box{Numbers(tensor.shape.size()), tensor.shape};
    box.offset[dim] = begin_of(tensor.shape[dim], rank, world_size);
    box.shape[dim] = begin_of(tensor.shape[dim], rank + 1, world_size) - box.offset[dim];
    return box;
}

void fill(Maker &maker, std::uint32_t rank) {
    for (const Tensor &tensor : tensors) {
        Box box = piece_of(tensor, tensor.saved_dim, rank, saved_by);
        if (elements(box.shape) == 0 && rank != 0) continue;
        maker.put(tensor.name, tensor.dtype, tensor.shape, box.offset, box.shape, 0,
                  content(tensor, box.offset, box.shape));
    }
    // Two dimensions cut at once; the same on all ranks; a replica; a value of each rank's own.
    const Tensor grid{"grid", DType::Float64, {10, 12}, 0, 0};
    Numbers at{rank / 4 * 5, rank % 4 * 3};
    maker.put("grid", DType::Float64, grid.shape, at, {5, 3}, 0, content(grid, at, {5, 3}));
    maker.put("same", DType::Int8, {3}, {0}, {3}, 0, std::vector<std::byte>(3, std::byte(9)));
    maker.put("kept", DType::Int8, {3}, {0}, {3}, rank == 5 ? 0 : 1, std::vector<std::byte>(3, std::byte(8)));
    maker.put("own", DType::UInt8, {1}, {0}, {1}, 0, std::vector<std::byte>(1, std::byte(rank)));
    if (rank == 2)
        maker.put("scalar", DType::Float32, {}, {}, {}, 0, std::vector<std::byte>(4, std::byte(5)));
    if (rank == 3) maker.put("empty", DType::Float32, {0, 4}, {0, 0}, {0, 4}, 0, {});
    maker.skeleton("{\"of\": " + std::to_string(rank) + "}");
}

/// The code; `out` has no trace of an earlier read.
int read(dlrover_restore *restore, const std::string &name, DType dtype, const Box &box,
         std::vector<std::byte> &out) {
    out.assign(elements(box.shape) * ckpt::element_bytes(dtype), std::byte(0xA5));
    return dlrover_restore_read(restore, name.c_str(), static_cast<std::uint32_t>(dtype),
                                static_cast<std::uint32_t>(box.shape.size()), box.offset.data(),
                                box.shape.data(), out.data(), out.size());
}

bool reads(dlrover_restore *restore, const Tensor &tensor, const Box &box) {
    std::vector<std::byte> out;
    int code = read(restore, tensor.name, tensor.dtype, box, out);
    BOOST_TEST(code == DLROVER_OK, tensor.name << ": " << dlrover_error_text());
    return out == content(tensor, box.offset, box.shape);
}

void check_others(dlrover_restore *restore) {
    const Tensor grid{"grid", DType::Float64, {10, 12}, 0, 0};
    BOOST_TEST(reads(restore, grid, {{3, 2}, {4, 9}}));
    std::vector<std::byte> out;
    BOOST_TEST(read(restore, "same", DType::Int8, {{1}, {2}}, out) == DLROVER_OK);
    BOOST_TEST((out == std::vector<std::byte>(2, std::byte(9))));
    BOOST_TEST(read(restore, "kept", DType::Int8, {{0}, {3}}, out) == DLROVER_OK);
    BOOST_TEST((out == std::vector<std::byte>(3, std::byte(8))));
    BOOST_TEST(read(restore, "scalar", DType::Float32, {{}, {}}, out) == DLROVER_OK);
    BOOST_TEST((out == std::vector<std::byte>(4, std::byte(5))));
    BOOST_TEST(read(restore, "empty", DType::Float32, {{0, 1}, {0, 2}}, out) == DLROVER_OK);
    BOOST_TEST(read(restore, "own", DType::UInt8, {{0}, {1}}, out) == DLROVER_E_UNSUPPORTED);
    BOOST_TEST(error_says("is no one tensor"));
    BOOST_TEST(read(restore, "none", DType::UInt8, {{0}, {1}}, out) == DLROVER_E_NOT_FOUND);
}

struct Sharded : Stored {
    Sharded() { save(saved_by, fill); }
    void read_all(std::uint32_t world_size) {
        for (std::uint32_t rank = 0; rank < world_size; ++rank) {
            auto c = context(rank, world_size);
            auto restore = open_restore(c.get());
            for (const Tensor &tensor : tensors) {
                Box box = piece_of(tensor, tensor.read_dim, rank, world_size);
                BOOST_TEST(reads(restore.get(), tensor, box), tensor.name << " at rank " << rank);
            }
        }
        BOOST_TEST(complete());
    }
};

/// Of all that this process has read by calls, on any thread.
std::uint64_t bytes_read_by_calls() {
    std::ifstream file("/proc/self/io");
    std::string name;
    std::uint64_t bytes = 0;
    BOOST_REQUIRE((file >> name >> bytes && name == "rchar:"));
    return bytes;
}

/// One tensor whose pieces are much larger than all that is read besides.
struct Wide : Stored {
    static constexpr std::uint64_t piece_rows = 8;
    /// Of eight files and a manifest: headers, tables, lists of places.
    static constexpr std::uint64_t metadata_bytes = 128u << 10;
    const Tensor wide{"wide", DType::UInt8, {saved_by * piece_rows, 100'000}, 0, 0};

    Wide() {
        save(saved_by, [this](Maker &maker, std::uint32_t rank) {
            Box box{{rank * piece_rows, 0}, {piece_rows, wide.shape[1]}};
            maker.put(wide.name, wide.dtype, wide.shape, box.offset, box.shape, 0,
                      content(wide, box.offset, box.shape));
        });
    }
    std::uint64_t bytes_read(const Box &box, std::uint32_t rank, std::uint32_t world_size, bool verify) {
        ::setenv("DLROVER_VERIFY_PARTS", verify ? "1" : "0", 1);
        auto c = context(rank, world_size);
        ::unsetenv("DLROVER_VERIFY_PARTS");
        std::uint64_t before = bytes_read_by_calls();
        BOOST_TEST(reads(open_restore(c.get()).get(), wide, box));
        return bytes_read_by_calls() - before;
    }
};

/// One tensor whose pieces have five blocks, the last one short. A row is a tenth of a block.
struct Long : Stored {
    static constexpr std::uint64_t piece_rows = 45, row_bytes = 100'000, piece_bytes = piece_rows * row_bytes;
    static constexpr std::uint64_t block = ckpt::checksum_block_bytes, metadata_bytes = 128u << 10;
    const Tensor tensor{"long", DType::UInt8, {saved_by * piece_rows, row_bytes}, 0, 0};

    Long() { save_pieces(false); }
    void save_pieces(bool of_before_blocks) {
        save(saved_by, [&](Maker &maker, std::uint32_t rank) {
            maker.of_before_blocks = of_before_blocks;
            Box box{{rank * piece_rows, 0}, {piece_rows, row_bytes}};
            maker.put(tensor.name, tensor.dtype, tensor.shape, box.offset, box.shape, 0,
                      content(tensor, box.offset, box.shape));
        });
    }
    void save_as_before_blocks() {
        std::filesystem::remove_all(folder / "lineage");
        save_pieces(true);
    }
    /// The pieces' bytes that lie in the same blocks as these rows.
    static std::uint64_t bytes_in_blocks(std::uint64_t first, std::uint64_t end) {
        std::uint64_t bytes = 0;
        for (std::uint64_t piece = first / piece_rows; piece * piece_rows < end; ++piece) {
            std::uint64_t from = std::max(first, piece * piece_rows) - piece * piece_rows;
            std::uint64_t to = std::min(end, (piece + 1) * piece_rows) - piece * piece_rows;
            std::uint64_t up = (to * row_bytes + block - 1) / block * block;
            bytes += std::min(up, piece_bytes) - from * row_bytes / block * block;
        }
        return bytes;
    }
    std::uint64_t bytes_read(dlrover_restore *restore, const Box &box) {
        std::uint64_t before = bytes_read_by_calls();
        BOOST_TEST(reads(restore, tensor, box));
        return bytes_read_by_calls() - before;
    }
    Box rows(std::uint64_t first, std::uint64_t end) const { return {{first, 0}, {end - first, row_bytes}}; }
    /// Of a byte of the tensor in its piece's file.
    void flip(std::uint64_t row, std::uint64_t column) {
        std::string path = rank_path(static_cast<std::uint32_t>(row / piece_rows));
        ckpt::StorageHeader header{};
        std::ifstream stream(path, std::ios::binary);
        stream.read(reinterpret_cast<char *>(&header), sizeof header);
        std::uint64_t place = 0;
        stream.seekg(static_cast<std::streamoff>(header.places_offset));
        stream.read(reinterpret_cast<char *>(&place), sizeof place);
        ckpt::test::flip_bit(path, place + row % piece_rows * row_bytes + column);
    }
};

/// The same in the memory of several nodes.
struct Spread : Sharded {
    std::vector<FakeDaemon::SpreadObject> objects;
    Spread() {
        for (std::uint32_t rank = 0; rank < saved_by; ++rank) {
            Maker maker(rank, saved_by, stored_step);
            fill(maker, rank);
            auto object = maker.object();
            auto hash = ckpt::block_kernel().hash(object.table.data(), object.table.size());
            objects.push_back({maker.data, {object.table.begin(), object.table.end()}, hash});
        }
        daemon.spread({3, 2}, stored_step, objects);
        std::filesystem::remove_all(folder / "lineage");
    }
    void read_all_from_memory(std::uint32_t world_size) {
        for (std::uint32_t rank = 0; rank < world_size; ++rank) {
            auto c = context(rank, world_size);
            auto restore = open_restore(c.get());
            for (const Tensor &tensor : tensors) {
                Box box = piece_of(tensor, tensor.read_dim, rank, world_size);
                BOOST_TEST(reads(restore.get(), tensor, box), tensor.name << " at rank " << rank);
            }
        }
    }
    std::size_t place_of(std::uint32_t rank, const std::string &name) {
        auto view = ckpt::ObjectTableView::parse(objects[rank].table);
        for (std::uint64_t i = 0; view.ok() && i < view->count(); ++i)
            if (view->chunk(i).name == name) return view->chunk(i).offset;
        BOOST_FAIL("no such chunk");
        return 0;
    }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(stored_tensors)

BOOST_FIXTURE_TEST_CASE(a_step_in_the_memory_of_several_nodes_is_read_by_other_numbers_of_ranks, Spread) {
    for (std::uint32_t world_size : {1u, 3u, 5u, 11u}) read_all_from_memory(world_size);
    auto c = context(0, 3);
    auto restore = open_restore(c.get());
    BOOST_TEST(dlrover_restore_world_size(restore.get()) == static_cast<int>(saved_by));
    check_others(restore.get());
    const void *ledger = nullptr;
    std::uint64_t bytes = 0;
    BOOST_TEST(dlrover_restore_ledger(restore.get(), &ledger, &bytes) == DLROVER_OK);
    BOOST_TEST(bytes == 3u);
    restore.reset();
    BOOST_TEST(daemon.last_restore_done().ok);
}

BOOST_FIXTURE_TEST_CASE(of_a_spread_step_only_what_is_wanted_is_asked_for, Spread) {
    auto c = context(0, 3);
    auto restore = open_restore(c.get());
    BOOST_TEST(daemon.given().empty());
    BOOST_TEST(reads(restore.get(), tensors[0], piece_of(tensors[0], 0, 2, saved_by)));
    BOOST_TEST((daemon.given() == std::vector<std::uint32_t>{2}));
    std::uint64_t count = 0;
    BOOST_TEST(dlrover_restore_rank_count(restore.get(), 7, &count) == DLROVER_OK);
    BOOST_TEST(count > 0u);
    BOOST_TEST((daemon.given() == std::vector<std::uint32_t>{2}));
}

BOOST_FIXTURE_TEST_CASE(what_another_rank_keeps_of_a_spread_step_is_read_from_there, Stored) {
    std::vector<FakeDaemon::SpreadObject> objects;
    auto bytes = content({"w", DType::UInt8, {100}, 0, 0}, {0}, {100});
    for (std::uint32_t rank : {0u, 1u}) {
        Maker maker(rank, 2, stored_step);
        maker.put("mine", DType::UInt8, {1}, {0}, {1}, 0, std::vector<std::byte>(1, std::byte(rank)));
        if (rank == 0)
            maker.put("w", DType::UInt8, {100}, {0}, {100}, 0, bytes);
        else
            maker.kept("w", DType::UInt8, {100}, 0);
        auto object = maker.object();
        auto hash = ckpt::block_kernel().hash(object.table.data(), object.table.size());
        objects.push_back({maker.data, {object.table.begin(), object.table.end()}, hash});
    }
    daemon.spread({3, 2}, stored_step, objects);
    auto c = context(0, 3);
    auto restore = open_restore(c.get());
    std::vector<std::byte> out(100);
    BOOST_TEST(dlrover_restore_rank_read(restore.get(), 1, 1, out.data(), out.size()) == DLROVER_OK);
    BOOST_TEST((out == bytes));
    BOOST_TEST((daemon.given() == std::vector<std::uint32_t>{0}));
    BOOST_TEST(dlrover_restore_rank_read(restore.get(), 1, 0, out.data(), 1) == DLROVER_OK);
    BOOST_TEST((out[0] == std::byte(1)));
}

BOOST_FIXTURE_TEST_CASE(damage_in_a_spread_step_is_found, Spread) {
    daemon.flip_spread(2, place_of(2, "rows"));
    auto c = context(0, 3);
    auto restore = open_restore(c.get());
    std::vector<std::byte> out;
    BOOST_TEST(read(restore.get(), "rows", DType::Float32, {{0, 0}, {37, 6}}, out) == DLROVER_E_CORRUPT);
    BOOST_TEST(error_says("step 7 in memory, saved by 8 ranks"));
    BOOST_TEST(error_says("\"rows\" in the object of rank 2 is wrong"));
    // Also where only a part is wanted.
    BOOST_TEST(read(restore.get(), "rows", DType::Float32, {{0, 0}, {37, 1}}, out) == DLROVER_E_CORRUPT);
    // Others are damaged too; the first is told.
    daemon.flip_spread(3, place_of(3, "cols"));
    BOOST_TEST(read(restore.get(), "cols", DType::UInt8, {{0, 0}, {5, 41}}, out) == DLROVER_E_CORRUPT);
    restore.reset();
    BOOST_TEST(wait_until([&] { return daemon.last_restore_done().damaged == 2; }));
    BOOST_TEST(!daemon.last_restore_done().ok);
    daemon.flip_spread(2, place_of(2, "rows"));
    daemon.flip_spread(3, place_of(3, "cols"));
    restore = open_restore(c.get());
    BOOST_TEST(reads(restore.get(), tensors[0], {{0, 0}, {37, 6}}));
    restore.reset();
    BOOST_TEST(wait_until([&] { return daemon.last_restore_done().ok; }));
    BOOST_TEST(daemon.last_restore_done().damaged == -1, "the next restore knows nothing of it");
}

BOOST_FIXTURE_TEST_CASE(a_spread_table_that_is_damaged_or_of_another_step_is_refused, Spread) {
    auto refused = [&] {
        auto c = context(0, 3);
        dlrover_restore *restore = nullptr;
        int code = dlrover_restore_open(c.get(), &restore);
        if (code != DLROVER_OK) return code;
        std::vector<std::byte> out;
        Restore open(restore);
        return read(restore, "rows", DType::Float32, {{0, 0}, {37, 6}}, out);
    };
    // The first rank's is looked at when it is opened.
    for (std::uint32_t rank : {1u, 0u}) {
        auto damaged = objects;
        damaged[rank].table[damaged[rank].table.size() / 2] ^= 1;
        daemon.spread({3, 2}, stored_step, damaged);
        BOOST_TEST(refused() == DLROVER_E_CORRUPT);
        BOOST_TEST(wait_until([&] { return daemon.last_restore_done().damaged == rank; }));
    }
    daemon.spread({3, 3}, stored_step, objects);
    BOOST_TEST(refused() == DLROVER_E_CORRUPT);
    BOOST_TEST(wait_until([&] { return daemon.last_restore_done().damaged == -1; }), "it is whole");
    BOOST_TEST(error_says("is not of the step, generation and world"));
    daemon.spread({3, 2}, stored_step, objects);
    BOOST_TEST(refused() == DLROVER_OK);
}

BOOST_FIXTURE_TEST_CASE(a_daemon_that_is_started_again_gives_out_a_spread_step_again, Spread) {
    auto c = context(0, 3);
    auto restore = open_restore(c.get());
    BOOST_TEST(reads(restore.get(), tensors[0], piece_of(tensors[0], 0, 2, saved_by)));
    daemon.stop(true);
    daemon.start();
    BOOST_TEST(reads(restore.get(), tensors[0], piece_of(tensors[0], 0, 4, saved_by)));
}

BOOST_FIXTURE_TEST_CASE(any_world_reads_what_eight_ranks_saved, Sharded) {
    for (std::uint32_t world_size : {1, 2, 3, 4, 8, 16}) read_all(world_size);
}

BOOST_FIXTURE_TEST_CASE(without_verifying_parts_the_same_comes, Sharded) {
    ::setenv("DLROVER_VERIFY_PARTS", "0", 1);
    read_all(3);
    auto c = context(0, 4);
    check_others(open_restore(c.get()).get());
    ::unsetenv("DLROVER_VERIFY_PARTS");
}

BOOST_FIXTURE_TEST_CASE(each_rank_reads_its_own_bytes_from_storage, Wide) {
    for (std::uint32_t world_size : {2u, 3u, 4u, 16u})
        for (std::uint32_t rank = 0; rank < world_size; ++rank) {
            Numbers rows{wide.shape[0] * rank / world_size, wide.shape[0] * (rank + 1) / world_size};
            Box box{{rows[0], 0}, {rows[1] - rows[0], wide.shape[1]}};
            std::uint64_t wanted = elements(box.shape);
            BOOST_TEST(bytes_read(box, rank, world_size, false) <= wanted + metadata_bytes);
            // Every byte of the pieces that hold some of it, which have one block each, once.
            std::uint64_t pieces = (rows[1] + piece_rows - 1) / piece_rows - rows[0] / piece_rows;
            BOOST_TEST(bytes_read(box, rank, world_size, true) <=
                       pieces * piece_rows * wide.shape[1] + metadata_bytes);
        }
}

BOOST_FIXTURE_TEST_CASE(of_pieces_wanted_in_part_the_blocks_that_hold_it_are_read_once, Long) {
    for (std::uint32_t world_size : {3u, 5u, 16u})
        for (std::uint32_t rank = 0; rank < world_size; ++rank) {
            std::uint64_t first = tensor.shape[0] * rank / world_size;
            std::uint64_t end = tensor.shape[0] * (rank + 1) / world_size;
            auto c = context(rank, world_size);
            auto restore = open_restore(c.get());
            std::uint64_t took = bytes_read(restore.get(), rows(first, end));
            BOOST_TEST(took >= bytes_in_blocks(first, end));
            BOOST_TEST(took <= bytes_in_blocks(first, end) + metadata_bytes, rank << " of " << world_size);
            // What was verified is read without what is around it.
            took = bytes_read(restore.get(), rows(first + 1, end - 1));
            BOOST_TEST(took <= (end - first - 2) * row_bytes + 1000, rank << " of " << world_size);
        }
    // Columns are in every block.
    auto c = context(0, 3);
    std::uint64_t took = bytes_read(open_restore(c.get()).get(), {{0, 500}, {tensor.shape[0], 30}});
    BOOST_TEST(took >= saved_by * piece_bytes);
    BOOST_TEST(took <= saved_by * piece_bytes + metadata_bytes);
    BOOST_TEST(complete());
}

BOOST_FIXTURE_TEST_CASE(pieces_without_hashes_of_blocks_are_verified_as_a_whole, Long) {
    save_as_before_blocks();
    auto c = context(0, 16);
    auto restore = open_restore(c.get());
    std::uint64_t took = bytes_read(restore.get(), rows(3, 10));
    BOOST_TEST(took >= piece_bytes + 7 * row_bytes);
    BOOST_TEST(took <= piece_bytes + 7 * row_bytes + metadata_bytes);
    BOOST_TEST(bytes_read(restore.get(), rows(20, 30)) <= 10 * row_bytes + 1000);
    flip(40, 0);
    restore.reset();
    restore = open_restore(c.get());
    std::vector<std::byte> out;
    BOOST_TEST(read(restore.get(), "long", DType::UInt8, rows(3, 10), out) == DLROVER_E_CORRUPT);
    BOOST_TEST(error_says("rank-0.h5: the checksum of chunk \"long\" is wrong"));
}

/// Row 60 is in the second of rank 1's blocks.
BOOST_FIXTURE_TEST_CASE(a_flipped_bit_counts_for_who_reads_its_block, Long) {
    flip(60, 99'999);
    auto c = context(0, 16);
    for (Box box : {rows(0, 54), rows(70, 150), rows(95, 360)})
        BOOST_TEST(reads(open_restore(c.get()).get(), tensor, box));
    BOOST_TEST(complete());
    auto rename_back = [&] { std::filesystem::rename(manifest_path() + ".suspect", manifest_path()); };
    // Itself, another byte of the block, a few columns of a row in it, all of the piece.
    for (Box box : {rows(60, 61), rows(58, 59), Box{{57, 3}, {1, 2}}, rows(45, 90), rows(0, 360)}) {
        std::vector<std::byte> out;
        BOOST_TEST(read(open_restore(c.get()).get(), "long", DType::UInt8, box, out) == DLROVER_E_CORRUPT);
        BOOST_TEST(error_says("rank-1.h5: the checksum of chunk \"long\" is wrong"));
        BOOST_TEST(suspect());
        rename_back();
    }
    ::setenv("DLROVER_VERIFY_PARTS", "0", 1);
    auto trusting = context(0, 4);
    ::unsetenv("DLROVER_VERIFY_PARTS");
    BOOST_TEST(reads(open_restore(trusting.get()).get(), tensor, rows(58, 59)));
    BOOST_TEST(!reads(open_restore(trusting.get()).get(), tensor, rows(60, 61)), "nobody looks");
}

BOOST_FIXTURE_TEST_CASE(in_memory_too_a_flipped_bit_counts_for_who_reads_its_block, Spread) {
    const Tensor &large = tensors[6];
    Box piece = piece_of(large, 0, 2, saved_by);
    std::uint64_t bytes = elements(piece.shape), first = piece.offset[0], rows = piece.shape[0];
    BOOST_REQUIRE(bytes > 3 * ckpt::checksum_block_bytes);
    daemon.flip_spread(2, place_of(2, "large") + bytes - 1);
    auto c = context(0, 3);
    auto restore = open_restore(c.get());
    BOOST_TEST(reads(restore.get(), large, {{first, 0}, {rows / 2, 9000}}));
    std::vector<std::byte> out;
    BOOST_TEST(read(restore.get(), "large", DType::UInt8, {{first + rows - 1, 0}, {1, 1}}, out) ==
               DLROVER_E_CORRUPT);
    BOOST_TEST(error_says("\"large\" in the object of rank 2 is wrong"));
    restore.reset();
    BOOST_TEST(wait_until([&] { return daemon.last_restore_done().damaged == 2; }));
}

/// Cut across the rows that were saved.
BOOST_FIXTURE_TEST_CASE(rows_that_lie_far_apart_are_read_without_what_is_between, Wide) {
    for (std::uint64_t width : {std::uint64_t{1}, std::uint64_t{1000}, std::uint64_t{30'000}}) {
        Box box{{5, wide.shape[1] - width - 7}, {50, width}};
        BOOST_TEST(bytes_read(box, 0, 3, false) <= elements(box.shape) + metadata_bytes, width);
    }
}

BOOST_FIXTURE_TEST_CASE(what_a_world_of_another_size_sees, Sharded) {
    auto c = context(1, 3);
    auto restore = open_restore(c.get());
    dlrover_restore *r = restore.get();
    BOOST_TEST(dlrover_restore_world_size(r) == 8);
    BOOST_TEST(dlrover_restore_step(r) == 7);
    BOOST_TEST(dlrover_restore_count(r) == 0u);
    const char *json = nullptr;
    const void *ledger = nullptr;
    std::uint64_t bytes = 0, count = 0;
    BOOST_REQUIRE(dlrover_restore_skeleton(r, &json, &bytes) == DLROVER_OK);
    BOOST_TEST(std::string(json, bytes) == "{\"of\": 0}");
    BOOST_REQUIRE(dlrover_restore_ledger(r, &ledger, &bytes) == DLROVER_OK);
    BOOST_TEST(std::string(static_cast<const char *>(ledger), bytes) == "pos");
    BOOST_REQUIRE(dlrover_restore_global_count(r, &count) == DLROVER_OK);
    std::vector<std::string> found;
    for (std::uint64_t i = 0; i < count; ++i) {
        dlrover_chunk chunk;
        BOOST_REQUIRE(dlrover_restore_global(r, i, &chunk) == DLROVER_OK);
        found.push_back(chunk.name);
        if (found.back() != "cube") continue;
        BOOST_TEST(chunk.dtype == static_cast<std::uint32_t>(DLROVER_INT64));
        BOOST_TEST(chunk.ndim == 3u);
        BOOST_TEST(chunk.global_shape[1] == 26u);
        BOOST_TEST(chunk.local_shape[1] == 26u);
        BOOST_TEST(chunk.global_offset[1] == 0u);
    }
    std::vector<std::string> expected{"back",  "cols", "cube", "empty", "grid",   "kept",
                                      "large", "line", "rows", "same",  "scalar", "short"};
    BOOST_TEST(found == expected, boost::test_tools::per_element());
    dlrover_chunk chunk;
    BOOST_TEST(dlrover_restore_global(r, count, &chunk) == DLROVER_E_NOT_FOUND);
    check_others(r);
}

BOOST_FIXTURE_TEST_CASE(the_same_size_has_both, Sharded) {
    auto c = context(2, 8);
    auto restore = open_restore(c.get());
    BOOST_TEST(dlrover_restore_count(restore.get()) > 8u);
    check_others(restore.get());
    BOOST_TEST(reads(restore.get(), tensors[0], {{0, 0}, {37, 6}}));
}

BOOST_FIXTURE_TEST_CASE(wrong_boxes_are_refused, Sharded) {
    auto c = context(0, 2);
    auto restore = open_restore(c.get());
    std::vector<std::byte> out;
    dlrover_restore *r = restore.get();
    BOOST_TEST(read(r, "rows", DType::Float64, {{0, 0}, {1, 1}}, out) == DLROVER_E_INVALID);
    BOOST_TEST(read(r, "rows", DType::Float32, {{0}, {1}}, out) == DLROVER_E_INVALID);
    BOOST_TEST(read(r, "rows", DType::Float32, {{37, 0}, {1, 1}}, out) == DLROVER_E_INVALID);
    BOOST_TEST(error_says("is no part of tensor \"rows\", whose shape is [37, 6]"));
    BOOST_TEST(read(r, "rows", DType::Float32, {{UINT64_MAX, 0}, {2, 1}}, out) == DLROVER_E_INVALID);
    std::uint64_t at[2] = {0, 0}, shape[2] = {2, 2};
    char small[8];
    BOOST_TEST(dlrover_restore_read(r, "rows", DLROVER_FLOAT32, 2, at, shape, small, 8) == DLROVER_E_INVALID);
    BOOST_TEST(dlrover_restore_read(r, "rows", 99, 2, at, shape, small, 8) == DLROVER_E_INVALID);
    BOOST_TEST(dlrover_restore_read(r, "rows", DLROVER_FLOAT32, 17, at, shape, small, 8) ==
               DLROVER_E_INVALID);
    BOOST_TEST(dlrover_restore_read(r, nullptr, DLROVER_FLOAT32, 2, at, shape, small, 8) ==
               DLROVER_E_INVALID);
    BOOST_TEST(dlrover_restore_read(r, "rows", DLROVER_FLOAT32, 2, nullptr, shape, small, 8) ==
               DLROVER_E_INVALID);
    BOOST_TEST(dlrover_restore_world_size(nullptr) == DLROVER_E_INVALID);
    BOOST_TEST(complete());
}

BOOST_FIXTURE_TEST_CASE(a_missing_file_never_reads_as_zeros, Sharded) {
    auto c = context(0, 4);
    auto restore = open_restore(c.get());
    std::filesystem::remove(rank_path(6));
    std::vector<std::byte> out;
    BOOST_TEST(read(restore.get(), "rows", DType::Float32, {{0, 0}, {37, 6}}, out) == DLROVER_E_CORRUPT);
    BOOST_TEST(error_says("rank-6.h5"));
    BOOST_TEST(suspect());
    restore.reset();
    for (int i = 0; i < 500 && daemon.last_restore_done().text.empty(); ++i) ::usleep(10000);
    BOOST_TEST(!daemon.last_restore_done().ok);
    BOOST_TEST(daemon.last_restore_done().text.find("rank-6.h5") != std::string::npos);
}

BOOST_FIXTURE_TEST_CASE(a_tensor_on_more_ranks_than_descriptors, Stored) {
    constexpr std::uint32_t many = 150;
    save(many, [](Maker &maker, std::uint32_t rank) {
        maker.put("w", DType::UInt8, {many, 3}, {rank, 0}, {1, 3}, 0,
                  std::vector<std::byte>(3, std::byte(rank)));
    });
    auto c = context(0, 1);
    auto restore = open_restore(c.get());
    std::vector<std::byte> out;
    BOOST_REQUIRE(read(restore.get(), "w", DType::UInt8, {{0, 0}, {many, 3}}, out) == DLROVER_OK);
    for (std::uint32_t i = 0; i < many; ++i) BOOST_TEST((out[3 * i + 2] == std::byte(i)));
    std::size_t open = 0;
    for (auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone;
        open += std::filesystem::read_symlink(entry, gone).string().find("/rank-") != std::string::npos;
    }
    BOOST_TEST(open <= 64u);
    BOOST_REQUIRE(read(restore.get(), "w", DType::UInt8, {{140, 1}, {10, 2}}, out) == DLROVER_OK);
    BOOST_TEST((out[0] == std::byte(140)));
}

BOOST_FIXTURE_TEST_CASE(from_memory_a_rank_reads_its_own_pieces, Stored) {
    auto c = context(0, 1);
    BOOST_REQUIRE(save_step(c.get(), 5) == DLROVER_OK);
    dlrover_save *s = nullptr;
    BOOST_REQUIRE(dlrover_save_begin(c.get(), 6, 4000, &s) == DLROVER_OK);
    const Tensor tensor{"t", DType::Int32, {10, 20}, 0, 0};
    for (std::uint64_t row : {0, 2, 6}) {
        dlrover_chunk chunk{};
        chunk.name = "t";
        chunk.dtype = DLROVER_INT32;
        chunk.ndim = 2;
        chunk.global_shape[0] = 10;
        chunk.global_shape[1] = chunk.local_shape[1] = 20;
        chunk.global_offset[0] = row;
        chunk.local_shape[0] = 2;
        auto data = content(tensor, {row, 0}, {2, 20});
        BOOST_REQUIRE(dlrover_save_add(s, &chunk, data.data(), data.size()) == DLROVER_OK);
    }
    BOOST_REQUIRE(dlrover_save_commit(s) == DLROVER_OK);
    auto restore = open_restore(c.get());
    BOOST_TEST(dlrover_restore_world_size(restore.get()) == 1);
    BOOST_TEST(reads(restore.get(), tensor, {{1, 5}, {3, 7}}));
    BOOST_TEST(reads(restore.get(), tensor, {{6, 0}, {2, 20}}));
    std::vector<std::byte> out;
    BOOST_TEST(read(restore.get(), "t", DType::Int32, {{3, 0}, {2, 20}}, out) == DLROVER_E_UNSUPPORTED);
    BOOST_TEST(error_says("is in another rank's memory"));
    BOOST_TEST(read(restore.get(), "a", DType::Float32, {{0}, {1}}, out) == DLROVER_E_NOT_FOUND);
    std::uint64_t count = 0;
    BOOST_REQUIRE(dlrover_restore_global_count(restore.get(), &count) == DLROVER_OK);
    BOOST_TEST(count == 1u);
    dlrover_chunk chunk;
    BOOST_REQUIRE(dlrover_restore_global(restore.get(), 0, &chunk) == DLROVER_OK);
    BOOST_TEST(chunk.name == "t");
    BOOST_TEST(chunk.global_shape[0] == 10u);
}

BOOST_AUTO_TEST_SUITE_END()
