// SPDX-License-Identifier: Apache-2.0
// A rank's own object from storage, through the C interface.
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <set>

#include "ckpt/storage_header.h"
#include "ckpt/storage_io.h"
#include "stored_fixture.h"

using namespace dlrover;
using namespace dlrover::test;

namespace {

/// Where the next read that takes in this byte of a file finds it wrong; then no more.
std::atomic<std::int64_t> wrong_once{-1};

}  // namespace

/// In place of the C library's, for the library too.
extern "C" [[gnu::visibility("default")]] ssize_t pread(int fd, void *data, std::size_t bytes, off_t offset) {
    ssize_t n = ::syscall(SYS_pread64, fd, data, bytes, offset);
    std::int64_t at = wrong_once;
    if (n > 0 && at >= offset && at < offset + n && wrong_once.compare_exchange_strong(at, -1))
        static_cast<char *>(data)[at - offset] ^= 4;
    return n;
}

namespace {

const Numbers none;

/// Every type, a tensor without dimensions, an empty one, one of several windows, skeleton and ledger.
void fill_every_type(Maker &maker, std::uint32_t rank) {
    for (std::uint32_t number = 0; number <= static_cast<std::uint32_t>(DType::MAX); ++number) {
        auto type = *ckpt::to_dtype(number);
        if (ckpt::element_bytes(type) == 0) continue;
        maker.add("type " + std::to_string(number), type, {3, 5 + rank});
    }
    maker.add("scalar", DType::Float64, none, none, none).add("empty", DType::Float32, {0, 4});
    maker.add("large", DType::UInt8, {9u << 20 | 5}).skeleton("{\"rank\": " + std::to_string(rank) + "}");
}

/// All that the restore gives is what the maker has.
void check_equal(dlrover_restore *restore, Maker &maker) {
    auto object = maker.object();
    auto table = ckpt::ObjectTableView::parse(object.table);
    BOOST_REQUIRE(table.ok());
    BOOST_TEST(dlrover_restore_count(restore) == table->count());
    for (std::uint64_t i = 0; i < table->count(); ++i) {
        ckpt::ChunkInfo info = table->chunk(i);
        dlrover_chunk chunk;
        const void *data = nullptr;
        std::uint64_t bytes = 0;
        BOOST_REQUIRE(dlrover_restore_chunk(restore, i, &chunk, &data, &bytes) == DLROVER_OK);
        BOOST_TEST(chunk.name == info.name);
        BOOST_TEST(chunk.dtype == static_cast<std::uint32_t>(info.dtype));
        BOOST_TEST(chunk.replica == info.replica);
        BOOST_REQUIRE(bytes == info.bytes);
        BOOST_TEST(std::memcmp(data, object.data.data() + info.offset, bytes) == 0, info.name);
        BOOST_TEST(reinterpret_cast<std::uintptr_t>(data) % 64 == 0u);
    }
    const char *json = nullptr;
    std::uint64_t bytes = 0;
    BOOST_REQUIRE(dlrover_restore_skeleton(restore, &json, &bytes) == DLROVER_OK);
    BOOST_TEST(std::string(json, bytes) == table->skeleton());
    const void *ledger = nullptr;
    BOOST_REQUIRE(dlrover_restore_ledger(restore, &ledger, &bytes) == DLROVER_OK);
    BOOST_TEST(std::string(static_cast<const char *>(ledger), bytes) == "pos");
}

struct Damaged : Stored {
    Damaged() {
        save(2, [](Maker &maker, std::uint32_t rank) {
            maker.add("w", DType::Float32, {2, 5000}, {rank, 0}, {1, 5000}).add("v", DType::UInt8, {70000});
        });
    }
    ckpt::StorageHeader header(std::uint32_t rank) {
        ckpt::StorageHeader header{};
        std::ifstream(rank_path(rank), std::ios::binary)
            .read(reinterpret_cast<char *>(&header), sizeof header);
        return header;
    }
    /// Where chunk `index` of the rank's file is.
    std::uint64_t place(std::uint32_t rank, std::uint64_t index) {
        std::uint64_t at = 0;
        std::ifstream file(rank_path(rank), std::ios::binary);
        file.seekg(static_cast<std::streamoff>(header(rank).places_offset + 8 * index));
        file.read(reinterpret_cast<char *>(&at), sizeof at);
        return at;
    }
    /// Opening fails with that code; whether the checkpoint was marked is as said.
    void refused(int code, bool marked, const std::string &words) {
        auto c = context(1, 2);
        dlrover_restore *restore = nullptr;
        BOOST_TEST(dlrover_restore_open(c.get(), &restore) == code, dlrover_error_text());
        BOOST_TEST(error_says(words));
        BOOST_TEST(suspect() == marked, dlrover_error_text());
        BOOST_TEST(complete() == !marked);
        if (marked) BOOST_TEST(error_says("was marked suspect: the next start goes on from an older one"));
        std::string text = dlrover_error_text();
        BOOST_TEST(dlrover_restore_open(c.get(), &restore) != DLROVER_OK, "and again");
        for (int i = 0; i < 500 && daemon.last_restore_done().text.empty(); ++i) ::usleep(10000);
        BOOST_TEST(!daemon.last_restore_done().ok);
    }
};

/// Reads and opens files as a user who is not root.
struct AsNobody {
    AsNobody() {
        if (::geteuid() == 0) ::setfsuid(65534);
    }
    ~AsNobody() { ::setfsuid(::geteuid()); }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(stored_object)

BOOST_FIXTURE_TEST_CASE(every_type_comes_back, Stored) {
    save(3, fill_every_type);
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
        Maker maker(rank, 3, stored_step);
        fill_every_type(maker, rank);
        auto c = context(rank, 3);
        auto restore = open_restore(c.get());
        BOOST_TEST(dlrover_restore_step(restore.get()) == 7);
        BOOST_TEST(dlrover_restore_world_size(restore.get()) == 3);
        check_equal(restore.get(), maker);
    }
    BOOST_TEST(complete());
}

BOOST_FIXTURE_TEST_CASE(replicas_are_fetched_from_who_has_them, Stored) {
    auto fill = [](Maker &maker, std::uint32_t rank) {
        Numbers row{rank % 2, 0};
        maker.add("first", DType::UInt8, {100 + rank});
        std::vector<std::byte> half(60000, std::byte(0x30 + rank % 2)), all(9u << 20, std::byte(7));
        maker.put("halves", DType::UInt8, {2, 60000}, row, {1, 60000}, rank / 2, half);
        maker.put("all", DType::UInt8, {9u << 20}, {0}, {9u << 20}, rank == 3 ? 0 : 1, all);
        maker.add("nothing", DType::UInt8, {0}, {0}, {0}, rank);
    };
    save(4, fill);
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
        Maker maker(rank, 4, stored_step);
        fill(maker, rank);
        auto c = context(rank, 4);
        check_equal(open_restore(c.get()).get(), maker);
    }
}

