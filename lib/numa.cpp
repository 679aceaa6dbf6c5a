// SPDX-License-Identifier: Apache-2.0
#include "lib/numa.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <memory>

#include "base/unique_fd.h"
#include "base/units.h"

namespace dlrover::lib {
namespace {

constexpr unsigned most_cpus = 16384, most_nodes = 1024;
constexpr std::size_t most_samples = 64, most_known = 256;

struct CloseFolder {
    void operator()(DIR *folder) const { ::closedir(folder); }
};

/// cpu_set_t is too small for the largest machines.
class CpuSet {
  public:
    CpuSet() : set_(CPU_ALLOC(most_cpus)) {
        if (set_) CPU_ZERO_S(bytes(), set_.get());
    }
    explicit operator bool() const { return set_ != nullptr; }
    cpu_set_t *get() const { return set_.get(); }
    static std::size_t bytes() { return CPU_ALLOC_SIZE(most_cpus); }

  private:
    struct Free {
        void operator()(cpu_set_t *set) const { CPU_FREE(set); }
    };
    std::unique_ptr<cpu_set_t, Free> set_;
};

std::optional<unsigned> number_below(std::string_view text, unsigned limit) {
    auto number = parse_uint(std::string(text), 0, limit - 1);
    if (!number) return std::nullopt;
    return static_cast<unsigned>(*number);
}

/// Empty where there is none.
std::string read_text(const std::string &path) {
    std::string text(std::size_t{16} << 10, '\0');
    UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    ssize_t bytes = file ? ::read(file.get(), text.data(), text.size()) : 0;
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
    return text;
}

/// node12 → 12
std::optional<unsigned> node_number(std::string_view name) {
    constexpr std::string_view prefix = "node";
    if (!name.starts_with(prefix)) return std::nullopt;
    return number_below(name.substr(prefix.size()), most_nodes);
}

/// Of as many places as are asked for, with the first page and spread evenly.
std::vector<const std::byte *> sample_pages(std::span<const std::byte> memory) {
    auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    std::size_t pages = memory.size() / page, count = std::min(pages, most_samples);
    std::vector<const std::byte *> samples;
    for (std::size_t i = 0; i < count; ++i) samples.push_back(memory.data() + i * pages / count * page);
    return samples;
}

}  // namespace

std::optional<Cpus> parse_cpu_list(std::string_view text) {
    Cpus cpus;
    while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
    while (!text.empty()) {
        std::string_view part = text.substr(0, text.find(','));
        text.remove_prefix(std::min(part.size() + 1, text.size()));
        std::size_t dash = part.find('-');
        auto first = number_below(part.substr(0, dash), most_cpus);
        auto last = dash == std::string_view::npos ? first : number_below(part.substr(dash + 1), most_cpus);
        bool rises = first && last && *first <= *last && (cpus.empty() || *first > cpus.back());
        if (!rises) return std::nullopt;
        for (unsigned cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
    }
    return cpus;
}

std::vector<NumaNode> read_numa_nodes(const std::string &folder) {
    std::vector<NumaNode> nodes;
    std::unique_ptr<DIR, CloseFolder> entries(::opendir(folder.c_str()));
    while (const dirent *entry = entries ? ::readdir(entries.get()) : nullptr) {
        auto number = node_number(entry->d_name);
        if (!number) continue;
        auto cpus = parse_cpu_list(read_text(folder + "/" + entry->d_name + "/cpulist"));
        if (!cpus) return {};
        if (!cpus->empty()) nodes.push_back({*number, std::move(*cpus)});
    }
    std::ranges::sort(nodes, {}, &NumaNode::number);
    return nodes;
}

Cpus cpus_on(const std::vector<NumaNode> &nodes, unsigned node, const Cpus &mine) {
    auto found = std::ranges::find(nodes, node, &NumaNode::number);
    Cpus cpus;
    if (found == nodes.end()) return cpus;
    std::ranges::set_intersection(found->cpus, mine, std::back_inserter(cpus));
    if (cpus.size() == mine.size()) cpus.clear();
    return cpus;
}

std::optional<unsigned> most_of(std::span<const int> pages) {
    std::map<int, std::size_t> counts;
    std::size_t there = 0;
    for (int node : pages)
        if (node >= 0) {
            ++counts[node];
            ++there;
        }
    for (auto [node, count] : counts)
        if (2 * count > there && 2 * there > pages.size()) return static_cast<unsigned>(node);
    return std::nullopt;
}

Cpus own_cpus() {
    Cpus cpus;
    CpuSet set;
    if (!set || ::sched_getaffinity(0, CpuSet::bytes(), set.get()) != 0) return cpus;
    for (unsigned cpu = 0; cpu < most_cpus; ++cpu)
        if (CPU_ISSET_S(cpu, CpuSet::bytes(), set.get())) cpus.push_back(cpu);
    return cpus;
}

void run_this_thread_on(const Cpus &cpus) noexcept {
    CpuSet set;
    if (!set || cpus.empty()) return;
    for (unsigned cpu : cpus)
        if (cpu < most_cpus) CPU_SET_S(cpu, CpuSet::bytes(), set.get());
    (void)::sched_setaffinity(0, CpuSet::bytes(), set.get());
}

std::vector<int> nodes_of_pages(const std::vector<const std::byte *> &pages) {
    std::vector<int> nodes(pages.size(), -1);
    // Without nodes to move to it tells where they are.
    if (::syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, nodes.data(), 0) != 0)
        std::ranges::fill(nodes, -1);
    return nodes;
}

std::optional<unsigned> NearCpus::node_of(std::span<const std::byte> memory) {
    std::pair key(memory.data(), memory.size());
    if (auto known = known_.find(key); known != known_.end()) return known->second;
    auto node = most_of(system_.nodes_of_pages(sample_pages(memory)));
    if (known_.size() >= most_known) known_.clear();
    if (node) known_[key] = *node;
    return node;
}

Cpus NearCpus::for_memory(std::span<const std::byte> memory) {
    std::lock_guard lock(mutex_);
    if (!nodes_) nodes_ = read_numa_nodes(system_.folder);
    if (nodes_->size() < 2) return {};
    auto node = node_of(memory);
    return node ? cpus_on(*nodes_, *node, system_.own_cpus()) : Cpus{};
}

NearCpus &near_cpus() {
    static NearCpus &near = *new NearCpus;  // for as long as any thread may run
    return near;
}

}  // namespace dlrover::lib
