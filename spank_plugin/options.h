// SPDX-License-Identifier: Apache-2.0
// The --dlrover-* options: parsing, validation, and the one line that carries them from srun to the nodes.
// Pure: no Slurm, no environment. Text may come from any user; everything is bounded.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace dlrover::spank {

enum class OptionId : std::uint8_t {
    elastic,
    max_restarts,
    spares,
    node_unit,
    name,
    ckpt_dir,
    ckpt_every,
    ckpt_keep,
    redundancy,
    optional,
    companion,
    join,
    pmix,
    on_batch_loss,
};
inline constexpr std::size_t option_count = 14;

enum class Argument : std::uint8_t { none, required, optional };

/// One row of --help.
struct OptionSpec {
    OptionId id;
    const char *name;         ///< without the dashes
    const char *environment;  ///< the variable with the user's default; null: there is none
    const char *arginfo;      ///< null where there is no argument
    const char *usage;
    Argument argument;
};
std::span<const OptionSpec, option_count> option_specs() noexcept;

enum class Elastic : std::uint8_t { unset, off, on };

/// --dlrover-pmix; automatic: ranks begin without a server where there is none.
enum class Pmix : std::uint8_t { no, yes, automatic };
const char *text_of(Pmix pmix) noexcept;

/// --dlrover-join: the group that a step of one node becomes a part of.
struct JoinTarget {
    std::uint32_t job_id = 0, step_id = 0;
    std::optional<std::uint32_t> restart_count;  ///< none: the run that there is

    bool operator==(const JoinTarget &) const = default;
};

struct Options {
    Elastic elastic = Elastic::unset;
    std::uint32_t min_nodes = 0;  ///< 0: MAX
    std::uint32_t max_nodes = 0;  ///< 0: what the step has, less the spares
    std::uint32_t spares = 0;
    std::uint32_t node_unit = 1;
    std::uint32_t max_restarts = 3;
    std::string name;
    std::string ckpt_dir;
    std::string ckpt_every, ckpt_keep;  ///< as given; empty: the defaults of parse_ckpt_schedule()
    std::string redundancy = "single";
    bool optional = false;
    bool companion = true;
    Pmix pmix = Pmix::automatic;
    bool requeue_without_host = false;  ///< --dlrover-on-batch-loss
    std::optional<JoinTarget> join;

    bool operator==(const Options &) const = default;
};

inline constexpr std::uint32_t max_nodes_limit = 65536;
inline constexpr std::uint32_t max_restarts_limit = 10000;
inline constexpr std::size_t max_name_bytes = 64;
inline constexpr std::size_t max_path_bytes = 4095;

/// Takes one option's text into `options`, which stays as it was on failure. The sentence names the option,
/// what was given and what is allowed. "(null)" is what Slurm hands on for an option without its optional
/// value.
Status parse_option(OptionId id, std::string_view text, Options &options);

/// What srun asks for: no where its build has no dlrover-pmixd. The nodes obey: one that has none goes on
/// without.
Pmix served_pmix(const Options &options) noexcept;

/// How often checkpoints go to storage, and how many stay there.
struct CkptSchedule {
    std::uint64_t every_steps = 0;       ///< every so many complete steps; 0: not by their number
    std::chrono::microseconds every{0};  ///< by time; 0: not
    std::uint64_t keep_last = 0;         ///< 0: all
    std::uint64_t keep_every = 0;        ///< also steps that are multiples of it; 0: none
};
/// Of (checked) options.
CkptSchedule ckpt_schedule(const Options &options);

/// Whether the options fit each other, whatever the number of nodes.
Status check_options(const Options &options);

/// Node counts of one step.
struct GroupSize {
    std::uint32_t min_nodes;
    std::uint32_t max_nodes;
};
/// The group that a step of `nodes` nodes makes with these (checked) options; invalid_argument: it does not
/// fit, with a sentence that says how many nodes are needed.
Result<GroupSize> fit_options(const Options &options, std::uint32_t nodes);

/// What srun tells the nodes. `cwd` is where the user's command will run.
struct StepRequest {
    Options options;
    std::string cwd;

    bool operator==(const StepRequest &) const = default;
};
inline constexpr std::size_t max_request_bytes = 32768;
std::string encode_request(const StepRequest &request);
/// Verifies as strictly as the command line; corrupt or invalid_argument otherwise.
Result<StepRequest> decode_request(std::string_view text);

}  // namespace dlrover::spank
