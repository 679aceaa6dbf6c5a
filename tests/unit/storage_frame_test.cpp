// SPDX-License-Identifier: Apache-2.0
#include "ckpt/storage_frame.h"

#include <sys/mman.h>
#include <unistd.h>

#include <random>

#include "ckpt/storage_index.h"
#include "ckpt/storage_io.h"
#include "ckpt/storage_writer.h"
#include "storage_fixture.h"

using namespace dlrover;
using namespace dlrover::ckpt;
using namespace dlrover::ckpt::test;

namespace {

struct Tensor {
    std::string name;
    DType type = DType::Float32;
    Numbers global, offset, local;
    std::uint32_t replica = 0;
};
using Layout = std::vector<Tensor>;

/// What differs from step to step.
struct Step {
    std::uint64_t number = 7;
    std::uint32_t rank = 0, world_size = 1;
    std::string skeleton, ledger = "pos";
    std::uint8_t fill = 1;  ///< of all bytes
};

Maker make(const Layout &layout, const Step &step) {
    Maker maker(step.rank, step.world_size, step.number);
    for (const Tensor &t : layout) {
        std::uint64_t bytes = element_bytes(t.type);
        for (std::uint64_t n : t.local) bytes *= n;
        const std::vector<std::byte> content(bytes, std::byte(t.type == DType::Bool ? 1 : step.fill));
        maker.put(t.name, t.type, t.global, t.offset, t.local, t.replica, content);
    }
    if (!step.skeleton.empty()) maker.skeleton(step.skeleton);
    maker.ledger.assign(step.ledger.begin(), step.ledger.end());
    return maker;
}

RankFile store(const std::string &folder, const Layout &layout, const Step &step, StorageFrames *frames) {
    Maker maker = make(layout, step);
    auto written = write_storage_file(folder, maker.object(), {.frames = frames});
    BOOST_REQUIRE_MESSAGE(written.ok(), written.status().to_string());
    return *written;
}

std::vector<std::uint8_t> content(const std::string &path) {
    auto bytes = read_whole_file(path, std::uint64_t{1} << 30);
    BOOST_REQUIRE(bytes.ok());
    return std::move(*bytes);
}

/// Writes with and without frames; the files are the same.
void check_same_file(const Layout &layout, const Step &step, StorageFrames &frames) {
    Folder folder;
    std::string name = "/" + rank_file_name(Rank(step.rank));
    store(folder / "kept", layout, step, &frames);
    store(folder / "fresh", layout, step, nullptr);
    BOOST_TEST((content(folder / "kept" + name) == content(folder / "fresh" + name)),
               "step " << step.number << " of " << layout.size() << " chunks");
    auto file = StorageFile::open(folder / "kept" + name);
    BOOST_TEST((file.ok() && file->verify().ok()));
}

class Random {
  public:
    explicit Random(unsigned seed) : engine_(seed) {}
    std::uint64_t below(std::uint64_t end) { return engine_() % end; }
    std::string text(std::uint64_t most) {
        std::string text(below(most + 1), 'x');
        for (char &c : text) c = static_cast<char>(' ' + below(95));
        return text;
    }
    Tensor tensor(std::uint64_t number) {
        Tensor t{"t" + std::to_string(number) + text(40), DType(below(18)), {}, {}, {}, 0};
        for (std::uint64_t i = 0, dims = below(4); i < dims; ++i) {
            std::uint64_t local = below(40), offset = below(5);
            t.local.push_back(local);
            t.offset.push_back(offset);
            t.global.push_back(local + offset + below(5));
        }
        if (below(20) == 0) t.local = t.global = {80000 + below(9000)}, t.offset = {0};
        t.replica = below(8) == 0 ? 1 : 0;
        return t;
    }
    Layout layout() {
        Layout layout;
        for (std::uint64_t i = 0, count = below(3) == 0 ? below(700) : below(30); i < count; ++i)
            layout.push_back(tensor(i));
        return layout;
    }
    Step step(std::uint64_t number) {
        auto fill = static_cast<std::uint8_t>(below(256));
        return {number,    0,   1, below(3) == 0 ? "" : "{\"n\":\"" + std::string(below(3000), 'n') + "\"}",
                text(200), fill};
    }

