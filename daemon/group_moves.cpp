// SPDX-License-Identifier: Apache-2.0
// A group's checkpoints on other nodes: what GroupMover and the rest of the group say to each other.
#include <algorithm>

#include "common/log.h"
#include "daemon/group.h"
#include "elastic/coding.h"
#include "elastic/placement.h"
#include "transport/sockets.h"

namespace dlrover::daemon {

void Group::create_copies() {
    if (copies_ || !has_copies()) return;
    GroupCopies::Hooks hooks;
    hooks.send = [this](NodeIndex to, const MoveWord &word) {
        send_envelope(node_name(to), transport::PeerEnvelope::Kind::move, encode_move_word(word));
    };
    hooks.address_of = [this](NodeIndex node) { return address_of(node); };
    hooks.name_of = [this](NodeIndex node) { return node_name(node); };
    hooks.changed = [this] { feed(objects_here()); };
    hooks.protection = [this](bool works, const std::string &text) {
        if (!works)
            add_event(proto::EventKind::Warning, "Checkpoints are not copied to other nodes: " + text + ".");
        feed(elastic::LocalProtection{works});
    };
    hooks.damaged = [this](Rank rank, const CheckpointId &id, SlotIndex slot) {
        if (member_ && !over()) drop_damaged(rank, id, slot);
    };
    hooks.ucx_failed = [this](NodeIndex node, const std::string &why) {
        add_event(
            proto::EventKind::Warning,
            "By UCX two objects in a row did not come to or from " + node_name(node) + " (" +
                log::one_line(why) + "): they go by TCP for " +
                std::to_string(std::chrono::duration_cast<std::chrono::minutes>(UcxTrust::pause).count()) +
                " min. Where that comes again, transfer.ucx of dlrover.toml(5) leaves UCX out.");
    };
    hooks.fetched = [this](const Status &status) { on_fetched(status); };
    tables_ = std::make_unique<GroupTables>(
        GroupTables::Services{services_.loop, arena_, services_.prefaulter, services_.budget, uid()},
        GroupTables::Hooks{
            hooks.send, hooks.name_of,
            [this](Rank rank, const CheckpointId &id) { return copies_ && copies_->rebuilds(rank, id); },
            hooks.damaged});
    elastic::CopierConfig copier;
    // A parity may have begun anew since its holder had an object, and what was there be damaged.
    copier.recheck = std::chrono::seconds(5);
    copies_ = std::make_unique<GroupCopies>(
        GroupCopies::Services{services_.loop, arena_, copier, {job(), step()}}, std::move(hooks));
    copies_->use_mover(mover_.get());
}

/// What a world means for this node's objects.
GroupCopies::Part Group::part_in(const elastic::World &world) const {
    GroupCopies::Part part;
    if (world.restore_step && world.stored_world_size == 0)
        part.restore = CheckpointId{world.restore_generation, *world.restore_step};
    std::size_t each = world.partners.size() / world.nodes.size();
    for (std::size_t i = 0; i < world.partners.size(); ++i) {
        NodeIndex owner = world.nodes[i / each];
        if (owner == self()) part.partners.push_back(world.partners[i]);
        if (world.partners[i] == self()) part.guests.insert(owner);
    }
    if (world.memory_world_size > 0)
        for (const auto &source : world.sources) part.homes.push_back(source.node);
    part.answers = elastic::answered_ranks(world, self());
    if (!world.groups.empty() || !world.rebuilds.empty()) part.coding = {self(), world, config().nodes};
    auto place = place_in(world);
    if (!place) return part;
    Rank first(first_rank(world, *place));
    for (std::uint32_t i = 0; i < ranks_of(self()); ++i) part.ranks.emplace_back(first.value() + i);
    for (const auto &source : world.sources)
        if (part.homes.empty() && std::ranges::find(part.ranks, source.rank) != part.ranks.end())
            part.sources.push_back(source);
    return part;
}

void Group::tell_copies_of_world() {
    if (!copies_ || !world_) return;
    auto part = part_in(*world_);
    std::optional<GroupTables::Part> tables;
    if (!part.homes.empty()) tables = GroupTables::Part{self(), *part.restore, part.homes};
    tables_->on_world(std::move(tables));
    copies_->on_world(std::move(part));
}

/// What is safe by the rows of this world needs none of another's.
void Group::settle() {
    auto covered = member_ ? member_->view().covered : std::nullopt;
    if (!copies_ || !world_) return;
    copies_->settled(covered);
    if (!covered || world_->groups.empty()) return;
    elastic::RowBook rows(*world_, config().nodes);
    bool gone = false;
    for (const elastic::Parity &parity : arena_.parities())
        if (parity.id == *covered && !elastic::is_wanted(*world_, rows, parity)) {
            arena_.drop_parity(parity_place(parity.index, parity.ranks.front()), parity.id);
            gone = true;
        }
    if (gone) feed_later(objects_here());
}

/// Who runs here in this world, and whose copies are kept here.
ArenaTenants Group::tenants() const {
    auto part = part_in(*world_);
    ArenaTenants tenants{{part.ranks.begin(), part.ranks.end()}, {}};
    for (std::uint32_t place = 0; place < world_->nodes.size(); ++place) {
        NodeIndex node = world_->nodes[place];
        std::uint32_t first = first_rank(*world_, place);
        bool kept_whole = part.guests.contains(node) && world_->groups.empty();
        for (std::uint32_t i = 0; kept_whole && i < ranks_of(node); ++i) tenants.guests.emplace(first + i);
    }
    return tenants;
}

void Group::tell_arena_of_world() {
    if (!world_) return;
    ArenaTenants here = tenants();
    if (copies_) here.guests.merge(copies_->parity().expected_places());
    arena_.expect(std::move(here));
}

/// Ranks that neither run nor keep their copies here since this world: nobody writes into their slots.
void Group::give_back_strangers() {
    if (!copies_ || !world_) return;
    ArenaTenants here = tenants();
    std::set<Rank> kept = std::move(here.own);
    kept.merge(here.guests);
    kept.merge(copies_->parity().places());
    if (arena_.keep_ranks(kept)) feed_later(objects_here());
}

void Group::on_fetched(const Status &status) {
    feed(objects_here());
    if (status.ok()) return verify_restore_point();
    log::error({job(), step()}, status.message());
    add_event(proto::EventKind::Warning, "State could not be fetched: " + status.message() + ".");
}

void Group::on_move_word(const std::string &node, const std::vector<std::uint8_t> &payload) {
    auto from = index_of(node);
    if (!from || over()) return;
    auto word = decode_move_word(payload);
    if (!word)
        return log::error({job(), step()}, "a word of " + node + " is refused: " + word.status().message());
    if (GroupCheck::is_word_of_check(word->kind)) return check().on_word(*from, *word);
    if (!copies_) return;
    bool of_table = word->kind == MoveWord::Kind::FetchTable || word->kind == MoveWord::Kind::Table;
    if (word->kind == MoveWord::Kind::Wait) tables_->on_wait(*from, *word);
    if (of_table) return tables_->on_word(*from, *word);
    copies_->on_word(*from, *word);
}

/// Slurm has to be asked where there are other nodes; what it says may be a name.
std::optional<std::string> Group::own_address() const {
    if (node_count() < 2) return "";
    auto found = addresses_.find(services_.node);
    if (found == addresses_.end()) return std::nullopt;
    return found->second;
}

void Group::create_mover() {
    auto address = own_address();
    if (mover_ || !address) return;
    GroupMover::Hooks hooks;
    hooks.changed = [this] { on_mover_changed(); };
    hooks.own_address = [this] { return services_.peers.own_address(); };
    hooks.ended = [this](bool killed) {
        add_event(proto::EventKind::Warning,
                  killed ? "A dlrover-mover that did not answer, or was followed by another, was ended."
                         : "A dlrover-mover that does not answer, or was followed by another, can not be "
                           "ended: memory that it was given stays taken until it ends. End it by hand.");
    };
    mover_ = std::make_unique<GroupMover>(
        GroupMover::Services{services_.loop, services_.port, services_.settings},
        transport::parse_address(*address).ok() ? *address : "", std::move(hooks));
}

void Group::on_mover_changed() {
    if (copies_) copies_->use_mover(mover_.get());
}

void Group::on_mover_message(const Client &from, const local::MessageT &message) {
    if (!has_mover() || record_.ended)
        return services_.port.fail(from.id, message.id, local::Refusal::Stale,
                                   "this step has no checkpoints to move");
    create_mover();
    if (!mover_)
        return services_.port.fail(from.id, message.id, local::Refusal::NotReady,
                                   "Slurm has not said yet where this node is: try again");
    if (message.body.AsMoverHello()) return mover_->on_hello(from, message.id);
    if (!mover_->on_message(from, message))
        services_.port.fail(from.id, message.id, local::Refusal::BadMessage, "a mover has no such message");
}

}  // namespace dlrover::daemon
