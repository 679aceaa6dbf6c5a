// SPDX-License-Identifier: Apache-2.0
#include "ckpt/direct_write.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "ckpt/storage_io.h"
#include "storage_fixture.h"

using namespace dlrover;
using namespace dlrover::ckpt;
using namespace dlrover::ckpt::test;

namespace {

constexpr std::uint64_t page = 4096;

/// Parts of all sizes with and without zeros between them, and what the file must have.
struct Stretch {
    std::vector<std::vector<std::byte>> sources;
    std::vector<FilePart> parts;
    std::vector<std::byte> expected;  ///< of the file from 0 on; ones before the stretch
    FileStretch at{};

    explicit Stretch(unsigned seed, std::uint64_t begin, std::size_t count) {
        std::mt19937_64 random(seed);
        std::uint64_t offset = begin;
        std::vector<std::uint64_t> offsets;
        for (std::size_t i = 0; i < count; ++i) {
            std::uint64_t most = random() % 5 == 0 ? 3u << 20 : 70000u, bytes = 1 + random() % most;
            if (random() % 2 == 0) offset = (offset + page - 1) / page * page;
            offsets.push_back(offset);
            sources.emplace_back(bytes);
            for (std::byte &b : sources.back()) b = std::byte(random() | 1);
            offset += bytes;
        }
        at = {begin, (offset + page - 1) / page * page};
        expected.assign(at.end, std::byte{});
        std::fill_n(expected.begin(), begin, std::byte{1});
        for (std::size_t i = 0; i < count; ++i) {
            parts.push_back({offsets[i], sources[i].size(), sources[i].data()});
            std::copy(sources[i].begin(), sources[i].end(),
                      expected.begin() + static_cast<std::ptrdiff_t>(offsets[i]));
        }
    }
};

struct File {
    std::string path;
    UniqueFd fd;
    File(const std::string &name, std::uint64_t bytes, int flags = O_RDWR)
        : path(name), fd(::open(name.c_str(), flags | O_CREAT, 0600)) {
        BOOST_REQUIRE(fd);
        BOOST_REQUIRE(::truncate(path.c_str(), static_cast<off_t>(bytes)) == 0);
    }
    std::vector<std::byte> content() const {
        std::vector<std::byte> bytes(file_size(fd.get(), path).value());
        BOOST_REQUIRE(read_at(fd.get(), bytes.data(), bytes.size(), 0, path).ok());
        return bytes;
    }
};

/// What three threads' run() said that did not end well.
std::vector<Status> failures(DirectWriter &writer) {
    Status ends[3];
    std::vector<std::thread> threads;
    for (Status &end : ends) threads.emplace_back([&] { end = writer.run(); });
    for (std::thread &thread : threads) thread.join();
    std::vector<Status> failed;
    for (Status &end : ends)
        if (!end.ok()) failed.push_back(std::move(end));
    return failed;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(direct_write)

BOOST_AUTO_TEST_CASE(a_stretch_is_its_parts_and_zeros) {
    Folder folder;
    for (unsigned seed = 1; seed <= 6; ++seed)
        for (bool direct : {true, false}) {
            const Stretch stretch(seed, page * (1 + seed % 3), seed == 1 ? 0 : 20 * seed);
            const File file(folder / "file", stretch.at.end);
            UniqueFd frame(::memfd_create("test", MFD_CLOEXEC));
            const std::vector<std::byte> ones(stretch.at.begin, std::byte{1});
            BOOST_REQUIRE(write_at(frame.get(), ones.data(), ones.size(), 0, "test").ok());
            DirectWriter writer(file.fd.get(), file.path, stretch.at, stretch.parts, direct, true);
            Status other;
            std::thread second([&] { other = writer.run(); });
            Status copied = writer.copy(frame.get(), 0, stretch.at.begin), mine = writer.run();
            second.join();
            BOOST_TEST((copied.ok() && mine.ok() && other.ok()));
            BOOST_TEST((file.content() == stretch.expected), "seed " << seed << ", direct " << direct);
            for (std::size_t i = 0; i < stretch.parts.size(); ++i)
                BOOST_TEST(combine_block_hashes(writer.hashes(i)) == chunk_checksum(stretch.sources[i]));
        }
}

BOOST_AUTO_TEST_CASE(one_thread_says_why_it_failed) {
    Folder folder;
    const Stretch stretch(7, page, 200);
    const File file(folder / "file", stretch.at.end, O_RDONLY);
    DirectWriter writer(file.fd.get(), file.path, stretch.at, stretch.parts, false, true);
    Status other;
    std::thread second([&] { other = writer.run(); });
    Status mine = writer.run();
    second.join();
    const Status &failed = mine.ok() ? other : mine;
    BOOST_TEST(!failed.ok());
    BOOST_TEST(failed.message().find(file.path) != std::string::npos);
}

BOOST_AUTO_TEST_CASE(room_that_ends_in_the_middle_ends_all_threads) {
    Folder folder;
    const Stretch stretch(9, page, 100);
    BOOST_REQUIRE(stretch.at.end > (20u << 20));
    for (bool direct : {true, false}) {
        const File file(folder / "file", stretch.at.end);
        std::uint64_t room = (13u << 20) + 5 * page;  // in the middle of a window
        DirectWriter writer(file.fd.get(), file.path, stretch.at, stretch.parts, direct, true);
        std::vector<Status> failed;
        {
            FilesNoLonger limit(room);
            failed = failures(writer);
        }
        BOOST_TEST(!failed.empty());
        for (const Status &status : failed) {
            BOOST_TEST((status.code() == Code::resource_exhausted), status.to_string());
            BOOST_TEST(status.message().find("write of " + file.path) != std::string::npos);
        }
        std::vector<std::byte> content = file.content();
        BOOST_TEST(std::all_of(content.begin() + static_cast<std::ptrdiff_t>(room), content.end(),
                               [](std::byte b) { return b == std::byte{}; }));
    }
}

BOOST_AUTO_TEST_CASE(a_full_device_is_no_room) {
    const Stretch stretch(10, page, 50);
    UniqueFd fd(::open("/dev/full", O_RDWR | O_CLOEXEC));
    BOOST_REQUIRE(fd);
    for (bool direct : {true, false}) {
        DirectWriter writer(fd.get(), "/dev/full", stretch.at, stretch.parts, direct, false);
        std::vector<Status> failed = failures(writer);
        BOOST_TEST(!failed.empty());
        for (const Status &status : failed)
            BOOST_TEST((status.code() == Code::resource_exhausted), status.to_string());
    }
}

BOOST_AUTO_TEST_CASE(who_gives_up_writes_no_more) {
    Folder folder;
    const Stretch stretch(8, page, 20);
    const File file(folder / "file", stretch.at.end);
    DirectWriter writer(file.fd.get(), file.path, stretch.at, stretch.parts, true, false);
    writer.give_up();
    BOOST_TEST(writer.run().ok());
    BOOST_TEST((file.content() == std::vector<std::byte>(stretch.at.end)));
}

BOOST_AUTO_TEST_CASE(chunks_lie_together_at_the_front) {
    Maker maker;
    maker.add("a", DType::Int8, {5}).add("empty", DType::Int8, {0}).add("b", DType::Int8, {100});
    maker.add("replica", DType::Int8, {5}, {0}, {5}, 1).add("large", DType::Int8, {65536});
    maker.add("c", DType::Int8, {4095}).add("d", DType::Int8, {65535}).add("e", DType::Int8, {65537});
    SealedObject object = maker.object();
    auto table = ObjectTableView::parse(object.table, object.data.size());
    BOOST_REQUIRE(table.ok());
    const ChunkPlaces places = place_chunks(*table);
    const std::vector<std::uint64_t> expected{8192,          0,     8197, not_stored, 12288, 12288 + 65536,
                                              12288 + 69631, 147456};
    BOOST_TEST(places.of == expected, boost::test_tools::per_element());
    BOOST_TEST(places.begin == 8192u);
    BOOST_TEST(places.end == 147456u + 65536 + 4096);
}

BOOST_AUTO_TEST_SUITE_END()
