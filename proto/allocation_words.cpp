// SPDX-License-Identifier: Apache-2.0
#include "proto/allocation_words.h"

#include <algorithm>
#include <array>

#include "base/units.h"

namespace dlrover::proto {
namespace {

using Verb = AllocationOrder::Verb;
using Stage = AllocationState::Stage;

constexpr std::size_t longest_label = 64, longest_partition = 256, longest_reason = 1000;
constexpr std::uint32_t largest_job = UINT32_MAX - 2;  // NO_VAL and INFINITE are none

struct VerbName {
    Verb verb;
    std::string_view name;
};
constexpr std::array verbs{VerbName{Verb::create, "new"}, VerbName{Verb::release, "release"},
                           VerbName{Verb::status, "status"}};

constexpr std::string_view answer_word = "answer ", refused_word = "refused";

struct StageName {
    Stage stage;
    std::string_view name;
};
constexpr std::array stages{StageName{Stage::waiting, "waiting"}, StageName{Stage::running, "running"},
                            StageName{Stage::ended, "ended"}};

/// What is not among them is told as the last one.
struct CodeName {
    Code code;
    std::string_view name;
};
constexpr std::array codes{CodeName{Code::invalid_argument, "argument"},
                           CodeName{Code::not_found, "unknown"},
                           CodeName{Code::permission_denied, "permission"},
                           CodeName{Code::unavailable, "away"},
                           CodeName{Code::timeout, "late"},
                           CodeName{Code::resource_exhausted, "full"},
                           CodeName{Code::internal, "failed"}};

bool is_visible(char c) {
    return c > ' ' && c <= '~';
}

/// Without the word that it began with.
std::string_view take_word(std::string_view &text) {
    auto end = std::min(text.find(' '), text.size());
    std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return word;
}

Status no_order(const std::string &word) {
    return Status(Code::invalid_argument, "'" + word + "' is not understood");
}

template <typename IdType>
Status take_number(const std::string &word, std::uint32_t low, std::uint32_t high, IdType &out) {
    auto number = parse_uint(word, low, high);
    if (!number) return no_order(word);
    out = IdType(static_cast<std::uint32_t>(*number));
    return {};
}

Status take_option(const std::string &word, AllocationOrder &out) {
    auto equals = word.find('=');
    if (equals == std::string::npos) return no_order(word);
    std::string name = word.substr(0, equals), value = word.substr(equals + 1);
    if (name == "seconds") {
        std::uint32_t seconds = 0;
        DLROVER_TRY(take_number(value, 1, UINT32_MAX, seconds));
        out.seconds = seconds;
    } else if (name == "partition" && is_partition(value)) {
        out.partition = value;
    } else if (name == "label" && is_allocation_label(value)) {
        out.label = value;
    } else {
        return no_order(word);
    }
    return {};
}

Result<AllocationOrder> decode_new(const std::vector<std::string> &words, AllocationOrder order) {
    if (words.size() < 4) return Status(Code::invalid_argument, "step and number of nodes are missing");
    DLROVER_TRY(take_number(words[2], 0, largest_job, order.step));
    DLROVER_TRY(take_number(words[3], 1, most_allocated_nodes, order.nodes));
    for (std::size_t i = 4; i < words.size(); ++i) DLROVER_TRY(take_option(words[i], order));
    return order;
}

std::string printable(std::string text) {
    std::ranges::replace_if(
        text, [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
    return text;
}

Result<AllocationState> decode_line(std::string_view line) {
    std::string_view kind = take_word(line);
    if (kind == refused_word) {
        std::string_view name = take_word(line);
        auto code = std::ranges::find(codes, name, &CodeName::name);
        if (code == codes.end()) return Status(Code::corrupt, "an answer that can not be");
        return Status(code->code, printable(std::string(line.substr(0, longest_reason))));
    }
    AllocationState state;
    auto stage = std::ranges::find(stages, kind, &StageName::name);
    if (stage == stages.end() || !take_number(std::string(take_word(line)), 1, largest_job, state.job).ok())
        return Status(Code::corrupt, "an answer that can not be");
    state.stage = stage->stage;
    state.words = printable(std::string(line));
    return state;
}

}  // namespace

bool is_partition(std::string_view text) {
    return !text.empty() && text.size() <= longest_partition && std::ranges::all_of(text, is_visible);
}

bool is_allocation_label(std::string_view text) {
    auto printed = [](char c) { return c == ' ' || is_visible(c); };
    return !text.empty() && text.size() <= longest_label && std::ranges::all_of(text, printed);
}

std::vector<std::string> encode_order(const AllocationOrder &order) {
    auto number = [](std::uint32_t value) { return std::to_string(value); };
    std::vector<std::string> words{std::string(std::ranges::find(verbs, order.verb, &VerbName::verb)->name),
                                   number(order.job.value())};
    if (order.verb != Verb::create) {
        words.push_back(number(order.allocation.value()));
        return words;
    }
    words.push_back(number(order.step.value()));
    words.push_back(number(order.nodes));
    if (order.seconds) words.push_back("seconds=" + number(*order.seconds));
    if (!order.partition.empty()) words.push_back("partition=" + order.partition);
    if (!order.label.empty()) words.push_back("label=" + order.label);
    return words;
}

Result<AllocationOrder> decode_order(const std::vector<std::string> &words) {
    if (words.size() < 2) return Status(Code::invalid_argument, "there is no order");
    auto verb = std::ranges::find(verbs, std::string_view(words[0]), &VerbName::name);
    if (verb == verbs.end()) return no_order(words[0]);
    AllocationOrder order;
    order.verb = verb->verb;
    DLROVER_TRY(take_number(words[1], 1, largest_job, order.job));
    if (order.verb == Verb::create) return decode_new(words, std::move(order));
    if (words.size() != 3) return Status(Code::invalid_argument, "one allocation is named");
    DLROVER_TRY(take_number(words[2], 1, largest_job, order.allocation));
    return order;
}

AllocationOrder release_of(const AllocationOrder &order, const AllocationState &made) {
    AllocationOrder release;
    release.verb = Verb::release;
    release.job = order.job;
    release.allocation = made.job;
    return release;
}

std::string encode_answer(const Result<AllocationState> &answer) {
    std::string line(answer_word);
    if (answer.ok()) {
        line += std::string(std::ranges::find(stages, answer->stage, &StageName::stage)->name) + " " +
                std::to_string(answer->job.value()) + " " + answer->words;
    } else {
        auto code = std::ranges::find(codes, answer.status().code(), &CodeName::code);
        if (code == codes.end()) --code;
        line += std::string(refused_word) + " " + std::string(code->name) + " " + answer.status().message();
    }
    return printable(line) + "\n";
}

std::optional<Result<AllocationState>> find_answer(std::string_view said) {
    for (std::size_t at = 0, end; (end = said.find('\n', at)) != std::string_view::npos; at = end + 1) {
        std::string_view line = said.substr(at, end - at);
        if (line.starts_with(answer_word)) return decode_line(line.substr(answer_word.size()));
    }
    return std::nullopt;
}

std::string last_words(std::string_view said) {
    while (said.ends_with('\n')) said.remove_suffix(1);
    std::string_view line = said.substr(said.rfind('\n') + 1);  // npos + 1 is 0
    return printable(std::string(line.substr(0, longest_reason)));
}

}  // namespace dlrover::proto
