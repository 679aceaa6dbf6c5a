// SPDX-License-Identifier: Apache-2.0
#include "common/settings.h"

// The parser asserts on some malformed keys ("[= 1"); here that is a malformed file like any other. Under
// NDEBUG it would take the assertion for granted instead.
#undef NDEBUG
#define TOML_ASSERT(expression) require_of_parser(static_cast<bool>(expression))
#define TOML_EXCEPTIONS 1
#include <algorithm>
#include <stdexcept>

static constexpr void require_of_parser(bool holds) {
    if (!holds) throw std::invalid_argument("a key is malformed");
}

#include <fcntl.h>
#include <sys/stat.h>
#include <toml++/toml.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "common/settings_table.h"

namespace dlrover {
namespace {

using settings_table::entries;
using settings_table::Entry;

std::string key_of(const Entry &entry) {
    return std::string(entry.section) + "." + entry.name;
}

class Parser {
  public:
    Parser(Settings &settings, const std::string &origin) : settings_(settings), origin_(origin) {}

    Status read(const toml::table &root) {
        for (const auto &[section, node] : root) {
            const toml::table *table = node.as_table();
            if (!table || !known_section(section.str()))
                return fail(node, "there is no " + std::string(table ? "section [" : "setting \"") +
                                      std::string(section.str()) + (table ? "]" : "\" outside of a section"));
            for (const auto &[name, value] : *table)
                DLROVER_TRY(read_value(section.str(), name.str(), value));
        }
        return {};
    }

    Status fail(const toml::node &node, const std::string &sentence) const {
        return Status(Code::invalid_argument,
                      origin_ + ":" + std::to_string(node.source().begin.line) + ": " + sentence);
    }

  private:
    static bool known_section(std::string_view name) {
        for (const Entry &entry : entries())
            if (name == entry.section) return true;
        return false;
    }

    static const Entry *find(std::string_view section, std::string_view name) {
        for (const Entry &entry : entries())
            if (section == entry.section && name == entry.name) return &entry;
        return nullptr;
    }

    Status read_value(std::string_view section, std::string_view name, const toml::node &value) {
        const Entry *entry = find(section, name);
        if (!entry)
            return fail(value,
                        "there is no setting \"" + std::string(section) + "." + std::string(name) + "\"");
        auto place = entry->place(settings_);
        auto text = text_of_value(place, value);
        Status status = text ? settings_table::assign(place, *text) : text.take_status();
        if (!status.ok()) return fail(value, key_of(*entry) + ": " + status.message());
        return {};
    }

    /// The value's text, if its TOML type fits: integers for counts and ports, booleans for switches, strings
    /// for the rest.
    static Result<std::string> text_of_value(const settings_table::Place &place, const toml::node &value) {
        bool count =
            std::holds_alternative<std::uint64_t *>(place) || std::holds_alternative<std::uint16_t *>(place);
        bool flag = std::holds_alternative<bool *>(place);
        if (auto *number = value.as_integer(); number && count) return std::to_string(number->get());
        if (auto *truth = value.as_boolean(); truth && flag)
            return std::string(truth->get() ? "true" : "false");
        if (auto *text = value.as_string(); text && !count && !flag) return text->get();
        const char *wanted = count ? "a whole number" : flag ? "true or false" : "a text in quotes";
        return Status(Code::invalid_argument, std::string("the value must be ") + wanted);
    }

