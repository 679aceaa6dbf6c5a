// SPDX-License-Identifier: Apache-2.0
#include "lib/stored_files.h"

#include <unistd.h>

#include <numeric>
#include <optional>

#include "lib/parallel.h"
#include "lib/stored_object.h"

namespace dlrover::lib {
namespace {

constexpr std::size_t idle_descriptors = 64;

std::string name_of(const ckpt::CheckpointId &id) {
    return "the checkpoint of step " + std::to_string(id.step.value()) + ", generation " +
           to_string(id.generation);
}

}  // namespace

class StoredFiles::Pieces final : public RankPieces {
  public:
    explicit Pieces(const ckpt::StorageFile &file) : file_(file) {}
    const ckpt::ObjectTableView &table() const override { return file_.table(); }
    Status read_bytes(std::uint64_t index, std::uint64_t at, std::span<std::byte> out) const override {
        return file_.read_bytes(index, at, out);
    }
    Status read_part_into(std::uint64_t index, std::span<const std::uint64_t> offset,
                          std::span<const std::uint64_t> shape, const ckpt::BoxPlace &to,
                          std::span<std::byte> out) const override {
        return file_.read_part_into(index, offset, shape, to, out);
    }
    bool forget(std::uint64_t index) const override {
        file_.forget(index);
        return true;
    }
    Status wrong_chunk(std::uint64_t index) const override { return file_.wrong_chunk(index); }

  private:
    const ckpt::StorageFile &file_;
};

StoredFiles::StoredFiles(const StoredRequest &request)
    : folder_(request.folder), path_(request.folder), id_(request.id) {}

StoredFiles::~StoredFiles() = default;

Result<std::shared_ptr<StoredFiles>> StoredFiles::open(const StoredRequest &request) {
    std::shared_ptr<StoredFiles> files(new StoredFiles(request));
    DLROVER_TRY(files->read_manifest(request));
    return files;
}

Status StoredFiles::read_manifest(const StoredRequest &request) {
    auto manifest = folder_.read_manifest(id_);
    std::string there = path_ + "/" + ckpt::manifest_name(id_);
    if (manifest.status().code() == Code::not_found) {
        bool suspect = ::access((path_ + "/" + ckpt::suspect_name(id_)).c_str(), F_OK) == 0;
        return Status(Code::corrupt,
                      there + (suspect ? " was marked suspect meanwhile: the next start goes on "
                                         "from an older checkpoint"
                                       : " is not there any more: the next start looks again"));
    }
    if (!manifest) return judge(manifest.take_status());
    if (!request.lineage.empty() && manifest->lineage != request.lineage)
        return Status(Code::corrupt, there + " belongs to another lineage (" +
                                         manifest->lineage.substr(0, 200) + "), and is not restored");
    if (request.saved_by != 0 && manifest->ranks.size() != request.saved_by)
        return judge(Status(Code::corrupt, there + " is of " + std::to_string(manifest->ranks.size()) +
                                               " ranks, not of " + std::to_string(request.saved_by) +
                                               " as when it was chosen"));
    manifest_ = std::move(*manifest);
    return {};
}

Result<const ckpt::StorageFile *> StoredFiles::rank(std::uint32_t rank) {
    auto found = files_.find(rank);
    if (found == files_.end()) {
        auto file = folder_.open_rank(manifest_, manifest_.ranks[rank]);
        if (!file) return file.take_status();
        found = files_.emplace(rank, std::move(*file)).first;
        ++open_;
    } else if (!found->second.is_open()) {
        DLROVER_TRY(found->second.reopen());
        ++open_;
    }
    return &found->second;
}

std::vector<std::uint32_t> StoredFiles::nearest() const {
    std::vector<std::uint32_t> order(ranks());
    std::iota(order.begin(), order.end(), 0u);
    return order;
}

Result<const ckpt::ObjectTableView *> StoredFiles::find_table(std::uint32_t number) {
    auto file = rank(number);
    if (!file) return file.take_status();
    const ckpt::ObjectTableView *table = &(*file)->table();
    release();
    return table;
}

Result<const RankPieces *> StoredFiles::pieces(std::uint32_t number) {
    auto file = rank(number);
    if (!file) return file.take_status();
    auto &made = pieces_[number];
    if (!made) made = std::make_unique<Pieces>(**file);
    return made.get();
}

Status StoredFiles::read_chunk(std::uint32_t rank, std::uint64_t index, std::span<std::byte> out,
                               unsigned threads) {
    return read_stored_chunk(*this, rank, index, out.data(), threads);
}

Status StoredFiles::load_tables(unsigned threads) {
    std::vector<std::optional<ckpt::StorageFile>> loaded(ranks());
    DLROVER_TRY(parallel_try(ranks(), threads, [&](std::uint64_t i) {
        if (files_.contains(static_cast<std::uint32_t>(i))) return Status();
        auto file = folder_.open_rank(manifest_, manifest_.ranks[i]);
        if (!file) return file.take_status();
        file->close();
        loaded[i].emplace(std::move(*file));
        return Status();
    }));
    for (std::uint32_t i = 0; i < ranks(); ++i)
        if (loaded[i]) files_.emplace(i, std::move(*loaded[i]));
    return {};
}

void StoredFiles::release() {
    if (open_ <= idle_descriptors) return;
    for (auto &[rank, file] : files_) file.close();
    open_ = 0;
}

Status StoredFiles::judge(Status why) const {
    if (why.code() == Code::corrupt || why.code() == Code::not_found) return mark(why);
    Code code = why.code() == Code::permission_denied ? Code::system : why.code();
    return Status(code, why.message() + "; " + name_of(id_) + " was not read, and is left as it is");
}

Status StoredFiles::mark(const Status &why) const {
    Status marked = folder_.set_aside({id_});
    if (!marked.ok())
        return Status(Code::corrupt, why.message() + "; " + name_of(id_) + " could not be marked suspect (" +
                                         marked.message() +
                                         "): rename its manifest, or the next start takes it again");
    return Status(Code::corrupt, why.message() + "; " + name_of(id_) +
                                     " was marked suspect: the next start goes on from an older one");
}

}  // namespace dlrover::lib
