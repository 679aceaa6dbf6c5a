// SPDX-License-Identifier: Apache-2.0
#include "common/settings.h"

#include <sys/stat.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <fstream>
#include <regex>

#include "base/unique_fd.h"

using namespace dlrover;
using namespace std::chrono_literals;

namespace {

LoadedSettings parsed(std::string_view text) {
    auto loaded = parse_settings(text, "x.toml");
    BOOST_TEST_REQUIRE(loaded.ok(), loaded.status().message());
    return std::move(*loaded);
}

std::string refusal(std::string_view text) {
    auto loaded = parse_settings(text, "x.toml");
    return loaded.ok() ? "accepted" : loaded.status().message();
}

std::string without_roff(std::string line) {
    std::string plain;
    for (std::size_t i = 0; i < line.size(); ++i)
        if (line[i] != '\\') plain += line[i];
    return plain;
}

/// ".TP" sections of the manual page: key, default, low, high as written in its fixed first sentence.
std::vector<SettingLine> manual_lines() {
    std::ifstream page(TEST_MAN_PAGE);
    BOOST_TEST_REQUIRE(page.good());
    std::vector<SettingLine> lines;
    std::string line, section;
    std::smatch m;
    const std::regex head(R"(\.SS \[([a-z]+)\])"), name(R"(\.B ([a-z_]+))"),
        fact(R"(^Default: (.*?)(?:; from (\S+) to (\S+))?\.$)");
    while (std::getline(page, line)) {
        line = without_roff(line);
        if (std::regex_match(line, m, head)) section = m[1];
        if (!section.empty() && std::regex_match(line, m, name))
            lines.push_back({section + "." + m[1].str(), "?", "", ""});
        if (!lines.empty() && std::regex_match(line, m, fact)) {
            lines.back().value = m[1] == "empty" ? "" : m[1].str();
            lines.back().low = m[2];
            lines.back().high = m[3];
        }
    }
    return lines;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(settings)

BOOST_AUTO_TEST_CASE(an_empty_text_gives_the_defaults) {
    auto loaded = parsed("");
    BOOST_TEST(loaded.notes.empty());
    BOOST_TEST(loaded.settings.network.port == 6825);
    BOOST_TEST((loaded.settings.timing.heartbeat == 200ms));
    BOOST_TEST(loaded.settings.memory.user_quota.of(1000) == 500u);
}

BOOST_AUTO_TEST_CASE(every_type_is_read) {
    auto s = parsed(R"(
[network]
port = 7000
listen = "10.0.0.1"
master_ports = "30000-30100"
peer_queue = "32MiB"
[memory]
user_quota = "16GiB"
huge_pages = "never"
[timing]
join = "2min"
[log]
level = "debug"
[security]
accept_relays = false
)")
                 .settings;
    BOOST_TEST(s.network.port == 7000);
    BOOST_TEST(s.network.listen == "10.0.0.1");
    BOOST_TEST((s.network.master_ports == PortRange{30000, 30100}));
    BOOST_TEST(s.network.peer_queue.value == 32u << 20);
    BOOST_TEST(s.memory.user_quota.of(1) == std::uint64_t{16} << 30);
    BOOST_TEST((s.memory.huge_pages == HugePages::never));
    BOOST_TEST((s.timing.join == 2min));
    BOOST_TEST((s.log.level == log::Level::debug));
    BOOST_TEST(!s.security.accept_relays);
}

BOOST_AUTO_TEST_CASE(unknown_names_are_refused_with_their_line) {
    BOOST_TEST(refusal("[timing]\njoin = \"2min\"\nhartbeat = \"1s\"\n") ==
               "x.toml:3: there is no setting \"timing.hartbeat\"");
    BOOST_TEST(refusal("\n[tuning]\n") == "x.toml:2: there is no section [tuning]");
    BOOST_TEST(refusal("port = 1\n") == "x.toml:1: there is no setting \"port\" outside of a section");
    BOOST_TEST(refusal("network = 3\n").find("x.toml:1: ") == 0u);
}

BOOST_AUTO_TEST_CASE(wrong_types_and_values_are_refused_with_their_line) {
    const char *bad[] = {"[network]\nport = \"7000\"",
                         "[network]\nport = 70000",
                         "[network]\nport = -1",
                         "[timing]\njoin = 60",
                         "[timing]\njoin = \"60\"",
                         "[timing]\njoin = [\"60s\"]",
                         "[log]\nlevel = \"loud\"",
                         "[memory]\nuser_quota = \"101%\"",
                         "[memory]\nuser_quota = \"-1\"",
                         "[network]\nmaster_ports = \"30100-30000\"",
                         "[network]\nmaster_ports = \"80-90\"",
                         "[security]\naccept_relays = 1",
                         "[network]\nlisten = \"a\\nb\"",
                         "[network]\nport = 1.5"};
    for (const char *text : bad)
        BOOST_TEST(refusal(text).find("x.toml:2: ") == 0u, text << ": " << refusal(text));
    BOOST_TEST(refusal(std::string_view("[log]\n[\0\0\0join = 1", 16)) ==
               "x.toml:2: a character that is not plain ASCII");
    BOOST_TEST(refusal("[= 1\n").find("x.toml:") == 0u);
    BOOST_TEST(refusal("[network\nport = 1").find("x.toml:1: ") == 0u);
    BOOST_TEST(refusal("[network]\nport = 1\nport = 2").find("x.toml:3: ") == 0u);
}

BOOST_AUTO_TEST_CASE(comments_may_hold_any_text) {
    auto s = parsed("# gr\xc3\xbc\xc3\x9f \x01 [= 1\n[slurm] # \"\nconf = \"/etc/a#b\\\"#\" # it's\xff\n")
                 .settings;
    BOOST_TEST(s.slurm.conf == "/etc/a#b\"#");
    BOOST_TEST(refusal("[slurm]\nconf = \"\xc3\xbc\"\n") == "x.toml:2: a character that is not plain ASCII");
    BOOST_TEST(refusal("\xef\xbb\xbf[slurm]\n").find("x.toml:1: ") == 0u);
    BOOST_TEST(refusal("[slurm]\nconf = \"\"\"/etc\n# no comment\n\"\"\"\n") ==
               "x.toml:2: a string of several lines; no setting needs one");
}

BOOST_AUTO_TEST_CASE(values_out_of_range_are_brought_into_it_and_named) {
    auto loaded = parsed("[memory]\nslots = 1\n[network]\npeer_queue = \"1KiB\"\nconnect_timeout = \"1h\"\n");
    BOOST_TEST(loaded.settings.memory.slots == 2u);
    BOOST_TEST(loaded.settings.network.peer_queue.value == 4u << 20);
    BOOST_TEST((loaded.settings.network.connect_timeout == 60s));
    BOOST_TEST_REQUIRE(loaded.notes.size() == 3u);
    BOOST_TEST(loaded.notes[0] ==
               "network.connect_timeout = 1h is outside 100ms to 60s (a verdict on a lost node must not wait "
               "for it): 1min is used");
    BOOST_TEST(loaded.notes[2].find("memory.slots = 1 is outside 2 to 8") == 0u);
}

BOOST_AUTO_TEST_CASE(contradictions_are_refused) {
    for (const char *text :
         {"leader_silence = \"2s\"", "heartbeat = \"600ms\"", "agent_lease = \"1s\"", "election = \"900ms\""})
        BOOST_TEST(refusal(std::string("[timing]\n") + text).find("must be below") != std::string::npos,
                   text);
    BOOST_TEST(refusal("[network]\ndead_after = \"1s\"").find("must be below") != std::string::npos);
    BOOST_TEST(refusal("[network]\nreconnect_min = \"6s\"").find("must not be above") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(transfers) {
    auto loaded = parse_settings("[transfer]\nstreams = 40\nrate = \"100MiB\"\nucx = \"always\"\n", "x");
    BOOST_TEST_REQUIRE(loaded.ok());
    const auto &t = loaded->settings.transfer;
    BOOST_TEST(t.streams == 16);
    BOOST_TEST(t.rate.value == 100u << 20);
    BOOST_TEST((t.ucx == UseUcx::always));
    BOOST_TEST(refusal("[transfer]\nucx = \"tcp\"").find("is none of rdma, always, never") !=
               std::string::npos);
    BOOST_TEST(!refusal("[transfer]\nrate = 5").empty());
}

/// A range whose bounds do not parse would silently not be a range.
BOOST_AUTO_TEST_CASE(every_default_lies_in_its_range) {
    Settings s;
    std::vector<std::string> notes;
    BOOST_TEST(check_settings(s, notes).ok());
    BOOST_TEST(notes.empty());
    for (const SettingLine &line : list_settings(s)) {
        if (line.low.empty()) continue;
        bool quoted = line.value.find_first_not_of("0123456789") != line.value.npos;
        auto dot = line.key.find('.');
        // Beyond both bounds; the bound's own unit keeps the type.
        std::string beyond = line.high + (quoted ? "" : "0");
        if (quoted) beyond.insert(beyond.find_first_not_of("0123456789"), "0");
        if (line.key == "network.port") continue;  // its type's range is the range
        auto loaded = parse_settings("[" + line.key.substr(0, dot) + "]\n" + line.key.substr(dot + 1) +
                                         " = " + (quoted ? "\"" + beyond + "\"" : beyond),
                                     "x");
        bool clamped = loaded.ok() && !loaded->notes.empty();
        bool contradicts = !loaded.ok() && loaded.status().message().find("must ") != std::string::npos;
        BOOST_TEST((clamped || contradicts), line.key << " = " << beyond);
    }
}

BOOST_AUTO_TEST_CASE(the_manual_page_and_the_parser_name_the_same) {
    auto page = manual_lines();
    auto parser = list_settings(Settings{});
    for (std::size_t i = 0; i < std::max(page.size(), parser.size()); ++i) {
        BOOST_TEST_REQUIRE(i < page.size(), parser[i].key << " is not in the manual page");
        BOOST_TEST_REQUIRE(i < parser.size(), page[i].key << " is only in the manual page");
        BOOST_TEST(page[i].key == parser[i].key);
        BOOST_TEST(page[i].value == parser[i].value,
                   page[i].key << ": default " << page[i].value << " / " << parser[i].value);
        BOOST_TEST(page[i].low == parser[i].low, page[i].key);
        BOOST_TEST(page[i].high == parser[i].high, page[i].key);
    }
}

BOOST_AUTO_TEST_CASE(files) {
    char path[] = "/tmp/dlrover-settings-XXXXXX";
    UniqueFd fd(::mkstemp(path));
    BOOST_TEST_REQUIRE(!!fd);
    BOOST_TEST_REQUIRE(::write(fd.get(), "[network]\nport = 7001\n", 22) == 22);
    auto loaded = load_settings(path);
    BOOST_TEST_REQUIRE(loaded.ok());
    BOOST_TEST(loaded->settings.network.port == 7001);
    BOOST_TEST_REQUIRE(::fchmod(fd.get(), 0666) == 0);
    BOOST_TEST((load_settings(path).status().code() == Code::permission_denied));
    BOOST_TEST_REQUIRE(::unlink(path) == 0);
    BOOST_TEST(load_settings(path).ok());
    BOOST_TEST(!load_settings("/tmp").ok());
    BOOST_TEST(!parse_settings(std::string(max_settings_bytes + 1, '#'), "x").ok());
}

BOOST_AUTO_TEST_SUITE_END()
