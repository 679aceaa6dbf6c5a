// SPDX-License-Identifier: Apache-2.0
// dlrover.toml(5), typed. Unknown keys are refused by name and line; known ones are brought into their range
// in one function (check_settings), which says what it changed and why.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "common/log.h"

namespace dlrover {

inline constexpr const char *default_settings_path = "/etc/dlrover/dlrover.toml";
inline constexpr std::size_t max_settings_bytes = 1u << 20;

struct SizeBytes {
    std::uint64_t value = 0;
    friend bool operator==(SizeBytes, SizeBytes) = default;
};

/// Ports low to high, both included. Text: "29400-29999".
struct PortRange {
    std::uint16_t low = 0, high = 0;
    friend bool operator==(PortRange, PortRange) = default;
};

/// A part of the node's memory: "20%", or a size. Exactly one of the two is not 0 (both 0: nothing).
struct MemoryShare {
    std::uint32_t percent = 0;
    std::uint64_t size_bytes = 0;
    std::uint64_t of(std::uint64_t total_bytes) const {
        return percent != 0 ? total_bytes / 100 * percent : size_bytes;
    }
    friend bool operator==(MemoryShare, MemoryShare) = default;
};

/// Whose memory arenas are: "auto", "node", "job".
enum class ArenaCharge : std::uint8_t { automatic, node, job };

enum class HugePages : std::uint8_t { never, try_first };  ///< "never", "try"

/// Where checkpoints go to other nodes by UCX: "rdma" (networks whose hardware checks keys), "always",
/// "never".
enum class UseUcx : std::uint8_t { rdma, always, never };

struct Settings {
    using Duration = std::chrono::microseconds;

    struct Network {
        std::uint16_t port = 6825;
        std::string listen;     ///< address; empty: every address of the node
        std::string interface;  ///< accept links on this interface only; empty: on all
        PortRange master_ports{29400, 29999};
        Duration connect_timeout = std::chrono::seconds(3);
        Duration handshake_timeout = std::chrono::seconds(5);
        Duration frame_timeout = std::chrono::seconds(5);  ///< a frame that has begun must be whole by then
        Duration probe = std::chrono::seconds(2);          ///< a word on a link that says nothing
        Duration dead_after = std::chrono::seconds(8);     ///< reset a link that brought nothing for so long
        Duration reconnect_min = std::chrono::milliseconds(100), reconnect_max = std::chrono::seconds(5);
        SizeBytes peer_queue{16u << 20};
    } network;

    struct Memory {
        std::uint64_t slots = 3;  ///< a rank
        MemoryShare user_quota{.percent = 50};
        MemoryShare available_floor{.percent = 5};
        HugePages huge_pages = HugePages::try_first;
        ArenaCharge arena_charge = ArenaCharge::automatic;
        Duration dead_group_ttl = std::chrono::minutes(10);
        Duration keep_after_requeue = std::chrono::minutes(30);  ///< 0: nothing is kept
    } memory;

    /// Those of elastic::Timings by the same names, and the agents'.
    struct Timing {
        Duration heartbeat = std::chrono::milliseconds(200);
        Duration leader_silence = std::chrono::milliseconds(1000);
        Duration election = std::chrono::milliseconds(1200);
        Duration election_step = std::chrono::milliseconds(300);
        Duration agent_lease = std::chrono::milliseconds(5000);
        Duration join = std::chrono::seconds(60);
        Duration incident_window = std::chrono::milliseconds(500);
        Duration fence_wait = std::chrono::milliseconds(1500);
        Duration without_slurm = std::chrono::seconds(60);
        Duration stop_grace = std::chrono::seconds(5);  ///< between SIGTERM and SIGKILL for a worker
    } timing;

    struct Storage {
        Duration order_limit = std::chrono::minutes(30);  ///< a checkpoint that takes longer is given up
        Duration end_limit = std::chrono::minutes(10);  ///< the end of a group waits so long for its last one
        Duration end_patience = std::chrono::seconds(30);  ///< and for word of rank 0's node
        Duration end_lead = std::chrono::seconds(60);      ///< before a job's end: what is newest goes there
        Duration end_silence = std::chrono::minutes(5);    ///< of storage, that the end waits for
        Duration silent_after =
            std::chrono::seconds(20);  ///< said of storage that owes an answer for so long
    } storage;

    /// Of checkpoints to other nodes' memory.
    struct Transfer {
        std::uint16_t streams = 4;  ///< TCP connections at once
        SizeBytes rate;             ///< bytes a second that a group's node sends; 0: no limit
        UseUcx ucx = UseUcx::rdma;
    } transfer;

    struct Limits {
        std::uint64_t groups = 256;
        std::uint64_t groups_per_user = 128;
        std::uint64_t connections = 4096;
        std::uint64_t connections_per_user = 1024;
        std::uint64_t segments_per_user = 3072;
        std::uint64_t events_kept = 1000;  ///< a group
    } limits;

    struct Log {
        log::Level level = log::Level::info;
        log::Target target = log::Target::automatic;
    } log;

    struct Slurm {
        std::string conf;  ///< slurm.conf; empty: Slurm's own default (and configless)
        Duration timeout = std::chrono::seconds(10);
        bool companion_jobs = true;  ///< lost nodes may be replaced by jobs of one node
        bool expansion = true;       ///< before that by expansion of the job, where Slurm permits it
    } slurm;

    struct Node {
        bool drain_failed = false;  ///< one that fails a group's check is drained
        /// A node that a job has lost is not asked for again before.
        Duration trust_again = std::chrono::minutes(10);
    } node;

    struct Pmix {
        /// A fence, a group or a direct modex that not all have come to by then fails for those that have.
        Duration wait_limit = std::chrono::minutes(5);
        /// Whom others of its node have waited for so long counts as failed whatever it does. 0: never.
        Duration busy_limit = std::chrono::minutes(30);
    } pmix;

    struct Security {
        std::string munge_socket;     ///< empty: libmunge's default
        bool accept_relays = true;    ///< hosts that Slurm does not know (login nodes) may ask for status
        bool check_addresses = true;  ///< a peer must come from its NodeAddr
    } security;
};

struct LoadedSettings {
    Settings settings;
    std::vector<std::string> notes;  ///< values that were brought into range: to be logged as warnings
};

/// Whole text or nothing. `origin` (a path) stands in front of every sentence: "ORIGIN:LINE: ...".
Result<LoadedSettings> parse_settings(std::string_view text, const std::string &origin);
/// A file that is not there means the defaults; one that cannot be read or parsed is a failure. Refuses a
/// file that others than its owner may write.
Result<LoadedSettings> load_settings(const std::string &path);

/// Brings every value into its range, telling what was changed and why; refuses values that contradict each
/// other.
Status check_settings(Settings &settings, std::vector<std::string> &notes);

/// A setting as the manual page names it. Texts are as in the file, without quotes; no low and high: no
/// range.
struct SettingLine {
    std::string key;  ///< "timing.heartbeat"
    std::string value, low, high;
};
/// All settings, in the order of the manual page.
std::vector<SettingLine> list_settings(const Settings &settings);

}  // namespace dlrover
