// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/service.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "pmix_server/dlrover_pmix.h"
#include "pmix_server/group_part.h"
#include "pmix_server/unsent.h"
#include "pmix_server/value_codec.h"

namespace dlrover::pmix {
namespace {

namespace local = proto::local;
using namespace std::chrono_literals;
constexpr EventLoop::Time first_pause = 50ms, longest_pause = 1s;
constexpr EventLoop::Time most_room = 1s;  ///< for the last words, where libpmix or a rank is slow
/// For the ranks' end: they have timing.stop_grace (5 s). The daemon waits for longer (PmixRelay::patience).
constexpr EventLoop::Time most_farewell = 8s;
constexpr EventLoop::Time send_interval = 1ms, end_interval = 5ms;
constexpr unsigned libpmix_queues = 3;  ///< from its call to its socket
constexpr EventLoop::Time look_interval = 2s;
constexpr unsigned most_looks = 5;
constexpr Time pmix_itself = 200ms;  ///< its own timer must not come first: see look_at_pmix()
constexpr std::chrono::milliseconds answer_limit{5000};

std::unique_ptr<proto::Generation> to_proto(const GenerationId &id) {
    return std::make_unique<proto::Generation>(id.term.value(), id.number);
}

pmix_status_t status_of(Outcome outcome) {
    switch (outcome) {
        case Outcome::Done:
            return PMIX_SUCCESS;
        case Outcome::TimedOut:
            return PMIX_ERR_TIMEOUT;
        case Outcome::Lost:
            return PMIX_ERR_LOST_CONNECTION;
        case Outcome::TooLarge:
            return PMIX_ERR_OUT_OF_RESOURCE;
        case Outcome::Unknown:
            return PMIX_ERR_NOT_FOUND;
        case Outcome::Duplicate:
            return PMIX_ERR_DUPLICATE_KEY;
    }
    return PMIX_ERROR;
}

pmix_status_t status_of(const Status &status) {
    if (status.code() == Code::invalid_argument) return PMIX_ERR_NOT_SUPPORTED;
    if (status.code() == Code::resource_exhausted) return PMIX_ERR_OUT_OF_RESOURCE;
    return PMIX_ERR_LOST_CONNECTION;
}

/// What is found, as PMIx wants it.
class FoundList {
  public:
    FoundList() = default;
    FoundList(const FoundList &) = delete;
    FoundList &operator=(const FoundList &) = delete;
    ~FoundList() {
        for (auto &one : all_) PMIX_PDATA_DESTRUCT(&one);
    }
    /// false: PMIx does not know its value.
    bool add(const Notice &notice) {
        auto &one = all_.emplace_back();
        PMIX_PDATA_CONSTRUCT(&one);
        PMIX_LOAD_PROCID(&one.proc, notice.name_space.c_str(), notice.rank);
        PMIX_LOAD_KEY(one.key, notice.key.c_str());
        return unpack_value(notice.value, one.value).ok();
    }
    std::span<pmix_pdata_t> all() { return all_; }

