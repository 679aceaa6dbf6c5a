// SPDX-License-Identifier: Apache-2.0
// What clients ask for, as PMIx's own thread brings it: copied, and handed on to the loop.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/event_loop.h"
#include "pmix_server/allocation.h"
#include "pmix_server/announcement.h"
#include "pmix_server/completion.h"
#include "pmix_server/control.h"
#include "pmix_server/notice.h"

namespace dlrover::pmix {

/// The ranks of a namespace; none of them by number: all.
struct RankSet {
    std::string name_space;
    bool all = false;
    std::vector<std::uint32_t> ranks;  ///< ascending, each once
};

/// Thread: the loop's.
class Upcalls {
  public:
    struct Fence {
        RankSet who;
        proto::Bytes data;
        std::optional<std::chrono::seconds> timeout;
    };
    /// Its ranks make a process group, or (construct false) end it.
    struct Group {
        bool construct = true;
        std::string id;
        RankSet who;
        proto::Bytes data;
        bool wants_context = false;
        std::optional<std::chrono::seconds> timeout;
    };
    struct Modex {
        std::string name_space;
        std::uint32_t rank = 0;
        std::optional<std::chrono::seconds> timeout;
    };
    struct Abort {
        std::string name_space;
        std::uint32_t rank = 0;
        int status = 0;
        std::string text;
    };

    /// The asker's node is not in it.
    struct Publication {
        Change change;
        std::optional<std::chrono::seconds> timeout;
    };
    struct LookUp {
        NoticeQuery query;
        std::optional<std::chrono::seconds> timeout;
    };

    /// About the generation that is served; name_spaces: of the qualifiers.
    struct Query {
        std::vector<std::string> keys, name_spaces;
    };
    struct AllocationRequest {
        std::string name_space;
        std::uint32_t rank = 0;
        Allocation wanted;
    };
    struct ControlRequest {
        std::string name_space;
        std::uint32_t rank = 0;
        Control wanted;
    };
    struct Event {
        std::string name_space;
        Announcement announcement;
    };

    virtual ~Upcalls() = default;
    /// Of any rank here.
    virtual void on_client() = 0;
    virtual void on_fence(Fence fence, std::shared_ptr<DataCompletion> done) = 0;
    virtual void on_group(Group group, std::shared_ptr<QueryCompletion> done) = 0;
    virtual void on_modex(Modex modex, std::shared_ptr<DataCompletion> done) = 0;
    virtual void on_abort(Abort abort, std::shared_ptr<Completion> done) = 0;
    /// And what is not published any more.
    virtual void on_publication(Publication publication, std::shared_ptr<Completion> done) = 0;
    virtual void on_look_up(LookUp look_up, std::shared_ptr<LookUpCompletion> done) = 0;
    /// PMIx tells this node's ranks itself.
    virtual void on_event(Event event) = 0;
    virtual void on_query(Query query, std::shared_ptr<QueryCompletion> done) = 0;
    /// How an allocation beside the group's own is; the order lacks whose ranks ask.
    virtual void on_status_query(proto::AllocationOrder order, std::shared_ptr<QueryCompletion> done) = 0;
    virtual void on_allocation(AllocationRequest request, std::shared_ptr<QueryCompletion> done) = 0;
    virtual void on_control(ControlRequest request, std::shared_ptr<QueryCompletion> done) = 0;
};

/// The table of functions for PMIx. What is not in it PMIx refuses with PMIX_ERR_NOT_SUPPORTED. `loop` and
/// `upcalls` live as long as the process.
pmix_server_module_t make_server_module(EventLoop &loop, Upcalls &upcalls);

}  // namespace dlrover::pmix
