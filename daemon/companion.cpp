// SPDX-License-Identifier: Apache-2.0
#include "daemon/companion.h"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <string_view>

namespace dlrover::daemon {
namespace {

constexpr std::string_view mark_prefix = "dlrover:", left_prefix = "dlrover-without:",
                           grown_prefix = "dlrover-node:", excluded_prefix = "dlrover-excluded:",
                           lost_prefix = "dlrover-lost:";
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

std::vector<std::string> words_of(const std::string &comment) {
    std::istringstream stream(comment);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    return words;
}

/// The rest stays as its site has written it. One blank goes with each word.
std::string without_words(std::string text, std::string_view prefix) {
    auto is_space = [&](std::size_t at) { return std::isspace(static_cast<unsigned char>(text[at])) != 0; };
    for (std::size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix, at)) {
        if (at > 0 && !is_space(at - 1)) {
            ++at;
            continue;
        }
        std::size_t end = at;
        while (end < text.size() && !is_space(end)) ++end;
        bool is_last = end == text.size();
        if (is_last && at > 0)
            --at;
        else if (!is_last)
            ++end;
        text.erase(at, end - at);
    }
    return text;
}

/// What srun is told of a step that joins, whichever job it is of.
void add_step_words(const CompanionOrder &order, std::uint32_t cpus_per_task,
                    std::vector<std::string> &words) {
    words.insert(words.end(), {"--nodes=1", "--ntasks=" + std::to_string(order.tasks),
                               "--cpus-per-task=" + std::to_string(cpus_per_task)});
    words.push_back("--dlrover-join=" + std::to_string(order.job.value()) + "." +
                    std::to_string(order.step.value()) + "." + std::to_string(order.restart_count));
    words.insert(words.end(), order.options.begin(), order.options.end());
    words.emplace_back("--");
    words.insert(words.end(), order.argv.begin(), order.argv.end());
}

bool begins_with_one_of(std::string_view line, const auto &prefixes) {
    return std::ranges::any_of(prefixes, [&](std::string_view prefix) { return line.starts_with(prefix); });
}

/// "n1,n2"
std::vector<std::string> names_in(const std::string &list) {
    std::istringstream words(list);
    std::vector<std::string> names;
    for (std::string name; std::getline(words, name, ',');)
        if (!name.empty()) names.push_back(name);
    return names;
}

/// The one word with that prefix, or none.
std::string put_names(const std::string &comment, std::string_view prefix, const std::string &before,
                      const std::vector<std::string> &nodes) {
    std::string text = without_words(comment, prefix), names;
    for (const std::string &node : nodes) names += (names.empty() ? "" : ",") + node;
    if (!names.empty()) text += (text.empty() ? "" : " ") + std::string(prefix) + before + names;
    return text;
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
    std::vector<std::string> words = {"dlrover-companion"};
    add_step_words(order, cpus_per_task, words);
    return words;
}

const char *const expands_word = "dlrover-expands";

std::vector<std::string> growth_words(const CompanionOrder &order, const Growth &growth) {
    std::vector<std::string> words = {"srun", "--jobid=" + std::to_string(order.job.value()), "--overlap",
                                      "--nodelist=" + growth.node};
    add_step_words(order, growth.cpus_per_task, words);
    return words;
}

bool has_word(const std::string &comment, std::string_view word) {
    auto words = words_of(comment);
    return std::ranges::find(words, word) != words.end();
}

std::vector<std::string> find_grown(const std::string &comment) {
    auto words = words_of(comment);
    std::erase_if(words, [](const std::string &word) { return !word.starts_with(grown_prefix); });
    return words;
}

std::string add_grown(const std::string &comment, const std::string &mark,
                      const std::vector<std::string> &nodes) {
    std::string text;
    for (const std::string &word : words_of(comment)) {
        bool is_old = word.starts_with(grown_prefix) &&
                      std::ranges::find(nodes, word.substr(word.rfind(':') + 1)) == nodes.end();
        if (!is_old && word != mark) text += word + " ";
    }
    return text + mark;
}

std::string find_mark(const std::string &comment) {
    for (const std::string &word : words_of(comment))
        if (word.starts_with(mark_prefix)) return word;
    return "";
}

std::vector<std::string> find_left_marks(const std::string &comment) {
    std::vector<std::string> marks;
    std::istringstream words(comment);
    for (std::string word; words >> word;)
        if (word.starts_with(left_prefix)) marks.push_back(word);
    return marks;
}

std::set<std::string> find_excluded(const std::string &comment) {
    std::set<std::string> nodes;
    for (const std::string &word : words_of(comment)) {
        if (!word.starts_with(excluded_prefix)) continue;
        for (std::string &name : names_in(word.substr(excluded_prefix.size()))) nodes.insert(std::move(name));
    }
    return nodes;
}

std::string put_excluded(const std::string &comment, const std::set<std::string> &nodes) {
    return put_names(comment, excluded_prefix, "", {nodes.begin(), nodes.end()});
}

std::vector<std::string> find_lost(const std::string &comment, std::uint32_t run) {
    std::string of_run = std::string(lost_prefix) + std::to_string(run) + ":";
    for (const std::string &word : words_of(comment))
        if (word.starts_with(of_run)) return names_in(word.substr(of_run.size()));
    return {};
}

std::string put_lost(const std::string &comment, std::uint32_t run, const std::vector<std::string> &nodes) {
    return put_names(comment, lost_prefix, std::to_string(run) + ":", nodes);
}

}  // namespace dlrover::daemon
