// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/server.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

namespace dlrover::pmix {
namespace {

constexpr std::size_t max_variable_bytes = 4096, max_variables = 64;
/// Free in the folder's file system. libpmix 4.2.2 takes two files of 4 MiB for a namespace, and more of them
/// for thousands of ranks; where it gets none it does not take the namespace.
constexpr std::uint64_t store_room = std::uint64_t{256} << 20;

Status failed(const char *what, pmix_status_t status) {
    return Status(Code::internal, std::string("PMIx could not ") + what + ": " + PMIx_Error_string(status));
}

/// What PMIx does at once, it says by another word for success.
bool is_done(pmix_status_t status) {
    return status == PMIX_SUCCESS || status == PMIX_OPERATION_SUCCEEDED;
}

struct FreeWords {
    void operator()(char **words) const {
        for (char **word = words; *word != nullptr; ++word) std::free(*word);
        std::free(words);
    }
};

std::string own_folder;  ///< private, for PMIx's files

/// In shared memory ranks find by themselves what others have put; else each asks this process. A rank that
/// is killed while it reads leaves a lock there, for which libpmix waits when it writes the next time. That
/// would be for a fence without that rank: in the next generation this process begins anew.
const char *store_in(const std::string &folder) {
    struct statvfs there {};
    bool has_room = ::statvfs(folder.c_str(), &there) == 0 &&
                    std::uint64_t{there.f_bavail} * there.f_frsize >= store_room;
    // With later versions it was not tried. ds12 is an older one, which would be kept as well.
    bool is_known = std::string_view(PMIx_Get_version()).find("PMIx 4.") != std::string_view::npos;
    return has_room && is_known ? "^ds12" : "hash";
}

/// All but its number, which is the same for no two of them.
Result<Variables> variables_of(const pmix_proc_t &proc) {
    char **words = nullptr;
    pmix_status_t status = PMIx_server_setup_fork(&proc, &words);
    std::unique_ptr<char *, FreeWords> owner(words);
    if (!is_done(status) || words == nullptr) return failed("say what a rank needs", status);
    Variables variables;
    for (char **word = words; *word != nullptr; ++word) {
        std::string variable(*word);
        if (!variable.starts_with("PMIX_") || variable.starts_with("PMIX_RANK=")) continue;
        if (variable.size() > max_variable_bytes || variables.size() >= max_variables)
            return Status(Code::internal, "PMIx has more variables than a rank may get");
        variables.push_back(std::move(variable));
    }
    return variables;
}

Status add_rank(const World &world, std::uint32_t rank, std::optional<Variables> &common) {
    pmix_proc_t proc = Server::proc_of(world, rank);
    pmix_status_t status =
        PMIx_server_register_client(&proc, ::getuid(), ::getgid(), nullptr, nullptr, nullptr);
    if (!is_done(status)) return failed("take a rank", status);
    auto variables = variables_of(proc);
    if (!variables) return variables.take_status();
    if (common && *common != *variables)
        return Status(Code::internal, "PMIx has other variables for each rank");
    common = std::move(*variables);
    return {};
}

}  // namespace

pmix_proc_t Server::proc_of(const World &world, std::uint32_t rank) {
    pmix_proc_t proc{};
    PMIX_LOAD_PROCID(&proc, world.name_space.c_str(), rank);
    return proc;
}

Status Server::start(const std::string &folder, Security security, pmix_server_module_t &module) {
    // Clients whose PMIx was built without MUNGE say who they are: nobody else gets as far as that
    // (accept_guard.h).
    const char *proof = security == Security::munge ? "munge,native" : "native";
    // The topology is no file, which a rank in a container of its own /tmp would look for in vain: it is
    // text.
    const std::pair<const char *, const char *> settings[] = {{"PMIX_MCA_gds", store_in(folder)},
                                                              {"PMIX_MCA_psec", proof},
                                                              {"PMIX_MCA_pmix_hwloc_hole_kind", "none"}};
    for (auto [name, value] : settings)
        if (::setenv(name, value, 1) != 0) return Status::from_errno("setenv");
    own_folder = folder;
    InfoList info;
    info.add(PMIX_SERVER_TMPDIR, folder);
    info.add(PMIX_SYSTEM_TMPDIR, folder);
    info.add_flag(PMIX_SERVER_SHARE_TOPOLOGY);
    pmix_status_t status = PMIx_server_init(&module, info.data(), info.size());
    return is_done(status) ? Status() : failed("start", status);
}

Result<Variables> Server::add(const World &world) {
    auto info = make_info(make_job_data(world, own_folder + "/sessions"));
    if (!info) return info.take_status();
    pmix_status_t status =
        PMIx_server_register_nspace(world.name_space.c_str(), static_cast<int>(world.ranks_here()),
                                    info->data(), info->size(), nullptr, nullptr);
    if (!is_done(status)) return failed("take the namespace", status);
    std::optional<Variables> common;
    std::uint32_t first = world.first_rank(world.place);
    for (std::uint32_t rank = first; rank < first + world.ranks_here(); ++rank)
        DLROVER_TRY(add_rank(world, rank, common));
    return std::move(*common);
}

void Server::remove(const World &world) {
    std::uint32_t first = world.first_rank(world.place);
    for (std::uint32_t rank = first; rank < first + world.ranks_here(); ++rank) {
        pmix_proc_t proc = proc_of(world, rank);
        PMIx_server_deregister_client(&proc, nullptr, nullptr);
    }
    PMIx_server_deregister_nspace(world.name_space.c_str(), nullptr, nullptr);
}

/// PMIx's range "namespace" reaches others as well.
Status Server::notify(const World &world, int code, std::optional<std::uint32_t> from, bool to_all,
                      InfoList infos) {
    pmix_proc_t source = proc_of(world, from.value_or(PMIX_RANK_UNDEF));
    if (to_all) infos.add_proc(PMIX_EVENT_CUSTOM_RANGE, proc_of(world, PMIX_RANK_WILDCARD));
    pmix_status_t status =
        PMIx_Notify_event(code, &source, PMIX_RANGE_CUSTOM, infos.data(), infos.size(), nullptr, nullptr);
    return is_done(status) ? Status() : failed("tell ranks of an event", status);
}

void Server::look(EventLoop &loop, std::function<void()> then) {
    struct Waiting {
        EventLoop &loop;
        std::function<void()> then;
    };
    auto waiting = std::make_unique<Waiting>(Waiting{loop, std::move(then)});
    // It has to look for that one, and there is none of this name.
    pmix_proc_t nobody{};
    PMIX_LOAD_PROCID(&nobody, "dlrover.nobody", 0);
    auto answered = [](pmix_status_t, void *mine) {
        std::unique_ptr<Waiting> w(static_cast<Waiting *>(mine));
        w->loop.post(std::move(w->then));
    };
    PMIx_server_deregister_client(&nobody, answered, waiting.release());
}

void Server::look_up(EventLoop &loop, const World &world, std::uint32_t rank, Then then) {
    struct Waiting {
        EventLoop &loop;
        Then then;
    };
    auto waiting = std::make_unique<Waiting>(Waiting{loop, std::move(then)});
    pmix_proc_t proc = proc_of(world, rank);
    auto answered = [](pmix_status_t status, char *data, std::size_t size, void *mine) {
        std::unique_ptr<Waiting> w(static_cast<Waiting *>(mine));
        proto::Bytes bytes(data, data + size);
        w->loop.post([then = std::move(w->then), status, bytes = std::move(bytes)] { then(status, bytes); });
    };
    pmix_status_t status = PMIx_server_dmodex_request(&proc, answered, waiting.get());
    if (status == PMIX_SUCCESS)
        (void)waiting.release();  // it is the answer's
    else
        loop.post([then = std::move(waiting->then), status] { then(status, {}); });
}

}  // namespace dlrover::pmix