/// The byte that all of chunk `name` consists of, as the rank restores it, and as others read it.
int byte_of(Stored &stored, std::uint32_t rank, std::uint32_t world_size, const char *name) {
    auto c = stored.context(rank, world_size);
    auto restore = open_restore(c.get());
    dlrover_chunk chunk;
    const void *data = nullptr;
    std::uint64_t bytes = 0;
    BOOST_REQUIRE(dlrover_restore_find(restore.get(), name, &chunk, &data, &bytes) == DLROVER_OK);
    auto *first = static_cast<const std::uint8_t *>(data);
    BOOST_TEST(std::all_of(first, first + bytes, [&](std::uint8_t b) { return b == *first; }));
    std::uint64_t count = 0;
    BOOST_REQUIRE(dlrover_restore_rank_count(restore.get(), rank, &count) == DLROVER_OK);
    for (std::uint64_t i = 0; i < count; ++i) {
        std::vector<std::uint8_t> out;
        BOOST_REQUIRE(dlrover_restore_rank_chunk(restore.get(), rank, i, &chunk, &bytes) == DLROVER_OK);
        if (std::string(chunk.name) != name) continue;
        out.resize(bytes);
        BOOST_REQUIRE(dlrover_restore_rank_read(restore.get(), rank, i, out.data(), bytes) == DLROVER_OK);
        BOOST_TEST(std::memcmp(out.data(), data, bytes) == 0);
    }
    return *first;
}

BOOST_FIXTURE_TEST_CASE(a_replica_with_bytes_of_its_own_gets_those_that_are_stored, Stored) {
    save(3, [](Maker &maker, std::uint32_t rank) {
        maker.put("w", DType::UInt8, {4}, {0}, {4}, rank, std::vector<std::byte>(4, std::byte(5 + rank)));
    });
    for (std::uint32_t rank = 0; rank < 3; ++rank) BOOST_TEST(byte_of(*this, rank, 3, "w") == 5);
    BOOST_TEST(complete());
}

