// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <getopt.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "base/units.h"
#include "common/asio_loop.h"
#include "common/log.h"
#include "common/log_queue.h"
#include "daemon/daemon.h"
#include "daemon/free_port.h"
#include "daemon/outside.h"
#include "daemon/topology.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

namespace {

using namespace dlrover;
using namespace dlrover::daemon;

struct Arguments {
    std::string config, socket = proto::default_socket_path, node, level;
    bool standalone = false;
};

int usage(std::FILE *to, int status) {
    std::fputs(
        "usage: dlroverd [--config FILE] [--socket PATH] [--node-name NAME] [--log-level LEVEL] "
        "[--standalone]\n"
        "       dlroverd --help | --version\n",
        to);
    return status;
}

std::string host_name() {
    char name[256] = "localhost";
    (void)!::gethostname(name, sizeof name - 1);
    std::string text = name;
    return text.substr(0, text.find('.'));
}

/// -1: go on; else the exit status.
int parse(int argc, char **argv, Arguments &out) {
    const option options[] = {{"config", required_argument, nullptr, 'c'},
                              {"socket", required_argument, nullptr, 's'},
                              {"node-name", required_argument, nullptr, 'n'},
                              {"log-level", required_argument, nullptr, 'l'},
                              {"standalone", no_argument, nullptr, 'a'},
                              {"version", no_argument, nullptr, 'v'},
                              {"help", no_argument, nullptr, 'h'},
                              {}};
    for (int c; (c = ::getopt_long(argc, argv, "h", options, nullptr)) != -1;) {
        if (c == 'c') out.config = optarg;
        if (c == 's') out.socket = optarg;
        if (c == 'n') out.node = optarg;
        if (c == 'l') out.level = optarg;
        if (c == 'a') out.standalone = true;
        if (c == 'v') return std::puts("dlroverd " PACKAGE_VERSION), 0;
        if (c == 'h') return usage(stdout, 0);
        if (c == '?') return usage(stderr, 2);
    }
    if (optind != argc) return usage(stderr, 2);
    if (out.node.empty()) out.node = host_name();
    return -1;
}

Result<Settings> read_settings(const Arguments &arguments) {
    LoadedSettings loaded;
    if (!arguments.standalone || !arguments.config.empty()) {
        auto file = load_settings(arguments.config.empty() ? default_settings_path : arguments.config);
        if (!file) return file.take_status();
        loaded = std::move(*file);
    }
    if (!arguments.level.empty()) {
        auto named = parse_settings("[log]\nlevel = \"" + arguments.level + "\"\n", "--log-level");
        if (!named) return named.take_status();
        loaded.settings.log.level = named->settings.log.level;
    }
    DLROVER_TRY(log::start({"dlroverd", loaded.settings.log.level, loaded.settings.log.target}));
    log::write_behind();
    for (const auto &note : loaded.notes) log::warning(note);
    return std::move(loaded.settings);
}

std::uint64_t total_memory_bytes() {
    return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
           static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

void raise_descriptor_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::size_t descriptor_limit() {
    rlimit limit{};
    return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
}

/// The link to the keeper that started us; none when somebody else did.
UniqueFd take_keeper_link() {
    const char *text = std::getenv("DLROVER_KEEPER_FD");
    auto number = parse_uint(text ? text : "", 3, 1023);
    ::unsetenv("DLROVER_KEEPER_FD");
    if (!number) return {};
    UniqueFd link(static_cast<int>(*number));
    if (::fcntl(link.get(), F_SETFD, FD_CLOEXEC) != 0) (void)link.release();
    return link;
}

/// Where no service manager makes it.
void make_socket_folder(const std::string &socket) {
    auto slash = socket.rfind('/');
    if (slash == std::string::npos || slash == 0) return;
    std::string folder = socket.substr(0, slash);
    if (::mkdir(folder.c_str(), 0755) == 0) (void)!::chmod(folder.c_str(), 0755);
}

Status serve(const Arguments &arguments, const Settings &settings, UniqueFd link) {
    AsioLoop loop;
    std::vector<KeptRecord> kept;
    std::unique_ptr<RecordKeeper> keeper;
    if (link) {
        auto loaded = KeeperClient::load(link.get());
        if (!loaded) return loaded.take_status();
        kept = std::move(loaded->records);
        keeper = std::make_unique<KeeperClient>(loop, std::move(link), [&](Status status) {
            log::error("the keeper is gone: " + status.message());
            loop.stop();
        });
    } else {
        log::warning("there is no keeper: checkpoints in memory do not outlive this process");
        keeper = std::make_unique<MemoryKeeper>(loop);
    }
    std::uint64_t total = total_memory_bytes();
    std::uint64_t floor = settings.memory.available_floor.of(total);
    MemoryBudget budget({settings.memory.user_quota.of(total), floor, settings.limits.segments_per_user},
                        ckpt::memory_available_bytes);
    ckpt::Prefaulter prefaulter(floor);
    PortPicker ports(settings.network.master_ports, static_cast<std::uint32_t>(::getpid()) * 37);
    auto outside = arguments.standalone ? Result<Outside>(make_standalone_outside(arguments.node))
                                        : make_outside(loop, settings, arguments.node);
    if (!outside) return outside.take_status();
    auto numa_nodes = load_numa_nodes();
    auto numa = [&](std::int32_t pid) { return numa_node_of(numa_nodes, cpus_of_process(pid)); };
    Daemon daemon(loop, {arguments.node, arguments.standalone, ::geteuid(), numa, outside->probe}, settings,
                  *keeper, prefaulter, budget, *outside->slurm, *outside->peers,
                  [&] { return ports.pick(); });
    make_socket_folder(arguments.socket);
    LocalServer::Limits limits;
    limits.connections = settings.limits.connections;
    limits.connections_per_user = settings.limits.connections_per_user;
    limits.closing = std::max(limits.closing, descriptor_limit() / 2);
    auto server =
        LocalServer::create(loop, arguments.socket, limits,
                            {arguments.node, outside->slurm->cluster_name(), PACKAGE_VERSION}, daemon);
    if (!server) return server.take_status();
    daemon.start(std::move(kept), **server);
    loop.on_signals({SIGTERM, SIGINT}, [&](int) { loop.stop(); });
    log::info("serving node " + arguments.node + " at " + arguments.socket);
    loop.run();
    log::info("stopped");
    return {};
}

}  // namespace

int main(int argc, char **argv) {
    Arguments arguments;
    if (int status = parse(argc, argv, arguments); status >= 0) return status;
    UniqueFd link = take_keeper_link();
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGHUP, SIG_IGN);
    raise_descriptor_limit();
    auto settings = read_settings(arguments);
    if (!settings) {
        std::fprintf(stderr, "dlroverd: %s\n", settings.status().message().c_str());
        return 2;
    }
    Status status = serve(arguments, *settings, std::move(link));
    if (status.ok()) return 0;
    log::error(status.message());
    return 1;
}
