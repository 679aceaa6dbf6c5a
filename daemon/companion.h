// SPDX-License-Identifier: Apache-2.0
// What a companion job runs: srun with the step's own command. Pure. All texts are the user's; they travel as
// words, and no shell reads them.
#pragma once

#include <set>
#include <string>
#include <string_view>
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

/// srun's, of a step of the main job itself on a node that it was expanded by; with the program's name.
std::vector<std::string> growth_words(const CompanionOrder &order, const Growth &growth);

/// Beside the job's companion_mark(), of an allocation whose node is to be moved into the main job.
extern const char *const expands_word;
bool has_word(const std::string &comment, std::string_view word);

/// All grown_mark() in a comment.
std::vector<std::string> find_grown(const std::string &comment);
/// That comment with one more; without those of nodes that are not in the job any more.
std::string add_grown(const std::string &comment, const std::string &mark,
                      const std::vector<std::string> &nodes);

/// The first companion_mark() in Slurm's comment for administrators, which may hold other things; or nothing.
std::string find_mark(const std::string &comment);
/// Every left_mark() in it.
std::vector<std::string> find_left_marks(const std::string &comment);

/// "dlrover-excluded:n3,n5": nodes in the job's ExcNodeList that its group has put there, not its user.
std::set<std::string> find_excluded(const std::string &comment);
/// That comment with these instead; without the mark where there are none.
std::string put_excluded(const std::string &comment, const std::set<std::string> &nodes);

/// "dlrover-lost:2:n3,n5": nodes that the job's run before its run 2 has lost. That mark's, if it is of this
/// run.
std::vector<std::string> find_lost(const std::string &comment, std::uint32_t run);
/// That comment with these instead of whatever run's.
std::string put_lost(const std::string &comment, std::uint32_t run, const std::vector<std::string> &nodes);

}  // namespace dlrover::daemon
