// SPDX-License-Identifier: Apache-2.0
// One group's checkpoints on their way to storage, on this node: what its writer does, what rank 0's node has
// ordered, and, where this is that node, what is ordered.
#pragma once

#include <optional>
#include <set>

#include "common/event_loop.h"
#include "common/settings.h"
#include "daemon/arena.h"
#include "daemon/flush_codec.h"
#include "daemon/local_port.h"
#include "daemon/storage_silence.h"
#include "elastic/flusher.h"
#include "elastic/mark_search.h"
#include "elastic/member.h"

namespace dlrover::daemon {

/// Thread: the event loop's.
class GroupStorage {
  public:
    struct Services {
        EventLoop &loop;
        LocalPort &port;
        const Settings &settings;
        Arena &arena;
    };
    struct Facts {
        std::string lineage;
        proto::ElasticOptionsT options;
        NodeIndex self;
        std::string node;
    };
    struct Hooks {
        std::function<void(NodeIndex to, const FlushWord &word)> send;
        /// Whose objects of a world of this size this node puts there; none: of whatever ranks it holds.
        std::function<std::optional<std::vector<Rank>>(std::uint32_t world_size)> own_ranks;
        /// That object in this node's memory does not match its checksums. Never from inside a call.
        std::function<void(Rank rank, const CheckpointId &id, SlotIndex slot)> damaged;
        std::function<void(const elastic::LocalStorage &found)> found;
        std::function<void(proto::EventKind kind, std::string text, const CheckpointId &id,
                           std::int64_t duration_us)>
            tell;
        std::function<void(const std::string &text)> say_on_terminal;
        std::function<std::string(NodeIndex node)> name_of;
        /// Here the last part of it was put on storage. Never from inside a call.
        std::function<void(const CheckpointId &id)> stored;
        /// After end(): this node has nothing to wait for any more. Once, never from inside a call.
        std::function<void()> over;
    };

    GroupStorage(Services services, Facts facts, Hooks hooks);
    ~GroupStorage();
    GroupStorage(const GroupStorage &) = delete;
    GroupStorage &operator=(const GroupStorage &) = delete;

    // ---- the writer of this node ----
    void on_writer_hello(const Client &from, std::uint32_t id);
    /// false: no message of a writer.
    bool on_writer_message(const Client &from, const local::MessageT &message);
    void on_writer_gone(ConnectionId connection);
    bool is_writer(ConnectionId connection) const { return writer_ == connection; }

    // ---- the group ----
    /// What a former daemon of this node has put there. Before the first world.
    void restore_stored(const CheckpointId &id, std::int64_t time_us);
    void look(const elastic::LookAtStorage &question);
    /// A world is in force, after a daemon's restart too. `complete`: the newest complete step in memory.
    /// `again`: it follows a failure.
    void on_world(const elastic::World &world, std::optional<elastic::CompleteStep> complete, bool again);
    /// A part of what was the newest complete step is nowhere any more.
    void on_lost(const CheckpointId &id);
    /// This node does not hold that object any more.
    void on_dropped(Rank rank, const CheckpointId &id);
    void on_complete(elastic::CompleteStep step);
    /// A rank asked for this complete step on storage.
    void on_asked(const CheckpointId &id);
    void on_word(NodeIndex from, const FlushWord &word);
    /// Slurm ends the job then; none: nobody knows.
    void on_job_end(std::optional<EventLoop::Time> end);
    /// This is rank 0's node: it orders.
    bool is_home() const { return home_ == facts_.self && flusher_; }
    /// The group has ended: Hooks::over follows once the newest complete step is on storage, or it has taken
    /// too long.
    void end();

    std::unique_ptr<local::StorageStatusT> status() const;
    /// The newest that this node has completed there.
    const std::optional<CheckpointId> &stored() const { return stored_; }

  private:
    /// What this node has to put on storage.
    struct Part {
        NodeIndex home;
        FlushWord order;
        std::vector<std::pair<Rank, Arena::Object>> objects = {};  ///< kept; the last is with the writer
        std::vector<Rank> lacks = {};                              ///< are not here, or damaged
        std::string why_lacking = {};                              ///< of the first
        bool stored = false;                                       ///< but for these
        std::uint64_t bytes = 0;                                   ///< of all its objects
        std::uint64_t written = 0;                                 ///< of those that are there
        std::uint64_t partly = 0;                                  ///< of the one with the writer
        EventLoop::Time begun{0}, took{0};
    };
    /// Rank 0's node: what nodes do not have of their own objects is asked for from those with copies.
    struct Missing {
        std::set<Rank> ranks;
        std::string why;          ///< of the first
        std::vector<Rank> asked;  ///< of all nodes; empty: each has only been asked for its own
    };

