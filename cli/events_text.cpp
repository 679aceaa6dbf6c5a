// SPDX-License-Identifier: Apache-2.0
#include "cli/events_text.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <span>
#include <string>

#include "base/count_of.h"
#include "base/units.h"
#include "cli/json.h"
#include "cli/table.h"

namespace dlrover::cli {
namespace {

using proto::EventKind;
using proto::EventT;

std::string since(std::int64_t us) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "+%.3f s", static_cast<double>(us) / 1e6);
    return buffer;
}

std::string clock_text(std::int64_t us) {
    std::time_t seconds = us / 1000000;
    std::tm tm{};
    ::localtime_r(&seconds, &tm);
    char buffer[40];
    std::strftime(buffer, sizeof buffer, "%Y-%m-%d %H:%M:%S", &tm);
    return buffer;
}

void write_event(JsonWriter &json, const EventT &e) {
    json.begin_object().field("time_us", e.time_us).field("kind", event_name(e.kind)).field("node", e.node);
    json.key("generation").begin_object();
    json.field("term", e.generation ? e.generation->term() : std::uint64_t{0});
    json.field("number", e.generation ? e.generation->number() : std::uint64_t{0}).end_object();
    json.field("rank", std::int64_t{e.rank})
        .field("train_step", e.train_step)
        .field("duration_us", e.duration_us)
        .field("text", e.text);
    json.end_object();
}

bool is_checkpoint(const std::unique_ptr<EventT> &e) {
    return e && (e->kind == EventKind::CheckpointComplete || e->kind == EventKind::CheckpointSkipped);
}

struct Line {
    EventKind kind;
    std::string text;
};

/// Checkpoints in a row are one line: nobody reads hundreds of them for the failure in between.
Line checkpoints_line(std::span<const std::unique_ptr<EventT>> row) {
    if (row.size() == 1) return {row[0]->kind, printable(row[0]->text)};
    const EventT *first = nullptr, *last = nullptr;
    std::size_t sealed = 0;
    for (const auto &e : row)
        if (e->kind == EventKind::CheckpointComplete) {
            if (!first) first = e.get();
            last = e.get();
            ++sealed;
        }
    std::size_t skipped = row.size() - sealed;
    std::string rows = count_of(skipped, "time");
    std::string no_slot = "no slot was free " + rows + ", saves were skipped";
    if (sealed == 0) return {EventKind::CheckpointSkipped, no_slot};
    std::string text = sealed == 1 ? printable(first->text)
                                   : "every rank has sealed " + std::to_string(sealed) +
                                         " checkpoints, steps " + std::to_string(first->train_step) + " to " +
                                         std::to_string(last->train_step);
    return {EventKind::CheckpointComplete, skipped == 0 ? text : text + "; " + no_slot};
}

}  // namespace

const char *event_name(EventKind kind) {
    switch (kind) {
        case EventKind::None:
            return "none";
        case EventKind::GroupStarted:
            return "group-started";
        case EventKind::NodeReady:
            return "node-ready";
        case EventKind::WorldPublished:
            return "world-published";
        case EventKind::WorkerStarted:
            return "worker-started";
        case EventKind::WorkerFailed:
            return "worker-failed";
        case EventKind::WorkerFinished:
            return "worker-finished";
        case EventKind::IncidentOpened:
            return "incident-opened";
        case EventKind::IncidentClosed:
            return "incident-closed";
        case EventKind::RestorePlanned:
            return "restore-planned";
        case EventKind::RestoreDone:
            return "restore-done";
        case EventKind::CheckpointSealed:
            return "checkpoint-sealed";
        case EventKind::CheckpointComplete:
            return "checkpoint-complete";
        case EventKind::CheckpointSkipped:
            return "checkpoint-skipped";
        case EventKind::LeaderElected:
            return "leader-elected";
        case EventKind::LeaderLost:
            return "leader-lost";
        case EventKind::DaemonRestarted:
            return "daemon-restarted";
        case EventKind::GaveUp:
            return "gave-up";
        case EventKind::GroupFinished:
            return "group-finished";
        case EventKind::Warning:
            return "warning";
        case EventKind::CheckpointStored:
            return "checkpoint-stored";
        case EventKind::NodeJoined:
            return "node-joined";
        case EventKind::NodeAsked:
            return "node-asked";
    }
    return "unknown";
}

std::string events_text(const proto::local::GroupEventsT &group) {
    std::string out = "Job " + std::to_string(group.job_id) + "." + std::to_string(group.step_id) +
                      ", lineage " + printable(group.lineage) + "\n";
    if (group.events.empty()) return out + "  no events\n";
    std::int64_t start = group.events.front()->time_us;
    out += "  times since " + clock_text(start) + "\n";
    if (group.dropped > 0) out += "  (" + std::to_string(group.dropped) + " older events were dropped)\n";
    Table table({"TIME", "NODE", "EVENT", "RANK", "TOOK", "WHAT"});
    for (auto it = group.events.begin(); it != group.events.end();) {
        auto next = is_checkpoint(*it) ? std::find_if_not(it, group.events.end(), is_checkpoint) : it + 1;
        const EventT &e = **(next - 1);
        Line line = is_checkpoint(*it) ? checkpoints_line({it, next}) : Line{e.kind, printable(e.text)};
        std::string took = e.duration_us < 0 ? "" : format_duration(std::chrono::microseconds(e.duration_us));
        bool of_rank = e.rank >= 0 && next - it == 1;
        table.add({since(e.time_us - start), printable(e.node), event_name(line.kind),
                   of_rank ? std::to_string(e.rank) : "", took, line.text});
        it = next;
    }
    return out + table.text("  ");
}

std::string events_json(const proto::local::EventsReplyT &reply) {
    JsonWriter json;
    json.begin_object().key("groups").begin_array();
    for (const auto &g : reply.groups) {
        if (!g) continue;
        json.begin_object()
            .field("job_id", g->job_id)
            .field("step_id", g->step_id)
            .field("lineage", g->lineage)
            .field("dropped", g->dropped);
        json.key("events").begin_array();
        for (const auto &e : g->events)
            if (e) write_event(json, *e);
        json.end_array().end_object();
    }
    json.end_array().end_object();
    return json.text() + "\n";
}

}  // namespace dlrover::cli
