// SPDX-License-Identifier: Apache-2.0
// Plans the global tensors of a checkpoint from all ranks' tables, as a restore by another world does. Tables
// are made in memory; checking them as they are opened is timed apart, and is part of the limit.
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "base/units.h"
#include "ckpt/index_plan.h"

using namespace dlrover;
using namespace dlrover::ckpt;

namespace {

constexpr double limit_seconds = 1.0;  ///< of 1024 ranks with 1000 tensors each

double seconds_since(std::chrono::steady_clock::time_point begun) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

/// Every tensor is cut along its first dimension, one piece a rank.
Result<std::vector<std::uint8_t>> make_table(std::uint32_t rank, std::uint32_t ranks, std::uint64_t tensors) {
    ObjectTableWriter writer({TrainStep(1), Rank(rank), ranks, {Term(1), 1}, "bench"});
    for (std::uint64_t i = 0; i < tensors; ++i) {
        std::string name = "model.layers." + std::to_string(i) + ".attention.weight";
        std::uint64_t global[] = {std::uint64_t{ranks} * 4, 1024}, offset[] = {std::uint64_t{rank} * 4, 0},
                      local[] = {4, 1024};
        DLROVER_TRY(writer.add({name, DType::BFloat16, global, offset, local, 0, i * 8192, 8192, i + rank}));
    }
    return writer.finish();
}

/// False: it took longer than the limit.
Result<bool> run(std::uint32_t ranks, std::uint64_t tensors) {
    std::vector<std::vector<std::uint8_t>> tables;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        auto table = make_table(rank, ranks, tensors);
        if (!table) return table.take_status();
        tables.push_back(std::move(*table));
    }
    auto begun = std::chrono::steady_clock::now();
    std::vector<ObjectTableView> views;
    for (const auto &table : tables) {
        auto view = ObjectTableView::parse(table);
        if (!view) return view.take_status();
        views.push_back(std::move(*view));
    }
    double checked = seconds_since(begun);
    std::vector<const ObjectTableView *> pointers;
    for (const auto &view : views) pointers.push_back(&view);
    begun = std::chrono::steady_clock::now();
    IndexPlan plan = plan_index(pointers);
    double planned = seconds_since(begun);
    if (plan.tensors.size() != tensors || plan.tensors.front().pieces.size() != ranks)
        return Status(Code::internal, "the plan is not what was saved");
    std::printf(
        "%u ranks, %llu tensors: tables checked in %.3f s (one thread), planned in %.3f s, both %.3f s",
        ranks, static_cast<unsigned long long>(tensors), checked, planned, checked + planned);
    bool judged = ranks == 1024 && tensors == 1000;
    if (judged) std::printf("   goal <= %.0f s", limit_seconds);
    std::printf("\n");
    return !judged || checked + planned <= limit_seconds;
}

}  // namespace

int main(int argc, char **argv) {
    auto ranks = parse_uint(argc > 1 ? argv[1] : "1024", 1, 1u << 20);
    auto tensors = parse_uint(argc > 2 ? argv[2] : "1000", 1, 100000);
    Result<bool> met = Status(Code::invalid_argument, "usage: plan_index [RANKS [TENSORS]]");
    if (argc <= 3 && ranks.ok() && tensors.ok()) met = run(static_cast<std::uint32_t>(*ranks), *tensors);
    if (!met.ok()) std::fprintf(stderr, "plan_index: %s\n", met.status().message().c_str());
    return met.ok() && *met ? 0 : 1;
}
