// SPDX-License-Identifier: Apache-2.0
#include "common/settings.h"

#include "fuzz.h"

namespace dlrover::fuzz {

bool run(std::span<const std::uint8_t> input) {
    auto loaded = parse_settings(text_of(input), "fuzz.toml");
    if (!loaded) {
        require(loaded.status().message().rfind("fuzz.toml", 0) == 0, "a refusal names the file");
        return false;
    }
    std::vector<std::string> notes;
    require(check_settings(loaded->settings, notes).ok() && notes.empty(), "what is accepted is in range");
    require(list_settings(loaded->settings).size() > 20, "all settings are listed");
    return true;
}

std::vector<Bytes> seeds() {
    std::string all, section;
    for (const SettingLine &line : list_settings(Settings{})) {
        auto dot = line.key.find('.');
        if (line.key.substr(0, dot) != section) all += "[" + (section = line.key.substr(0, dot)) + "]\n";
        bool size = line.key == "transfer.rate";  // a text, though its default is a number
        bool plain =
            line.value == "true" || line.value == "false" ||
            (!size && !line.value.empty() && line.value.find_first_not_of("0123456789") == line.value.npos);
        all += line.key.substr(dot + 1) + " = " + (plain ? line.value : "\"" + line.value + "\"") + "\n";
    }
    return {bytes_of(all), bytes_of(""), bytes_of("[timing]\njoin = \"2min\"\n"),
            bytes_of("# text\n[network]\nmaster_ports = '30000-30100'\nport = 0x1b58\n"),
            bytes_of("memory.user_quota = \"16GiB\"\nlog = { level = \"debug\", target = \"syslog\" }\n")};
}

}  // namespace dlrover::fuzz
