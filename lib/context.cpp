// SPDX-License-Identifier: Apache-2.0
#include "lib/context.h"

#include <cstdio>

#include "lib/file_store.h"

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

}  // namespace

Result<std::unique_ptr<dlrover_context>> dlrover_context::open() {
    auto environment = read_environment();
    if (!environment) return environment.take_status();
    auto context = std::make_unique<dlrover_context>();
    context->environment = std::move(*environment);
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
    context->store = std::make_unique<DaemonStore>(*context->link);
    context->events = std::make_unique<Events>(*context->link);
    DLROVER_TRY(context->link->connect(context->link->deadline()));
    return context;
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
