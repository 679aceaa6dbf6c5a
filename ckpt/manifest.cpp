// SPDX-License-Identifier: Apache-2.0
#include "ckpt/manifest.h"

#include <algorithm>

#include "base/units.h"
#include "ckpt/block_kernel.h"
#include "ckpt/format_version.h"

namespace dlrover::ckpt {
namespace {

constexpr std::string_view digits = "0123456789abcdef", checksum_line = "\n \"xxh3\": ", end_of_text = "}\n";
constexpr std::size_t quoted_hex_bytes = 18;
constexpr std::uint64_t manifest_version = 1;

std::string quoted_hex(std::uint64_t value) {
    std::string text(quoted_hex_bytes, '"');
    for (std::size_t i = 16; i > 0; --i, value >>= 4) text[i] = digits[value & 15];
    return text;
}

/// As a JSON string. Precondition: UTF-8.
std::string json_text(std::string_view text) {
    std::string out = "\"";
    for (char c : text) {
        auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\')
            out += {'\\', c};
        else if (byte < 0x20)
            out += std::string("\\u00") + digits[byte >> 4] + digits[byte & 15];
        else
            out += c;
    }
    return out + "\"";
}

std::string number(std::uint64_t value) {
    return std::to_string(value);
}

std::string rank_line(const RankFile &file) {
    return "\n  {\"file\": " + json_text(rank_file_name(file.rank)) +
           ", \"bytes\": " + number(file.file_bytes) + ", \"table\": " + quoted_hex(file.table_xxh3) +
           ", \"header\": " + quoted_hex(file.header_xxh3) + "}";
}

std::uint64_t text_hash(std::string_view text) {
    return block_kernel().hash(text.data(), text.size());
}

/// Walks through a text that has to be exactly as expected. After the first mismatch nothing matches.
class Scanner {
  public:
    explicit Scanner(std::string_view text) : text_(text) {}
    bool ok() const noexcept { return ok_; }
    bool at_end() const noexcept { return ok_ && text_.empty(); }

    void expect(std::string_view literal) {
        if (!accept(literal)) ok_ = false;
    }
    bool accept(std::string_view literal) {
        if (!ok_ || !text_.starts_with(literal)) return false;
        text_.remove_prefix(literal.size());
        return true;
    }
    std::uint64_t number(std::uint64_t low, std::uint64_t high) {
        std::string_view word = take(std::min(text_.find_first_not_of("0123456789"), text_.size()));
        auto value = parse_uint(word, low, high);
        ok_ = ok_ && value.ok() && (word.size() == 1 || word.front() != '0');
        return ok_ ? *value : 0;
    }
    std::uint64_t hex() {
        std::uint64_t value = 0;
        for (char c : take(std::min(quoted_hex_bytes, text_.size())))
            if (std::size_t digit = digits.find(c); digit != digits.npos) value = value << 4 | digit;
        ok_ = ok_ && quoted_hex(value) == taken_;
        return value;
    }
    std::string string(std::size_t limit) {
        std::string value;
        std::string_view start = text_;
        expect("\"");
        while (ok_ && !text_.empty() && text_.front() != '"' && value.size() <= limit) value += character();
        expect("\"");
        ok_ = ok_ && value.size() <= limit && valid_utf8(value) &&
              json_text(value) == start.substr(0, start.size() - text_.size());
        return value;
    }