    // this node's part
    void begin_part(NodeIndex home, const FlushWord &order);
    void store_next();
    void on_object_stored(const local::ObjectStoredT &stored);
    void take_objects();
    void lack(Rank rank, const Arena::Object &object, const std::string &text);
    void on_object_damaged(const std::string &text);
    void answer_part();
    void on_progress(const local::ObjectProgressT &progress);
    std::unique_ptr<local::StorageProgressT> progress() const;
    void fail_part(const std::string &text);
    void release_part();
    void answer_home(FlushWord::Kind kind, const std::string &text);
    void send(NodeIndex to, FlushWord word);

    // rank 0's node
    void act(elastic::Flusher::Actions actions);
    void begin_order(const elastic::FlushBegin &begin);
    void drop_order(std::uint64_t number);
    void stop_ordering();
    void tell(const elastic::FlushNote &note);
    void tell(const elastic::FlushPassed &passed);
    void on_part_over(NodeIndex from, const FlushWord &word);
    void end_round();
    void complete_order();
    void on_checkpoint_stored(const local::CheckpointStoredT &stored);
    void remark(const std::string &text);
    void remind();
    void schedule();
    std::unique_ptr<local::StoredCheckpointT> describe(const CheckpointId &id, std::uint32_t ranks) const;

    // whether the nodes share the folder
    void test_folder();
    void ask_for_mark();
    void on_folder_tested(const local::FolderTestedT &tested);
    void on_mark_not_seen(NodeIndex from);
    void tell_apart();

    // the question and the end
    void ask_writer();
    void on_folder_found(const local::FolderFoundT &found);
    void answer_question(const elastic::LocalStorage &answer);
    bool writer_owes() const;
    std::string silence_text(EventLoop::Time lasted) const;
    void tell_silence(EventLoop::Time lasted, bool over);
    void on_no_writer();
    void check_end();
    bool is_deserted() const;
    bool is_hanging() const;
    /// Why the end does not wait for the last checkpoint any longer; empty: it does.
    std::string reason_to_end() const;
    std::string why_not_text() const;
    void give_up_silent();
    void ask_home();
    void say_over();
    bool idle_here() const;

    Services services_;
    Facts facts_;
    Hooks hooks_;
    std::optional<ConnectionId> writer_;
    std::optional<std::uint64_t> question_;      ///< elastic::LookAtStorage::request
    std::vector<elastic::Suspect> passed_over_;  ///< by that question
    std::uint64_t look_order_ = 0;
    GenerationId world_;
    std::optional<NodeIndex> home_;
    std::vector<NodeIndex> world_nodes_;
    std::optional<Part> part_;
    std::optional<elastic::Flusher> flusher_;
    std::optional<elastic::FlushBegin> flying_;
    std::set<NodeIndex> silent_;  ///< have not said what became of the order
    Missing missing_;             ///< of the order
    std::optional<CheckpointId> stored_, asked_;
    std::int64_t stored_us_ = 0;
    std::optional<EventLoop::Time> job_end_;
    std::string trouble_;  ///< of this node
    std::string remark_;   ///< of the folder, told
    bool ending_ = false, over_ = false;
    EventLoop::Time ending_since_{0}, home_heard_{0}, writer_gone_{0};
    std::map<NodeIndex, EventLoop::Time> heard_;  ///< at rank 0's node
    StorageSilence silence_;
    std::optional<NodeIndex> marks_;             ///< whose mark is made or looked for
    std::optional<elastic::MarkSearch> search_;  ///< here, after another node's mark
    elastic::MarkedFolder marked_;               ///< rank 0's node
    std::uint64_t test_order_ = 0;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
    EventLoop::Handle flush_timer_, remind_timer_, question_timer_, end_timer_, test_timer_, apart_timer_;
};

}  // namespace dlrover::daemon
