// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/info_list.h"

#include <cstdlib>
#include <memory>

namespace dlrover::pmix {
namespace {

using Form = JobDatum::Form;

struct Free {
    void operator()(char *text) const { std::free(text); }
};

Status add_map(InfoList &list, const JobDatum &datum) {
    auto make = datum.form == Form::node_map ? PMIx_generate_regex : PMIx_generate_ppn;
    char *regex = nullptr;
    pmix_status_t status = make(std::get<std::string>(datum.value).c_str(), &regex);
    std::unique_ptr<char, Free> owner(regex);
    if (status != PMIX_SUCCESS || regex == nullptr)
        return Status(Code::internal,
                      std::string("PMIx could not describe the nodes: ") + PMIx_Error_string(status));
    list.add_regex(datum.key, regex);
    return {};
}

Status add_datum(InfoList &list, const JobDatum &datum) {
    if (datum.form != Form::plain) return add_map(list, datum);
    list.add(datum);
    return {};
}

}  // namespace

InfoList::~InfoList() {
    for (auto &info : infos_) PMIX_INFO_DESTRUCT(&info);
}

pmix_info_t *InfoList::add_empty(std::size_t count) {
    std::size_t first = infos_.size();
    infos_.resize(first + count);
    for (std::size_t i = first; i < infos_.size(); ++i) PMIX_INFO_CONSTRUCT(&infos_[i]);
    return infos_.data() + first;
}

pmix_info_t &InfoList::next(const char *key) {
    auto &info = *add_empty(1);
    PMIX_LOAD_KEY(info.key, key);
    return info;
}

void InfoList::add(const char *key, const std::string &text) {
    auto &info = next(key);
    PMIX_VALUE_LOAD(&info.value, text.c_str(), PMIX_STRING);
}

void InfoList::add(const char *key, std::uint32_t number) {
    auto &info = next(key);
    PMIX_VALUE_LOAD(&info.value, &number, PMIX_UINT32);
}

void InfoList::add_flag(const char *key) {
    bool yes = true;
    PMIX_VALUE_LOAD(&next(key).value, &yes, PMIX_BOOL);
}

void InfoList::add(const char *key, std::uint16_t number) {
    auto &info = next(key);
    PMIX_VALUE_LOAD(&info.value, &number, PMIX_UINT16);
}

void InfoList::add(const char *key, std::uint64_t number) {
    auto &info = next(key);
    PMIX_VALUE_LOAD(&info.value, &number, PMIX_UINT64);
}

void InfoList::add(const char *key, double number) {
    auto &info = next(key);
    PMIX_VALUE_LOAD(&info.value, &number, PMIX_DOUBLE);
}

void InfoList::add(const JobDatum &datum) {
    std::visit([&](const auto &value) { add(datum.key, value); }, datum.value);
}

void InfoList::add(const char *key, JobDatum::RankNumber rank) {
    auto &info = next(key);
    pmix_rank_t number = rank.rank;
    PMIX_VALUE_LOAD(&info.value, &number, PMIX_PROC_RANK);
}

void InfoList::add(const char *key, JobDatum::Yes) {
    add_flag(key);
}

void InfoList::add_regex(const char *key, const char *regex) {
    auto &info = next(key);
    PMIX_VALUE_LOAD(&info.value, regex, PMIX_REGEX);
}

void InfoList::add_proc(const char *key, const pmix_proc_t &proc) {
    auto &info = next(key);
    PMIX_VALUE_LOAD(&info.value, &proc, PMIX_PROC);  // copies
}

void InfoList::add_bytes(const char *key, std::span<const std::uint8_t> bytes) {
    pmix_byte_object_t object{};
    object.bytes = reinterpret_cast<char *>(const_cast<std::uint8_t *>(bytes.data()));
    object.size = bytes.size();
    auto &info = next(key);
    PMIX_VALUE_LOAD(&info.value, &object, PMIX_BYTE_OBJECT);  // copies
}

void InfoList::add_array(const char *key, const InfoList &items) {
    pmix_data_array_t array{};
    array.type = PMIX_INFO;
    array.size = items.infos_.size();
    array.array = const_cast<pmix_info_t *>(items.infos_.data());
    auto &info = next(key);
    PMIX_VALUE_LOAD(&info.value, &array, PMIX_DATA_ARRAY);  // copies
}

Result<InfoList> make_info(const JobData &data) {
    InfoList list;
    for (const auto &datum : data.job) DLROVER_TRY(add_datum(list, datum));
    for (const auto &rank : data.ranks) {
        InfoList items;
        for (const auto &datum : rank) DLROVER_TRY(add_datum(items, datum));
        list.add_array(PMIX_PROC_INFO_ARRAY, items);
    }
    return list;
}

}  // namespace dlrover::pmix
