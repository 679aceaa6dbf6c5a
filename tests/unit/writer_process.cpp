// SPDX-License-Identifier: Apache-2.0
#include "writer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

namespace dlrover::test {
namespace {

constexpr int patience_ms = 60000;

[[noreturn]] void become_writer(const WriterSpec &spec, const std::string &socket) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::setenv("DLROVER_JOB_ID", std::to_string(spec.job).c_str(), 1);
    ::setenv("DLROVER_STEP_ID", std::to_string(spec.step).c_str(), 1);
    ::setenv("SLURM_JOB_ID", std::to_string(spec.job).c_str(), 1);
    ::setenv("SLURM_RESTART_COUNT", std::to_string(spec.restarts).c_str(), 1);
    ::setenv("DLROVER_SOCKET", socket.c_str(), 1);
    if (!spec.fault.empty()) ::setenv("DLROVER_FAULT", spec.fault.c_str(), 1);
    if (spec.file_limit) {
        rlimit limit{*spec.file_limit, *spec.file_limit};
        ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    ::execl(TEST_WRITER, TEST_WRITER, nullptr);
    ::_exit(127);
}

}  // namespace

MemoryObject::MemoryObject(const ckpt::SealedObject &object) {
    data_bytes = object.data.size();
    table_offset = *ckpt::align_object_offset(data_bytes);
    table_bytes = object.table.size();
    table_xxh3 = ckpt::block_kernel().hash(object.table.data(), object.table.size());
    ledger.assign(object.ledger.begin(), object.ledger.end());
    bytes = (table_offset + table_bytes + 4095) / 4096 * 4096;
    memory.reset(::memfd_create("object", MFD_CLOEXEC));
    BOOST_REQUIRE(::ftruncate(memory.get(), static_cast<off_t>(bytes)) == 0);
    BOOST_REQUIRE(::pwrite(memory.get(), object.data.data(), data_bytes, 0) ==
                  static_cast<ssize_t>(data_bytes));
    BOOST_REQUIRE(::pwrite(memory.get(), object.table.data(), table_bytes,
                           static_cast<off_t>(table_offset)) == static_cast<ssize_t>(table_bytes));
}

local::StoreObjectT MemoryObject::order(ckpt::CheckpointId id, std::uint32_t world_size,
                                        std::uint32_t rank) const {
    local::StoreObjectT order;
    order.checkpoint = std::make_unique<local::StoredCheckpointT>();
    order.checkpoint->generation =
        std::make_unique<proto::Generation>(id.generation.term.value(), id.generation.number);
    order.checkpoint->train_step = id.step.value();
    order.checkpoint->world_size = world_size;
    order.rank = rank;
    order.data_bytes = data_bytes;
    order.table_offset = table_offset;
    order.table_bytes = table_bytes;
    order.table_xxh3 = table_xxh3;
    order.ledger = ledger;
    auto segment = std::make_unique<local::SlotSegmentT>();
    segment->id = 1;
    segment->bytes = bytes;
    segment->fd = true;
    order.segments.push_back(std::move(segment));
    return order;
}

void MemoryObject::flip(std::uint64_t at) const {
    char byte;
    BOOST_REQUIRE(::pread(memory.get(), &byte, 1, static_cast<off_t>(at)) == 1);
    byte = static_cast<char>(byte ^ 16);
    BOOST_REQUIRE(::pwrite(memory.get(), &byte, 1, static_cast<off_t>(at)) == 1);
}

Node::Node(std::string ckpt_dir, WriterSpec spec) : ckpt_dir_(std::move(ckpt_dir)), spec_(std::move(spec)) {
    char name[] = "/tmp/dlrover-test-XXXXXX";
    dir_ = ::mkdtemp(name);
    listen();
}

Node::~Node() {
    if (writer_ > 0) {
        ::kill(writer_, SIGKILL);
        ::waitpid(writer_, nullptr, 0);
    }
    std::filesystem::remove_all(dir_);
}

void Node::listen() {
    listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, (dir_ + "/s").c_str());
    ::unlink(address.sun_path);
    BOOST_REQUIRE(::bind(listener_.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) == 0);
    BOOST_REQUIRE(::listen(listener_.get(), 8) == 0);
}

void Node::start_writer(WriterSpec spec) {
    spec_ = std::move(spec);
    start_writer();
}

