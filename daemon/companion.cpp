// SPDX-License-Identifier: Apache-2.0
#include "daemon/companion.h"

#include <algorithm>
#include <sstream>
#include <string_view>

namespace dlrover::daemon {
namespace {

constexpr std::string_view mark_prefix = "dlrover:";
constexpr std::string_view kept[] = {"SLURM_CONF=", "SLURM_UMASK=", "SLURM_PRIO_PROCESS=", "SLURM_RLIMIT_"};
constexpr std::string_view left_out[] = {"SLURM",
                                         "SBATCH_",
                                         "SALLOC_",
                                         "SRUN_",
                                         "_SLURM",
                                         "SPANK_",
                                         "DLROVER_",
                                         "PMI_",
                                         "PMIX_",
                                         "CUDA_VISIBLE_DEVICES=",
                                         "NVIDIA_VISIBLE_DEVICES=",
                                         "ROCR_VISIBLE_DEVICES=",
                                         "HIP_VISIBLE_DEVICES=",
                                         "ZE_AFFINITY_MASK=",
                                         "GPU_DEVICE_ORDINAL="};

bool begins_with_one_of(std::string_view line, const auto &prefixes) {
    return std::ranges::any_of(prefixes, [&](std::string_view prefix) { return line.starts_with(prefix); });
}

}  // namespace

std::vector<std::string> companion_environment(const std::vector<std::string> &environment) {
    std::vector<std::string> lines;
    for (const std::string &line : environment) {
        bool variable = line.find('=') != std::string::npos && line[0] != '=';
        if (variable && (begins_with_one_of(line, kept) || !begins_with_one_of(line, left_out)))
            lines.push_back(line);
    }
    if (lines.empty()) lines.emplace_back("PATH=/usr/local/bin:/usr/bin:/bin");  // Slurm wants one
    return lines;
}

const char *const companion_script = "#!/bin/sh\nexec srun \"$@\"\n";

std::vector<std::string> companion_words(const CompanionOrder &order, std::uint32_t cpus_per_task) {
    std::string tasks = std::to_string(order.tasks);
    std::vector<std::string> words = {"dlrover-companion", "--nodes=1", "--ntasks=" + tasks,
                                      "--cpus-per-task=" + std::to_string(cpus_per_task)};
    words.push_back("--dlrover-join=" + std::to_string(order.job.value()) + "." +
                    std::to_string(order.step.value()) + "." + std::to_string(order.restart_count));
    words.insert(words.end(), order.options.begin(), order.options.end());
    words.emplace_back("--");
    words.insert(words.end(), order.argv.begin(), order.argv.end());
    return words;
}

std::string find_mark(const std::string &comment) {
    std::istringstream words(comment);
    for (std::string word; words >> word;)
        if (word.starts_with(mark_prefix)) return word;
    return "";
}

}  // namespace dlrover::daemon