  private:
    std::vector<pmix_pdata_t> all_;
};

}  // namespace

// ---- the daemon ----

void Service::begin() {
    if (!look_timer_) look_at_pmix();
    readable_.reset();
    client_.reset();
    if (connect().ok()) {
        pause_ = first_pause;
        watched_.reset(::fcntl(client_->fd(), F_DUPFD_CLOEXEC, 0));
        if (watched_) readable_ = loop_.when_readable(watched_.get(), [this] { on_readable(); });
        return on_readable();  // pushes may have come together with the welcome
    }
    // Why not is the agent's to say: it has the same daemon. Ours is to come back.
    pause_ = std::clamp(2 * pause_, first_pause, longest_pause);
    connect_timer_ = loop_.after(pause_, [this] { begin(); });
}

/// libpmix 4.2.2 has a timer that never comes back (PMIX_TIMEOUT of a process group that is not made in
/// time), and then answers nobody any more. The guard starts this program again, and the group its ranks.
void Service::look_at_pmix() {
    if (looks_ >= most_looks) {
        std::fputs("dlrover-pmixd: libpmix answers nobody any more\n", stderr);
        std::abort();
    }
    if (looks_++ == 0) Server::look(loop_, [this] { looks_ = 0; });
    look_timer_ = loop_.after(look_interval, [this] { look_at_pmix(); });
}

Status Service::connect() {
    auto client = proto::LocalClient::connect(environment_.socket, local::Role::Pmix, answer_limit);
    if (!client) return client.take_status();
    local::PmixHelloT hello;
    hello.job_id = environment_.job.value();
    hello.step_id = environment_.step.value();
    if (exchange_) hello.serving = to_proto(exchange_->world().generation);
    hello.used = used_;
    auto welcome = client->call(std::move(hello), answer_limit);
    if (!welcome) return welcome.take_status();
    client_ = std::move(*client);
    return {};
}

void Service::on_readable() {
    while (client_) {
        auto push = client_->receive(0ms);
        if (!push && push.status().code() == Code::timeout) return;
        if (!push) return lose_daemon();
        take(std::move(*push));
    }
}

/// What is under way goes on when it is back.
void Service::lose_daemon() {
    readable_.reset();
    watched_.reset();
    client_.reset();
    connect_timer_ = loop_.after(first_pause, [this] { begin(); });
}

void Service::tell_made(const proto::local::MessageT &message) {
    if (!client_ || client_->send_made(message, answer_limit).ok() || client_->connected()) return;
    // Not from here: whoever calls may be using the connection.
    connect_timer_ = loop_.after(EventLoop::Time(0), [this] { lose_daemon(); });
}

void Service::take(proto::LocalMessage push) {
    auto &body = push.message.body;
    if (auto *world = body.AsPmixWorld()) on_world(*world);
    if (auto *parcel = body.AsPmixParcel()) on_parcel(*parcel);
    if (auto *stop = body.AsPmixStop(); stop && exchange_ && stop->generation) {
        GenerationId last{Term(stop->generation->term()), stop->generation->number()};
        if (exchange_->world().generation <= last) stop_exchange(stop->reason);
    }
    if (auto *event = body.AsPmixEvent(); event && is_present(event->generation))
        if (auto news = make_news(exchange_->world(), *event)) notify(*news);
    if (auto *state = body.AsPmixState()) on_answer(state->number, body);
    if (auto *reply = body.AsPmixScaleReply()) on_answer(reply->number, body);
    if (auto *reply = body.AsPmixRestartReply()) on_answer(reply->number, body);
    if (auto *lost = body.AsPmixUnreachable(); lost && is_present(lost->generation))
        exchange_->lose(loop_.now(), lost->place);
    schedule();
}

/// A daemon that has been restarted may say it again.
void Service::on_world(const local::PmixWorldT &message) {
    if (exchange_ && !is_present(message.generation)) {
        if (used_) return make_room();
        leave_world();
    }
    Status status = exchange_ ? Status() : change_world(message);
    local::PmixReadyT ready;
    if (message.generation) ready.generation = std::make_unique<proto::Generation>(*message.generation);
    ready.ok = status.ok();
    ready.text = status.message();
    if (ready.ok) ready.variables = variables_;
    tell(std::move(ready));
}

Status Service::change_world(const local::PmixWorldT &message) {
    auto world = make_world(message);
    if (!world) return world.take_status();
    auto variables = Server::add(*world);
    if (!variables) {
        Server::remove(*world);
        return variables.take_status();
    }
    variables_ = std::move(*variables);
    serve(std::move(*world));
    return {};
}

/// Of a world whose ranks had no use of PMIx nothing stays but what others have published.
void Service::leave_world() {
    stop_exchange("another one begins");
    Server::remove(exchange_->world());
    board_ = exchange_->release_board();
    exchange_.reset();
    refusals_.clear();
}

/// PMIx 4.2.2 keeps what it had for clients and fences of a former namespace, and takes a process group of
/// the same name in another one for that of the former one. So each generation has a process of its own.
void Service::make_room() {
    if (renew_timer_) return;
    stop_exchange("another one begins");
    farewell_ends_ = loop_.now() + most_farewell;
    renew_timer_ = loop_.after(most_room, [this] { renew_without_clients(); });
    renew_after(libpmix_queues);
}

/// Ranks have to hear of the end: what they are told goes through the queues of libpmix's thread, and then
/// out, a message at a time. What their kernel has of it they can read after this process, too.
void Service::renew_after(unsigned queues) {
    if (queues > 0) return Server::look(loop_, [this, queues] { renew_after(queues - 1); });
    if (!has_unsent()) return renew_without_clients();
    send_timer_ = loop_.after(send_interval, [this] { renew_after(0); });
}

/// libpmix deletes the files that a rank has registered (PMIX_REGISTER_CLEANUP: Open MPI's shared memory,
/// say) when it notices its end. The next ranks of this node do not begin before that.
void Service::renew_without_clients() {
    if (loop_.now() >= farewell_ends_) return renew();
    renew_timer_ = loop_.after(farewell_ends_ - loop_.now(), [this] { renew(); });
    if (!has_clients()) return Server::look(loop_, [this] { renew(); });
    send_timer_ = loop_.after(end_interval, [this] { renew_without_clients(); });
}

/// As above, at the end of the step. The guard does not wait for long.
void Service::end_with_clients() {
    farewell_.reset();
    if (!has_clients()) return Server::look(loop_, [] { std::_Exit(0); });
    farewell_ = loop_.after(end_interval, [this] { end_with_clients(); });
}

void Service::renew() {
    renew_(exchange_->release_board());
    std::abort();  // it does not come back
}

void Service::serve(World world) {
    Exchange::Hooks hooks;
    hooks.send = [this](std::uint32_t to, const Parcel &parcel) { send(to, parcel); };
    hooks.finish = [this](Exchange::Token token, Outcome outcome, const proto::Bytes &data) {
        finish(token, outcome, data);
    };
    hooks.look_up = [this](std::uint32_t from, std::uint64_t number, std::uint32_t rank) {
        look_up(from, number, rank);
    };
    hooks.told = [this](Exchange::Token token, Outcome outcome, const std::vector<Notice> &found) {
        told(token, outcome, found);
    };
    hooks.announced = [this](const Announcement &announcement) { announced(announcement); };
    exchange_ = std::make_unique<Exchange>(std::move(world), std::move(board_), std::move(hooks));
    exchange_->begin(loop_.now());
    look_at_waits();
}

/// Ranks hear of it before their calls are answered with errors.
void Service::stop_exchange(const std::string &reason) {
    if (!exchange_ || exchange_->stopped()) return;
    notify(end_news(exchange_->world(), reason));
    exchange_->stop();
}

/// Best effort: of an end the signal follows anyway, and what is safe or durable can be asked for.
void Service::notify(const News &news) const {
    const World &world = exchange_->world();
    InfoList infos;
    for (const JobDatum &value : news.values) infos.add(value);
    if (news.rank) infos.add_proc(PMIX_EVENT_AFFECTED_PROC, Server::proc_of(world, *news.rank));
    (void)Server::notify(world, news.code, {}, true, std::move(infos));
}

void Service::announced(const Announcement &announcement) {
    InfoList infos;
    if (!unpack_infos(announcement.infos, announcement.count, infos).ok()) return;
    (void)Server::notify(exchange_->world(), announcement.code, announcement.rank, !announcement.custom,
                         std::move(infos));
}

void Service::on_parcel(const local::PmixParcelT &message) {
    if (!is_present(message.generation)) return;
    if (auto parcel = decode_parcel(message.bytes); parcel.ok())
        exchange_->receive(loop_.now(), message.place, *parcel);
}

void Service::send(std::uint32_t to, const Parcel &parcel) {
    local::PmixParcelT message;
    message.generation = to_proto(exchange_->world().generation);
    message.place = to;
    message.bytes = encode_parcel(parcel);
    tell(std::move(message));
}

bool Service::is_present(const std::unique_ptr<proto::Generation> &generation) const {
    return exchange_ && generation &&
           exchange_->world().generation == GenerationId{Term(generation->term()), generation->number()};
}

// ---- PMIx ----

/// The daemon has to know: without this server such ranks can not go on.
void Service::on_client() {
    if (std::exchange(used_, true) || !exchange_) return;
    local::PmixUsedT used;
    used.generation = to_proto(exchange_->world().generation);
    tell(std::move(used));
}

bool Service::is_present(const std::string &name_space) const {
    return exchange_ && exchange_->world().name_space == name_space;
}

Exchange::Token Service::remember(Finished done) {
    waiting_[++last_token_] = std::move(done);
    return last_token_;
}

void Service::give_up(Exchange::Token token, const Status &why) {
    auto node = waiting_.extract(token);
    if (!node.empty()) node.mapped()(status_of(why), {});
}

/// What waits for other nodes does not wait for ever, also where the program sets no limit.
Service::Limit Service::limit(const std::optional<std::chrono::seconds> &timeout, Time before) const {
    if (timeout) return {loop_.now() + *timeout - before, false};
    const auto &most = exchange_->world().wait_limit;
    return most ? Limit{loop_.now() + *most, true} : Limit{};
}

Service::Wait Service::limited(const std::optional<std::chrono::seconds> &timeout, const char *purpose,
                               Finished done, Time before) {
    Limit end = limit(timeout, before);
    auto finished = [this, end, purpose, done = std::move(done)](pmix_status_t status,
                                                                 const proto::Bytes &data) {
        note_end(end, status, purpose);
        done(status, data);
    };
    return {end.at, std::move(finished)};
}

void Service::note_end(const Limit &limit, pmix_status_t status, const char *purpose) {
    if (limit.is_ours && status == PMIX_ERR_TIMEOUT && loop_.now() >= limit.at) say_overdue(purpose);
}

void Service::say_overdue(const char *purpose) {
    if (!exchange_ ||
        std::exchange(said_overdue_, exchange_->world().generation) == exchange_->world().generation)
        return;
    local::PmixOverdueT overdue;
    overdue.generation = to_proto(exchange_->world().generation);
    overdue.purpose = purpose;
    tell(std::move(overdue));
}

/// What libpmix itself lets ranks wait for, the others of their node, comes to the server's notice in this
/// way alone, and nobody can answer it: the daemon hears of it at each look until it is over. While a fence
/// here has a limit, or waits for other nodes, who is missing can not be told: that comes to an end.
void Service::look_at_waits() {
    waits_timer_.reset();
    if (!exchange_ || !exchange_->world().wait_limit) return;
    const World &world = exchange_->world();
    const Time limit = *world.wait_limit, pause = std::clamp<Time>(limit / 30, 100ms, 10s);
    waits_timer_ = loop_.after(pause, [this] { look_at_waits(); });
    if (exchange_->stopped() || !waiting_.empty()) return;
    auto clients = clients_that_wait();
    if (!clients || clients->empty()) return;
    auto first = std::ranges::min_element(*clients, {}, [](const ClientWait &c) { return c.wait.since; });
    if (loop_.now() - first->wait.since >= limit) tell_local_wait(*clients, first->wait);
}

void Service::tell_local_wait(const std::vector<ClientWait> &clients, const Conversation::Wait &longest) {
    const World &world = exchange_->world();
    const std::uint32_t first_rank = world.first_rank(world.place);
    local::PmixOverdueT overdue;
    overdue.generation = to_proto(world.generation);
    overdue.purpose = longest.purpose;
    overdue.local = true;
    auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(loop_.now() - longest.since);
    overdue.waited_ms = static_cast<std::uint64_t>(waited.count());
    std::vector<bool> waits(world.ranks_here()), asks(world.ranks_here());
    for (const ClientWait &client : clients) {
        std::uint32_t here = client.rank.value_or(UINT32_MAX) - first_rank;
        if (here >= waits.size()) return;  // nobody knows whose it is
        waits[here] = true;
    }
    for (const auto &[token, question] : asking_)
        if (question.rank - first_rank < asks.size()) asks[question.rank - first_rank] = true;
    for (std::uint16_t i = 0; i < waits.size(); ++i) {
        (waits[i] ? overdue.waiting : overdue.missing).push_back(i);
        if (asks[i]) overdue.asking.push_back(i);
    }
    tell(std::move(overdue));
}

Service::Finished Service::to(std::shared_ptr<DataCompletion> done) {
    return [done = std::move(done)](pmix_status_t status, const proto::Bytes &data) {
        done->finish(status, data);
    };
}

void Service::join(const RankSet &who, Wait wait, Exchange::Fence fence) {
    fence.ranks = who.ranks;
    fence.all = who.all;
    fence.deadline = wait.deadline;
    fence.token = remember(std::move(wait.done));
    auto token = fence.token;
    Status status = exchange_->fence(loop_.now(), std::move(fence));
    if (!status.ok()) give_up(token, status);
    schedule();
}

void Service::on_fence(Fence fence, std::shared_ptr<DataCompletion> done) {
    if (!is_present(fence.who.name_space)) return done->finish(PMIX_ERR_NOT_SUPPORTED, {});
    Exchange::Fence joined;
    joined.data = std::move(fence.data);
    join(fence.who, limited(fence.timeout, "a fence", to(std::move(done))), std::move(joined));
}

/// A fence of its own, by whose end all know the group's number and what its ranks have put.
void Service::on_group(Group group, std::shared_ptr<QueryCompletion> done) {
    if (!is_present(group.who.name_space)) return done->finish(PMIX_ERR_NOT_SUPPORTED, {});
    Exchange::Fence fence;
    fence.purpose = (group.construct ? "construct " : "destruct ") + group.id;
    // No other group has it: the place, and how many there were before.
    std::uint64_t context = (std::uint64_t{exchange_->world().place} + 1) << 32 | ++last_context_;
    if (group.construct) append_part({context, std::move(group.data)}, fence.data);
    auto finished = [done, construct = group.construct, wants = group.wants_context](
                        pmix_status_t status, const proto::Bytes &data) {
        if (status != PMIX_SUCCESS || !construct) return done->finish(status, {});
        auto all = join_parts(data);
        if (!all) return done->finish(PMIX_ERR_UNPACK_FAILURE, {});
        InfoList infos;
        if (wants) infos.add(PMIX_GROUP_CONTEXT_ID, all->context);
        if (!all->data.empty()) infos.add_bytes(PMIX_GROUP_ENDPT_DATA, all->data);
        done->finish(PMIX_SUCCESS, std::move(infos));
    };
    join(group.who, limited(group.timeout, "a process group", std::move(finished), pmix_itself),
         std::move(fence));
}

void Service::on_modex(Modex modex, std::shared_ptr<DataCompletion> done) {
    if (!is_present(modex.name_space)) return done->finish(PMIX_ERR_NOT_FOUND, {});
    Wait wait = limited(modex.timeout, "another rank's data", to(std::move(done)));
    auto token = remember(std::move(wait.done));
    Status status = exchange_->modex(loop_.now(), modex.rank, wait.deadline, token);
    if (!status.ok()) give_up(token, status);
    schedule();
}

void Service::on_publication(Publication publication, std::shared_ptr<Completion> done) {
    Change &change = publication.change;
    if (!is_present(change.by.name_space)) return done->finish(PMIX_ERR_LOST_CONNECTION);
    change.by.node = own_name();
    for (Notice &notice : change.notices) {
        notice.name_space = change.by.name_space;
        notice.rank = change.by.rank;
        notice.node = change.by.node;
    }
    Exchange::Token token = ++last_token_;
    Limit end = limit(publication.timeout);
    auto told = [this, done, end](pmix_status_t status, const auto &) {
        note_end(end, status, "a publication");
        done->finish(status);
    };
    asking_[token] = {change.by.rank, std::move(told)};
    Status status = exchange_->change(loop_.now(), change, end.at, token);
    if (!status.ok() && asking_.erase(token) > 0) done->finish(status_of(status));
    schedule();
}

void Service::on_look_up(LookUp look_up, std::shared_ptr<LookUpCompletion> done) {
    NoticeQuery &query = look_up.query;
    if (!is_present(query.by.name_space)) return done->finish(PMIX_ERR_LOST_CONNECTION, {});
    query.by.node = own_name();
    Exchange::Token token = ++last_token_;
    Limit end = query.wait && !look_up.timeout ? Limit{} : limit(look_up.timeout);
    auto told = [this, done, end](pmix_status_t status, const auto &found) {
        note_end(end, status, "a look-up");
        FoundList list;
        for (const Notice &notice : found)
            if (!list.add(notice)) return done->finish(PMIX_ERR_UNPACK_FAILURE, {});
        done->finish(status, list.all());
    };
    asking_[token] = {query.by.rank, std::move(told)};
    Status status = exchange_->find(loop_.now(), std::move(query), end.at, token);
    if (!status.ok() && asking_.erase(token) > 0) done->finish(status_of(status), {});
    schedule();
}

/// Best effort: what is too much reaches this node's ranks alone.
void Service::on_event(Event event) {
    if (!is_present(event.name_space)) return;
    (void)exchange_->announce(loop_.now(), event.announcement);
    schedule();
}

void Service::told(Exchange::Token token, Outcome outcome, const std::vector<Notice> &found) {
    auto node = asking_.extract(token);
    if (!node.empty()) node.mapped().told(status_of(outcome), found);
}

/// The rank ends by itself once it is answered; the agent notices that.
void Service::on_abort(Abort abort, std::shared_ptr<Completion> done) {
    if (is_present(abort.name_space)) {
        const World &world = exchange_->world();
        local::PmixAbortedT aborted;
        aborted.generation = to_proto(world.generation);
        aborted.local_rank = static_cast<std::uint16_t>(abort.rank - world.first_rank(world.place));
        aborted.status = abort.status;
        aborted.text = std::move(abort.text);
        tell(std::move(aborted));
    }
    done->finish(PMIX_SUCCESS);
}

void Service::finish(Exchange::Token token, Outcome outcome, const proto::Bytes &data) {
    auto node = waiting_.extract(token);
    if (!node.empty()) node.mapped()(status_of(outcome), data);
}

void Service::look_up(std::uint32_t from, std::uint64_t number, std::uint32_t rank) {
    const World &world = exchange_->world();
    GenerationId generation = world.generation;
    Server::look_up(loop_, world, rank, [=, this](pmix_status_t status, proto::Bytes data) {
        if (!exchange_ || exchange_->world().generation != generation) return;
        Outcome outcome = status == PMIX_SUCCESS ? Outcome::Done : Outcome::Unknown;
        exchange_->answer(loop_.now(), from, number, outcome, std::move(data));
        schedule();
    });
}

void Service::schedule() {
    exchange_timer_.reset();
    Time next = exchange_ ? exchange_->next_tick() : Time::max();
    if (next == Time::max()) return;
    exchange_timer_ = loop_.after(std::max(next - loop_.now(), Time(0)), [this] {
        if (exchange_) exchange_->tick(loop_.now());
        schedule();
    });
}

}  // namespace dlrover::pmix
