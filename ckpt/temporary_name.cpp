// SPDX-License-Identifier: Apache-2.0
#include "ckpt/temporary_name.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/random.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <string_view>

#include "base/units.h"
#include "ckpt/storage_answers.h"

namespace dlrover::ckpt {
namespace {

std::string host_part() {
    char name[HOST_NAME_MAX + 1] = {};
    if (::gethostname(name, sizeof name - 1) != 0 || name[0] == 0) return ".host.";
    std::string text = name;
    for (char &c : text)
        if (c == '/') c = '_';
    return "." + text + ".";
}

/// Process numbers come again, also those of other nodes' namespaces.
std::string token() {
    std::uint64_t random = 0;
    if (::getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
        random = static_cast<std::uint64_t>(::getpid());
    char text[17];
    ::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(random));
    return text;
}

/// "PID.TOKEN" behind the host: of a process that is no more.
bool is_abandoned(std::string_view name) {
    std::string host = host_part();
    auto at = name.rfind(host);
    if (at == std::string_view::npos) return false;
    std::string_view rest = name.substr(at + host.size());
    auto dot = rest.find('.');
    if (dot == std::string_view::npos) return false;
    auto pid = parse_uint(std::string(rest.substr(0, dot)), 1, INT_MAX);
    if (!pid.ok()) return false;
    if (static_cast<pid_t>(*pid) == ::getpid()) return false;  // another thread's, or it is going to be
    return ::kill(static_cast<pid_t>(*pid), 0) != 0 && errno == ESRCH;
}

}  // namespace

std::string temporary_name(const std::string &name) {
    static const std::string own_token = token();
    static std::atomic<unsigned> count{0};
    return ".new-" + name + host_part() + std::to_string(::getpid()) + "." + own_token + "-" +
           std::to_string(++count);
}

Status remove_abandoned(const std::string &folder, const std::string &prefix, FolderLink link) {
    return remove_leftovers(folder, prefix, link, is_abandoned);
}

int take_name(const std::string &temporary, const std::string &path) {
    int error = ::link(temporary.c_str(), path.c_str()) == 0 ? 0 : errno;
    note_storage_answer();
    if (error == 0) {
        ::unlink(temporary.c_str());
        return 0;
    }
    bool no_links =
        error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK || error == EINVAL;
    if (!no_links) return error;
    return ::rename(temporary.c_str(), path.c_str()) == 0 ? 0 : errno;
}

}  // namespace dlrover::ckpt
