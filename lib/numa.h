// SPDX-License-Identifier: Apache-2.0
// On which processors the copying threads should run: on the NUMA node of the memory that they work on, as
// far as this process may use it. Asks the kernel alone.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dlrover::lib {

using Cpus = std::vector<unsigned>;  ///< by number, rising

struct NumaNode {
    unsigned number = 0;
    Cpus cpus;
    friend bool operator==(const NumaNode &, const NumaNode &) = default;
};

/// "0-3,8,10-11", with a line's end or without. None: it is no such list.
std::optional<Cpus> parse_cpu_list(std::string_view text);

/// The nodes that have processors, as that folder says. Empty where it can not be read or says what can not
/// be.
std::vector<NumaNode> read_numa_nodes(const std::string &folder);

/// Those of `mine` on that node. Empty: there are none, or all are, so that nothing needs to change.
Cpus cpus_on(const std::vector<NumaNode> &nodes, unsigned node, const Cpus &mine);

/// The node that more than half of these pages are on; each is a node's number, or negative: it is not there.
std::optional<unsigned> most_of(std::span<const int> pages);

/// What this thread may run on; empty: unknown.
Cpus own_cpus();
/// Nothing else changes; nothing does where the kernel refuses.
void run_this_thread_on(const Cpus &cpus) noexcept;
/// Of each page the node's number, or negative: it has no memory, no page table here, or the kernel does not
/// tell.
std::vector<int> nodes_of_pages(const std::vector<const std::byte *> &pages);

/// Any thread. What it has found out of a range of memory it does not ask again.
class NearCpus {
  public:
    struct System {
        std::string folder = "/sys/devices/system/node";
        Cpus (*own_cpus)() = lib::own_cpus;
        std::vector<int> (*nodes_of_pages)(const std::vector<const std::byte *> &pages) = lib::nodes_of_pages;
    };
    NearCpus() : NearCpus(System()) {}
    explicit NearCpus(System system) : system_(std::move(system)) {}
    NearCpus(const NearCpus &) = delete;
    NearCpus &operator=(const NearCpus &) = delete;

    /// For threads that work on this memory; empty: let them run where they are. Asks nothing where the
    /// machine has one node, once it knows.
    Cpus for_memory(std::span<const std::byte> memory);

  private:
    std::optional<unsigned> node_of(std::span<const std::byte> memory);

    const System system_;
    std::mutex mutex_;
    std::optional<std::vector<NumaNode>> nodes_;
    std::map<std::pair<const std::byte *, std::size_t>, unsigned> known_;
};

/// This process's. A forked child does not use it.
NearCpus &near_cpus();

}  // namespace dlrover::lib