void Node::start_writer() {
    BOOST_REQUIRE(writer_ < 0);
    connection_.reset();
    writer_ = ::fork();
    BOOST_REQUIRE(writer_ >= 0);
    if (writer_ == 0) become_writer(spec_, dir_ + "/s");
    greet();
}

void Node::signal_writer(int number) const {
    BOOST_REQUIRE(::kill(writer_, number) == 0);
}

int Node::wait_writer(bool untraced) {
    int status = 0;
    BOOST_REQUIRE(::waitpid(writer_, &status, untraced ? WUNTRACED : 0) == writer_);
    if (!WIFSTOPPED(status)) writer_ = -1;
    return status;
}

void Node::stop_daemon() {
    connection_.reset();
    listener_.reset();
    ::unlink((dir_ + "/s").c_str());
}

void Node::answer(std::uint32_t id, local::MessageT message) {
    message.id = id;
    push(std::move(message));
}

local::MessageT Node::greeting(local::Body kind) {
    while (received_.empty()) receive();
    local::MessageT message = std::move(received_.front());
    received_.erase(received_.begin());
    BOOST_REQUIRE((message.body.type == kind));
    return message;
}

void Node::greet() {
    if (!listener_) listen();
    pollfd polled{listener_.get(), POLLIN, 0};
    BOOST_REQUIRE(::poll(&polled, 1, patience_ms) == 1);
    connection_.reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    reader_ = {};
    received_.clear();
    auto hello = greeting(local::Body::Hello);
    BOOST_TEST((hello.body.AsHello()->role == local::Role::Writer));
    answer(hello.id, proto::make_local(0, local::HelloReplyT{}));
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

void Node::push(local::MessageT message, const std::vector<int> &fds) {
    auto frame = proto::make_frame(proto::encode_local(message));
    auto sent = proto::send_with_fds(connection_.get(), frame, fds);
    BOOST_REQUIRE(sent.ok());
    BOOST_REQUIRE(*sent == frame.size());
}

void Node::receive() {
    pollfd polled{connection_.get(), POLLIN, 0};
    BOOST_REQUIRE_MESSAGE(::poll(&polled, 1, patience_ms) == 1, "the writer does not answer");
    std::uint8_t buffer[65536];
    ssize_t n = ::recv(connection_.get(), buffer, sizeof buffer, 0);
    BOOST_REQUIRE_MESSAGE(n > 0, "the writer ended the connection");
    BOOST_REQUIRE(reader_.feed({buffer, static_cast<std::size_t>(n)}).ok());
    while (auto payload = reader_.next()) {
        auto message = proto::decode_local(*payload);
        BOOST_REQUIRE(message.ok());
        received_.push_back(std::move(*message));
    }
}

local::MessageT Node::wait_for(local::Body kind) {
    for (;;) {
        for (auto it = received_.begin(); it != received_.end(); ++it) {
            if (it->body.type != kind) continue;
            local::MessageT message = std::move(*it);
            received_.erase(it);
            BOOST_TEST(message.id == 0u);
            return message;
        }
        receive();
    }
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

void Node::push_cancel(std::uint64_t order) {
    local::CancelOrderT cancel;
    cancel.order = order;
    push(proto::make_local(0, cancel));
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

local::FolderFoundT Node::look() {
    local::LookAtFolderT look;
    look.order = next_order++;
    push(proto::make_local(0, look));
    auto message = wait_for(local::Body::FolderFound);
    auto found = std::move(*message.body.AsFolderFound());
    BOOST_TEST(found.order == look.order);
    return found;
}

local::ObjectStoredT Node::store(const MemoryObject &object, ckpt::CheckpointId id, std::uint32_t world,
                                 std::uint32_t rank) {
    return stored(push_store(object, id, world, rank));
}

ckpt::CheckpointId checkpoint(std::uint64_t step) {
    return {{Term(3), 2}, TrainStep(step)};
}

MemoryObject make_object(std::uint64_t step, std::uint32_t rank, std::uint32_t world,
                         std::uint64_t elements) {
    ckpt::test::Maker maker(rank, world, step);
    maker.add("w", ckpt::DType::Float32, {elements * world}, {elements * rank}, {elements})
        .add("own." + std::to_string(rank), ckpt::DType::Int64, {3});
    return MemoryObject(maker.object());
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
