// SPDX-License-Identifier: Apache-2.0
#include "agent/run_options.h"

#include <dirent.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/units.h"

namespace dlrover::agent {
namespace {

constexpr std::uint64_t most_nodes = 65536, most_workers = 4096, most_restarts = 1000000;

/// Everything that may stand on the command line, as text.
struct Raw {
    std::string nnodes, nproc = "1", max_restarts, node_unit, role = "default", rdzv_id, log_dir,
                        redirects = "0", tee = "0";
    bool help = false, version = false, standalone = false, module = false, no_python = false,
         run_path = false;
    std::vector<std::string> notes, program;
};

enum class Meaning {
    used,
    silent,  ///< accepted; the suite does by itself what it asks for
    noted    ///< accepted; a note says that it changes nothing
};

struct Option {
    const char *name;  // with '-'; '_' is the same
    char letter;
    std::string Raw::*text;
    bool Raw::*flag;
    Meaning meaning;
};

constexpr std::string Raw::*no_text = nullptr;
constexpr bool Raw::*no_flag = nullptr;

bool ignored_flag_marker(const Option &o) {
    return o.text == no_text && o.flag == no_flag && o.letter == '!';
}

/// letter '!': a flag without a value that is not stored.
constexpr Option options[] = {
    {"nnodes", 0, &Raw::nnodes, no_flag, Meaning::used},
    {"nproc-per-node", 0, &Raw::nproc, no_flag, Meaning::used},
    {"max-restarts", 0, &Raw::max_restarts, no_flag, Meaning::used},
    {"node-unit", 0, &Raw::node_unit, no_flag, Meaning::used},
    {"role", 0, &Raw::role, no_flag, Meaning::used},
    {"rdzv-id", 0, &Raw::rdzv_id, no_flag, Meaning::used},
    {"log-dir", 0, &Raw::log_dir, no_flag, Meaning::used},
    {"redirects", 'r', &Raw::redirects, no_flag, Meaning::used},
    {"tee", 't', &Raw::tee, no_flag, Meaning::used},
    {"help", 'h', no_text, &Raw::help, Meaning::used},
    {"version", 0, no_text, &Raw::version, Meaning::used},
    {"standalone", 0, no_text, &Raw::standalone, Meaning::used},
    {"module", 'm', no_text, &Raw::module, Meaning::used},
    {"no-python", 0, no_text, &Raw::no_python, Meaning::used},
    {"run-path", 0, no_text, &Raw::run_path, Meaning::used},
    {"rdzv-backend", 0, no_text, no_flag, Meaning::silent},
    {"rdzv-endpoint", 0, no_text, no_flag, Meaning::silent},
    {"rdzv-conf", 0, no_text, no_flag, Meaning::silent},
    {"master-addr", 0, no_text, no_flag, Meaning::silent},
    {"master-port", 0, no_text, no_flag, Meaning::silent},
    {"node-rank", 0, no_text, no_flag, Meaning::silent},
    {"monitor-interval", 0, no_text, no_flag, Meaning::silent},
    {"start-method", 0, no_text, no_flag, Meaning::silent},
    {"local-addr", 0, no_text, no_flag, Meaning::silent},
    {"local-ranks-filter", 0, no_text, no_flag, Meaning::noted},
    {"logs-specs", 0, no_text, no_flag, Meaning::noted},
    {"event-log-handler", 0, no_text, no_flag, Meaning::noted},
    {"numa-binding", 0, no_text, no_flag, Meaning::noted},
    {"precheck", 0, no_text, no_flag, Meaning::noted},
    {"accelerator", 0, no_text, no_flag, Meaning::noted},
    {"training-port", 0, no_text, no_flag, Meaning::noted},
    {"membind-policy", 0, no_text, no_flag, Meaning::noted},
    {"network-check", '!', no_text, no_flag, Meaning::noted},
    {"comm-perf-test", '!', no_text, no_flag, Meaning::noted},
    {"exclude-straggler", '!', no_text, no_flag, Meaning::noted},
    {"auto-config", '!', no_text, no_flag, Meaning::noted},
    {"auto-tunning", '!', no_text, no_flag, Meaning::noted},
    {"save-at-breakpoint", '!', no_text, no_flag, Meaning::silent},
    {"numa-affinity", '!', no_text, no_flag, Meaning::noted},
};

bool is_flag(const Option &o) {
    return o.flag != no_flag || ignored_flag_marker(o);
}

Status refuse(std::string text) {
    return Status(Code::invalid_argument, std::move(text));
}

const Option *find_long(std::string name) {
    std::replace(name.begin(), name.end(), '_', '-');
    auto at =
        std::find_if(std::begin(options), std::end(options), [&](const Option &o) { return name == o.name; });
    return at == std::end(options) ? nullptr : at;
}

const Option *find_letter(char letter) {
    auto at = std::find_if(std::begin(options), std::end(options),
                           [&](const Option &o) { return letter == o.letter; });
    return at == std::end(options) || letter == '!' ? nullptr : at;
}

void apply(const Option &o, const std::string &value, Raw &raw) {
    if (o.text != no_text) raw.*o.text = value;
    if (o.flag != no_flag) raw.*o.flag = true;
    if (o.meaning == Meaning::noted)
        raw.notes.push_back("--" + std::string(o.name) + " is accepted but changes nothing here");
}

std::string pet_name(const Option &o) {
    std::string name = "PET_" + std::string(o.name);
    for (char &c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return name;
}

/// PET_NNODES=2 and the like; a flag is set by a number other than 0.
Status apply_environment(const Environment &env, Raw &raw) {
    for (const Option &o : options) {
        const std::string &value = value_of(env, pet_name(o));
        if (value.empty() || o.flag == &Raw::help || o.flag == &Raw::version) continue;
        if (is_flag(o)) {
            auto on = parse_uint(value, 0, 1);
            if (!on) return refuse(pet_name(o) + ": " + on.status().message());
            if (*on == 0) continue;
        }
        apply(o, value, raw);
    }
    return {};
}

/// One option and its value from args[at...]; returns how many were used.
Result<std::size_t> take_option(std::span<const std::string> args, Raw &raw) {
    const std::string &arg = args[0];
    const Option *option = nullptr;
    std::optional<std::string> value;
    if (arg.starts_with("--")) {
        std::size_t equals = arg.find('=');
        option = find_long(arg.substr(2, equals == std::string::npos ? equals : equals - 2));
        if (equals != std::string::npos) value = arg.substr(equals + 1);
    } else {
        option = find_letter(arg[1]);
        if (arg.size() > 2) value = arg.substr(arg[2] == '=' ? 3 : 2);
    }
    if (!option) return refuse("unknown option " + arg + " (dlrover-run --help lists them)");
    if (is_flag(*option)) {
        if (value) return refuse("option --" + std::string(option->name) + " takes no value");
        apply(*option, {}, raw);
        return std::size_t{1};
    }
    if (!value && args.size() < 2) return refuse("option " + arg + " needs a value");
    apply(*option, value ? *value : args[1], raw);
    return std::size_t{value ? 1u : 2u};
}

Status parse_arguments(std::span<const std::string> args, Raw &raw) {
    while (!args.empty() && args[0].size() > 1 && args[0][0] == '-') {
        if (args[0] == "--") {
            args = args.subspan(1);
            break;
        }
        auto used = take_option(args, raw);
        if (!used) return used.take_status();
        args = args.subspan(*used);
    }
    raw.program.assign(args.begin(), args.end());
    return {};
}

Status read_nnodes(const std::string &text, RunOptions &out) {
    if (text.empty()) return {};
    std::size_t colon = text.find(':');
    auto low = parse_uint(text.substr(0, colon), 1, most_nodes);
    auto high = parse_uint(colon == std::string::npos ? text : text.substr(colon + 1), 1, most_nodes);
    if (!low || !high || *low > *high)
        return refuse("--nnodes=" + text + ": wanted is N or MIN:MAX with 1 <= MIN <= MAX");
    out.min_nodes = static_cast<std::uint32_t>(*low);
    out.max_nodes = static_cast<std::uint32_t>(*high);
    return {};
}

Status read_workers(const std::string &text, const MachineCounts &machine, RunOptions &out) {
    if (text == "auto") out.workers = machine.gpus != 0 ? machine.gpus : machine.cpus;
    if (text == "cpu") out.workers = machine.cpus;
    if (text == "gpu") {
        if (machine.gpus == 0) return refuse("--nproc-per-node=gpu: no CUDA device is visible here");
        out.workers = machine.gpus;
    }
    if (text == "auto" || text == "cpu" || text == "gpu") return {};
    auto number = parse_uint(text, 1, most_workers);
    if (!number) return refuse("--nproc-per-node=" + text + ": wanted is a number from 1, auto, cpu or gpu");
    out.workers = static_cast<unsigned>(*number);
    return {};
}

Status read_number(const char *name, const std::string &text, std::uint64_t low, std::uint64_t high,
                   std::optional<std::uint32_t> &out) {
    if (text.empty()) return {};
    auto number = parse_uint(text, low, high);
    if (!number) return refuse("--" + std::string(name) + ": " + number.status().message());
    out = static_cast<std::uint32_t>(*number);
    return {};
}

Status read_logs(const Raw &raw, RunOptions &out) {
    auto redirects = StdMask::parse(raw.redirects);
    if (!redirects) return refuse("--redirects=" + raw.redirects + ": wanted is 0 to 3, or RANK:0-3,...");
    auto tee = StdMask::parse(raw.tee);
    if (!tee) return refuse("--tee=" + raw.tee + ": wanted is 0 to 3, or RANK:0-3,...");
    out.logs = {raw.log_dir, std::move(*redirects), std::move(*tee)};
    return {};
}

Status build_program(const Raw &raw, const Environment &env, RunOptions &out) {
    if (raw.program.empty()) return refuse("no program was given (dlrover-run --help shows how)");
    if (raw.no_python && raw.module) return refuse("--no-python and --module exclude each other");
    if (!raw.no_python || raw.run_path) {
        const std::string &python = value_of(env, "PYTHON_EXEC");
        out.argv = {python.empty() ? "python3" : python, "-u"};
        if (raw.module) out.argv.push_back("-m");
    }
    out.argv.insert(out.argv.end(), raw.program.begin(), raw.program.end());
    return {};
}

}  // namespace

MachineCounts MachineCounts::read(const Environment &env) {
    MachineCounts counts;
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof set, &set) == 0)
        counts.cpus = static_cast<unsigned>(std::max(CPU_COUNT(&set), 1));
    if (env.contains("CUDA_VISIBLE_DEVICES")) {
        const std::string &list = value_of(env, "CUDA_VISIBLE_DEVICES");
        bool none = list.empty() || list == "NoDevFiles" || list == "-1";
        counts.gpus = none ? 0 : static_cast<unsigned>(std::count(list.begin(), list.end(), ',') + 1);
        return counts;
    }
    std::unique_ptr<DIR, int (*)(DIR *)> dev(::opendir("/dev"), ::closedir);
    while (dirent *entry = dev ? ::readdir(dev.get()) : nullptr)
        if (std::strncmp(entry->d_name, "nvidia", 6) == 0 &&
            std::isdigit(static_cast<unsigned char>(entry->d_name[6])))
            ++counts.gpus;
    return counts;
}

