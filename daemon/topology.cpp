// SPDX-License-Identifier: Apache-2.0
#include "daemon/topology.h"

#include <sched.h>

#include <algorithm>
#include <memory>

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#ifdef HAVE_HWLOC
#include <hwloc.h>
#endif

namespace dlrover::daemon {

#ifdef HAVE_HWLOC

namespace {

struct FreeTopology {
    void operator()(hwloc_topology_t topology) const { ::hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, FreeTopology>;

Topology load(const std::string &synthetic) {
    hwloc_topology_t raw = nullptr;
    if (::hwloc_topology_init(&raw) != 0) return nullptr;
    Topology topology(raw);
    if (!synthetic.empty() && ::hwloc_topology_set_synthetic(raw, synthetic.c_str()) != 0) return nullptr;
    if (::hwloc_topology_load(raw) != 0) return nullptr;
    return topology;
}

}  // namespace

std::vector<NumaNode> load_numa_nodes(const std::string &synthetic) {
    std::vector<NumaNode> nodes;
    Topology topology = load(synthetic);
    hwloc_obj_t object = nullptr;
    while (topology &&
           (object = ::hwloc_get_next_obj_by_type(topology.get(), HWLOC_OBJ_NUMANODE, object)) != nullptr) {
        NumaNode node{object->os_index, {}};
        for (int cpu = ::hwloc_bitmap_first(object->cpuset); cpu >= 0;
             cpu = ::hwloc_bitmap_next(object->cpuset, cpu))
            node.cpus.push_back(static_cast<unsigned>(cpu));
        nodes.push_back(std::move(node));
    }
    return nodes;
}

#else

std::vector<NumaNode> load_numa_nodes(const std::string &) {
    return {};
}

#endif

std::optional<unsigned> numa_node_of(const std::vector<NumaNode> &nodes, const std::vector<unsigned> &cpus) {
    std::optional<unsigned> found;
    for (const NumaNode &node : nodes) {
        bool all = !cpus.empty() && std::all_of(cpus.begin(), cpus.end(), [&](unsigned cpu) {
            return std::binary_search(node.cpus.begin(), node.cpus.end(), cpu);
        });
        if (all) found = std::min(found.value_or(node.number), node.number);
    }
    return found;
}

std::vector<unsigned> cpus_of_process(int pid) {
    constexpr int most_cpus = 16384;
    struct FreeSet {
        void operator()(cpu_set_t *set) const { CPU_FREE(set); }
    };
    std::unique_ptr<cpu_set_t, FreeSet> set(CPU_ALLOC(most_cpus));
    std::size_t bytes = CPU_ALLOC_SIZE(most_cpus);
    std::vector<unsigned> cpus;
    if (pid <= 0 || !set || ::sched_getaffinity(pid, bytes, set.get()) != 0) return cpus;
    for (unsigned cpu = 0; cpu < most_cpus; ++cpu)
        if (CPU_ISSET_S(cpu, bytes, set.get())) cpus.push_back(cpu);
    return cpus;
}

}  // namespace dlrover::daemon
