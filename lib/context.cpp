// SPDX-License-Identifier: Apache-2.0
#include "lib/context.h"

#include <algorithm>

#include <cstdio>

#include "lib/file_store.h"
#include "lib/own_tensors.h"
#include "lib/stored_checkpoint.h"

using namespace dlrover;
using namespace dlrover::lib;

namespace {

void warn_of_files(const Environment &environment) {
    static std::atomic<bool> warned{false};
    if (environment.rank != 0 || warned.exchange(true)) return;
    std::fprintf(
        stderr,
        "dlrover: not started by --dlrover-elastic: checkpoints are plain files in %s/ (DLROVER_LOCAL_DIR)\n",
        environment.local_dir.c_str());
}

std::uint64_t microseconds_since(std::chrono::steady_clock::time_point begun) {
    auto passed = std::chrono::steady_clock::now() - begun;
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(passed).count());
}

Status still_open() {
    return Status(
        Code::invalid_argument,
        "a restore is open already: close it first (in Python GlobalTensors.close(); the tensors of "
        "load(views=True) hold theirs until they are gone)");
}

/// A damaged plain file stands in the way of the one before it.
Status with_file(Status status, const std::string &file) {
    if (file.empty() || status.code() != Code::corrupt) return status;
    return Status(Code::corrupt, file + " is damaged: " + status.message() +
                                     "; remove it to go on from the step before, where there is one");
}

/// The progress page says "restoring" while it lives.
class RestorePhase {
  public:
    explicit RestorePhase(Progress &progress) : progress_(progress) { progress_.restore_begin(); }
    ~RestorePhase() { progress_.restore_end(); }
    RestorePhase(const RestorePhase &) = delete;
    RestorePhase &operator=(const RestorePhase &) = delete;

  private:
    Progress &progress_;
};

}  // namespace

Result<std::unique_ptr<dlrover_context>> dlrover_context::open(bool stays) {
    auto environment = read_environment();
    if (!environment) return environment.take_status();
    auto context = std::make_unique<dlrover_context>();
    context->environment = std::move(*environment);
    context->environment.stays = stays;
    const Environment &e = context->environment;
    if (!e.managed) {
        context->store = std::make_unique<FileStore>(e.local_dir, Rank(e.rank), e.world_size);
        warn_of_files(e);
        return context;
    }
    auto welcome = [c = context.get()](const proto::local::WorkerWelcomeT &answer, UniqueFd page) {
        static_cast<DaemonStore &>(*c->store).on_welcome(answer);
        return c->progress.attach(std::move(page));
    };
    context->link = std::make_unique<DaemonLink>(e, welcome);
    context->store = std::make_unique<DaemonStore>(*context->link, e, context->mutex);
    context->events = std::make_unique<Events>(*context->link);
    DLROVER_TRY(context->link->connect(context->link->deadline()));
    return context;
}

Status dlrover_context::check_daemon() const {
    if (environment.managed) return {};
    return Status(Code::unsupported, "there is no daemon: nothing ends this process, and nothing follows");
}

Status dlrover_context::stay() {
    DLROVER_TRY(check_daemon());
    if (environment.stays) return {};
    environment.stays = true;
    link->disconnect();  // it is part of the greeting
    return link->connect(link->deadline());
}

Result<dlrover_world> dlrover_context::world() {
    auto step = store->restore_step();
    if (!step) return step.take_status();
    const Environment &e = environment;
    dlrover_world w{};
    w.rank = e.rank;
    w.world_size = e.world_size;
    w.local_rank = e.local_rank;
    w.local_world_size = e.local_world_size;
    w.group_rank = e.group_rank;
    w.group_world_size = e.group_world_size;
    w.generation_term = e.generation.term.value();
    w.generation_number = e.generation.number;
    w.restart_count = e.restart_count;
    w.restore_step = *step;
    w.managed = e.managed ? 1 : 0;
    return w;
}

