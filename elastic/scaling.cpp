// SPDX-License-Identifier: Apache-2.0
// A world with as many nodes as a person wants. The word is on record with every member and told with each
// report, so that any leader knows it. The leader makes the world smaller or larger at the moment when least
// is lost, as one that grows back; what is too much then it gives back to Slurm, as soon as nothing that is
// there is needed any more. Where Slurm keeps it in the job, it is a spare.
#include "elastic/scaling.h"

#include <algorithm>
#include <tuple>

#include "base/count_of.h"
#include "elastic/member_state.h"

namespace dlrover::elastic {
namespace {

constexpr Duration longest_pause = std::chrono::minutes(30);

}  // namespace

bool merge(Scaling &mine, const Scaling &other) {
    bool news = std::tie(mine.number, mine.nodes) < std::tie(other.number, other.nodes);
    if (news) std::tie(mine.number, mine.nodes) = std::tie(other.number, other.nodes);
    return add_all(mine.released, other.released) || news;
}

std::vector<NodeIndex> stay(const std::vector<NodeIndex> &nodes, std::size_t size,
                            const std::vector<NodeIndex> &last_to_go) {
    auto order = [&](NodeIndex n) { return std::pair(!contains(last_to_go, n), n); };
    std::vector<NodeIndex> staying = nodes;
    std::ranges::sort(staying, {}, order);
    staying.resize(std::min(size, staying.size()));
    std::vector<NodeIndex> out;
    for (NodeIndex n : nodes)
        if (contains(staying, n)) out.push_back(n);
    return out;
}

// ---- on every node --------------------------------------------------------------------------------

std::uint32_t Member::State::wanted_nodes() const {
    const Scaling &s = promise.scaling;
    return s.number == 0 ? config.max_nodes : std::clamp(s.nodes, config.min_nodes, config.max_nodes);
}

void Member::State::on_scale(std::uint32_t nodes) {
    if (finish) return;
    take_scaling({promise.scaling.number + 1, nodes, {}});
    tell_leader();
}

void Member::State::take_scaling(const Scaling &other) {
    std::uint64_t before = promise.scaling.number;
    if (!merge(promise.scaling, other)) return;
    local.scaling = promise.scaling;
    persist();
    if (role == Role::leader && promise.scaling.number > before) begin_scaling();
}

// ---- the leader -----------------------------------------------------------------------------------

/// What was tried in vain before is tried again.
void Member::State::begin_scaling() {
    joining.pause = first_node_pause;
    joining.retry_at = joining.drop_at = now;
    joining.told.clear();
    growing.not_before = now;
    growing.pause = config.timings.join;
    releasing.held = false;
    std::string text = count_of(promise.scaling.nodes, "node") + " wanted (dlrover scale)";
    if (world) text += ", the world has " + std::to_string(world->nodes.size());
    note(Note::Kind::warning, text);
    if (acting()) send_heartbeats();
}

/// Whether a world of another size could go on from what this one has.
bool Member::State::other_size_goes_on() const {
    // Where another size can not go on from memory, the world has to be of storage already.
    return config.any_size || !complete || (config.copies > 0 && world->stored_world_size > 0) ||
           growing.stored;
}

/// How many more nodes a world could have now, or how many fewer are wanted.
std::ptrdiff_t Member::State::size_change() const {
    std::size_t now_has = world->nodes.size(), wanted = wanted_nodes();
    if (now_has == wanted || !other_size_goes_on()) return 0;
    std::size_t nodes = choose_nodes().size();
    bool right_way = now_has < wanted ? nodes > now_has : nodes < now_has && nodes > 0;
    return right_way ? static_cast<std::ptrdiff_t>(nodes) - static_cast<std::ptrdiff_t>(now_has) : 0;
}

std::string Member::State::why_resized(std::ptrdiff_t change) const {
    if (change < 0)
        return count_of(static_cast<std::size_t>(-change), "node") + " fewer wanted (dlrover scale)";
    std::vector<NodeIndex> nodes = choose_nodes();
    std::erase_if(nodes, [&](NodeIndex n) { return contains(world->nodes, n); });
    bool joined = std::ranges::all_of(nodes, [&](NodeIndex n) { return has_joined(n); });
    if (!joined) return count_of(static_cast<std::size_t>(change), "node") + " more";
    return count_of(static_cast<std::size_t>(change), "node") +
           (change == 1 ? " has joined" : " have joined");
}

/// Just after a step has become complete, so that least is lost; or, where none ever was, after a while. Not
/// again for a while: a world that failed at once would fail again.
void Member::State::consider_size(bool step_complete) {
    bool nothing_saved = world && !complete && !world->restore_step;
    if (!world || preparing || awaiting || (incident && !incident->committed)) return;
    if (!acting() || (!step_complete && !nothing_saved)) return;
    std::ptrdiff_t change = size_change();
    if (change == 0) return growing.since.reset();
    if (!growing.since) growing.since = now;
    if (now < growing.not_before) return;
    if (!step_complete && now - *growing.since < config.timings.join) return;
    growing.since.reset();
    growing.not_before = now + growing.pause;
    growing.pause = std::min(growing.pause * 2, longest_pause);
    propose(why_resized(change), false);
}

/// Why the world has not as many nodes as a person wants; empty: it has, or this node does not lead.
std::string Member::State::why_not_yet() const {
    if (role != Role::leader || !world || promise.scaling.number == 0) return "";
    if (world->nodes.size() == wanted_nodes() - wanted_nodes() % std::max(config.node_unit, 1u)) return "";
    if (preparing || awaiting) return "a new world is being prepared";
    if (!joining.told.empty()) return "Slurm gives no more nodes: " + joining.told;
    if (size_change() != 0) return "as soon as the next checkpoint is complete";
    if (world->nodes.size() > wanted_nodes()) return "as soon as the next checkpoint is on storage";
    return config.replacements ? "Slurm is asked for more nodes" : "Slurm is not asked for nodes here";
}

// ---- what is too much -----------------------------------------------------------------------------

/// The world has a step of its own, so that nothing of the one before is needed any more.
bool Member::State::has_own_step() const {
    if (bugged(PlantedBug::released_early)) return true;
    if (config.copies > 0) return protection.safe && protection.safe->generation == world->id;
    return complete && complete->generation == world->id;
}

/// Idle nodes above what is wanted: those that joined last first.
std::vector<NodeIndex> Member::State::too_many() const {
    std::vector<NodeIndex> nodes;
    auto is_here = [&](NodeIndex n) {
        return counts(n) && !removed(n) && answers(n) && !checking.dismissed.contains(n);
    };
    std::size_t wanted = std::size_t{wanted_nodes()} + config.spares, here = 0;
    for (std::uint32_t i = 0; i < node_count(); ++i) here += is_here(NodeIndex(i));
    for (std::uint32_t i = node_count(); i-- > 0 && here > wanted + nodes.size();) {
        NodeIndex n(i);
        bool idle = is_here(n) && !is_self(n) && n != config.batch_host && !contains(world->nodes, n) &&
                    !contains(world->partners, n);
        if (idle) nodes.push_back(n);
    }
    return nodes;
}

void Member::State::consider_release() {
    if (promise.scaling.number == 0 || !world || preparing || awaiting || finish || joining.open) return;
    if (slurm.pending || slurm.unsure || slurm.down || now < slurm.retry_at || !may_act()) return;
    if (releasing.held || !has_own_step() || promise.settled.size() != promise.removed.size()) return;
    std::vector<NodeIndex> nodes = too_many();
    if (nodes.empty()) return;
    bool by_job = is_companion(nodes.front());
    std::erase_if(nodes, [&](NodeIndex n) { return is_companion(n) != by_job; });
    // A majority that is not told yet would choose a leader, with those that are not heard now.
    std::size_t most = std::max<std::size_t>(1, (electorate() - 1) / 2), silent = 0;
    for (std::uint32_t i = 0; i < node_count(); ++i)
        silent += counts(NodeIndex(i)) && !removed(NodeIndex(i)) && !answers(NodeIndex(i));
    if (!bugged(PlantedBug::majority_released))
        nodes.resize(std::min(nodes.size(), most - std::min(most, silent)));
    if (nodes.empty()) return;
    releasing.nodes = slurm.asked = nodes;
    note(Note::Kind::warning,
         names(nodes) + " given back to Slurm: " + count_of(wanted_nodes(), "node") + " wanted");
    by_job ? ask(AskSlurm::What::end_companion, nodes) : ask_for_rest(nodes);
}

/// They stay as spares until another number is wanted.
void Member::State::on_held(const std::string &why) {
    releasing.held = true;
    slurm.unsure = true;  // it may be over, or this node out of it
    note(Note::Kind::warning, "Slurm keeps " + names(releasing.nodes) + " in the job" +
                                  (why.empty() ? "" : " (" + why + ")") + ": held as spares");
    releasing.nodes.clear();
}

/// Of these nobody has lost those that were to be given back.
void Member::State::note_released(const std::vector<NodeIndex> &nodes) {
    for (NodeIndex n : nodes)
        if (contains(releasing.nodes, n)) add_all(promise.scaling.released, {n});
    local.scaling = promise.scaling;
    std::erase_if(releasing.nodes, [&](NodeIndex n) { return contains(nodes, n); });
}

}  // namespace dlrover::elastic
