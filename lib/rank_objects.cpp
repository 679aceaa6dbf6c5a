// SPDX-License-Identifier: Apache-2.0
#include "lib/rank_objects.h"

#include <cstring>
#include <string>

#include "lib/piece_source.h"
#include "lib/restore.h"

namespace dlrover::lib {
namespace {

Status no_chunk(std::uint32_t rank, std::uint64_t index) {
    return Status(Code::not_found,
                  "rank " + std::to_string(rank) + " saved no chunk of number " + std::to_string(index));
}

Status check_size(const ckpt::ChunkInfo &chunk, std::span<std::byte> out) {
    if (chunk.bytes == out.size()) return {};
    return Status(Code::invalid_argument,
                  "the memory for chunk \"" + std::string(chunk.name.substr(0, 200)) + "\" has another size");
}

class OwnObject final : public RankObjects {
  public:
    OwnObject(const ObjectReader &object, std::uint32_t own) : object_(object), own_(own) {}

    Result<std::uint64_t> count(std::uint32_t rank) override {
        DLROVER_TRY(check_rank(rank));
        return object_.count();
    }
    Result<ckpt::ChunkInfo> chunk(std::uint32_t rank, std::uint64_t index) override {
        DLROVER_TRY(check_rank(rank));
        if (index >= object_.count()) return no_chunk(rank, index);
        return object_.chunk(index);
    }
    Result<std::string_view> skeleton(std::uint32_t rank) override {
        DLROVER_TRY(check_rank(rank));
        return object_.skeleton();
    }
    Status read(std::uint32_t rank, std::uint64_t index, std::span<std::byte> out) override {
        auto info = chunk(rank, index);
        if (!info) return info.take_status();
        DLROVER_TRY(check_size(*info, out));
        if (!out.empty()) std::memcpy(out.data(), object_.data(index), out.size());
        return {};
    }

  private:
    Status check_rank(std::uint32_t rank) const {
        if (rank == own_) return {};
        return Status(Code::unsupported, "what rank " + std::to_string(rank) +
                                             " saved is in its own memory: from there each rank has its own "
                                             "pieces only");
    }

    const ObjectReader &object_;
    std::uint32_t own_;
};

class AllObjects final : public RankObjects {
  public:
    AllObjects(std::shared_ptr<PieceSource> source, unsigned threads)
        : source_(std::move(source)), threads_(threads) {}

    Result<std::uint64_t> count(std::uint32_t rank) override {
        auto table = table_of(rank);
        if (!table) return table.take_status();
        return (*table)->count();
    }
    Result<ckpt::ChunkInfo> chunk(std::uint32_t rank, std::uint64_t index) override {
        auto table = table_of(rank);
        if (!table) return table.take_status();
        if (index >= (*table)->count()) return no_chunk(rank, index);
        return (*table)->chunk(index);
    }
    Result<std::string_view> skeleton(std::uint32_t rank) override {
        auto table = table_of(rank);
        if (!table) return table.take_status();
        return (*table)->skeleton();
    }
    Status read(std::uint32_t rank, std::uint64_t index, std::span<std::byte> out) override {
        auto info = chunk(rank, index);
        if (!info) return info.take_status();
        DLROVER_TRY(check_size(*info, out));
        Status status = source_->read_chunk(rank, index, out, threads_);
        return status.ok() ? Status() : source_->judge(std::move(status));
    }

  private:
    Result<const ckpt::ObjectTableView *> table_of(std::uint32_t rank) {
        if (rank >= source_->ranks())
            return Status(Code::invalid_argument, "the checkpoint was saved by " +
                                                      std::to_string(source_->ranks()) +
                                                      " ranks: there is no rank " + std::to_string(rank));
        auto table = source_->find_table(rank);
        if (!table) return source_->judge(table.take_status());
        return table;
    }

    std::shared_ptr<PieceSource> source_;
    unsigned threads_;
};

}  // namespace

std::unique_ptr<RankObjects> own_object(const ObjectReader &object, std::uint32_t own) {
    return std::make_unique<OwnObject>(object, own);
}

std::unique_ptr<RankObjects> all_objects(std::shared_ptr<PieceSource> source, unsigned threads) {
    return std::make_unique<AllObjects>(std::move(source), threads);
}

}  // namespace dlrover::lib
