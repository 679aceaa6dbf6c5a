// SPDX-License-Identifier: Apache-2.0
// Stands between the daemon and PMIx: takes worlds and parcels from the one, upcalls from the other.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "helper/environment.h"
#include "pmix_server/allocator.h"
#include "pmix_server/client_watch.h"
#include "pmix_server/exchange.h"
#include "pmix_server/news.h"
#include "pmix_server/server.h"
#include "pmix_server/upcalls.h"
#include "proto/local_client.h"

namespace dlrover::pmix {

/// Thread: the loop's. Lives as long as the process.
class Service final : public Upcalls {
  public:
    /// Goes on in another process, with what is published; for the next generation. Does not come back.
    using Renew = std::function<void(const Board &board)>;
    /// board: of the generations before.
    /// `slurm`: what asks it.
    Service(EventLoop &loop, const helper::Environment &environment, Allocator::Program slurm, Board board,
            Renew renew)
        : loop_(loop),
          environment_(environment),
          allocator_(loop, std::move(slurm)),
          board_(std::move(board)),
          renew_(std::move(renew)) {}
    /// Connects to the daemon, again and again.
    void begin();
    /// Ends this process when no client is connected any more.
    void end_with_clients();

    void on_client() override;
    void on_fence(Fence fence, std::shared_ptr<DataCompletion> done) override;
    void on_group(Group group, std::shared_ptr<QueryCompletion> done) override;
    void on_modex(Modex modex, std::shared_ptr<DataCompletion> done) override;
    void on_abort(Abort abort, std::shared_ptr<Completion> done) override;
    void on_publication(Publication publication, std::shared_ptr<Completion> done) override;
    void on_look_up(LookUp look_up, std::shared_ptr<LookUpCompletion> done) override;
    void on_event(Event event) override;
    void on_query(Query query, std::shared_ptr<QueryCompletion> done) override;
    void on_status_query(proto::AllocationOrder order, std::shared_ptr<QueryCompletion> done) override;
    void on_allocation(AllocationRequest request, std::shared_ptr<QueryCompletion> done) override;
    void on_control(ControlRequest request, std::shared_ptr<QueryCompletion> done) override;

  private:
    Status connect();
    void on_readable();
    void lose_daemon();
    template <typename BodyT>
    void tell(BodyT body) {
        tell_made(proto::make_local(0, std::move(body)));
    }
    void tell_made(const proto::local::MessageT &message);
    void take(proto::LocalMessage push);
    void on_world(const proto::local::PmixWorldT &message);
    void on_parcel(const proto::local::PmixParcelT &message);
    Status change_world(const proto::local::PmixWorldT &message);
    void make_room();
    void renew_after(unsigned queues);
    void renew_without_clients();
    [[noreturn]] void renew();
    void leave_world();
    void look_at_pmix();
    void serve(World world);
    void stop_exchange(const std::string &reason);
    void announced(const Announcement &announcement);
    void notify(const News &news) const;
    using Answered = std::function<void(const proto::local::BodyUnion &answer)>;
    /// `done` is finished here only if no answer comes, or too many wait.
    template <typename Request>
    void ask_daemon(Request request, const std::shared_ptr<QueryCompletion> &done, Answered answered);
    void on_answer(std::uint64_t number, const proto::local::BodyUnion &answer);
    pmix_status_t ask_for_checkpoint(std::uint32_t rank);
    void answer(const Query &query, QueryCompletion &done, const proto::local::PmixStateT &state) const;
    /// That generation is served, and its ranks have not been told of its end.
    bool goes_on(const std::string &name_space) const;
    void ask_slurm(AllocationRequest request, std::shared_ptr<QueryCompletion> done);
    std::optional<JobDatum> refusal_datum() const;
    /// The status, of what that rank has asked for.
    pmix_status_t note_refusal(std::uint32_t rank, pmix_status_t status, const std::string &text);
    void send(std::uint32_t to, const Parcel &parcel);
    void finish(Exchange::Token token, Outcome outcome, const proto::Bytes &data);
    void told(Exchange::Token token, Outcome outcome, const std::vector<Notice> &found);
    const std::string &own_name() const { return exchange_->world().nodes[exchange_->world().place]; }
    void look_up(std::uint32_t from, std::uint64_t number, std::uint32_t rank);
    /// What is about the generation that `message` names is about the one that is served.
    bool is_present(const std::unique_ptr<proto::Generation> &generation) const;
    bool is_present(const std::string &name_space) const;
    using Finished = std::function<void(pmix_status_t status, const proto::Bytes &data)>;
    static Finished to(std::shared_ptr<DataCompletion> done);
    Exchange::Token remember(Finished done);
    struct Limit {
        Time at = Time::max();
        bool is_ours = false;  ///< the server's, not the program's
    };
    Limit limit(const std::optional<std::chrono::seconds> &timeout, Time before = Time(0)) const;
    struct Wait {
        Time deadline = Time::max();
        Finished done;
    };
    Wait limited(const std::optional<std::chrono::seconds> &timeout, const char *purpose, Finished done,
                 Time before = Time(0));
    void note_end(const Limit &limit, pmix_status_t status, const char *purpose);
    void say_overdue(const char *purpose);
    void look_at_waits();
    void tell_local_wait(const std::vector<ClientWait> &clients, const Conversation::Wait &longest);
    void join(const RankSet &who, Wait wait, Exchange::Fence fence);
    void give_up(Exchange::Token token, const Status &why);
    void schedule();

    EventLoop &loop_;
    const helper::Environment environment_;
    std::optional<proto::LocalClient> client_;
    std::unique_ptr<Exchange> exchange_;  ///< of the generation that is served
    Variables variables_;                 ///< of its ranks
    bool used_ = false;                   ///< a rank has connected to this process
    GenerationId said_overdue_;           ///< the last one for which it was said
    std::map<Exchange::Token, Finished> waiting_;
    std::uint64_t last_context_ = 0;  ///< of process groups
    using Told = std::function<void(pmix_status_t status, const std::vector<Notice> &found)>;
    struct Question {
        std::uint32_t rank = 0;  ///< whose it is
        Told told;
    };
    std::map<Exchange::Token, Question> asking_;  ///< what is published, or looked up
    /// Waits for the daemon's word of the group.
    struct Asked {
        Answered answered;
        EventLoop::Handle timer;
    };
    std::map<std::uint64_t, Asked> asked_;  ///< by the number that the daemon brings back
    struct Refusal {
        std::uint32_t rank = 0;
        std::string text;
    };
    std::vector<Refusal>
        refusals_;  ///< each rank's last one, until a request of its is granted; the newest last
    Allocator allocator_;
    Exchange::Token last_token_ = 0;
    Board board_;  ///< until the first generation begins
    Renew renew_;
    EventLoop::Time farewell_ends_{0};
    EventLoop::Handle farewell_;
    EventLoop::Time pause_{0};
    UniqueFd watched_;    ///< the connection's, but closed when nobody watches it any more
    unsigned looks_ = 0;  ///< since PMIx has answered
    EventLoop::Handle readable_, connect_timer_, exchange_timer_, renew_timer_, send_timer_, look_timer_,
        waits_timer_;
};

}  // namespace dlrover::pmix