  private:
    std::mt19937_64 engine_;
};

Layout two_tensors() {
    return {{"a", DType::Float32, {4, 6}, {1, 2}, {2, 3}, 0}, {"b", DType::Int8, {70000}, {0}, {70000}, 0}};
}

/// One other layout for each input of a frame.
std::vector<Layout> other_layouts() {
    std::vector<Layout> all(9, two_tensors());
    all[0][0].name = "aa";
    all[1][0].type = DType::Int32;
    all[2][0].global = {5, 6};
    all[3][0].offset = {1, 3};
    all[4][0].local = {3, 2};
    all[5][0].replica = 1;
    all[6].pop_back();
    std::swap(all[7][0], all[7][1]);
    all[8][0].global = {24}, all[8][0].offset = {2}, all[8][0].local = {6};
    return all;
}

std::shared_ptr<const StorageFrame> frame_of(std::uint64_t numbers) {
    auto frame = std::make_shared<StorageFrame>();
    const std::vector<std::uint64_t> content(numbers, 1);
    UniqueFd memory(::memfd_create("test", MFD_CLOEXEC));
    BOOST_REQUIRE(write_at(memory.get(), content.data(), numbers * 8, 0, "test").ok());
    auto packed = PackedMemory::pack(memory.get());
    BOOST_REQUIRE(packed.ok());
    frame->file = std::move(*packed);
    return frame;
}

FrameKey key_of(std::uint64_t number) {
    FrameKey key;
    return key.add(number);
}

CheckpointId id_of(std::uint64_t step) {
    return {{Term(1), 1}, TrainStep(step)};
}

/// Writes two ranks' files and their index into a folder; its content.
std::vector<std::uint8_t> index(const Folder &folder, const std::vector<Layout> &ranks, const Step &step,
                                StorageFrames &frames) {
    std::vector<StorageFile> files;
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
        Step own = step;
        own.rank = rank;
        own.world_size = static_cast<std::uint32_t>(ranks.size());
        store(folder / "", ranks[rank], own, nullptr);
        auto file = StorageFile::open(folder / rank_file_name(Rank(rank)));
        BOOST_REQUIRE(file.ok());
        file->close();
        files.push_back(std::move(*file));
    }
    auto written = write_storage_index(folder / "", files, frames);
    BOOST_REQUIRE_MESSAGE(written.ok(), written.status().to_string());
    return content(folder / index_file_name);
}

std::vector<Layout> two_ranks() {
    return {{{"w", DType::Float32, {4, 6}, {0, 0}, {2, 6}},
             {"v", DType::Int8, {5}, {0}, {5}},
             {"e", DType::Int8, {3, 0}, {0, 0}, {3, 0}},
             {"q", DType::Int8, {2, 2}, {0, 0}, {1, 1}},
             {"q", DType::Int8, {2, 2}, {0, 1}, {1, 1}}},
            {{"w", DType::Float32, {4, 6}, {2, 0}, {2, 6}}, {"q", DType::Int8, {2, 2}, {1, 0}, {1, 2}}}};
}