    Settings &settings_;
    const std::string &origin_;
};

struct Order {
    const char *what;
    Settings::Duration less, more;
    const char *why;
};

/// Values that are in range each but contradict each other.
Status check_orders(const Settings &s) {
    const Settings::Timing &t = s.timing;
    const Order orders[] = {
        {"twice timing.heartbeat must be below timing.leader_silence", 2 * t.heartbeat, t.leader_silence,
         "one lost heartbeat would end a reign"},
        {"timing.leader_silence must be below timing.election", t.leader_silence, t.election,
         "two leaders could act at once"},
        {"timing.election must be below timing.agent_lease", t.election, t.agent_lease,
         "workers would stop before a new leader can speak"},
        {"network.probe must be below network.dead_after", s.network.probe, s.network.dead_after,
         "idle links would be reset"},
        {"network.reconnect_min must not be above network.reconnect_max", s.network.reconnect_min,
         s.network.reconnect_max + Settings::Duration(1), "the pause only grows"},
    };
    for (const Order &order : orders)
        if (order.less >= order.more)
            return Status(Code::invalid_argument, std::string(order.what) + ": otherwise " + order.why);
    return {};
}

bool is_plain(char c) {
    auto byte = static_cast<unsigned char>(c);
    return (byte >= 0x20 && byte < 0x7f) || c == '\t' || c == '\r';
}

/// Where the comment of a line begins; its size if it has none.
std::size_t comment_of(std::string_view line) {
    char quote = 0;
    for (std::size_t i = 0; i < line.size(); ++i) {
        if (quote == '"' && line[i] == '\\')
            ++i;
        else if (quote != 0)
            quote = line[i] == quote ? char{0} : quote;
        else if (line[i] == '#')
            return i;
        else if (line[i] == '"' || line[i] == '\'')
            quote = line[i];
    }
    return line.size();
}

/// Without comments, which may hold any text; the rest must be ASCII: no setting needs more, and this version
/// of the parser is not safe with control characters and with blanks of other scripts.
Result<std::string> plain_text(std::string_view text, const std::string &origin) {
    std::string plain;
    for (std::size_t number = 1; !text.empty(); ++number) {
        std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(text.size(), line.size() + 1));
        line = line.substr(0, comment_of(line));
        if (!std::all_of(line.begin(), line.end(), is_plain))
            return Status(Code::invalid_argument,
                          origin + ":" + std::to_string(number) + ": a character that is not plain ASCII");
        if (line.find("\"\"\"") != line.npos || line.find("'''") != line.npos)
            return Status(Code::invalid_argument, origin + ":" + std::to_string(number) +
                                                      ": a string of several lines; no setting needs one");
        plain.append(line).push_back('\n');
    }
    return plain;
}

Result<toml::table> parse_toml(std::string_view text, const std::string &origin) {
    try {
        return toml::parse(text, std::string_view(origin));
    } catch (const toml::parse_error &e) {
        return Status(Code::invalid_argument, origin + ":" + std::to_string(e.source().begin.line) + ": " +
                                                  std::string(e.description()));
    } catch (const std::exception &e) {
        return Status(Code::invalid_argument, origin + ": " + e.what());
    }
}

Result<std::string> read_file(int fd, const std::string &path) {
    std::string text;
    char buffer[16384];
    for (;;) {
        ssize_t n = ::read(fd, buffer, sizeof buffer);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return Status::from_errno(path);
        if (n == 0) return text;
        text.append(buffer, static_cast<std::size_t>(n));
        if (text.size() > max_settings_bytes)
            return Status(Code::invalid_argument, path + ": larger than 1 MiB");
    }
}

}  // namespace

Status check_settings(Settings &settings, std::vector<std::string> &notes) {
    for (const Entry &entry : entries()) {
        auto place = entry.place(settings);
        std::string before = settings_table::text_of(place);
        if (!settings_table::clamp(place, entry.low, entry.high)) continue;
        notes.push_back(key_of(entry) + " = " + before + " is outside " + entry.low + " to " + entry.high +
                        " (" + entry.why + "): " + settings_table::text_of(place) + " is used");
    }
    return check_orders(settings);
}

Result<LoadedSettings> parse_settings(std::string_view text, const std::string &origin) {
    if (text.size() > max_settings_bytes)
        return Status(Code::invalid_argument, origin + ": larger than 1 MiB");
    auto plain = plain_text(text, origin);
    if (!plain) return plain.take_status();
    auto parsed = parse_toml(*plain, origin);
    if (!parsed) return parsed.take_status();
    LoadedSettings loaded;
    DLROVER_TRY(Parser(loaded.settings, origin).read(*parsed));
    if (Status s = check_settings(loaded.settings, loaded.notes); !s.ok())
        return std::move(s).with_context(origin);
    return loaded;
}

Result<LoadedSettings> load_settings(const std::string &path) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd && errno == ENOENT) return LoadedSettings{};
    if (!fd) return Status::from_errno(path);
    struct stat st {};
    if (::fstat(fd.get(), &st) != 0) return Status::from_errno(path);
    if (!S_ISREG(st.st_mode)) return Status(Code::invalid_argument, path + ": not a regular file");
    if ((st.st_mode & 022) != 0)
        return Status(Code::permission_denied, path + ": others than its owner may write it");
    auto text = read_file(fd.get(), path);
    if (!text) return text.take_status();
    return parse_settings(*text, path);
}

std::vector<SettingLine> list_settings(const Settings &settings) {
    Settings copy = settings;
    std::vector<SettingLine> lines;
    for (const Entry &entry : entries())
        lines.push_back({key_of(entry), settings_table::text_of(entry.place(copy)), entry.low, entry.high});
    return lines;
}

}  // namespace dlrover
