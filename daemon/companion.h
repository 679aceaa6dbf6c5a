// SPDX-License-Identifier: Apache-2.0
// What a companion job runs: srun with the step's own command. Pure. All texts are the user's; they travel as
// words, and no shell reads them.
#pragma once

#include <string>
#include <vector>

#include "daemon/slurm.h"

namespace dlrover::daemon {

/// The step's environment less what belongs to its own job: Slurm's variables (but for limits and umask),
/// ours, and which devices are its.
std::vector<std::string> companion_environment(const std::vector<std::string> &environment);

/// The whole text of the job's script: its words are srun's.
extern const char *const companion_script;

/// The words for it, the first one its name.
std::vector<std::string> companion_words(const CompanionOrder &order, std::uint32_t cpus_per_task);

/// The first companion_mark() in Slurm's comment for administrators, which may hold other things; or nothing.
std::string find_mark(const std::string &comment);

}  // namespace dlrover::daemon
