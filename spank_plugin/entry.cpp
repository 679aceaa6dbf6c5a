// SPDX-License-Identifier: Apache-2.0
// What Slurm calls. Only dispatches: by context, and with nothing that could leave a hook but 0.
#include <memory>

#include "config.h"
#include "spank_plugin/faults.h"
#include "spank_plugin/module.h"

#ifndef DLROVER_SLURM_VERSION
#define DLROVER_SLURM_VERSION SLURM_VERSION_NUMBER
#endif

#pragma GCC visibility push(default)
extern "C" {
extern const char plugin_name[];
extern const char plugin_type[];
extern const unsigned int plugin_version;
extern const unsigned int spank_plugin_version;
const char plugin_name[] = "dlrover";
const char plugin_type[] = "spank";
const unsigned int plugin_version = DLROVER_SLURM_VERSION;
const unsigned int spank_plugin_version = 1;
#ifdef HAVE_SPANK_INIT_FAILURE_MODE
extern "C" int slurm_spank_init_failure_mode = ESPANK_JOB_FAILURE;
#endif
}
#pragma GCC visibility pop

namespace dlrover::spank {
namespace {

Module *module = nullptr;  // owned; slurm_spank_init to slurm_spank_exit

void report(const char *hook, const char *what) noexcept {
    slurm_error("dlrover: %s: %s", hook, what);
}

/// Runs one hook's work. Slurm sees success whatever happens: an error would drain a node, or be ignored.
template <typename Work>
int guard(const char *hook, Work work) noexcept {
    if (!module) return ESPANK_SUCCESS;
    try {
        Status status = inject_fault(hook, module->args.timeout);
        if (status.ok()) status = work(*module);
        if (!status.ok()) report(hook, status.message().c_str());
    } catch (const std::exception &error) {
        report(hook, error.what());
    } catch (...) {
        report(hook, "unknown exception");
    }
    return ESPANK_SUCCESS;
}

Status start(spank_t handle, const Module &started) {
    for (const std::string &warning : started.args.warnings) report("init", warning.c_str());
    spank_context_t context = spank_context();
    bool submits = context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR;
    return submits || context == S_CTX_REMOTE ? register_options(handle, submits) : Status();
}

bool make_module(int ac, char **av) noexcept {
    try {
        std::span<char *const> words(av, static_cast<std::size_t>(ac > 0 && av ? ac : 0));
        choose_fault(words);
        auto fresh = std::make_unique<Module>();
        fresh->args = parse_module_args(words);
        delete module;
        module = fresh.release();
        return true;
    } catch (...) {
        report("init", "out of memory");
        return false;
    }
}

}  // namespace

Module *current_module() noexcept {
    return module;
}

}  // namespace dlrover::spank

using dlrover::Status;
using dlrover::spank::guard;
using dlrover::spank::Module;

extern "C" {

int slurm_spank_init(spank_t handle, int ac, char *av[]) {
    if (!dlrover::spank::make_module(ac, av)) return ESPANK_SUCCESS;
    return guard("init", [&](Module &m) { return dlrover::spank::start(handle, m); });
}

int slurm_spank_init_post_opt(spank_t handle, int, char **) {
    return guard("init_post_opt", [&](Module &m) -> Status {
        switch (spank_context()) {
            case S_CTX_LOCAL:
                return dlrover::spank::local_options_read(m);
            case S_CTX_ALLOCATOR:
                return dlrover::spank::allocator_options_read(m);
            case S_CTX_REMOTE:
                return dlrover::spank::remote_step_starts(handle, m);
            default:
                return {};
        }
    });
}

int slurm_spank_local_user_init(spank_t handle, int, char **) {
    return guard("local_user_init", [&](Module &m) { return dlrover::spank::local_step_created(handle, m); });
}

int slurm_spank_task_init(spank_t handle, int, char **) {
    return guard("task_init", [&](Module &m) { return dlrover::spank::remote_task_starts(handle, m); });
}

int slurm_spank_exit(spank_t, int, char **) {
    int rc = guard("exit", [&](Module &m) {
        if (spank_context() == S_CTX_REMOTE) return dlrover::spank::remote_step_ended(m);
        return spank_context() == S_CTX_LOCAL ? dlrover::spank::local_ends(m) : Status();
    });
    delete std::exchange(dlrover::spank::module, nullptr);
    return rc;
}

}  // extern "C"
