// SPDX-License-Identifier: Apache-2.0
#include "cli/status_text.h"

#include <algorithm>
#include <cstdio>

#include "base/count_of.h"
#include "base/ids.h"
#include "base/units.h"
#include "cli/json.h"
#include "cli/table.h"
#include "proto/goodput.h"

namespace dlrover::cli {
namespace {

using proto::local::CheckpointStatusT;
using proto::local::GoodputT;
using proto::local::GroupState;
using proto::local::GroupStatusT;
using proto::local::RankStatusT;

std::string id_of(const GroupStatusT &g) {
    return std::to_string(g.job_id) + "." + std::to_string(g.step_id);
}

std::string time_text(std::int64_t us) {
    return us < 0 ? "-" : format_duration(std::chrono::microseconds(us));
}

std::string step_text(std::int64_t step) {
    return step < 0 ? "-" : std::to_string(step);
}

std::string generation_text(const GroupStatusT &g) {
    return g.generation ? to_string(GenerationId{Term(g.generation->term()), g.generation->number()}) : "-";
}

std::int64_t newest_step(const GroupStatusT &g) {
    std::int64_t newest = -1;
    for (const auto &r : g.ranks)
        if (r && r->train_step > newest) newest = r->train_step;
    return newest;
}

const CheckpointStatusT *newest_complete(const GroupStatusT &g) {
    const CheckpointStatusT *best = nullptr;
    for (const auto &c : g.checkpoints)
        if (c && c->complete && !c->suspect && (!best || c->train_step > best->train_step)) best = c.get();
    return best;
}

std::string checkpoint_text(const CheckpointStatusT &c) {
    std::string text = "step " + std::to_string(c.train_step) + ": ";
    text += c.complete ? "complete in memory"
                       : std::to_string(c.ranks_sealed) + " of " + count_of(c.ranks, "rank");
    if (c.suspect) text += ", suspect";
    text += ", " + format_size_bytes(c.bytes);
    if (c.age_us >= 0) text += ", " + time_text(c.age_us) + " old";
    return text;
}

std::string goodput_text(const GoodputT &p) {
    std::string text = goodput_percent(&p) + " of " + time_text(p.wall_us) + " (";
    const std::pair<const char *, std::int64_t> parts[] = {{"start", p.startup_us},
                                                           {"recovery", p.recovery_us},
                                                           {"steps done again", p.lost_steps_us},
                                                           {"saves", p.save_us},
                                                           {"other", p.other_us}};
    const char *separator = "";
    for (const auto &[name, us] : parts) {
        text += std::string(separator) + name + " " + time_text(us);
        separator = ", ";
    }
    return text + ")";
}

std::string saves_text(const GoodputT &p) {
    std::string text = count_of(p.checkpoints, "checkpoint");
    if (p.checkpoints_skipped == 0) return text + ", no save was skipped";
    text += ", " + std::to_string(p.checkpoints_skipped);
    return text + (p.checkpoints_skipped == 1 ? " save was" : " saves were") + " skipped: no slot was free";
}

void add_line(std::string &out, const char *name, const std::string &value) {
    char label[24];
    std::snprintf(label, sizeof label, "  %-14s", name);
    out += label + printable(value) + "\n";
}

std::string rank_table(const GroupStatusT &g) {
    Table table({"RANK", "NODE", "PID", "STATE", "STEP", "RESTARTS"});
    for (const auto &r : g.ranks)
        if (r)
            table.add({std::to_string(r->rank), printable(r->node), r->pid ? std::to_string(r->pid) : "-",
                       printable(r->state), step_text(r->train_step), std::to_string(r->restarts)});
    return table.empty() ? "" : table.text("  ");
}

void write_goodput(JsonWriter &json, const GoodputT &p) {
    json.begin_object();
    json.field("wall_us", p.wall_us)
        .field("productive_us", p.productive_us)
        .field("startup_us", p.startup_us);
    json.field("lost_steps_us", p.lost_steps_us)
        .field("recovery_us", p.recovery_us)
        .field("save_us", p.save_us)
        .field("other_us", p.other_us);
    json.field("steps", p.steps).field("steps_repeated", p.steps_repeated).field("restarts", p.restarts);
    json.field("checkpoints", p.checkpoints).field("checkpoints_skipped", p.checkpoints_skipped).end_object();
}

void write_ranks(JsonWriter &json, const GroupStatusT &g) {
    json.key("ranks").begin_array();
    for (const auto &r : g.ranks) {
        if (!r) continue;
        json.begin_object()
            .field("rank", r->rank)
            .field("node", r->node)
            .field("pid", r->pid)
            .field("state", r->state);
        json.field("train_step", r->train_step)
            .field("restarts", r->restarts)
            .field("connected", r->connected)
            .end_object();
    }
    json.end_array().key("checkpoints").begin_array();
    for (const auto &c : g.checkpoints) {
        if (!c) continue;
        json.begin_object()
            .field("train_step", c->train_step)
            .field("ranks_sealed", c->ranks_sealed)
            .field("ranks", c->ranks);
        json.field("complete", c->complete)
            .field("suspect", c->suspect)
            .field("bytes", c->bytes)
            .field("age_us", c->age_us)
            .end_object();
    }
    json.end_array();
}

bool is_same(const proto::local::StoredCheckpointT *a, const proto::local::StoredCheckpointT &b) {
    return a && a->train_step == b.train_step && a->generation && b.generation &&
           a->generation->term() == b.generation->term() && a->generation->number() == b.generation->number();
}

/// How far the nodes that answered are with the checkpoint that is being written.
struct Flight {
    std::uint64_t written = 0, bytes = 0;
    double rate = 0;     ///< bytes/s of the nodes that are not done
    double left_s = -1;  ///< of the slowest; -1: not known
    std::vector<const proto::local::StorageProgressT *> nodes;
};

Flight flight_of(const proto::local::StorageStatusT &s) {
    Flight out;
    bool known = true;
    for (const auto &node : s.progress) {
        if (!node || !s.storing || !is_same(node->checkpoint.get(), *s.storing)) continue;
        out.nodes.push_back(node.get());
        out.written += node->written_bytes;
        out.bytes += node->bytes;
        if (node->written_bytes >= node->bytes) continue;
        known &= node->written_bytes > 0 && node->time_us > 0;
        if (!known) continue;
        double rate = static_cast<double>(node->written_bytes) * 1e6 / static_cast<double>(node->time_us);
        out.rate += rate;
        out.left_s = std::max(out.left_s, static_cast<double>(node->bytes - node->written_bytes) / rate);
    }
    if (!known) out.rate = 0, out.left_s = -1;
    return out;
}

/// ": 12 GiB of 48 GiB (26 %), 1.9 GiB/s, about 19 s left"
std::string flight_text(const Flight &flight) {
    if (flight.bytes == 0) return "";
    std::string text = ": " + format_size_bytes(flight.written) + " of " + format_size_bytes(flight.bytes);
    auto percent =
        static_cast<int>(100.0 * static_cast<double>(flight.written) / static_cast<double>(flight.bytes));
    text += " (" + std::to_string(percent) + " %)";
    if (flight.left_s < 0) return text;
    auto left = std::chrono::microseconds(static_cast<std::int64_t>(std::min(flight.left_s, 1e9) * 1e6));
    return text + ", " + format_size_bytes(static_cast<std::uint64_t>(flight.rate)) + "/s, about " +
           format_duration(left) + " left";
}

void write_flight(JsonWriter &json, const Flight &flight) {
    json.key("storing").begin_object();
    json.field("written_bytes", flight.written).field("bytes", flight.bytes);
    json.field("bytes_per_s", static_cast<std::uint64_t>(flight.rate));
    json.field("left_us", flight.left_s < 0 ? std::int64_t{-1}
                                            : static_cast<std::int64_t>(std::min(flight.left_s, 1e9) * 1e6));
    json.key("nodes").begin_array();
    for (const auto *node : flight.nodes) {
        json.begin_object().field("node", node->node).field("written_bytes", node->written_bytes);
        json.field("bytes", node->bytes).field("time_us", node->time_us).end_object();
    }
    json.end_array().end_object();
}

std::string suspect_text(const proto::local::SuspectStepT &s) {
    std::string why = s.by_person ? ", rolled back by hand" : ", two failures came back from it";
    return "step " + std::to_string(s.train_step) + why + "; gone on from step " + std::to_string(s.back_to);
}

void write_suspect(JsonWriter &json, const proto::local::SuspectStepT &s) {
    json.begin_object().field("train_step", s.train_step).key("generation").begin_object();
    json.field("term", s.generation ? s.generation->term() : std::uint64_t{0});
    json.field("number", s.generation ? s.generation->number() : std::uint64_t{0}).end_object();
    json.field("back_to", s.back_to).field("by_person", s.by_person).end_object();
}

std::string storage_text(const proto::local::StorageStatusT &s) {
    std::string text;
    if (s.stored) text += "step " + std::to_string(s.stored->train_step);
    if (s.stored && s.stored_age_us > 0) text += ", " + time_text(s.stored_age_us) + " ago";
    if (!s.stored) text += "nothing of this run yet";
    if (s.storing)
        text += "; step " + std::to_string(s.storing->train_step) + " is on its way to storage" +
                flight_text(flight_of(s));
    text += "; in " + printable(s.ckpt_dir);
    if (!s.text.empty()) text += "; trouble: " + printable(s.text);
    return text;
}

void write_storage(JsonWriter &json, const proto::local::StorageStatusT &s) {
    auto step = [&](const char *name, const std::unique_ptr<proto::local::StoredCheckpointT> &checkpoint) {
        json.field(name, checkpoint ? static_cast<std::int64_t>(checkpoint->train_step) : std::int64_t{-1});
    };
    json.begin_object().field("ckpt_dir", s.ckpt_dir);
    step("stored_step", s.stored);
    json.field("stored_age_us", s.stored_age_us);
    step("storing_step", s.storing);
    write_flight(json, flight_of(s));
    json.field("failures", s.failures).field("silent_us", s.silent_us).field("trouble", s.text).end_object();
}

/// Where, as far as it is known: " on n3 and 2 other nodes".
std::string trouble_place(const proto::local::CopiesStatusT &c) {
    if (c.in_trouble.empty()) return "";
    std::string text = " on " + printable(c.in_trouble.front());
    std::size_t others = c.in_trouble.size() - 1;
    if (others > 0) text += " and " + count_of(others, "other node");
    return text;
}

/// " (switch leaf2)", where Slurm knows of switches.
std::string switch_text(const proto::local::CopiesStatusT &c, std::size_t partner) {
    bool known = partner < c.switches.size() && !c.switches[partner].empty();
    return known ? " (switch " + printable(c.switches[partner]) + ")" : "";
}

std::string copies_text(const proto::local::CopiesStatusT &c) {
    std::string text =
        c.safe_step >= 0 ? "step " + std::to_string(c.safe_step) + " is safe" : "no step is safe yet";
    if (c.target_step >= 0 && c.target_step != c.safe_step)
        text += "; of step " + std::to_string(c.target_step) +
                (c.nodes > 1 ? " the nodes have copied " : " this node has copied ") +
                std::to_string(c.copied) + " of " + std::to_string(c.to_copy);
    for (std::size_t i = 0; c.nodes == 1 && i < c.partners.size(); ++i)
        text += (i == 0 ? "; kept by " : ", ") + printable(c.partners[i]) + switch_text(c, i);
    if (c.same_switch > 0)
        text += c.nodes == 1 ? "; on the same switch as this node"
                             : "; of " + std::to_string(c.same_switch) + " of " + std::to_string(c.nodes) +
                                   " nodes on the same switch as the node itself";
    if (c.partners.empty() && c.nodes == 1) text += "; no other node keeps them";
    if (c.parities > 0)
        text += "; " + std::to_string(c.parities) + (c.parities == 1 ? " parity of " : " parities of ") +
                format_size_bytes(c.parity_bytes) + (c.nodes > 1 ? " on the nodes" : " here");
    if (c.spared_bytes > 0)
        text += "; " + format_size_bytes(c.spared_bytes) + " of the " + format_size_bytes(c.arrived_bytes) +
                " that came were there already (replicas)";
    return c.text.empty() ? text : text + "; trouble" + trouble_place(c) + ": " + printable(c.text);
}

void write_copies(JsonWriter &json, const proto::local::CopiesStatusT &c) {
    json.begin_object().field("safe_step", c.safe_step).field("target_step", c.target_step);
    json.field("copied", c.copied).field("to_copy", c.to_copy).key("partners").begin_array();
    for (const auto &partner : c.partners) json.value(partner);
    json.end_array().key("switches").begin_array();
    for (const auto &name : c.switches) json.value(name);
    json.end_array()
        .field("same_switch", c.same_switch)
        .field("parities", c.parities)
        .field("parity_bytes", c.parity_bytes)
        .field("arrived_bytes", c.arrived_bytes)
        .field("spared_bytes", c.spared_bytes);
    json.field("trouble", c.text).field("nodes", c.nodes).key("in_trouble").begin_array();
    for (const auto &node : c.in_trouble) json.value(node);
    json.end_array().end_object();
}

/// "3.0 GiB (6 objects)"
std::string objects_text(std::uint64_t bytes, std::uint64_t objects) {
    return format_size_bytes(bytes) + " (" + count_of(objects, "object") + ")";
}

std::string verified_text(const proto::local::VerifiedStatusT &v) {
    std::string text = objects_text(v.agent_bytes, v.agent_objects) + " while programs started, " +
                       objects_text(v.rank_bytes, v.rank_objects) + " by ranks";
    if (v.nodes > 1) text += ", on " + std::to_string(v.nodes) + " nodes";
    if (v.damaged == 0) return text + "; none was damaged";
    return text + "; " + std::to_string(v.damaged) + (v.damaged == 1 ? " was" : " were") + " found damaged";
}

void write_verified(JsonWriter &json, const proto::local::VerifiedStatusT &v) {
    json.begin_object().field("agent_objects", v.agent_objects).field("agent_bytes", v.agent_bytes);
    json.field("rank_objects", v.rank_objects).field("rank_bytes", v.rank_bytes);
    json.field("damaged", v.damaged).field("nodes", v.nodes).end_object();
}

constexpr std::uint16_t by_tcp = 1, by_ucx = 2;  // docs/protocol-mover.md

/// The worst of several nodes' movers.
std::string mover_text(const proto::local::MoverStatusT &m, const std::string &answering) {
    const std::string &node = m.node.empty() ? answering : m.node;
    std::string share = std::to_string(m.listening) + " of " + std::to_string(m.nodes) + " nodes have one";
    std::string others = m.nodes > 1 ? " (" + share + " that listens)" : "";
    if (!m.ready)
        return "does not run on node " + printable(node) + others +
               ": ask the administrator whether dlrover-mover is installed";
    std::string why = m.text.empty() ? "" : " (" + printable(m.text) + ")";
    if (m.port == 0) return "does not listen on node " + printable(node) + why + others;
    std::string way = (m.ways & by_ucx) != 0 ? "UCX" : "TCP";
    if (!m.interface.empty()) way += " over " + printable(m.interface);
    if (m.nodes > 1)
        return "listens on all " + std::to_string(m.nodes) + " nodes that answered; on " + printable(node) +
               " by " + way + why;
    return "listens at " + printable(m.address.empty() ? node : m.address) + ":" + std::to_string(m.port) +
           ", by " + way + why;
}

void write_mover(JsonWriter &json, const proto::local::MoverStatusT &m) {
    json.begin_object()
        .field("ready", m.ready)
        .field("address", m.address)
        .field("port", std::uint32_t{m.port})
        .key("ways")
        .begin_array();
    if ((m.ways & by_tcp) != 0) json.value("tcp");
    if ((m.ways & by_ucx) != 0) json.value("ucx");
    json.end_array().field("text", m.text).field("node", m.node).field("interface", m.interface);
    json.field("nodes", m.nodes).field("listening", m.listening).end_object();
}

void write_group(JsonWriter &json, const GroupStatusT &g) {
    json.begin_object()
        .field("job_id", g.job_id)
        .field("step_id", g.step_id)
        .field("uid", g.uid)
        .field("user", g.user);
    json.field("lineage", g.lineage)
        .field("restart_count", g.restart_count)
        .field("state", state_name(g.state));
    json.key("generation").begin_object();
    json.field("term", g.generation ? g.generation->term() : std::uint64_t{0});
    json.field("number", g.generation ? g.generation->number() : std::uint64_t{0}).end_object();
    json.field("restore_step", g.restore_step)
        .field("leader", g.leader)
        .field("node", g.node)
        .field("world_size", g.world_size)
        .key("nodes")
        .begin_array();
    for (const auto &n : g.nodes) json.value(n);
    json.end_array().key("joined").begin_array();
    for (const auto &n : g.joined) json.value(n);
    json.end_array()
        .field("ready_nodes", g.ready_nodes)
        .field("min_nodes", g.min_nodes)
        .field("max_nodes", g.max_nodes)
        .field("world_nodes", g.world_nodes)
        .field("wanted_nodes", g.wanted_nodes == 0 ? g.max_nodes : g.wanted_nodes)
        .field("wanted_text", g.wanted_text);
    json.field("spares", g.spares)
        .field("restarts_left", g.restarts_left)
        .field("max_restarts", g.max_restarts);
    json.field("arena_bytes", g.arena_bytes)
        .field("arena_ready_bytes", g.arena_ready_bytes)
        .field("prefault_us", g.prefault_us);
    json.field("memory_need_bytes", g.memory_need_bytes)
        .field("memory_slots", std::uint32_t{g.memory_slots})
        .field("memory_refused", g.memory_refused)
        .field("arena_charge", g.arena_charge)
        .field("kept_us", g.kept_us);
    json.field("redundancy", g.redundancy).field("note", g.note).field("started_us", g.started_us);
    write_ranks(json, g);
    json.key("suspects").begin_array();
    for (const auto &suspect : g.suspects)
        if (suspect) write_suspect(json, *suspect);
    json.end_array();
    json.key("goodput");
    if (g.goodput)
        write_goodput(json, *g.goodput);
    else
        json.null();
    json.key("storage");
    if (g.storage)
        write_storage(json, *g.storage);
    else
        json.null();
    json.key("copies");
    if (g.copies)
        write_copies(json, *g.copies);
    else
        json.null();
    json.key("mover");
    if (g.mover)
        write_mover(json, *g.mover);
    else
        json.null();
    json.key("verified");
    if (g.verified)
        write_verified(json, *g.verified);
    else
        json.null();
    json.key("pmix");
    if (g.pmix)
        json.begin_object()
            .field("namespace", g.pmix->name_space)
            .field("nodes", g.pmix->nodes)
            .field("up", g.pmix->up)
            .end_object();
    else
        json.null();
    json.end_object();
}

std::string pmix_text(const proto::local::PmixStatusT &p) {
    if (p.name_space.empty()) return "no namespace yet";
    return p.name_space + ", servers up on " + std::to_string(p.up) + " of " + std::to_string(p.nodes) +
           " nodes";
}

std::string memory_text(const GroupStatusT &g) {
    // A daemon that took the memory over has not pre-faulted it itself.
    auto took = static_cast<std::int64_t>(g.prefault_us);
    return format_size_bytes(g.arena_bytes) + " on " + g.node + ", " +
           format_size_bytes(g.arena_ready_bytes) + " pre-faulted" +
           (took > 0 ? " in " + time_text(took) : "") + ", charged to the " + g.arena_charge +
           ", redundancy " + g.redundancy;
}

/// To another size than it began with, or on the way back to that.
bool is_scaled(const GroupStatusT &g) {
    return g.wanted_nodes != 0 && (g.wanted_nodes != g.max_nodes || g.world_nodes != g.wanted_nodes);
}

/// "3 of 4 wanted (Slurm gives no more nodes: ...)"
std::string wanted_text(const GroupStatusT &g) {
    std::string text = std::to_string(g.world_nodes) + " of " + std::to_string(g.wanted_nodes) + " wanted";
    return g.wanted_text.empty() ? text : text + " (" + g.wanted_text + ")";
}

std::string joined_text(const GroupStatusT &g) {
    std::string text;
    for (const auto &node : g.joined) text += (text.empty() ? "" : ", ") + printable(node);
    return text;
}

}  // namespace

const char *state_name(GroupState state) {
    switch (state) {
        case GroupState::Starting:
            return "starting";
        case GroupState::Running:
            return "running";
        case GroupState::Recovering:
            return "recovering";
        case GroupState::Ending:
            return "ending";
        case GroupState::Finished:
            return "finished";
        case GroupState::Failed:
            return "failed";
    }
    return "unknown";
}

std::string goodput_percent(const GoodputT *p) {
    auto share = p ? proto::goodput_share(*p) : std::nullopt;
    if (!share) return "-";
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.1f %%", 100.0 * *share);
    return buffer;
}

std::string status_list(const proto::local::StatusReplyT &reply) {
    Table table({"JOB", "USER", "STATE", "RANKS", "NODES", "STEP", "CHECKPOINT", "RESTARTS", "GOODPUT"});
    for (const auto &g : reply.groups) {
        if (!g) continue;
        const CheckpointStatusT *checkpoint = newest_complete(*g);
        std::string restarts = std::to_string(g->goodput ? g->goodput->restarts : 0);
        table.add({id_of(*g), printable(g->user), state_name(g->state), std::to_string(g->world_size),
                   std::to_string(g->nodes.size()), step_text(newest_step(*g)),
                   checkpoint ? std::to_string(checkpoint->train_step) : "-", restarts,
                   goodput_percent(g->goodput.get())});
    }
    return table.empty() ? "no elastic jobs\n" : table.text();
}

std::string status_details(const GroupStatusT &g) {
    std::string out = "Job " + id_of(g) + " of " + printable(g.user) + ": " + state_name(g.state) + "\n";
    add_line(out, "world",
             count_of(g.world_size, "rank") + " on " + count_of(g.nodes.size(), "node") + " (elastic " +
                 std::to_string(g.min_nodes) + ":" + std::to_string(g.max_nodes) + ", spares " +
                 std::to_string(g.spares) + "), generation " + generation_text(g));
    if (is_scaled(g)) add_line(out, "nodes", wanted_text(g));
    if (!g.joined.empty()) add_line(out, "joined", joined_text(g));
    add_line(out, "leader", g.leader.empty() ? "none yet" : g.leader);
    add_line(out, "lineage", g.lineage);
    add_line(out, "restarts",
             std::to_string(g.goodput ? g.goodput->restarts : 0) + "; " + std::to_string(g.restarts_left) +
                 " of " + std::to_string(g.max_restarts) + " left before the next complete checkpoint");
    for (const auto &c : g.checkpoints)
        if (c) add_line(out, "checkpoint", checkpoint_text(*c));
    for (const auto &suspect : g.suspects)
        if (suspect) add_line(out, "suspect", suspect_text(*suspect));
    if (g.arena_bytes > 0) add_line(out, "memory here", memory_text(g));
    if (g.kept_us > 0)
        add_line(out, "memory kept",
                 "on " + g.node + " for the job's next run, " +
                     format_duration(std::chrono::microseconds(g.kept_us)) + " at most");
    if (g.memory_need_bytes > 0)
        add_line(out, "memory need",
                 format_size_bytes(g.memory_need_bytes) + " on " + g.node + ", with " +
                     std::to_string(g.memory_slots) + " slots a rank");
    if (!g.memory_refused.empty()) add_line(out, "memory refused", g.memory_refused);
    if (g.storage) add_line(out, "storage", storage_text(*g.storage));
    if (g.copies) add_line(out, "copies", copies_text(*g.copies));
    if (g.mover) add_line(out, "mover", mover_text(*g.mover, g.node));
    if (g.verified) add_line(out, "verified", verified_text(*g.verified));
    if (g.pmix) add_line(out, "pmix", pmix_text(*g.pmix));
    if (g.goodput && g.goodput->steps > 0) add_line(out, "goodput", goodput_text(*g.goodput));
    if (g.goodput && g.goodput->checkpoints + g.goodput->checkpoints_skipped > 0)
        add_line(out, "saves", saves_text(*g.goodput));
    if (!g.note.empty()) add_line(out, "note", g.note);
    return out + rank_table(g);
}

std::string status_json(const proto::local::StatusReplyT &reply) {
    JsonWriter json;
    json.begin_object().key("groups").begin_array();
    for (const auto &g : reply.groups)
        if (g) write_group(json, *g);
    json.end_array().end_object();
    return json.text() + "\n";
}

}  // namespace dlrover::cli