std::vector<std::vector<Layout>> other_ranks() {
    std::vector<std::vector<Layout>> all(9, two_ranks());
    for (Layout &rank : all[0]) rank[0].name = "x";
    for (Layout &rank : all[1]) rank[0].type = DType::Int32;
    all[2][0][0].local = {1, 6}, all[2][1][0].local = {3, 6}, all[2][1][0].offset = {1, 0};
    all[3][0][1].global = all[3][0][1].local = {6};
    std::swap(all[4][0][0], all[4][0][1]);
    std::swap(all[5][0][0], all[5][1][0]);
    all[6].push_back({});
    all[7][0][2].global = {4, 0};
    all[8][0][4].local = {2, 1}, all[8][1][1].local = {1, 1};
    return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(storage_frame)

BOOST_AUTO_TEST_CASE(packed_memory_has_the_same_bytes_and_length) {
    for (std::uint64_t length : {0u, 1u, 5000u, 3u << 20}) {
        UniqueFd memory(::memfd_create("test", MFD_CLOEXEC));
        BOOST_REQUIRE(::ftruncate(memory.get(), static_cast<off_t>(length)) == 0);
        for (std::uint64_t at = 17; at + 3 < length; at = at * 5 + 7)
            BOOST_REQUIRE(write_at(memory.get(), "abc", 3, at, "test").ok());
        auto packed = PackedMemory::pack(memory.get());
        BOOST_REQUIRE(packed.ok());
        auto copy = packed->unpack();
        BOOST_REQUIRE(copy.ok());
        BOOST_TEST(file_size(copy->get(), "copy").value() == length);
        std::vector<std::uint8_t> before(length), after(length);
        BOOST_TEST(read_at(memory.get(), before.data(), length, 0, "test").ok());
        BOOST_TEST(read_at(copy->get(), after.data(), length, 0, "copy").ok());
        BOOST_TEST((before == after));
        BOOST_TEST(packed->packed_bytes() < 200000u);
    }
}

BOOST_AUTO_TEST_CASE(keys_are_equal_only_if_every_part_is) {
    auto key = [](std::string_view a, std::string_view b, const Numbers &n, const Numbers &m) {
        FrameKey made;
        return made.add(a).add(b).add(n).add(m);
    };
    BOOST_TEST((key("a", "bc", {1}, {2, 3}) == key("a", "bc", {1}, {2, 3})));
    BOOST_TEST((key("a", "bc", {1}, {2, 3}) != key("ab", "c", {1}, {2, 3})));
    BOOST_TEST((key("a", "bc", {1}, {2, 3}) != key("a", "bc", {1, 2}, {3})));
    BOOST_TEST((key("a", "bc", {1}, {2, 3}) != key("a", "bc", {1}, {2, 4})));
}

BOOST_AUTO_TEST_CASE(memory_has_a_bound_and_what_is_of_use_stays) {
    StorageFrames frames(10000);
    frames.begin(id_of(1));
    for (std::uint64_t i = 0; i < 6; ++i) frames.keep(key_of(i), frame_of(300));  // 2400 bytes and the key
    BOOST_TEST(frames.count() == 4u);
    BOOST_TEST((frames.bytes() >= 9600 && frames.bytes() <= 10000));
    frames.begin(id_of(2));
    for (std::uint64_t i = 0; i < 6; ++i) BOOST_TEST((frames.find(key_of(i)) != nullptr) == (i < 4));
    frames.begin(id_of(3));
    for (std::uint64_t i : {3, 1}) BOOST_TEST((frames.find(key_of(i)) != nullptr));
    frames.keep(key_of(7), frame_of(300));  // all were used a checkpoint ago
    BOOST_TEST((frames.find(key_of(7)) == nullptr));
    frames.begin(id_of(4));
    frames.keep(key_of(8), frame_of(600));  // now 0 and 2 make room
    BOOST_TEST(frames.count() == 3u);
    for (std::uint64_t i : {1, 3, 8}) BOOST_TEST((frames.find(key_of(i)) != nullptr));
    BOOST_TEST(frames.bytes() <= 10000u);
    StorageFrames none(0);
    none.begin(id_of(1));
    none.keep(key_of(1), frame_of(1));
    BOOST_TEST(none.count() == 0u);
}

BOOST_AUTO_TEST_CASE(what_two_checkpoints_did_not_use_is_forgotten) {
    StorageFrames frames(std::uint64_t{1} << 30);
    frames.begin(id_of(1));
    frames.keep(key_of(1), frame_of(10));
    frames.keep(key_of(2), frame_of(10));
    for (std::uint64_t step = 2; step < 4; ++step) {
        frames.begin(id_of(step));
        frames.begin(id_of(step));  // its next rank
        BOOST_TEST((frames.find(key_of(1)) != nullptr));
        BOOST_TEST(frames.count() == 2u);
    }
    frames.begin(id_of(4));
    BOOST_TEST(frames.count() == 1u);
    BOOST_TEST((frames.find(key_of(2)) == nullptr));
    for (std::uint64_t step = 5; step < 8; ++step) frames.begin(id_of(step));
    BOOST_TEST(frames.count() == 0u);
    BOOST_TEST(frames.bytes() == 0u);
}

BOOST_AUTO_TEST_CASE(a_file_is_the_same_with_a_frame_of_before) {
    Random random(20261122);
    StorageFrames frames(std::uint64_t{1} << 30);
    std::uint64_t number = 0;
    for (int i = 0; i < 25; ++i) {
        Layout layout = random.layout();
        check_same_file(layout, random.step(++number), frames);
        std::size_t count = frames.count();
        for (int j = 0; j < 3; ++j) {
            std::size_t before = frames.count();
            check_same_file(layout, random.step(++number), frames);
            BOOST_TEST(frames.count() <= before);  // it was used again, others forgotten
        }
        BOOST_TEST((count > 0 && frames.count() == 1));
    }
}

BOOST_AUTO_TEST_CASE(each_part_of_a_layout_makes_another_frame) {
    StorageFrames frames(std::uint64_t{1} << 30);
    check_same_file(two_tensors(), {}, frames);
    std::size_t count = 1;
    for (const Layout &other : other_layouts()) {
        check_same_file(other, {}, frames);
        BOOST_TEST(frames.count() == ++count);
    }
    for (const Step &step :
         {Step{8}, Step{7, 1, 3}, Step{7, 0, 1, "{}"}, Step{7, 0, 1, "", "other"}, Step{7, 0, 1, "", "", 2}})
        check_same_file(two_tensors(), step, frames);
    BOOST_TEST(frames.count() == count);
}

BOOST_AUTO_TEST_CASE(an_index_is_the_same_with_a_frame_of_before) {
    StorageFrames frames(std::uint64_t{1} << 30);
    std::size_t count = 0;
    auto check = [&](const std::vector<Layout> &ranks, const Step &step) {
        Folder kept, fresh;
        StorageFrames none(0);
        BOOST_TEST((index(kept, ranks, step, frames) == index(fresh, ranks, step, none)));
    };
    check(two_ranks(), {});
    BOOST_TEST(frames.count() == ++count);
    for (const auto &other : other_ranks()) {
        check(other, {});
        BOOST_TEST(frames.count() == ++count);
    }
    for (std::uint64_t step : {8, 9, 10, 1 << 20}) {
        check(two_ranks(), {step, 0, 1, "{\"s\":1}", "", static_cast<std::uint8_t>(step)});
        BOOST_TEST(frames.count() <= count);
    }
    BOOST_TEST(frames.count() == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
