// SPDX-License-Identifier: Apache-2.0
#include "spank_plugin/options.h"

#include <algorithm>
#include <array>

#include "base/count_of.h"
#include "base/redundancy.h"
#include "base/units.h"
#include "config.h"

namespace dlrover::spank {
namespace {

constexpr std::array<OptionSpec, option_count> specs = {{
    {OptionId::elastic, "dlrover-elastic", "DLROVER_ELASTIC", "[MIN[:MAX]|off]",
     "restart failed workers from memory; run on MIN to MAX nodes (experimental; default: restarts only, "
     "on the step's own nodes)",
     Argument::optional},
    {OptionId::max_restarts, "dlrover-max-restarts", "DLROVER_MAX_RESTARTS", "N",
     "give up after N restarts without a new complete step (0-10000, default 3)", Argument::required},
    {OptionId::spares, "dlrover-spares", "DLROVER_SPARES", "N",
     "keep N of the step's nodes idle as replacements (experimental; default 0)", Argument::required},
    {OptionId::node_unit, "dlrover-node-unit", "DLROVER_NODE_UNIT", "N",
     "use a multiple of N nodes only (default 1)", Argument::required},
    {OptionId::name, "dlrover-name", "DLROVER_NAME", "NAME",
     "name of the training run: a later job of this name and command goes on from its checkpoints on "
     "storage",
     Argument::required},
    {OptionId::ckpt_dir, "dlrover-ckpt-dir", "DLROVER_CKPT_DIR", "DIR",
     "put checkpoints on storage there, behind the training's back, and go on from them in a later job; an "
     "absolute path that all nodes share",
     Argument::required},
    {OptionId::ckpt_every, "dlrover-ckpt-every", "DLROVER_CKPT_EVERY", "N|TIME|off",
     "put every N-th complete checkpoint on storage, or one each TIME (default 10min); off: only after "
     "failures and at the end",
     Argument::required},
    {OptionId::ckpt_keep, "dlrover-ckpt-keep", "DLROVER_CKPT_KEEP", "N[:STEPS]|all",
     "keep the newest N checkpoints on storage, and those of steps that are multiples of STEPS (default all)",
     Argument::required},
    {OptionId::redundancy, "dlrover-redundancy", "DLROVER_REDUNDANCY", "MODE",
     "copies of checkpoints on other nodes: single (none, the default), partner:K (on K others) or rs:K+M "
     "(M parities for each K nodes)",
     Argument::required},
    {OptionId::optional, "dlrover-optional", "DLROVER_OPTIONAL", nullptr,
     "run without protection where a node's dlroverd is away, instead of failing", Argument::none},
    {OptionId::companion, "dlrover-companion", "DLROVER_COMPANION", "yes|no",
     "ask Slurm for a node in place of a lost one, by a job of one node (default yes)", Argument::required},
    {OptionId::join, "dlrover-join", nullptr, "JOB.STEP[.RUN]",
     "one more node for that elastic step of yours; for companion jobs", Argument::required},
    {OptionId::pmix, "dlrover-pmix", "DLROVER_PMIX", "auto|yes|no",
     "serve PMIx to the step's programs, so that Open MPI needs no mpirun: auto (default; a node without it "
     "is "
     "told), yes (such a node is a failure) or no",
     Argument::required},
    {OptionId::on_batch_loss, "dlrover-on-batch-loss", "DLROVER_ON_BATCH_LOSS", "continue|requeue",
     "when the batch host, and with it the job's script, is lost: go on without them (default), or have "
     "Slurm "
     "requeue the job",
     Argument::required},
}};

constexpr std::uint64_t max_join_number = 0xffffffef;  // Slurm has its own meaning for those above

#ifdef HAVE_PMIX
constexpr bool has_pmix = true;
#else
constexpr bool has_pmix = false;
#endif

constexpr std::uint64_t max_ckpt_steps = 1000000000;
constexpr std::chrono::microseconds shortest_ckpt_time = std::chrono::seconds(1);
constexpr std::chrono::microseconds longest_ckpt_time = std::chrono::hours(24 * 30);
constexpr std::string_view default_ckpt_every = "10min", default_ckpt_keep = "all";

constexpr std::string_view continue_word = "continue", requeue_word = "requeue";

std::string option_name(OptionId id) {
    return std::string("--") + specs[static_cast<std::size_t>(id)].name;
}

/// A user's text, fit for a terminal.
std::string shown(std::string_view text) {
    constexpr std::size_t limit = 100;
    std::string copy(text.substr(0, limit));
    std::replace_if(
        copy.begin(), copy.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
    return copy + (text.size() > limit ? "..." : "");
}

Status refuse(OptionId id, std::string_view text, const std::string &allowed) {
    return Status(Code::invalid_argument, option_name(id) + "=" + shown(text) + " is refused: " + allowed);
}

Status parse_count(OptionId id, std::string_view text, std::uint32_t low, std::uint32_t high,
                   std::uint32_t &out) {
    auto number = parse_uint(text, low, high);
    if (!number)
        return refuse(id, text,
                      "give a whole number from " + std::to_string(low) + " to " + std::to_string(high));
    out = static_cast<std::uint32_t>(*number);
    return {};
}

Status parse_elastic(std::string_view text, Options &options) {
    if (text == "off") {
        options.elastic = Elastic::off;
        return {};
    }
    std::uint32_t min = 0;
    std::uint32_t max = 0;
    if (!text.empty()) {
        std::size_t colon = text.find(':');
        auto low = parse_uint(text.substr(0, colon), 1, max_nodes_limit);
        auto high = colon == std::string_view::npos ? Result<std::uint64_t>(std::uint64_t{0})
                                                    : parse_uint(text.substr(colon + 1), 1, max_nodes_limit);
        if (!low || !high)
            return refuse(OptionId::elastic, text,
                          "give MIN or MIN:MAX (numbers of nodes from 1 to " +
                              std::to_string(max_nodes_limit) + "), nothing, or off");
        if (*high != 0 && *high < *low)
            return refuse(OptionId::elastic, text, "MAX must not be smaller than MIN");
        min = static_cast<std::uint32_t>(*low);
        max = static_cast<std::uint32_t>(*high);
    }
    options.elastic = Elastic::on;
    options.min_nodes = min;
    options.max_nodes = max;
    return {};
}

bool is_letter_or_digit(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

Status parse_name(std::string_view text, Options &options) {
    auto allowed = [](char c) { return is_letter_or_digit(c) || c == '.' || c == '_' || c == '-'; };
    if (text.empty() || text.size() > max_name_bytes || !is_letter_or_digit(text[0]) ||
        !std::all_of(text.begin(), text.end(), allowed))
        return refuse(OptionId::name, text,
                      "give 1 to " + std::to_string(max_name_bytes) +
                          " letters, digits, '.', '_' and '-', the first a letter or digit");
    options.name = text;
    return {};
}

bool is_clean_path(std::string_view text) {
    return !text.empty() && text[0] == '/' && text.size() <= max_path_bytes &&
           std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

Status parse_ckpt_dir(std::string_view text, Options &options) {
    if (!is_clean_path(text))
        return refuse(OptionId::ckpt_dir, text,
                      "give an absolute path of at most " + std::to_string(max_path_bytes) +
                          " bytes without control characters");
    options.ckpt_dir = text;
    return {};
}

Result<CkptSchedule> parse_every(std::string_view text, CkptSchedule schedule = {}) {
    if (text == "off") return schedule;
    if (auto steps = parse_uint(text, 1, max_ckpt_steps); steps.ok()) {
        schedule.every_steps = *steps;
        return schedule;
    }
    auto time = parse_duration(text);
    if (!time) return time.take_status();
    if (*time < shortest_ckpt_time || *time > longest_ckpt_time)
        return Status(Code::invalid_argument, "out of range");
    schedule.every = *time;
    return schedule;
}

Result<CkptSchedule> parse_keep(std::string_view text, CkptSchedule schedule = {}) {
    if (text == "all") return schedule;
    std::size_t colon = text.find(':');
    auto last = parse_uint(text.substr(0, colon), 1, max_ckpt_steps);
    if (!last) return last.take_status();
    schedule.keep_last = *last;
    if (colon == std::string_view::npos) return schedule;
    auto every = parse_uint(text.substr(colon + 1), 1, max_ckpt_steps);
    if (!every) return every.take_status();
    schedule.keep_every = *every;
    return schedule;
}

Status parse_ckpt_every(std::string_view text, Options &options) {
    if (!parse_every(text).ok())
        return refuse(
            OptionId::ckpt_every, text,
            "give a number of complete checkpoints (from 1), a time from 1s to 30 days such as 90s, 10min "
            "or 2h, or off");
    options.ckpt_every = text;
    return {};
}

Status parse_ckpt_keep(std::string_view text, Options &options) {
    if (!parse_keep(text).ok())
        return refuse(OptionId::ckpt_keep, text, "give N or N:STEPS (whole numbers from 1), or all");
    options.ckpt_keep = text;
    return {};
}

Status parse_mode(std::string_view text, Options &options) {
    auto redundancy = parse_redundancy(text);
    if (!redundancy.ok()) return refuse(OptionId::redundancy, text, redundancy.status().message());
    options.redundancy = text;
    return {};
}

Status parse_yes(OptionId id, std::string_view text, bool &out) {
    bool yes = text == "1" || text == "yes" || text == "true";
    if (!yes && text != "0" && text != "no" && text != "false") return refuse(id, text, "give yes or no");
    out = yes;
    return {};
}

Status parse_pmix(std::string_view text, Pmix &out) {
    bool yes = false;
    if (text == "auto") {
        out = Pmix::automatic;
        return {};
    }
    if (!parse_yes(OptionId::pmix, text, yes).ok())
        return refuse(OptionId::pmix, text, "give auto, yes or no");
    if (yes && !has_pmix) return refuse(OptionId::pmix, text, "dlrover-slurm was built without PMIx here");
    out = yes ? Pmix::yes : Pmix::no;
    return {};
}

Status parse_join(std::string_view text, Options &options) {
    std::array<std::uint32_t, 3> numbers{};
    std::size_t count = 0;
    bool more = true;
    for (std::string_view rest = text; more && count < numbers.size();) {
        std::size_t dot = rest.find('.');
        auto number = parse_uint(rest.substr(0, dot), 0, max_join_number);
        if (!number) break;
        numbers[count++] = static_cast<std::uint32_t>(*number);
        more = dot != std::string_view::npos;
        if (more) rest.remove_prefix(dot + 1);
    }
    if (more || count < 2 || numbers[0] == 0)
        return refuse(OptionId::join, text,
                      "give the step's number JOB.STEP, and .RUN (how often Slurm has requeued the job)");
    options.join = JoinTarget{numbers[0], numbers[1], {}};
    if (count == numbers.size()) options.join->restart_count = numbers[2];
    return {};
}

Status parse_batch_loss(std::string_view text, Options &options) {
    if (text != continue_word && text != requeue_word)
        return refuse(OptionId::on_batch_loss, text, "give continue or requeue");
    options.requeue_without_host = text == requeue_word;
    return {};
}

std::string elastic_text(const Options &options) {
    std::string text = option_name(OptionId::elastic);
    if (options.min_nodes != 0) text += "=" + std::to_string(options.min_nodes);
    if (options.max_nodes != 0) text += ":" + std::to_string(options.max_nodes);
    return text;
}

}  // namespace

std::span<const OptionSpec, option_count> option_specs() noexcept {
    return specs;
}

Status parse_option(OptionId id, std::string_view text, Options &options) {
    if (text == "(null)") text = {};
    switch (id) {
        case OptionId::elastic:
            return parse_elastic(text, options);
        case OptionId::max_restarts:
            return parse_count(id, text, 0, max_restarts_limit, options.max_restarts);
        case OptionId::spares:
            return parse_count(id, text, 0, max_nodes_limit - 1, options.spares);
        case OptionId::node_unit:
            return parse_count(id, text, 1, max_nodes_limit, options.node_unit);
        case OptionId::name:
            return parse_name(text, options);
        case OptionId::ckpt_dir:
            return parse_ckpt_dir(text, options);
        case OptionId::ckpt_every:
            return parse_ckpt_every(text, options);
        case OptionId::ckpt_keep:
            return parse_ckpt_keep(text, options);
        case OptionId::redundancy:
            return parse_mode(text, options);
        case OptionId::optional:
            return parse_yes(id, text.empty() ? "yes" : text, options.optional);
        case OptionId::companion:
            return parse_yes(id, text, options.companion);
        case OptionId::join:
            return parse_join(text, options);
        case OptionId::pmix:
            return parse_pmix(text, options.pmix);
        case OptionId::on_batch_loss:
            return parse_batch_loss(text, options);
    }
    return Status(Code::internal, "unknown option");
}

const char *text_of(Pmix pmix) noexcept {
    return pmix == Pmix::yes ? "yes" : pmix == Pmix::no ? "no" : "auto";
}

Pmix served_pmix(const Options &options) noexcept {
    return has_pmix ? options.pmix : Pmix::no;
}

CkptSchedule ckpt_schedule(const Options &options) {
    auto every = parse_every(options.ckpt_every.empty() ? default_ckpt_every : options.ckpt_every);
    auto both = parse_keep(options.ckpt_keep.empty() ? default_ckpt_keep : options.ckpt_keep,
                           every.ok() ? *every : CkptSchedule{});
    return both.ok() ? *both : CkptSchedule{};
}

Status check_options(const Options &options) {
    if (options.elastic != Elastic::on) return {};
    for (auto [id, text] : {std::pair(OptionId::ckpt_every, &options.ckpt_every),
                            std::pair(OptionId::ckpt_keep, &options.ckpt_keep)})
        if (!text->empty() && options.ckpt_dir.empty())
            return refuse(id, *text, "there is no folder for checkpoints: give --dlrover-ckpt-dir=DIR too");
    for (std::uint32_t nodes : {options.min_nodes, options.max_nodes})
        if (nodes % options.node_unit != 0)
            return Status(
                Code::invalid_argument,
                elastic_text(options) + " is refused: " + std::to_string(nodes) +
                    " is not a multiple of --dlrover-node-unit=" + std::to_string(options.node_unit));
    if (options.max_nodes + options.spares > max_nodes_limit)
        return Status(Code::invalid_argument,
                      elastic_text(options) + " with --dlrover-spares=" + std::to_string(options.spares) +
                          " is refused: at most " + count_of(max_nodes_limit, "node"));
    return {};
}

Result<GroupSize> fit_options(const Options &options, std::uint32_t nodes) {
    auto refused = [&](const std::string &why) {
        std::string text = elastic_text(options);
        if (options.spares != 0) text += " with --dlrover-spares=" + std::to_string(options.spares);
        return Status(Code::invalid_argument, text + " " + why + "; the step has " + std::to_string(nodes));
    };
    if (options.join && nodes != 1)
        return Status(Code::invalid_argument,
                      "--dlrover-join is for steps of one node (-N1); the step has " + std::to_string(nodes));
    if (options.join) return GroupSize{1, 1};
    std::uint64_t floor = std::max(options.min_nodes, options.node_unit);
    if (options.max_nodes != 0) {
        std::uint64_t wanted = std::uint64_t{options.max_nodes} + options.spares;
        if (nodes != wanted)
            return refused("needs " + count_of(wanted, "node") +
                           (options.spares ? " (MAX + spares, -N" : " (MAX, -N") + std::to_string(wanted) +
                           ")");
        return GroupSize{options.min_nodes, options.max_nodes};
    }
    if (nodes < floor + options.spares)
        return refused("needs at least " + count_of(floor + options.spares, "node"));
    std::uint32_t max = nodes - options.spares;
    if (max % options.node_unit != 0)
        return refused("needs a multiple of " + std::to_string(options.node_unit) +
                       " nodes besides the spares");
    return GroupSize{options.min_nodes == 0 ? max : options.min_nodes, max};
}

}  // namespace dlrover::spank
