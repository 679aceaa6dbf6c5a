// SPDX-License-Identifier: Apache-2.0
#include "writer_process.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <numeric>

namespace dlrover::test {
namespace {

void set_up(const WriterSpec &spec) {
    ::setenv("SLURM_RESTART_COUNT", std::to_string(spec.restarts).c_str(), 1);
    if (!spec.fault.empty()) ::setenv("DLROVER_FAULT", spec.fault.c_str(), 1);
    if (!spec.fault_error.empty()) ::setenv("DLROVER_FAULT_ERROR", spec.fault_error.c_str(), 1);
    if (spec.file_limit) {
        rlimit limit{*spec.file_limit, *spec.file_limit};
        ::setrlimit(RLIMIT_FSIZE, &limit);
    }
}

}  // namespace

Node::Node(std::string ckpt_dir, WriterSpec spec)
    : HelperNode(TEST_WRITER, local::Role::Writer), ckpt_dir_(std::move(ckpt_dir)), spec_(std::move(spec)) {
    job = spec_.job;
    step = spec_.step;
}

void Node::start_writer(WriterSpec spec) {
    spec_ = std::move(spec);
    job = spec_.job;
    step = spec_.step;
    start_writer();
}

void Node::start_writer() {
    start([this] { set_up(spec_); });
}

void Node::welcome() {
    auto writer = greeting(local::Body::WriterHello);
    BOOST_TEST(writer.body.AsWriterHello()->job_id == spec_.job);
    BOOST_TEST(writer.body.AsWriterHello()->step_id == spec_.step);
    local::WriterWelcomeT welcome;
    welcome.ckpt_dir = ckpt_dir_;
    welcome.lineage = lineage;
    welcome.keep_last = keep_last;
    welcome.keep_every = keep_every;
    answer(writer.id, proto::make_local(0, std::move(welcome)));
}

std::uint64_t Node::push_store(local::StoreObjectT order, const std::vector<int> &fds) {
    std::uint64_t number = order.order = next_order++;
    push(proto::make_local(0, std::move(order)), fds);
    return number;
}

std::uint64_t Node::push_store(const MemoryObject &object, ckpt::CheckpointId id, std::uint32_t world,
                               std::uint32_t rank) {
    // As the daemon does: the writer can not change the object.
    UniqueFd fd(
        ::open(("/proc/self/fd/" + std::to_string(object.memory.get())).c_str(), O_RDONLY | O_CLOEXEC));
    BOOST_REQUIRE(fd.get() >= 0);
    return push_store(object.order(id, world, rank), {fd.get()});
}

std::uint64_t Node::push_complete(ckpt::CheckpointId id, std::uint32_t world, std::uint32_t wait_ms) {
    local::CompleteCheckpointT order;
    order.order = next_order++;
    order.checkpoint = std::make_unique<local::StoredCheckpointT>();
    order.checkpoint->generation =
        std::make_unique<proto::Generation>(id.generation.term.value(), id.generation.number);
    order.checkpoint->train_step = id.step.value();
    order.checkpoint->world_size = world;
    order.wait_ms = wait_ms;
    std::uint64_t number = order.order;
    push(proto::make_local(0, std::move(order)));
    return number;
}

local::ObjectStoredT Node::stored(std::uint64_t order) {
    auto answer = *wait_for(local::Body::ObjectStored).body.AsObjectStored();
    BOOST_TEST(answer.order == order);
    return answer;
}

local::CheckpointStoredT Node::completed(std::uint64_t order) {
    auto answer = *wait_for(local::Body::CheckpointStored).body.AsCheckpointStored();
    BOOST_TEST(answer.order == order);
    return answer;
}

local::FolderFoundT Node::look(std::optional<std::uint64_t> after) {
    local::LookAtFolderT look;
    if (after) {
        look.passed_over.push_back(std::make_unique<local::PassedOverT>());
        look.passed_over[0]->after = *after;
        look.passed_over[0]->before = std::make_unique<proto::Generation>(std::uint64_t{1} << 40, 1);
    }
    look.order = next_order++;
    push(proto::make_local(0, look));
    auto message = wait_for(local::Body::FolderFound);
    auto found = std::move(*message.body.AsFolderFound());
    BOOST_TEST(found.order == look.order);
    return found;
}

local::FolderTestedT Node::test_folder(const std::string &node, bool make) {
    local::TestFolderT test;
    test.order = next_order++;
    test.node = node;
    test.make = make;
    push(proto::make_local(0, test));
    auto message = wait_for(local::Body::FolderTested);
    auto tested = std::move(*message.body.AsFolderTested());
    BOOST_TEST(tested.order == test.order);
    return tested;
}

local::ObjectStoredT Node::store(const MemoryObject &object, ckpt::CheckpointId id, std::uint32_t world,
                                 std::uint32_t rank) {
    return stored(push_store(object, id, world, rank));
}

std::string lineage_folder(const std::string &ckpt_dir) {
    return ckpt_dir + "/" + ckpt::escape_file_name(lineage);
}

void check_stored(const std::string &ckpt_dir, std::uint64_t step, std::uint32_t world,
                  std::uint64_t elements) {
    ckpt::CheckpointFolder folder(lineage_folder(ckpt_dir));
    auto manifest = folder.read_manifest(checkpoint(step));
    BOOST_REQUIRE_MESSAGE(manifest.ok(), manifest.status().message());
    BOOST_TEST(manifest->lineage == lineage);
    BOOST_TEST(manifest->index.has_value());
    BOOST_REQUIRE(manifest->ranks.size() == world);
    Status whole = folder.verify(*manifest);
    BOOST_TEST(whole.ok(), whole.message());
    for (std::uint32_t rank = 0; rank < world; ++rank) {
        auto file = ckpt::StorageFile::open(folder.rank_path(checkpoint(step), Rank(rank)));
        BOOST_REQUIRE(file.ok());
        ckpt::test::Maker expected(rank, world, step);
        expected.add("w", ckpt::DType::Float32, {elements * world}, {elements * rank}, {elements});
        std::vector<std::byte> read(elements * 4);
        BOOST_REQUIRE(file->table().chunk(0).name == "w");
        BOOST_REQUIRE(file->read_chunk(0, read).ok());
        BOOST_TEST((read == expected.data));
    }
}

std::vector<std::string> leftovers(const std::string &ckpt_dir) {
    std::vector<std::string> paths;
    for (auto &entry : std::filesystem::recursive_directory_iterator(ckpt_dir))
        if (entry.path().filename().string().starts_with(".new-")) paths.push_back(entry.path());
    return paths;
}

}  // namespace dlrover::test
