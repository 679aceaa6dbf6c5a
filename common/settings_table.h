// SPDX-License-Identifier: Apache-2.0
// The one list of settings: name, place, range, reason. Parser, check and manual page's test walk it.
#pragma once

#include <span>
#include <variant>

#include "common/settings.h"

namespace dlrover::settings_table {

/// A word out of a fixed list, kept as its position.
struct Choice {
    std::uint8_t *value;
    std::span<const char *const> words;
};

/// Where a setting is kept; the alternative is its type.
using Place = std::variant<Settings::Duration *, SizeBytes *, std::uint64_t *, std::uint16_t *, std::string *,
                           bool *, PortRange *, MemoryShare *, Choice>;

struct Entry {
    const char *section, *name;
    Place (*place)(Settings &settings);
    const char *low, *high;  ///< as written in the file; empty: no range
    const char *why;         ///< why not beyond: completes "..., because"
};

std::span<const Entry> entries();

/// Sets the place from text as written in the file (strings without quotes). Ranges are not looked at.
Status assign(const Place &place, std::string_view text);
/// The text that assign() takes.
std::string text_of(const Place &place);
/// Below `low` or above `high`: sets the bound and returns true. Precondition: the texts are of the type.
bool clamp(const Place &place, const char *low, const char *high);

}  // namespace dlrover::settings_table