/// Two nodes of two ranks: each node's ranks hold w and v alike, and one of them keeps each.
BOOST_FIXTURE_TEST_CASE(what_another_rank_keeps_comes_from_who_stored_it, Stored) {
    save(4, [](Maker &maker, std::uint32_t rank) {
        std::uint32_t other = rank ^ 1;
        std::vector<std::byte> w(70000, std::byte(1)), v(80000, std::byte(2));
        const char *kept = rank % 2 == 0 ? "v" : "w";
        maker.add("own", DType::UInt8, {100 + rank});
        maker.kept(kept, DType::UInt8, {rank % 2 == 0 ? 80000u : 70000u}, other);
        if (rank % 2 == 0)
            maker.put("w", DType::UInt8, {70000}, {0}, {70000}, rank / 2, w);
        else
            maker.put("v", DType::UInt8, {80000}, {0}, {80000}, rank / 2, v);
    });
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
        BOOST_TEST(byte_of(*this, rank, 4, "w") == 1);
        BOOST_TEST(byte_of(*this, rank, 4, "v") == 2);
    }
    for (std::uint32_t rank = 2; rank < 4; ++rank)
        BOOST_TEST(std::filesystem::file_size(rank_path(rank)) < 70000u, "stored once");
    BOOST_TEST(complete());
}

/// Two sets with one name: who keeps it says which of them is meant.
BOOST_FIXTURE_TEST_CASE(the_keeper_says_which_of_two_tensors_it_is, Stored) {
    save(4, [](Maker &maker, std::uint32_t rank) {
        if (rank % 2 == 1)
            maker.kept("w", DType::UInt8, {70000}, rank - 1);
        else
            maker.put("w", DType::UInt8, {70000}, {0}, {70000}, 0,
                      std::vector<std::byte>(70000, std::byte(rank)));
    });
    for (std::uint32_t rank = 0; rank < 4; ++rank)
        BOOST_TEST(byte_of(*this, rank, 4, "w") == static_cast<int>(rank / 2 * 2));
}

BOOST_FIXTURE_TEST_CASE(a_keeper_without_the_chunk_is_damage, Stored) {
    save(2, [](Maker &maker, std::uint32_t rank) {
        if (rank == 1)
            maker.kept("w", DType::UInt8, {70000}, 0);
        else
            maker.add("v", DType::UInt8, {70000});
    });
    auto c = context(1, 2);
    dlrover_restore *restore = nullptr;
    BOOST_TEST(dlrover_restore_open(c.get(), &restore) == DLROVER_E_CORRUPT);
    BOOST_TEST(error_says("should be in the object of rank 0"));
    BOOST_TEST(suspect());
}

BOOST_FIXTURE_TEST_CASE(a_replica_of_which_the_stored_ones_differ_is_damage, Stored) {
    save(3, [](Maker &maker, std::uint32_t rank) {
        maker.put("w", DType::UInt8, {4}, {0}, {4}, rank / 2, std::vector<std::byte>(4, std::byte(rank)));
    });
    auto c = context(2, 3);
    dlrover_restore *restore = nullptr;
    BOOST_TEST(dlrover_restore_open(c.get(), &restore) == DLROVER_E_CORRUPT);
    BOOST_TEST(error_says("no rank's file has its bytes"));
    BOOST_TEST(suspect());
}

BOOST_FIXTURE_TEST_CASE(memory_goes_on_beside_it, Stored) {
    save(1, [](Maker &maker, std::uint32_t) { maker.add("w", DType::UInt8, {100}); });
    auto c = context(0, 1);
    {
        auto restore = open_restore(c.get());
        BOOST_TEST(save_step(c.get(), 8) == DLROVER_OK);
        BOOST_TEST(dlrover_restore_count(restore.get()) == 1u);
    }
    for (int i = 0; i < 500 && !daemon.last_restore_done().ok; ++i) ::usleep(10000);
    BOOST_TEST(daemon.last_restore_done().ok);
    open_restore(c.get());
}

BOOST_FIXTURE_TEST_CASE(a_flipped_bit_in_a_chunk, Damaged) {
    ckpt::test::flip_bit(rank_path(1), place(1, 1) + 69999);
    refused(DLROVER_E_CORRUPT, true, "rank-1.h5: the checksum of chunk \"v\" is wrong");
}

