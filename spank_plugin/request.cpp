// SPDX-License-Identifier: Apache-2.0
// StepRequest <-> one line "1 elastic=2:4 spares=1 ... cwd=/home/alice" of an environment variable. Values
// are percent-encoded where they hold a space, a percent sign or a byte outside ASCII.
#include <algorithm>
#include <array>
#include <bitset>

#include "spank_plugin/options.h"

namespace dlrover::spank {
namespace {

constexpr std::string_view version_mark = "1 ";
constexpr std::string_view cwd_key = "cwd";
constexpr char hex_digits[] = "0123456789ABCDEF";

bool is_plain(char c) {
    return c > 0x20 && c < 0x7f && c != '%';
}

void append_field(std::string &line, std::string_view key, std::string_view value) {
    if (line.back() != ' ') line += ' ';
    line.append(key).append("=");
    for (char c : value) {
        auto byte = static_cast<unsigned char>(c);
        if (is_plain(c))
            line += c;
        else
            line.append({'%', hex_digits[byte >> 4], hex_digits[byte & 15]});
    }
}

int hex_value(char c) {
    std::size_t at = std::string_view(hex_digits).find(c);
    return at == std::string_view::npos ? -1 : static_cast<int>(at);
}

bool decode_value(std::string_view text, std::string &value) {
    value.clear();
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '%') {
            if (!is_plain(text[i])) return false;
            value += text[i];
            continue;
        }
        if (i + 2 >= text.size()) return false;
        int high = hex_value(text[i + 1]);
        int low = hex_value(text[i + 2]);
        if (high < 0 || low < 0 || high + low == 0) return false;
        value += static_cast<char>(high * 16 + low);
        i += 2;
    }
    return true;
}

std::string elastic_value(const Options &options) {
    if (options.min_nodes == 0) return "";
    std::string text = std::to_string(options.min_nodes);
    return options.max_nodes == 0 ? text : text + ":" + std::to_string(options.max_nodes);
}

std::string join_text(const JoinTarget &target) {
    std::string text = std::to_string(target.job_id) + "." + std::to_string(target.step_id);
    return target.restart_count ? text + "." + std::to_string(*target.restart_count) : text;
}

Status malformed() {
    return Status(Code::corrupt, "the options sent by srun do not decode");
}

Status take_cwd(std::string value, StepRequest &request) {
    if (value.empty() || value[0] != '/' || value.size() > max_path_bytes) return malformed();
    request.cwd = std::move(value);
    return {};
}

Status take_field(std::string_view key, std::string value, StepRequest &request,
                  std::bitset<option_count + 1> &seen) {
    std::size_t index = option_count;
    if (key != cwd_key) {
        auto specs = option_specs();
        auto spec =
            std::find_if(specs.begin(), specs.end(), [&](const OptionSpec &s) { return key == s.name; });
        if (spec == specs.end()) return malformed();
        index = static_cast<std::size_t>(spec->id);
    }
    if (seen.test(index)) return malformed();
    seen.set(index);
    if (index == option_count) return take_cwd(std::move(value), request);
    return parse_option(static_cast<OptionId>(index), value, request.options);
}

}  // namespace

std::string encode_request(const StepRequest &request) {
    const Options &o = request.options;
    auto name = [](OptionId id) { return option_specs()[static_cast<std::size_t>(id)].name; };
    std::string line(version_mark);
    append_field(line, name(OptionId::elastic), elastic_value(o));
    append_field(line, name(OptionId::max_restarts), std::to_string(o.max_restarts));
    append_field(line, name(OptionId::spares), std::to_string(o.spares));
    append_field(line, name(OptionId::node_unit), std::to_string(o.node_unit));
    if (!o.name.empty()) append_field(line, name(OptionId::name), o.name);
    if (!o.ckpt_dir.empty()) append_field(line, name(OptionId::ckpt_dir), o.ckpt_dir);
    if (!o.ckpt_every.empty()) append_field(line, name(OptionId::ckpt_every), o.ckpt_every);
    if (!o.ckpt_keep.empty()) append_field(line, name(OptionId::ckpt_keep), o.ckpt_keep);
    append_field(line, name(OptionId::redundancy), o.redundancy);
    append_field(line, name(OptionId::optional), o.optional ? "yes" : "no");
    if (!o.companion) append_field(line, name(OptionId::companion), "no");
    append_field(line, name(OptionId::pmix), text_of(o.pmix));
    if (o.requeue_without_host) append_field(line, name(OptionId::on_batch_loss), "requeue");
    if (o.join) append_field(line, name(OptionId::join), join_text(*o.join));
    if (!request.cwd.empty()) append_field(line, cwd_key, request.cwd);
    return line;
}

Result<StepRequest> decode_request(std::string_view text) {
    if (text.size() > max_request_bytes || !text.starts_with(version_mark)) return malformed();
    text.remove_prefix(version_mark.size());
    StepRequest request;
    std::bitset<option_count + 1> seen;
    std::string value;
    while (true) {
        std::string_view field = text.substr(0, text.find(' '));
        std::size_t equals = field.find('=');
        if (equals == std::string_view::npos || !decode_value(field.substr(equals + 1), value))
            return malformed();
        DLROVER_TRY(take_field(field.substr(0, equals), value, request, seen));
        if (field.size() == text.size()) break;
        text.remove_prefix(field.size() + 1);
    }
    if (request.options.elastic != Elastic::on) return malformed();
    DLROVER_TRY(check_options(request.options));
    return request;
}

}  // namespace dlrover::spank
