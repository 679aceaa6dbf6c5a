// SPDX-License-Identifier: Apache-2.0
// PMIx waits for the answer to an upcall. Exactly one is given: the destructor gives an error.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "pmix_server/info_list.h"
#include "proto/frame.h"

namespace dlrover::pmix {

/// Of a fence or a direct modex. Thread: any, one at a time.
class DataCompletion {
  public:
    DataCompletion(pmix_modex_cbfunc_t function, void *data) : function_(function), data_(data) {}
    DataCompletion(DataCompletion &&other) noexcept
        : function_(std::exchange(other.function_, nullptr)), data_(other.data_) {}
    DataCompletion &operator=(DataCompletion &&) = delete;
    ~DataCompletion() {
        if (function_ != nullptr) finish(PMIX_ERROR, {});
    }

    void finish(pmix_status_t status, const proto::Bytes &bytes) {
        auto function = std::exchange(function_, nullptr);
        if (function == nullptr) return;
        if (bytes.empty()) return function(status, nullptr, 0, data_, nullptr, nullptr);
        // PMIx reads it later, on its own thread, and says when it has.
        auto *copy = new proto::Bytes(bytes);
        auto drop = [](void *mine) { delete static_cast<proto::Bytes *>(mine); };
        function(status, reinterpret_cast<const char *>(copy->data()), copy->size(), data_, drop, copy);
    }

  private:
    pmix_modex_cbfunc_t function_;
    void *data_;
};

/// Of a look-up. Thread: as above.
class LookUpCompletion {
  public:
    LookUpCompletion(pmix_lookup_cbfunc_t function, void *data) : function_(function), data_(data) {}
    LookUpCompletion(LookUpCompletion &&other) noexcept
        : function_(std::exchange(other.function_, nullptr)), data_(other.data_) {}
    LookUpCompletion &operator=(LookUpCompletion &&) = delete;
    ~LookUpCompletion() { finish(PMIX_ERROR, {}); }

    /// PMIx copies what is found before it returns.
    void finish(pmix_status_t status, std::span<pmix_pdata_t> found) {
        auto function = std::exchange(function_, nullptr);
        if (function != nullptr)
            function(status, found.empty() ? nullptr : found.data(), found.size(), data_);
    }

  private:
    pmix_lookup_cbfunc_t function_;
    void *data_;
};

/// Of a query. Thread: as above.
class QueryCompletion {
  public:
    QueryCompletion(pmix_info_cbfunc_t function, void *data) : function_(function), data_(data) {}
    QueryCompletion(QueryCompletion &&other) noexcept
        : function_(std::exchange(other.function_, nullptr)), data_(other.data_) {}
    QueryCompletion &operator=(QueryCompletion &&) = delete;
    ~QueryCompletion() { finish(PMIX_ERROR, {}); }

    void finish(pmix_status_t status, InfoList found) {
        auto function = std::exchange(function_, nullptr);
        if (function == nullptr) return;
        if (found.size() == 0) return function(status, nullptr, 0, data_, nullptr, nullptr);
        // PMIx reads it later, on its own thread, and says when it has.
        auto *list = new InfoList(std::move(found));
        auto drop = [](void *mine) { delete static_cast<InfoList *>(mine); };
        function(status, list->data(), list->size(), data_, drop, list);
    }

  private:
    pmix_info_cbfunc_t function_;
    void *data_;
};

/// Of what has no answer but success.
class Completion {
  public:
    Completion(pmix_op_cbfunc_t function, void *data) : function_(function), data_(data) {}
    Completion(Completion &&other) noexcept
        : function_(std::exchange(other.function_, nullptr)), data_(other.data_) {}
    Completion &operator=(Completion &&) = delete;
    ~Completion() { finish(PMIX_ERROR); }

    void finish(pmix_status_t status) {
        if (auto function = std::exchange(function_, nullptr)) function(status, data_);
    }

  private:
    pmix_op_cbfunc_t function_;
    void *data_;
};

}  // namespace dlrover::pmix