  private:
    std::string_view take(std::size_t count) {
        taken_ = ok_ ? text_.substr(0, count) : std::string_view{};
        text_.remove_prefix(taken_.size());
        return taken_;
    }
    /// Whether an escape is one of ours shows when the whole is written again.
    char character() {
        if (!accept("\\")) return take(1).front();
        if (!accept("u00")) return text_.empty() ? '\\' : take(1).front();
        unsigned value = 0;
        for (char c : take(2))
            value = value << 4 | static_cast<unsigned>(std::min(digits.find(c), digits.size()));
        return static_cast<char>(value);
    }
    std::string_view text_, taken_;
    bool ok_ = true;
};

void scan_head(Scanner &scan, Manifest &manifest, std::uint64_t &world_size) {
    scan.expect(" \"lineage\": ");
    manifest.lineage = scan.string(max_lineage_bytes);
    scan.expect(",\n \"train_step\": ");
    manifest.id.step = TrainStep(scan.number(0, UINT64_MAX));
    scan.expect(", \"term\": ");
    manifest.id.generation.term = Term(scan.number(0, UINT64_MAX));
    scan.expect(", \"generation\": ");
    manifest.id.generation.number = scan.number(0, UINT64_MAX);
    scan.expect(", \"world_size\": ");
    world_size = scan.number(1, max_manifest_ranks);
    scan.expect(",\n \"index\": ");
    if (scan.accept("null")) return;
    manifest.index.emplace();
    scan.expect("{\"file\": \"index.h5\", \"bytes\": ");
    manifest.index->bytes = scan.number(0, UINT64_MAX);
    scan.expect(", \"xxh3\": ");
    manifest.index->xxh3 = scan.hex();
    scan.expect("}");
}

RankFile scan_rank(Scanner &scan, std::uint32_t rank) {
    RankFile file;
    file.rank = Rank(rank);
    scan.expect("\n  {\"file\": " + json_text(rank_file_name(file.rank)) + ", \"bytes\": ");
    file.file_bytes = scan.number(0, UINT64_MAX);
    scan.expect(", \"table\": ");
    file.table_xxh3 = scan.hex();
    scan.expect(", \"header\": ");
    file.header_xxh3 = scan.hex();
    scan.expect("}");
    return file;
}

Status check_manifest(const Manifest &manifest) {
    if (manifest.lineage.size() > max_lineage_bytes || !valid_utf8(manifest.lineage))
        return Status(Code::invalid_argument, "a manifest's lineage is UTF-8 of at most 4096 bytes");
    if (manifest.ranks.empty() || manifest.ranks.size() > max_manifest_ranks)
        return Status(Code::invalid_argument, "a manifest has 1 to 1048576 ranks");
    for (std::size_t i = 0; i < manifest.ranks.size(); ++i)
        if (manifest.ranks[i].rank.value() != i)
            return Status(Code::invalid_argument,
                          "rank " + number(i) + " is not in its place in the manifest");
    return {};
}

/// The lines before the checksum; corrupt: it is not theirs.
Result<std::string_view> checked_lines(std::string_view text) {
    std::size_t tail = checksum_line.size() + quoted_hex_bytes + end_of_text.size();
    if (text.size() < tail || text.size() > max_manifest_bytes)
        return Status(Code::corrupt, "a manifest of a wrong size");
    std::string_view lines = text.substr(0, text.size() - tail), last = text.substr(lines.size());
    Scanner scan(last);
    scan.expect(checksum_line);
    std::uint64_t hash = scan.hex();
    scan.expect(end_of_text);
    if (!scan.at_end() || hash != text_hash(lines))
        return Status(Code::corrupt, "the manifest's checksum is wrong");
    return lines;
}

}  // namespace

Result<std::string> encode_manifest(const Manifest &manifest) {
    DLROVER_TRY(check_manifest(manifest));
    std::string text = "{\"format\": \"dlrover-manifest\", \"version\": " + number(manifest_version) +
                       ",\n \"lineage\": " + json_text(manifest.lineage) +
                       ",\n \"train_step\": " + number(manifest.id.step.value()) +
                       ", \"term\": " + number(manifest.id.generation.term.value()) +
                       ", \"generation\": " + number(manifest.id.generation.number) +
                       ", \"world_size\": " + number(manifest.ranks.size()) + ",\n \"index\": ";
    if (manifest.index)
        text += "{\"file\": \"index.h5\", \"bytes\": " + number(manifest.index->bytes) +
                ", \"xxh3\": " + quoted_hex(manifest.index->xxh3) + "}";
    else
        text += "null";
    text += ",\n \"ranks\": [";
    for (const RankFile &file : manifest.ranks) text += (file.rank.value() == 0 ? "" : ",") + rank_line(file);
    text += "],";
    std::uint64_t hash = text_hash(text);
    return text + std::string(checksum_line) + quoted_hex(hash) + std::string(end_of_text);
}

Result<Manifest> decode_manifest(std::string_view text) {
    auto lines = checked_lines(text);
    if (!lines) return lines.take_status();
    Scanner scan(*lines);
    Manifest manifest;
    std::uint64_t world_size = 0;
    scan.expect("{\"format\": \"dlrover-manifest\", \"version\": ");
    std::uint64_t version = scan.number(0, UINT64_MAX);
    if (scan.ok() && version != manifest_version)
        return other_version("a manifest", version, manifest_version);
    scan.expect(",\n");
    scan_head(scan, manifest, world_size);
    scan.expect(",\n \"ranks\": [");
    for (std::uint32_t rank = 0; scan.ok() && rank < world_size; ++rank) {
        if (rank != 0) scan.expect(",");
        manifest.ranks.push_back(scan_rank(scan, rank));
    }
    scan.expect("],");
    if (!scan.at_end()) return Status(Code::corrupt, "a manifest that is not as it is written");
    return manifest;
}

}  // namespace dlrover::ckpt
