// SPDX-License-Identifier: Apache-2.0
#include "ckpt/storage_name.h"

#include "base/units.h"
#include "ckpt/block_kernel.h"

namespace dlrover::ckpt {
namespace {

constexpr std::string_view step_prefix = "step-", generation_mark = ".gen-", manifest_suffix = ".manifest",
                           suspect_suffix = ".suspect";
constexpr std::size_t max_file_name_bytes = 200, hash_digits = 16;

/// Bytes of the character at the start of `text`; 0: no UTF-8.
std::size_t character_bytes(std::string_view text) noexcept {
    auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    unsigned char first = byte(0);
    if (first < 0x80) return 1;
    std::size_t n = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || text.size() < n) return 0;
    for (std::size_t i = 1; i < n; ++i)
        if ((byte(i) & 0xc0) != 0x80) return 0;
    bool overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
    bool surrogate = first == 0xed && byte(1) > 0x9f, beyond = first == 0xf4 && byte(1) > 0x8f;
    return overlong || surrogate || beyond ? 0 : n;
}

bool plain(char c) noexcept {
    auto byte = static_cast<unsigned char>(c);
    return byte > 0x20 && byte != 0x7f && c != '/' && c != '%' && c != '\\';
}

std::string hex(std::uint64_t value, std::size_t digits) {
    std::string text(digits, '0');
    for (std::size_t i = digits; i-- > 0; value >>= 4) text[i] = "0123456789ABCDEF"[value & 15];
    return text;
}

/// Takes "123" off the front.
std::optional<std::uint64_t> take_number(std::string_view &text, std::uint64_t high) {
    std::size_t n = text.find_first_not_of("0123456789");
    if (n == std::string_view::npos) n = text.size();
    std::string_view digits = text.substr(0, n);
    if (digits.size() > 1 && digits.front() == '0') return std::nullopt;
    auto value = parse_uint(digits, 0, high);
    if (!value) return std::nullopt;
    text.remove_prefix(n);
    return *value;
}

bool take(std::string_view &text, std::string_view prefix) {
    if (!text.starts_with(prefix)) return false;
    text.remove_prefix(prefix.size());
    return true;
}

}  // namespace

bool valid_utf8(std::string_view text) noexcept {
    while (!text.empty()) {
        std::size_t n = character_bytes(text);
        if (n == 0) return false;
        text.remove_prefix(n);
    }
    return true;
}

std::string escape_name(std::string_view text) {
    if (text.empty()) return "%";
    std::string name;
    for (bool first = true; !text.empty(); first = false) {
        std::size_t n = character_bytes(text);
        bool keep = n > 1 || (n == 1 && plain(text[0]) && !(first && text[0] == '.'));
        if (keep)
            name += text.substr(0, n);
        else
            name += "%" + hex(static_cast<unsigned char>(text[0]), 2);
        text.remove_prefix(keep ? n : 1);
    }
    return name;
}

std::string escape_file_name(std::string_view text) {
    std::string name = escape_name(text);
    if (name.size() <= max_file_name_bytes) return name;
    std::size_t cut = max_file_name_bytes - hash_digits - 1;
    while ((static_cast<unsigned char>(name[cut]) & 0xc0) == 0x80) --cut;
    return name.substr(0, cut) + "~" + hex(block_kernel().hash(text.data(), text.size()), hash_digits);
}

std::string checkpoint_folder_name(const CheckpointId &id) {
    return std::string(step_prefix) + std::to_string(id.step.value()) + std::string(generation_mark) +
           to_string(id.generation);
}

std::string manifest_name(const CheckpointId &id) {
    return checkpoint_folder_name(id) + std::string(manifest_suffix);
}

std::optional<CheckpointId> parse_checkpoint_folder_name(std::string_view name) {
    if (!take(name, step_prefix)) return std::nullopt;
    auto step = take_number(name, UINT64_MAX);
    if (!step || !take(name, generation_mark)) return std::nullopt;
    auto restarts = take_number(name, UINT32_MAX);
    if (!restarts || !take(name, ".")) return std::nullopt;
    auto reign = take_number(name, UINT32_MAX);
    if (!reign || !take(name, ".")) return std::nullopt;
    auto number = take_number(name, UINT64_MAX);
    if (!number || !name.empty()) return std::nullopt;
    return CheckpointId{{Term(*restarts << 32 | *reign), *number}, TrainStep(*step)};
}

std::optional<CheckpointId> parse_manifest_name(std::string_view name) {
    if (!name.ends_with(manifest_suffix)) return std::nullopt;
    return parse_checkpoint_folder_name(name.substr(0, name.size() - manifest_suffix.size()));
}

std::string suspect_name(const CheckpointId &id) {
    return manifest_name(id) + std::string(suspect_suffix);
}

std::optional<CheckpointId> parse_suspect_name(std::string_view name) {
    if (!name.ends_with(suspect_suffix)) return std::nullopt;
    return parse_manifest_name(name.substr(0, name.size() - suspect_suffix.size()));
}

std::string rank_file_name(Rank rank) {
    return "rank-" + std::to_string(rank.value()) + ".h5";
}

}  // namespace dlrover::ckpt
