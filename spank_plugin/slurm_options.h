// SPDX-License-Identifier: Apache-2.0
// srun's, sbatch's and salloc's own options, through the functions that these programs share. They are looked
// up at run time: slurmstepd has none of them, and a Slurm without them must still load the module.
#pragma once

#include <optional>
#include <string>

namespace dlrover::spank {

class SlurmOptions {
  public:
    /// None where this process has no such functions.
    static std::optional<SlurmOptions> find();

    /// Slurm's text for the option, whether given or default; none where Slurm has no such option here.
    std::optional<std::string> get(const char *name) const;
    /// Its value if somebody gave it: command line, environment or set().
    std::optional<std::string> given(const char *name) const;
    /// `letter` is the short option ('W'), 0 where `name` is enough. Slurm has two options named "wait".
    bool set(const char *name, char letter, const char *value);

  private:
    using GetFn = char *(void *, const char *);
    using SetFn = int(void *, const char *, const char *, bool);
    using ProcessFn = int(void *, int, const char *, bool, bool);
    using NextSetFn = bool(void *, char **, char **, std::size_t *);
    using FreeFn = void(void **);

    std::string take(char *text) const;

    void *opt_ = nullptr;
    GetFn *get_ = nullptr;
    SetFn *set_ = nullptr;
    ProcessFn *process_ = nullptr;
    NextSetFn *next_set_ = nullptr;
    FreeFn *free_ = nullptr;
};

}  // namespace dlrover::spank
