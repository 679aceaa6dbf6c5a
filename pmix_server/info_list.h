// SPDX-License-Identifier: Apache-2.0
// An array of pmix_info_t and what is in it.
#pragma once

#include <span>
#include <string>

#include "base/status.h"
#include "pmix_server/job_data.h"
#include "pmix_server/pmix_api.h"

namespace dlrover::pmix {

class InfoList {
  public:
    InfoList() = default;
    InfoList(InfoList &&other) noexcept : infos_(std::exchange(other.infos_, {})) {}
    InfoList &operator=(InfoList &&) = delete;
    ~InfoList();

    void add(const char *key, const std::string &text);
    void add(const char *key, std::uint32_t number);
    void add(const char *key, std::uint16_t number);
    void add(const char *key, std::uint64_t number);
    void add(const char *key, double number);
    void add(const char *key, JobDatum::RankNumber rank);
    void add(const char *key, JobDatum::Yes yes);
    /// true.
    void add_flag(const char *key);
    void add_bytes(const char *key, std::span<const std::uint8_t> bytes);
    /// One of plain form.
    void add(const JobDatum &datum);
    /// A text that PMIx has made, and may hold more than characters.
    void add_regex(const char *key, const char *regex);
    void add_array(const char *key, const InfoList &items);
    void add_proc(const char *key, const pmix_proc_t &proc);
    /// So many, to be filled at once.
    pmix_info_t *add_empty(std::size_t count);
    /// Valid until the next add().
    pmix_info_t *data() { return infos_.data(); }
    std::size_t size() const { return infos_.size(); }

  private:
    pmix_info_t &next(const char *key);
    std::vector<pmix_info_t> infos_;
};

/// internal: PMIx could not make its own form of a list.
Result<InfoList> make_info(const JobData &data);

}  // namespace dlrover::pmix