/// A bit that flipped on its way into one node's memory must not have all ranks go back.
BOOST_FIXTURE_TEST_CASE(what_is_wrong_when_it_is_read_once_is_read_again, Damaged) {
    auto c = context(1, 2);
    for (std::uint64_t at : {place(1, 1) + 69999, place(1, 0), std::uint64_t{30}, std::uint64_t{4000},
                             header(1).table_offset + 20, header(1).ledger_offset, header(1).places_offset}) {
        wrong_once = static_cast<std::int64_t>(at);
        auto restore = open_restore(c.get());
        BOOST_TEST(wrong_once == -1);
        Maker maker(1, 2, stored_step);
        maker.add("w", DType::Float32, {2, 5000}, {1, 0}, {1, 5000}).add("v", DType::UInt8, {70000});
        check_equal(restore.get(), maker);
    }
    BOOST_TEST(complete());
    BOOST_TEST(!suspect());
}

BOOST_FIXTURE_TEST_CASE(a_flipped_bit_in_the_table, Damaged) {
    ckpt::test::flip_bit(rank_path(1), header(1).table_offset + 20);
    refused(DLROVER_E_CORRUPT, true, "the checksum of the object table is wrong");
}

BOOST_FIXTURE_TEST_CASE(a_flipped_bit_in_the_header, Damaged) {
    ckpt::test::flip_bit(rank_path(1), 30);
    refused(DLROVER_E_CORRUPT, true, "the checksum of the file's header is wrong");
}

BOOST_FIXTURE_TEST_CASE(a_flipped_bit_in_the_ledger, Damaged) {
    ckpt::test::flip_bit(rank_path(1), header(1).ledger_offset);
    refused(DLROVER_E_CORRUPT, true, "the checksum of the ledger is wrong");
}

BOOST_FIXTURE_TEST_CASE(a_flipped_bit_in_the_list_of_places, Damaged) {
    ckpt::test::flip_bit(rank_path(1), header(1).places_offset);
    refused(DLROVER_E_CORRUPT, true, "the checksum of the list of places is wrong");
}

BOOST_FIXTURE_TEST_CASE(a_flipped_bit_in_the_manifest, Damaged) {
    ckpt::test::flip_bit(manifest_path(), 100);
    refused(DLROVER_E_CORRUPT, true, "the manifest's checksum is wrong");
}

BOOST_FIXTURE_TEST_CASE(a_file_cut_short, Damaged) {
    std::filesystem::resize_file(rank_path(1), 50000);
    refused(DLROVER_E_CORRUPT, true, "rank-1.h5");
}

BOOST_FIXTURE_TEST_CASE(a_file_that_is_missing, Damaged) {
    std::filesystem::remove(rank_path(1));
    refused(DLROVER_E_CORRUPT, true, "rank-1.h5");
}

BOOST_FIXTURE_TEST_CASE(a_file_of_another_time, Damaged) {
    Maker maker(1, 2, stored_step);
    maker.add("w", DType::Float32, {2, 5000}, {1, 0}, {1, 5000});
    BOOST_REQUIRE(ckpt::write_storage_file(checkpoints.data_folder(stored_id()), maker.object()).ok());
    refused(DLROVER_E_CORRUPT, true, "rank-1.h5 is not the file that the manifest names");
}

BOOST_FIXTURE_TEST_CASE(another_rank_found_it_first, Damaged) {
    BOOST_REQUIRE(checkpoints.set_aside({stored_id()}).ok());
    auto c = context(1, 2);
    dlrover_restore *restore = nullptr;
    BOOST_TEST(dlrover_restore_open(c.get(), &restore) == DLROVER_E_CORRUPT,
               "not found would mean: from the beginning");
    BOOST_TEST(error_says("was marked suspect meanwhile"));
    std::filesystem::remove_all(folder / "lineage");
    BOOST_TEST(dlrover_restore_open(c.get(), &restore) == DLROVER_E_CORRUPT);
    BOOST_TEST(error_says("is not there any more"));
}