Result<std::unique_ptr<dlrover_restore>> dlrover_context::open_restore() {
    drop_peeked();
    if (restoring) return still_open();
    RestorePhase phase(progress);
    auto begun = std::chrono::steady_clock::now();
    auto source = store->open();
    if (!source) return source.take_status();
    const Environment &e = environment;
    std::optional<std::uint32_t> damaged;
    auto reader = ObjectReader::open(*source, {e.rank, e.world_size, e.lineage}, e.copy_threads, &damaged);
    if (!reader) {
        if (source->verified) damaged.reset();  // on storage, which tells of its own
        store->close({reader.status().message(), microseconds_since(begun), damaged});
        return with_file(reader.take_status(), source->file);
    }
    restoring = true;
    return std::make_unique<dlrover_restore>(dlrover_restore{
        this, std::move(*reader), begun, std::move(source->tensors), std::move(source->objects), {}, {}});
}

Result<std::unique_ptr<dlrover_restore>> dlrover_context::open_folder(const std::string &folder) {
    drop_peeked();
    if (restoring) return still_open();
    RestorePhase phase(progress);
    auto begun = std::chrono::steady_clock::now();
    const Environment &e = environment;
    auto request = find_stored_checkpoint(folder);
    if (!request) return request.take_status();
    request->rank = e.rank;
    request->world_size = e.world_size;
    request->threads = e.copy_threads;
    auto opened = open_stored_tensors(*request, e.verify_parts);
    if (!opened) return opened.take_status();
    ckpt::Mapping memory = std::move(opened->object.memory);
    ObjectSource source{memory.base(),
                        memory.bytes(),
                        std::move(opened->object.layout),
                        true,
                        nullptr,
                        nullptr,
                        {},
                        std::move(opened->object.places)};
    auto reader = ObjectReader::open(source, {e.rank, e.world_size, ""}, e.copy_threads);
    if (!reader) return reader.take_status();
    restoring = true;
    return std::make_unique<dlrover_restore>(dlrover_restore{this,
                                                             std::move(*reader),
                                                             begun,
                                                             std::move(opened->tensors),
                                                             std::move(opened->objects),
                                                             {},
                                                             std::move(memory)});
}

void dlrover_context::close_restore(std::unique_ptr<dlrover_restore> restore, const std::string &refused) {
    const std::string &why = refused.empty() ? restore->damage : refused;
    if (restore->memory.base() == nullptr) store->close({why, microseconds_since(restore->begun), {}});
    restoring = false;
}

void dlrover_context::drop_peeked() {
    if (peeked) close_restore(std::move(peeked), "the program asked for sizes and did not restart from it");
}

Result<CudaStage *> dlrover_context::stage() {
    std::lock_guard lock(stage_mutex);
    if (!cuda_stage) {
        auto made = CudaStage::create();
        if (!made) return made.take_status();
        cuda_stage = std::move(*made);
    }
    return cuda_stage.get();
}

CudaStage *dlrover_context::stage_if_used() {
    std::lock_guard lock(stage_mutex);
    return cuda_stage.get();
}

void dlrover_context::end_staging() {
    if (CudaStage *used = stage_if_used()) used->end();
}

void dlrover_context::note_save(std::uint64_t step, bool saved) {
    constexpr std::size_t most = 64;
    auto known = std::ranges::find(saves, step, &std::pair<std::uint64_t, bool>::first);
    if (known != saves.end()) {
        known->second = known->second || saved;
        return;
    }
    if (saves.size() >= most) saves.erase(saves.begin());
    saves.emplace_back(step, saved);
}

/// Plain files have no generations, and each save replaces the one before. A rank alone has no others.
bool dlrover_context::has_skipped(std::uint64_t step) const {
    if (!link || environment.world_size == 1) return false;
    return std::ranges::find(saves, std::pair(step, false)) != saves.end();
}

GlobalTensors &dlrover_restore::global() {
    if (!tensors) tensors = std::make_unique<OwnTensors>(reader);
    return *tensors;
}

std::uint32_t dlrover_restore::saved_by() const {
    return tensors ? tensors->saved_by() : reader.world_size();
}

RankObjects &dlrover_restore::of_ranks() {
    if (!objects) objects = own_object(reader, context->environment.rank);
    return *objects;
}
