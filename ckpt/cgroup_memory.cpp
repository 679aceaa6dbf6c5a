// SPDX-License-Identifier: Apache-2.0
#include "ckpt/cgroup_memory.h"

#include <algorithm>
#include <fstream>

#include "base/units.h"

namespace dlrover::ckpt {
namespace {

constexpr std::uint64_t no_limit_bytes = std::uint64_t{1} << 60;  // version 1 says "none" by a huge number

/// The names of one version's files.
struct Version {
    const char *limit, *used, *droppable;
};
constexpr Version first{"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file"};
constexpr Version second{"/memory.max", "/memory.current", "inactive_file"};

struct Place {
    const Version *version = nullptr;
    std::string root, path;
};

/// From lines as "4:memory:/slurm/job_7" and "0::/slurm/job_7".
Place find_place(const std::string &file, const std::string &root) {
    std::ifstream lines(file);
    Place place;
    for (std::string line; std::getline(lines, line);) {
        auto colon = line.find(':');
        auto names_end = colon == line.npos ? line.npos : line.find(':', colon + 1);
        if (names_end == line.npos) continue;
        std::string names = "," + line.substr(colon + 1, names_end - colon - 1) + ",";
        std::string path = line.substr(names_end + 1);
        if (names.find(",memory,") != names.npos) return {&first, root + "/memory", path};
        if (names == ",,") place = {&second, root, path};
    }
    return place;
}

std::optional<std::uint64_t> read_number(const std::string &file) {
    std::ifstream in(file);
    std::string text;
    if (!(in >> text)) return std::nullopt;
    auto number = parse_uint(text, 0, UINT64_MAX);
    return number.ok() ? std::optional(*number) : std::nullopt;
}

std::uint64_t read_field(const std::string &file, const std::string &name) {
    std::ifstream in(file);
    std::string key;
    for (std::uint64_t value = 0; in >> key >> value;)
        if (key == name) return value;
    return 0;
}

std::optional<CgroupMemory> read_group(const Version &version, const std::string &folder) {
    auto limit = read_number(folder + version.limit), used = read_number(folder + version.used);
    if (!limit || !used || *limit >= no_limit_bytes) return std::nullopt;
    std::uint64_t droppable = read_field(folder + "/memory.stat", version.droppable);
    return CgroupMemory{*limit, *used - std::min(*used, droppable), folder};
}

}  // namespace

std::optional<CgroupMemory> cgroup_memory(const std::string &process, const std::string &proc,
                                          const std::string &root) {
    Place place = find_place(proc + "/" + process + "/cgroup", root);
    std::optional<CgroupMemory> tightest;
    if (!place.version || place.path.find("..") != place.path.npos) return tightest;
    for (std::string path = place.path; path.size() > 1; path.erase(path.rfind('/'))) {
        auto group = read_group(*place.version, place.root + path);
        if (group && (!tightest || group->free_bytes() < tightest->free_bytes())) tightest = group;
        if (path.rfind('/') == path.npos) break;
    }
    return tightest;
}

}  // namespace dlrover::ckpt
