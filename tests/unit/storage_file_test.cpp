// SPDX-License-Identifier: Apache-2.0
#include "ckpt/storage_file.h"

#include <sys/mount.h>
#include <unistd.h>

#include "ckpt/storage_writer.h"
#include "storage_fixture.h"

using namespace dlrover;
using namespace dlrover::ckpt;
using namespace dlrover::ckpt::test;

/// HDF5 itself loses what belongs to a file whose close has failed.
extern "C" __attribute__((visibility("default"))) const char *__lsan_default_suppressions() {
    return "leak:libhdf5";
}

namespace {

/// Small, packed and large chunks, of every kind of shape.
Maker mixed() {
    Maker maker;
    maker.add("layer.0/weight", DType::Float32, {300, 400});
    maker.add("bias", DType::BFloat16, {8}, {2}, {3});
    maker.add("bias", DType::BFloat16, {8}, {5}, {3});
    maker.add("größe", DType::Int64, {});
    maker.add("empty", DType::Float64, {3, 0, 4});
    maker.add("deep", DType::UInt8, {2, 1, 2, 1, 3, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 5});
    maker.add("copy", DType::Float32, {5}, {0}, {5}, 1);
    maker.add("large", DType::UInt8, {(3u << 20) + 5});
    maker.skeleton("{\"version\":1}");
    return maker;
}

void require_same(const StorageFile &file, const Maker &maker) {
    for (std::uint64_t i = 0; i < file.table().count(); ++i) {
        ChunkInfo chunk = file.table().chunk(i);
        BOOST_TEST(file.stored(i) == (chunk.replica == 0));
        if (!file.stored(i)) continue;
        std::vector<std::byte> bytes(chunk.bytes);
        Status status = file.read_chunk(i, bytes);
        BOOST_TEST(status.ok(), status.to_string());
        auto *saved = maker.data.data() + chunk.offset;
        BOOST_TEST(std::equal(bytes.begin(), bytes.end(), saved));
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(storage_file)

BOOST_AUTO_TEST_CASE(what_is_written_is_read) {
    for (bool direct : {false, true}) {
        Folder folder;
        Maker maker = mixed();
        auto written = write_storage_file(folder / "a/b", maker.object(), {.direct = direct});
        BOOST_REQUIRE_MESSAGE(written.ok(), written.status().to_string());
        BOOST_TEST((names_in(folder / "a/b") == std::vector<std::string>{"rank-0.h5"}));
        auto file = StorageFile::open(folder / "a/b/rank-0.h5");
        BOOST_REQUIRE_MESSAGE(file.ok(), file.status().to_string());
        BOOST_TEST((file->summary() == *written));
        BOOST_TEST(std::string(file->ledger().begin(), file->ledger().end()) == "pos");
        BOOST_TEST(file->table().skeleton() == "{\"version\":1}");
        require_same(*file, maker);
        Status status = file->verify();
        BOOST_TEST(status.ok(), status.to_string());
    }
}

BOOST_AUTO_TEST_CASE(an_object_without_chunks_has_a_file) {
    Folder folder;
    Maker maker;
    maker.ledger.clear();
    BOOST_REQUIRE(write_storage_file(folder / "s", maker.object()).ok());
    auto file = StorageFile::open(folder / "s/rank-0.h5");
    BOOST_REQUIRE_MESSAGE(file.ok(), file.status().to_string());
    BOOST_TEST(file->ledger().empty());
    BOOST_TEST(file->verify().ok());
}

BOOST_AUTO_TEST_CASE(a_bit_flipped_anywhere_is_found) {
    Folder folder;
    Maker maker;
    maker.add("a", DType::Float32, {33}).add("b", DType::UInt8, {70000}).skeleton("{}");
    BOOST_REQUIRE(write_storage_file(folder / "", maker.object()).ok());
    std::string path = folder / "rank-0.h5";
    std::uint64_t bytes = std::filesystem::file_size(path), step = 1;
    for (std::uint64_t at = 0; at < bytes; at += step) {
        step = at < 192 || (at > 4096 && at < 4500) ? 1 : 97;
        flip_bit(path, at);
        auto file = StorageFile::open(path);
        Status status = file.ok() ? file->verify() : file.take_status();
        BOOST_TEST((status.code() == Code::corrupt), "byte " << at << ": " << status.to_string());
        BOOST_TEST(status.message().find(path) == 0u, status.message());
        flip_bit(path, at);
    }
    BOOST_TEST(StorageFile::open(path)->verify().ok());
}

BOOST_AUTO_TEST_CASE(the_next_version_is_refused_by_name) {
    Folder folder;
    Maker maker;
    maker.add("a", DType::Float32, {33});
    BOOST_REQUIRE(write_storage_file(folder / "", maker.object()).ok());
    std::string path = folder / "rank-0.h5";
    make_next_version(path);
    Status status = StorageFile::open(path).take_status();
    BOOST_TEST((status.code() == Code::unsupported));
    BOOST_TEST(status.message() ==
               path +
                   ": a checkpoint's file is of version 2, and this dlrover reads version "
                   "1: a newer one has written it");
}

BOOST_AUTO_TEST_CASE(a_file_of_another_length_is_refused) {
    Folder folder;
    Maker maker = mixed();
    BOOST_REQUIRE(write_storage_file(folder / "", maker.object()).ok());
    std::string path = folder / "rank-0.h5";
    std::uint64_t whole = std::filesystem::file_size(path);
    for (std::uint64_t bytes :
         {std::uint64_t{0}, std::uint64_t{100}, std::uint64_t{4096}, whole / 2, whole - 1, whole + 1}) {
        std::filesystem::resize_file(path, bytes);
        auto file = StorageFile::open(path);
        BOOST_REQUIRE(!file.ok());
        BOOST_TEST((file.status().code() == Code::corrupt));
        if (bytes == 0) BOOST_REQUIRE(write_storage_file(folder / "", maker.object()).ok());
    }
}

BOOST_AUTO_TEST_CASE(parts_are_cut_out) {
    Folder folder;
    Maker maker;
    maker.add("w", DType::UInt16, {7, 600, 500}).add("x", DType::Int32, {});
    BOOST_REQUIRE(write_storage_file(folder / "", maker.object()).ok());
    auto file = StorageFile::open(folder / "rank-0.h5");
    BOOST_REQUIRE(file.ok());
    struct Box {
        Numbers offset, shape;
    };
    for (const Box &box :
         {Box{{0, 0, 0}, {7, 600, 500}}, Box{{2, 0, 0}, {3, 600, 500}}, Box{{1, 10, 0}, {2, 5, 500}},
          Box{{1, 590, 499}, {6, 10, 1}}, Box{{6, 599, 499}, {1, 1, 1}}, Box{{3, 0, 7}, {1, 600, 13}},
          Box{{0, 0, 0}, {7, 0, 500}}}) {
        std::vector<std::uint16_t> part(box.shape[0] * box.shape[1] * box.shape[2]);
        Status status = file->read_part(0, box.offset, box.shape, std::as_writable_bytes(std::span(part)));
        BOOST_REQUIRE_MESSAGE(status.ok(), status.to_string());
        auto *whole = reinterpret_cast<const std::uint16_t *>(maker.data.data());
        std::size_t at = 0, wrong = 0;
        for (std::uint64_t i = 0; i < box.shape[0]; ++i)
            for (std::uint64_t j = 0; j < box.shape[1]; ++j)
                for (std::uint64_t k = 0; k < box.shape[2]; ++k)
                    wrong += part[at++] !=
                             whole[((box.offset[0] + i) * 600 + box.offset[1] + j) * 500 + box.offset[2] + k];
        BOOST_TEST(wrong == 0u);
    }
    std::vector<std::byte> out(4);
    BOOST_TEST(file->read_part(1, Numbers{}, Numbers{}, out).ok());
    BOOST_TEST(
        (file->read_part(0, Numbers{7, 0, 0}, Numbers{1, 1, 2}, out).code() == Code::invalid_argument));
    BOOST_TEST(
        (file->read_part(0, Numbers{0, 0, 499}, Numbers{1, 1, 2}, out).code() == Code::invalid_argument));
    BOOST_TEST((file->read_part(0, Numbers{0, 0, UINT64_MAX}, Numbers{1, 1, 2}, out).code() ==
                Code::invalid_argument));
    BOOST_TEST((file->read_part(0, Numbers{0, 0}, Numbers{1, 2}, out).code() == Code::invalid_argument));
    BOOST_TEST(
        (file->read_part(0, Numbers{0, 0, 0}, Numbers{1, 1, 3}, out).code() == Code::invalid_argument));
}

BOOST_AUTO_TEST_CASE(memory_that_changed_after_the_seal_makes_no_file) {
    Folder folder;
    Maker maker = mixed();
    SealedObject object = maker.object();
    maker.data[maker.data.size() - 3] ^= std::byte{1};
    auto written = write_storage_file(folder / "", object);
    BOOST_REQUIRE(!written.ok());
    BOOST_TEST((written.status().code() == Code::corrupt));
    BOOST_TEST(written.status().message().find("large") != std::string::npos);
    BOOST_TEST(names_in(folder.path).empty());
}

BOOST_AUTO_TEST_CASE(every_block_in_memory_is_compared) {
    Folder folder;
    Maker maker;
    maker.add("small", DType::Int8, {9})
        .add("odd", DType::Int8, {70001})
        .add("long", DType::Int8, {9'000'001});
    maker.add("replica", DType::Int8, {9}, {0}, {9}, 1).add("last", DType::Int8, {1u << 20});
    SealedObject object = maker.object();
    auto table = ObjectTableView::parse(object.table, object.data.size());
    for (std::uint64_t i = 0; i < table->count(); ++i)
        for (std::uint64_t at = 0, bytes = table->chunk(i).bytes; at < bytes;
             at += std::min(bytes - 1, bytes / 11) + 1) {
            maker.data[table->chunk(i).offset + at] ^= std::byte{1};
            auto written = write_storage_file(folder / "", object);
            maker.data[table->chunk(i).offset + at] ^= std::byte{1};
            BOOST_TEST(written.ok() == (table->chunk(i).replica != 0), "chunk " << i << ", byte " << at);
            if (!written.ok()) BOOST_TEST((written.status().code() == Code::corrupt));
        }
    BOOST_TEST(write_storage_file(folder / "", object).ok());
    BOOST_TEST(StorageFile::open(folder / "rank-0.h5")->verify().ok());
}

BOOST_AUTO_TEST_CASE(chunks_may_lie_anywhere_in_memory) {
    Folder folder;
    Maker maker = mixed();
    SealedObject object = maker.object();
    auto table = ObjectTableView::parse(object.table);
    std::vector<std::vector<std::byte>> copies;
    std::vector<const std::byte *> places;
    for (std::uint64_t i = 0; i < table->count(); ++i) {
        auto bytes = object.data.subspan(table->chunk(i).offset, table->chunk(i).bytes);
        copies.emplace_back(bytes.begin(), bytes.end());
        places.push_back(copies.back().data());
    }
    auto together = write_storage_file(folder / "a", object);
    SealedObject scattered{{}, object.table, object.ledger, places};
    BOOST_TEST((write_storage_file(folder / "b", scattered).value() == *together));
    BOOST_TEST(StorageFile::open(folder / "b/rank-0.h5")->verify().ok());
    scattered.scattered = scattered.scattered.first(1);
    BOOST_TEST((write_storage_file(folder / "c", scattered).status().code() == Code::invalid_argument));
}

BOOST_AUTO_TEST_CASE(a_crashed_writers_file_gives_way) {
    Folder folder;
    std::string alive = temporary_of("rank-0.h5", ::getppid());
    std::string of_another_host = ".new-rank-0.h5.elsewhere.1.0-1";
    std::string of_another_rank = temporary_of("rank-1.h5", dead_process());
    for (const std::string &name :
         {temporary_of("rank-0.h5", dead_process()), alive, of_another_host, of_another_rank})
        std::ofstream(folder / name) << "half";
    Maker maker = mixed();
    BOOST_REQUIRE(write_storage_file(folder / "", maker.object()).ok());
    std::vector<std::string> left{alive, of_another_host, of_another_rank, "rank-0.h5"};
    std::ranges::sort(left);
    BOOST_TEST((names_in(folder.path) == left));
}

/// Several nodes put the same object there at a time: after a resize, or where one lacks its own.
BOOST_AUTO_TEST_CASE(two_writers_of_one_object) {
    Folder folder;
    Maker maker = mixed();
    SealedObject object = maker.object();
    StorageWriteOptions options;
    Result<RankFile> other = Status(Code::internal, "not yet");
    options.confirm = [&] {
        // A third one dies in the middle.
        std::ofstream(folder / temporary_name("rank-0.h5")) << "half";
        other = write_storage_file(folder / "", object);
        return Status();
    };
    auto own = write_storage_file(folder / "", object, options);
    BOOST_REQUIRE(own.ok());
    BOOST_REQUIRE(other.ok());
    BOOST_TEST((*own == *other));
    auto file = StorageFile::open(folder / "rank-0.h5");
    BOOST_REQUIRE(file.ok());
    BOOST_TEST(file->verify().ok());
    BOOST_TEST((file->summary() == *own));
}

BOOST_AUTO_TEST_CASE(another_objects_file_is_replaced) {
    Folder folder;
    Maker before = mixed(), after = mixed();
    after.add("more", DType::Float32, {10});
    BOOST_REQUIRE(write_storage_file(folder / "", before.object()).ok());
    auto written = write_storage_file(folder / "", after.object());
    BOOST_REQUIRE(written.ok());
    auto file = StorageFile::open(folder / "rank-0.h5");
    BOOST_REQUIRE(file.ok());
    BOOST_TEST((file->summary() == *written));
    BOOST_TEST((names_in(folder.path) == std::vector<std::string>{"rank-0.h5"}));
}

/// The node that completed the checkpoint has tidied it up meanwhile.
BOOST_AUTO_TEST_CASE(a_temporary_file_that_was_removed) {
    for (bool there : {true, false}) {
        Folder folder;
        Maker maker = mixed();
        SealedObject object = maker.object();
        StorageWriteOptions options;
        options.confirm = [&] {
            if (there) BOOST_TEST(write_storage_file(folder / "", object).ok());
            return remove_leftovers(folder / "", ".new-");
        };
        auto own = write_storage_file(folder / "", object, options);
        BOOST_TEST(own.ok() == there);
        if (!there) BOOST_TEST((own.status().code() == Code::stale));
    }
}

BOOST_AUTO_TEST_CASE(a_full_disk_leaves_nothing) {
    if (::geteuid() != 0) {
        BOOST_TEST_MESSAGE("skipped: mounting a small tmpfs needs root");
        return;
    }
    Folder folder;
    if (::mount("none", folder.path.c_str(), "tmpfs", 0, "size=1m") != 0) {
        BOOST_TEST_MESSAGE("skipped: no tmpfs can be mounted here");
        return;
    }
    Maker maker = mixed();
    auto written = write_storage_file(folder / "step", maker.object());
    BOOST_REQUIRE(!written.ok());
    BOOST_TEST((written.status().code() == Code::resource_exhausted), written.status().to_string());
    BOOST_TEST(written.status().message().find(folder / "step/.new-rank-0.h5") != std::string::npos);
    BOOST_TEST(names_in(folder / "step").empty());
    // Room again: the same call goes through.
    BOOST_REQUIRE(::mount("none", folder.path.c_str(), "tmpfs", MS_REMOUNT, "size=32m") == 0);
    BOOST_TEST(write_storage_file(folder / "step", maker.object()).ok());
    ::umount2(folder.path.c_str(), MNT_DETACH);
}

BOOST_AUTO_TEST_CASE(a_limit_on_file_sizes_leaves_nothing) {
    Folder folder;
    Maker maker;
    maker.add("large", DType::UInt8, {3u << 20});
    for (std::uint64_t limit : {1u << 20, 5000u, 100u, 0u}) {
        auto write = [&] {
            FilesNoLonger than(limit);
            return write_storage_file(folder / "step", maker.object());
        };
        auto written = write();
        BOOST_REQUIRE(!written.ok());
        BOOST_TEST(names_in(folder / "step").empty());
    }
    BOOST_TEST(write_storage_file(folder / "step", maker.object()).ok());
}

BOOST_AUTO_TEST_CASE(a_folder_that_can_not_be_is_named) {
    Folder folder;
    std::ofstream(folder / "file") << "x";
    Maker maker = mixed();
    auto written = write_storage_file(folder / "file/step", maker.object());
    BOOST_REQUIRE(!written.ok());
    BOOST_TEST((written.status().code() == Code::not_found), written.status().to_string());
    BOOST_TEST(written.status().message().find(folder / "file") != std::string::npos);
    auto file = StorageFile::open(folder / "none/rank-0.h5");
    BOOST_TEST((file.status().code() == Code::not_found));
    BOOST_TEST((StorageFile::open(folder / "").status().code() == Code::corrupt));  // a folder, not a file
}

BOOST_AUTO_TEST_SUITE_END()