BOOST_FIXTURE_TEST_CASE(no_access_is_no_damage, Damaged) {
    std::filesystem::permissions(folder.path, std::filesystem::perms(0755));
    std::filesystem::permissions(rank_path(1), std::filesystem::perms(0));
    auto c = context(1, 2);
    dlrover_restore *restore = nullptr;
    {
        AsNobody nobody;
        BOOST_TEST(dlrover_restore_open(c.get(), &restore) == DLROVER_E_SYSTEM);
    }
    BOOST_TEST(error_says("rank-1.h5: Permission denied"));
    BOOST_TEST(error_says("is left as it is"));
    BOOST_TEST(complete());
    std::filesystem::permissions(rank_path(1), std::filesystem::perms(0644));
    open_restore(c.get());
}

BOOST_FIXTURE_TEST_CASE(an_error_of_the_device_is_no_damage, Damaged) {
    // A read at the start of this file fails with EIO: no page of a process begins there.
    std::filesystem::remove(rank_path(1));
    std::filesystem::create_symlink("/proc/self/mem", rank_path(1));
    refused(DLROVER_E_SYSTEM, false, "Input/output error");
    BOOST_TEST((ckpt::file_error("read of", "x", ESTALE).code() == Code::unavailable));
}

BOOST_FIXTURE_TEST_CASE(a_mark_that_can_not_be_made_is_said, Damaged) {
    std::filesystem::permissions(folder.path, std::filesystem::perms(0755));
    ckpt::test::flip_bit(rank_path(1), 30);
    auto c = context(1, 2);
    dlrover_restore *restore = nullptr;
    {
        AsNobody nobody;
        if (::geteuid() != 0) std::filesystem::permissions(folder / "lineage", std::filesystem::perms(0555));
        BOOST_TEST(dlrover_restore_open(c.get(), &restore) == DLROVER_E_CORRUPT);
    }
    BOOST_TEST(error_says("could not be marked suspect"));
    BOOST_TEST(complete());
    std::filesystem::permissions(folder / "lineage", std::filesystem::perms(0755));
}

BOOST_FIXTURE_TEST_CASE(hostile_manifests, Damaged) {
    auto write = [&](const ckpt::Manifest &m) {
        std::filesystem::remove(manifest_path() + ".suspect");
        std::ofstream(manifest_path(), std::ios::trunc) << *ckpt::encode_manifest(m);
    };
    ckpt::Manifest other = manifest;
    other.lineage = "lab/1001/job a";
    write(other);
    refused(DLROVER_E_CORRUPT, false, "belongs to another lineage");
    other = manifest;
    std::swap(other.ranks[0].header_xxh3, other.ranks[1].header_xxh3);
    write(other);
    refused(DLROVER_E_CORRUPT, true, "is not the file that the manifest names");
    other = manifest;
    other.ranks.push_back({Rank(2), 1u << 20, 1, 1});
    write(other);
    refused(DLROVER_E_CORRUPT, true, "is of 3 ranks, not of 2");
    other = manifest;
    other.id.step = TrainStep(8);
    write(other);
    refused(DLROVER_E_CORRUPT, true, "is the manifest of another checkpoint");
    std::filesystem::remove(manifest_path() + ".suspect");
    std::ofstream(manifest_path(), std::ios::trunc) << std::string(100000, '9');
    refused(DLROVER_E_CORRUPT, true, "checksum is wrong");
}

BOOST_FIXTURE_TEST_CASE(chunks_that_share_bytes_are_refused, Stored) {
    std::uint64_t size = 100, zero = 0;
    std::vector<std::byte> data(128, std::byte(1));
    std::uint64_t sum = ckpt::chunk_checksum(std::span(data).first(100));
    ckpt::ObjectTableWriter writer({TrainStep(7), Rank(0), 1, {Term(3), 2}, "lab/1000/job a"});
    for (const char *name : {"a", "b"})
        BOOST_REQUIRE(
            writer.add({name, DType::UInt8, {&size, 1}, {&zero, 1}, {&size, 1}, 0, 0, 100, sum}).ok());
    auto table = *writer.finish();
    auto file = ckpt::write_storage_file(checkpoints.data_folder(stored_id()), {data, table, {}});
    BOOST_REQUIRE(file.ok());
    manifest.ranks.push_back(*file);
    publish();
    offer(1);
    auto c = context(0, 1);
    dlrover_restore *restore = nullptr;
    BOOST_TEST(dlrover_restore_open(c.get(), &restore) == DLROVER_E_CORRUPT);
    BOOST_TEST(error_says("share bytes"));
}

BOOST_AUTO_TEST_SUITE_END()