Result<RunOptions> parse_run_options(std::span<const std::string> args, const Environment &env,
                                     const MachineCounts &machine) {
    Raw raw;
    DLROVER_TRY(apply_environment(env, raw));
    DLROVER_TRY(parse_arguments(args, raw));
    RunOptions out;
    out.help = raw.help;
    out.version = raw.version;
    if (out.help || out.version) return out;
    out.standalone = raw.standalone;
    out.role = raw.role;
    out.run_id = raw.rdzv_id;
    out.notes = std::move(raw.notes);
    DLROVER_TRY(read_nnodes(raw.nnodes, out));
    DLROVER_TRY(read_workers(raw.nproc, machine, out));
    DLROVER_TRY(read_number("max-restarts", raw.max_restarts, 0, most_restarts, out.max_restarts));
    DLROVER_TRY(read_number("node-unit", raw.node_unit, 1, most_nodes, out.node_unit));
    DLROVER_TRY(read_logs(raw, out));
    DLROVER_TRY(build_program(raw, env, out));
    return out;
}

const char *run_usage() noexcept {
    return "usage: dlrover-run [OPTION]... PROGRAM [ARGUMENT]...\n"
           "torchrun's command line. Below `srun --dlrover-elastic' it is the agent of its task; with\n"
           "--standalone it needs neither Slurm nor root.\n"
           "\n"
           "      --standalone            this machine only, with a private daemon\n"
           "      --nproc-per-node=N      workers on this node: a number, auto, cpu or gpu (default 1)\n"
           "      --max-restarts=N        restarts without progress (default 3); below Slurm srun's option "
           "counts\n"
           "      --nnodes=MIN:MAX        below Slurm srun's --dlrover-elastic counts\n"
           "      --node-unit=N           below Slurm srun's --dlrover-node-unit counts\n"
           "      --rdzv-id=ID            name of the run\n"
           "      --role=NAME             ROLE_NAME of the workers (default \"default\")\n"
           "  -m, --module                PROGRAM is a Python module\n"
           "      --no-python             PROGRAM is run as it is, without Python in front\n"
           "      --run-path              as a plain script\n"
           "      --log-dir=DIR           where -r and -t write\n"
           "  -r, --redirects=MASK        streams that go to files only: 1 stdout, 2 stderr, 3 both, or "
           "RANK:MASK,...\n"
           "  -t, --tee=MASK              streams that go to files as well\n"
           "  -h, --help                  this text\n"
           "      --version               the version\n"
           "\n"
           "Accepted as torchrun has them, without effect because the daemons do this: --rdzv-backend,\n"
           "--rdzv-endpoint, --rdzv-conf, --master-addr, --master-port, --node-rank, --local-addr,\n"
           "--monitor-interval, --start-method. `_' may stand for `-'; PET_NAME in the environment sets an "
           "option.\n";
}

}  // namespace dlrover::agent
