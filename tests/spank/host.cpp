// SPDX-License-Identifier: Apache-2.0
#include "tests/spank/host.h"

#include <dlfcn.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdarg>
#include <cstring>

Host *host = nullptr;

constexpr auto success = static_cast<spank_err_t>(ESPANK_SUCCESS);

/// A first word that the module put there would go with execve.
Host::~Host() {
    if (!live.empty() && live[0] != argv[0].data()) ::free(live[0]);
}

bool Host::logged(std::string_view part) const {
    for (const auto &line : log)
        if (line.find(part) != std::string::npos) return true;
    return false;
}

namespace {

void log_line(const char *format, va_list arguments) {
    char line[8192];
    std::vsnprintf(line, sizeof line, format, arguments);
    host->log.emplace_back(line);
}

/// The live array, as slurmstepd shows it: what the module writes there stays.
char **live_argv() {
    if (host->live.empty()) {
        for (auto &word : host->argv) host->live.push_back(word.data());
        host->live.push_back(nullptr);
    }
    return host->live.data();
}

char *copy_text(const std::string &text) {
    return ::strdup(text.c_str());
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int opt = 0;

void slurm_error(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    log_line(format, arguments);
    va_end(arguments);
}

void slurm_spank_log(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    log_line(format, arguments);
    va_end(arguments);
}

spank_context_t spank_context(void) {
    return host->context;
}

spank_err_t spank_option_register(spank_t, spank_option *option) {
    host->options[option->name] = *option;
    return success;
}

spank_err_t spank_get_item(spank_t, spank_item_t item, ...) {
    va_list arguments;
    va_start(arguments, item);
    spank_err_t rc = success;
    if (item == S_JOB_ARGV) {
        *va_arg(arguments, int *) = static_cast<int>(host->argv.size());
        *va_arg(arguments, char ***) = live_argv();
    } else if (item == S_TASK_ID) {
        *va_arg(arguments, int *) = host->task;
    } else if (auto found = host->numbers.find(item); found != host->numbers.end()) {
        *va_arg(arguments, std::uint32_t *) = found->second;
    } else {
        rc = ESPANK_NOT_AVAIL;
    }
    va_end(arguments);
    return rc;
}

spank_err_t spank_getenv(spank_t, const char *name, char *buffer, int size) {
    auto found = host->env.find(name);
    if (found == host->env.end()) return ESPANK_ENV_NOEXIST;
    std::snprintf(buffer, static_cast<std::size_t>(size), "%s", found->second.c_str());
    return found->second.size() < static_cast<std::size_t>(size) ? success : ESPANK_NOSPACE;
}

spank_err_t spank_setenv(spank_t, const char *name, const char *value, int) {
    host->env[name] = value;
    return success;
}

spank_err_t spank_unsetenv(spank_t, const char *name) {
    host->env.erase(name);
    return success;
}

void slurm_xfree(void **memory) {
    ::free(*memory);
    *memory = nullptr;
}

char *slurm_option_get(void *, const char *name) {
    for (const auto *values : {&host->command, &host->defaults})
        if (auto found = values->find(name); found != values->end()) return copy_text(found->second);
    return nullptr;
}

int slurm_option_set(void *, const char *name, const char *value, bool) {
    if (!host->settable || std::strcmp(name, "wait") == 0) return -1;  // "wait" is sbatch's for this function
    host->command[name] = value ? value : "set";
    return 0;
}

int slurm_process_option(void *, int letter, const char *value, bool, bool) {
    if (!host->settable || letter != 'W') return -1;
    host->command["wait"] = value;
    return 0;
}

bool slurm_option_get_next_set(void *, char **name, char **value, std::size_t *state) {
    if (*state >= host->command.size()) return false;
    auto entry = std::next(host->command.begin(), static_cast<std::ptrdiff_t>((*state)++));
    *name = copy_text(entry->first);
    *value = copy_text(entry->second);
    return true;
}

}  // extern "C"
#pragma GCC visibility pop

LoadedModule::LoadedModule(const char *file, std::vector<std::string> words) : words_(std::move(words)) {
    library_ = ::dlopen((std::string(MODULE_DIR "/") + file).c_str(), RTLD_LAZY | RTLD_LOCAL);
    BOOST_REQUIRE_MESSAGE(library_, ::dlerror());
    BOOST_TEST_REQUIRE(hook("init") == ESPANK_SUCCESS);
}

LoadedModule::~LoadedModule() {
    ::dlclose(library_);
}

int LoadedModule::hook(const char *name) {
    auto *function =
        reinterpret_cast<spank_f *>(::dlsym(library_, (std::string("slurm_spank_") + name).c_str()));
    if (!function) return success;
    std::vector<char *> words;
    for (auto &word : words_) words.push_back(word.data());
    return function(nullptr, static_cast<int>(words.size()), words.data());
}

int LoadedModule::give(const char *option, const char *value, bool remote) {
    const spank_option &registered = host->options.at(option);
    return registered.cb(registered.val, value, remote ? 1 : 0);
}
