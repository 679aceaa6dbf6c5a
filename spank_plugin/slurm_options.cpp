// SPDX-License-Identifier: Apache-2.0
#include "spank_plugin/slurm_options.h"

#include <dlfcn.h>

#include <cstring>

namespace dlrover::spank {
namespace {

template <typename Fn>
Fn *look_up(const char *name) {
    return reinterpret_cast<Fn *>(::dlsym(RTLD_DEFAULT, name));
}

constexpr const char *wrong_command = "invalid-context";  // Slurm's word for "not an option of this command"

}  // namespace

std::optional<SlurmOptions> SlurmOptions::find() {
    SlurmOptions found;
    found.opt_ = ::dlsym(RTLD_DEFAULT, "opt");
    found.get_ = look_up<GetFn>("slurm_option_get");
    found.set_ = look_up<SetFn>("slurm_option_set");
    found.process_ = look_up<ProcessFn>("slurm_process_option");
    found.next_set_ = look_up<NextSetFn>("slurm_option_get_next_set");
    found.free_ = look_up<FreeFn>("slurm_xfree");
    if (!found.opt_ || !found.get_ || !found.set_) return {};
    return found;
}

std::string SlurmOptions::take(char *text) const {
    std::string copy = text;
    void *memory = text;
    if (free_) free_(&memory);
    return copy;
}

std::optional<std::string> SlurmOptions::get(const char *name) const {
    char *text = get_(opt_, name);
    if (!text) return {};
    std::string value = take(text);
    if (value == wrong_command) return {};
    return value;
}

std::optional<std::string> SlurmOptions::given(const char *name) const {
    char *key = nullptr;
    char *text = nullptr;
    std::optional<std::string> found;
    for (std::size_t state = 0; next_set_ && next_set_(opt_, &key, &text, &state); key = text = nullptr) {
        bool match = key && text && std::strcmp(key, name) == 0 && std::strcmp(text, wrong_command) != 0;
        if (text) {
            std::string value = take(text);
            if (match) found = std::move(value);
        }
        if (key) take(key);
    }
    return found;
}

bool SlurmOptions::set(const char *name, char letter, const char *value) {
    if (letter != 0) return process_ && process_(opt_, letter, value, false, false) == 0;
    return set_(opt_, name, value, false) == 0;
}

}  // namespace dlrover::spank
