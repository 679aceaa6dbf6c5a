// SPDX-License-Identifier: Apache-2.0
// Plays the program that loads the module: srun, sbatch, salloc or slurmstepd. It exports spank_* and, for
// the commands, slurm_option_*, as they do.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "spank_plugin/spank_api.h"

struct Host {
    Host() = default;
    Host(const Host &) = delete;
    Host &operator=(const Host &) = delete;
    ~Host();

    spank_context_t context = S_CTX_REMOTE;
    // ---- slurmstepd ----
    std::map<int, std::uint32_t> numbers;  ///< spank_get_item; a missing one is refused
    int task = 0;
    std::vector<std::string> argv;
    std::vector<char *> live;                ///< what S_JOB_ARGV shows, made from argv
    std::map<std::string, std::string> env;  ///< of the step
    // ---- srun, sbatch, salloc ----
    std::map<std::string, std::string> command;  ///< Slurm's own options as given
    std::map<std::string, std::string> defaults{{"nodes", "1-0"}};
    bool settable = true;

    std::vector<std::string> log;
    std::map<std::string, spank_option> options;  ///< registered by the module

    bool logged(std::string_view part) const;
};
extern Host *host;  ///< what the exported functions serve

/// The module in one process's life, loaded for each test anew.
class LoadedModule {
  public:
    explicit LoadedModule(const char *file = ".libs/dlrover.so", std::vector<std::string> words = {});
    ~LoadedModule();
    LoadedModule(const LoadedModule &) = delete;
    LoadedModule &operator=(const LoadedModule &) = delete;

    /// Calls slurm_spank_NAME; 0 where the module has no such hook.
    int hook(const char *name);
    /// What Slurm does with an option; the callback's answer.
    int give(const char *option, const char *value, bool remote = false);

  private:
    void *library_;
    std::vector<std::string> words_;
};
