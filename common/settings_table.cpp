// SPDX-License-Identifier: Apache-2.0
#include "common/settings_table.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/units.h"

namespace dlrover::settings_table {
namespace {

constexpr const char *level_words[] = {"debug", "info", "warning", "error"};
constexpr const char *target_words[] = {"auto", "stderr", "journal", "syslog"};
constexpr const char *charge_words[] = {"auto", "node", "job"};
constexpr const char *huge_words[] = {"never", "try"};
constexpr const char *ucx_words[] = {"rdma", "always", "never"};

template <typename Enum>
Choice choice(Enum &value, std::span<const char *const> words) {
    static_assert(sizeof(Enum) == 1);
    return {reinterpret_cast<std::uint8_t *>(&value), words};
}

#define PLACE(member) [](Settings &s) -> Place { return &s.member; }

const Entry table[] = {
    {"network", "port", PLACE(network.port), "1", "65535", "a port has 16 bits"},
    {"network", "listen", PLACE(network.listen), "", "", ""},
    {"network", "interface", PLACE(network.interface), "", "", ""},
    {"network", "master_ports", PLACE(network.master_ports), "", "", ""},
    {"network", "connect_timeout", PLACE(network.connect_timeout), "100ms", "60s",
     "a verdict on a lost node must not wait for it"},
    {"network", "handshake_timeout", PLACE(network.handshake_timeout), "500ms", "60s",
     "MUNGE needs some time, and a silent peer holds a place until then"},
    {"network", "frame_timeout", PLACE(network.frame_timeout), "500ms", "60s",
     "a peer that stops in mid-frame holds up to 4 MiB until then"},
    {"network", "probe", PLACE(network.probe), "100ms", "60s", "probes cost a packet each"},
    {"network", "dead_after", PLACE(network.dead_after), "500ms", "10min",
     "a dead link should be seen, a slow one kept"},
    {"network", "reconnect_min", PLACE(network.reconnect_min), "10ms", "10s",
     "each attempt costs both sides a MUNGE credential"},
    {"network", "reconnect_max", PLACE(network.reconnect_max), "100ms", "10min",
     "a node that came back should be found soon"},
    {"network", "peer_queue", PLACE(network.peer_queue), "4MiB", "1GiB",
     "one frame must fit, and every peer may need as much"},

    {"memory", "slots", PLACE(memory.slots), "2", "8",
     "with one slot a crash in mid-copy would leave no common step"},
    {"memory", "user_quota", PLACE(memory.user_quota), "", "", ""},
    {"memory", "available_floor", PLACE(memory.available_floor), "", "", ""},
    {"memory", "huge_pages", [](Settings &s) -> Place { return choice(s.memory.huge_pages, huge_words); }, "",
     "", ""},
    {"memory", "arena_charge",
     [](Settings &s) -> Place { return choice(s.memory.arena_charge, charge_words); }, "", "", ""},
    {"memory", "dead_group_ttl", PLACE(memory.dead_group_ttl), "0s", "240h",
     "memory of a job that never comes back is lost to others"},
    {"memory", "keep_after_requeue", PLACE(memory.keep_after_requeue), "0s", "24h",
     "a job that waits long has its checkpoints on storage"},

    {"timing", "heartbeat", PLACE(timing.heartbeat), "20ms", "5s",
     "more often would only cost processor time"},
    {"timing", "leader_silence", PLACE(timing.leader_silence), "100ms", "60s", "several heartbeats must fit"},
    {"timing", "election", PLACE(timing.election), "150ms", "90s", "it must be longer than leader_silence"},
    {"timing", "election_step", PLACE(timing.election_step), "20ms", "10s", "candidates must not collide"},
    {"timing", "agent_lease", PLACE(timing.agent_lease), "500ms", "10min",
     "workers on an isolated node run on until then"},
    {"timing", "join", PLACE(timing.join), "1s", "1h", "nodes of one step start at different times"},
    {"timing", "incident_window", PLACE(timing.incident_window), "10ms", "10s", "a restart waits for it"},
    {"timing", "fence_wait", PLACE(timing.fence_wait), "100ms", "60s",
     "the leader in office must be able to ask Slurm first"},
    {"timing", "without_slurm", PLACE(timing.without_slurm), "10s", "1h",
     "fewer than half of a group's nodes wait longer before they have the job requeued"},
    {"timing", "stop_grace", PLACE(timing.stop_grace), "0s", "10min", "every restart may wait for it"},

    {"storage", "order_limit", PLACE(storage.order_limit), "1s", "24h", "memory is kept for it until then"},
    {"storage", "end_limit", PLACE(storage.end_limit), "0s", "24h", "the job's nodes wait for it"},
    {"storage", "end_patience", PLACE(storage.end_patience), "1s", "1h",
     "a daemon may be restarted meanwhile"},
    {"storage", "end_silence", PLACE(storage.end_silence), "1s", "24h",
     "a file server that restarts is silent for minutes"},
    {"storage", "end_lead", PLACE(storage.end_lead), "0s", "24h", "what comes later may be lost"},
    {"storage", "silent_after", PLACE(storage.silent_after), "2s", "1h",
     "a writer says once a second that storage answers"},

    {"transfer", "streams", PLACE(transfer.streams), "1", "16", "the protocol has no more"},
    {"transfer", "rate", PLACE(transfer.rate), "", "", ""},
    {"transfer", "ucx", [](Settings &s) -> Place { return choice(s.transfer.ucx, ucx_words); }, "", "", ""},

    {"limits", "groups", PLACE(limits.groups), "1", "65536", "each needs memory and descriptors"},
    {"limits", "groups_per_user", PLACE(limits.groups_per_user), "1", "65536",
     "others on the node want some too"},
    {"limits", "connections", PLACE(limits.connections), "64", "65536", "each is a descriptor"},
    {"limits", "connections_per_user", PLACE(limits.connections_per_user), "16", "65536",
     "each rank needs one, each agent another"},
    {"limits", "segments_per_user", PLACE(limits.segments_per_user), "64", "12288",
     "each slot of a rank needs one at least, and there is room for 12288 of all users"},
    {"limits", "events_kept", PLACE(limits.events_kept), "16", "100000", "they stay in memory"},

    {"log", "level", [](Settings &s) -> Place { return choice(s.log.level, level_words); }, "", "", ""},
    {"log", "target", [](Settings &s) -> Place { return choice(s.log.target, target_words); }, "", "", ""},

    {"slurm", "conf", PLACE(slurm.conf), "", "", ""},
    {"slurm", "timeout", PLACE(slurm.timeout), "1s", "5min",
     "slurmctld may be busy, and a group waits for its word"},
    {"slurm", "companion_jobs", PLACE(slurm.companion_jobs), "", "", ""},
    {"slurm", "expansion", PLACE(slurm.expansion), "", "", ""},

    {"node", "drain_failed", PLACE(node.drain_failed), "", "", ""},
    {"node", "trust_again", PLACE(node.trust_again), "1s", "240h", "Slurm may not know yet that it is gone"},

    {"pmix", "wait_limit", PLACE(pmix.wait_limit), "1s", "240h",
     "programs are ended for it where they wait for a slow rank"},
    {"pmix", "busy_limit", PLACE(pmix.busy_limit), "0s", "240h",
     "the others of the node wait for it, and hear nothing"},

    {"security", "munge_socket", PLACE(security.munge_socket), "", "", ""},
    {"security", "accept_relays", PLACE(security.accept_relays), "", "", ""},
    {"security", "check_addresses", PLACE(security.check_addresses), "", "", ""},
};

#undef PLACE

template <typename T>
Status store(Result<T> value, T *place) {
    if (!value) return value.take_status();
    *place = *value;
    return {};
}

Status assign_to(Settings::Duration *place, std::string_view text) {
    return store(parse_duration(text), place);
}

Status assign_to(SizeBytes *place, std::string_view text) {
    return store(parse_size_bytes(text), &place->value);
}

Status assign_to(std::uint64_t *place, std::string_view text) {
    return store(parse_uint(text, 0, UINT64_MAX), place);
}

Status assign_to(std::uint16_t *place, std::string_view text) {
    auto value = parse_uint(text, 0, UINT16_MAX);
    if (value) *place = static_cast<std::uint16_t>(*value);
    return value.take_status();
}

Status assign_to(std::string *place, std::string_view text) {
    for (char c : text)
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
            return Status(Code::invalid_argument, "the text holds a control character");
    if (text.size() > 1024) return Status(Code::invalid_argument, "the text is longer than 1024 bytes");
    *place = text;
    return {};
}

Status assign_to(bool *place, std::string_view text) {
    if (text != "true" && text != "false") return Status(Code::invalid_argument, "neither true nor false");
    *place = text == "true";
    return {};
}

Status assign_to(PortRange *place, std::string_view text) {
    auto dash = text.find('-');
    if (dash == text.npos)
        return Status(Code::invalid_argument,
                      "\"" + std::string(text) + "\" is not a range such as 29400-29999");
    auto low = parse_uint(text.substr(0, dash), 1024, 65535);
    if (!low) return low.take_status();
    auto high = parse_uint(text.substr(dash + 1), *low, 65535);
    if (!high) return high.take_status();
    *place = {static_cast<std::uint16_t>(*low), static_cast<std::uint16_t>(*high)};
    return {};
}

Status assign_to(MemoryShare *place, std::string_view text) {
    if (!text.empty() && text.back() == '%') {
        auto percent = parse_uint(text.substr(0, text.size() - 1), 0, 100);
        if (percent) *place = {.percent = static_cast<std::uint32_t>(*percent)};
        return percent.take_status();
    }
    auto size = parse_size_bytes(text);
    if (size) *place = {.size_bytes = *size};
    return size.take_status();
}

Status assign_to(Choice place, std::string_view text) {
    std::string all;
    for (std::size_t i = 0; i < place.words.size(); ++i) {
        if (text == place.words[i]) {
            *place.value = static_cast<std::uint8_t>(i);
            return {};
        }
        all += std::string(i == 0 ? "" : ", ") + place.words[i];
    }
    return Status(Code::invalid_argument, "\"" + std::string(text) + "\" is none of " + all);
}

std::string duration_text(std::chrono::microseconds duration) {
    const struct {
        std::int64_t us;
        const char *name;
    } units[] = {{3600000000, "h"}, {60000000, "min"}, {1000000, "s"}, {1000, "ms"}, {1, "us"}};
    if (duration.count() == 0) return "0s";
    for (const auto &unit : units)
        if (duration.count() % unit.us == 0) return std::to_string(duration.count() / unit.us) + unit.name;
    return {};
}

std::string size_text(std::uint64_t bytes) {
    const char *const names[] = {"", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    for (; bytes != 0 && bytes % 1024 == 0 && unit < 4; ++unit) bytes /= 1024;
    return std::to_string(bytes) + names[unit];
}

std::string text_at(const Settings::Duration *place) {
    return duration_text(*place);
}
std::string text_at(const SizeBytes *place) {
    return size_text(place->value);
}
std::string text_at(const std::uint64_t *place) {
    return std::to_string(*place);
}
std::string text_at(const std::uint16_t *place) {
    return std::to_string(*place);
}
std::string text_at(const std::string *place) {
    return *place;
}
std::string text_at(const bool *place) {
    return *place ? "true" : "false";
}
std::string text_at(const PortRange *place) {
    return std::to_string(place->low) + "-" + std::to_string(place->high);
}
std::string text_at(const MemoryShare *place) {
    return place->percent != 0 ? std::to_string(place->percent) + "%" : size_text(place->size_bytes);
}
std::string text_at(Choice place) {
    return place.words[*place.value];
}

template <typename T>
concept Ranged = std::is_same_v<T, Settings::Duration> || std::is_same_v<T, std::uint64_t> ||
    std::is_same_v<T, std::uint16_t>;

template <typename T>
bool clamp_at(T *place, const char *low, const char *high) {
    if constexpr (Ranged<T>) {
        T least{}, most{};
        if (!assign_to(&least, low).ok() || !assign_to(&most, high).ok()) return false;
        T inside = std::min(std::max(*place, least), most);
        return std::exchange(*place, inside) != inside;
    }
    return false;
}

bool clamp_at(SizeBytes *place, const char *low, const char *high) {
    SizeBytes least, most;
    if (!assign_to(&least, low).ok() || !assign_to(&most, high).ok()) return false;
    std::uint64_t inside = std::min(std::max(place->value, least.value), most.value);
    return std::exchange(place->value, inside) != inside;
}

bool clamp_at(Choice, const char *, const char *) {
    return false;
}

}  // namespace

std::span<const Entry> entries() {
    return table;
}

Status assign(const Place &place, std::string_view text) {
    return std::visit([&](auto p) { return assign_to(p, text); }, place);
}

std::string text_of(const Place &place) {
    return std::visit([](auto p) { return text_at(p); }, place);
}

bool clamp(const Place &place, const char *low, const char *high) {
    if (*low == 0) return false;
    return std::visit([&](auto p) { return clamp_at(p, low, high); }, place);
}

}  // namespace dlrover::settings_table
