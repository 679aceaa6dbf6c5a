// SPDX-License-Identifier: Apache-2.0
// Stands between the daemon and PMIx: takes worlds and parcels from the one, upcalls from the other.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "helper/environment.h"
#include "pmix_server/exchange.h"
#include "pmix_server/news.h"
#include "pmix_server/server.h"
#include "pmix_server/upcalls.h"
#include "proto/local_client.h"

namespace dlrover::pmix {

/// Thread: the loop's. Lives as long as the process.
class Service final : public Upcalls {
  public:
    Service(EventLoop &loop, const helper::Environment &environment)
        : loop_(loop), environment_(environment) {}
    /// Connects to the daemon, again and again.
    void begin();

    void on_fence(Fence fence, std::shared_ptr<DataCompletion> done) override;
    void on_modex(Modex modex, std::shared_ptr<DataCompletion> done) override;
    void on_abort(Abort abort, std::shared_ptr<Completion> done) override;
    void on_publication(Publication publication, std::shared_ptr<Completion> done) override;
    void on_look_up(LookUp look_up, std::shared_ptr<LookUpCompletion> done) override;
    void on_event(Event event) override;
    void on_query(Query query, std::shared_ptr<QueryCompletion> done) override;
    void on_allocation(AllocationRequest request, std::shared_ptr<QueryCompletion> done) override;

  private:
    Status connect();
    void on_readable();
    void lose_daemon();
    template <typename BodyT>
    void tell(BodyT body);
    void take(proto::LocalMessage push);
    void on_world(const proto::local::PmixWorldT &message);
    void on_parcel(const proto::local::PmixParcelT &message);
    Status change_world(const proto::local::PmixWorldT &message);
    void retire();
    void on_gone(const GenerationId &generation);
    void remove_retired();
    void serve(World world);
    void stop_exchange(const std::string &reason);
    void announced(const Announcement &announcement);
    void notify(const News &news) const;
    void on_state(const proto::local::PmixStateT &state);
    void on_scaled(const proto::local::PmixScaleReplyT &reply);
    void answer(const Query &query, QueryCompletion &done, const proto::local::PmixStateT &state) const;
    void send(std::uint32_t to, const Parcel &parcel);
    void finish(Exchange::Token token, Outcome outcome, const proto::Bytes &data);
    void told(Exchange::Token token, Outcome outcome, const std::vector<Notice> &found);
    const std::string &own_name() const { return exchange_->world().nodes[exchange_->world().place]; }
    void look_up(std::uint32_t from, std::uint64_t number, std::uint32_t rank);
    /// What is about the generation that `message` names is about the one that is served.
    bool is_present(const std::unique_ptr<proto::Generation> &generation) const;
    bool is_present(const std::string &name_space) const;
    Exchange::Token remember(std::shared_ptr<DataCompletion> done);
    void give_up(Exchange::Token token, const Status &why);
    Time deadline(const std::optional<std::chrono::seconds> &timeout) const;
    void schedule();

    EventLoop &loop_;
    const helper::Environment environment_;
    std::optional<proto::LocalClient> client_;
    std::unique_ptr<Exchange> exchange_;  ///< of the generation that is served
    Variables variables_;                 ///< of its ranks
    std::map<Exchange::Token, std::shared_ptr<DataCompletion>> waiting_;
    using Told = std::function<void(pmix_status_t status, const std::vector<Notice> &found)>;
    std::map<Exchange::Token, Told> asking_;  ///< what is published, or looked up
    /// Waits for the daemon's word of the group.
    struct Asked {
        Query query;
        std::shared_ptr<QueryCompletion> done;
        EventLoop::Handle timer;
    };
    std::map<std::uint64_t, Asked> querying_;  ///< by the number that the daemon brings back
    struct Allocating {
        Allocation wanted;
        std::shared_ptr<QueryCompletion> done;
        EventLoop::Handle timer;
    };
    std::map<std::uint64_t, Allocating> allocating_;  ///< the same
    Exchange::Token last_token_ = 0;
    Board board_;  ///< between generations
    EventLoop::Time pause_{0};
    UniqueFd watched_;  ///< the connection's, but closed when nobody watches it any more
    struct Retired {
        World world;
        std::optional<Time> gone_at;  ///< its processes; none: they may not have ended yet
    };
    std::vector<Retired> retired_;
    GenerationId gone_;  ///< the processes of this one and older ones
    EventLoop::Handle readable_, connect_timer_, exchange_timer_, retired_timer_;
};

}  // namespace dlrover::pmix
