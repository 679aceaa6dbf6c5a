// SPDX-License-Identifier: Apache-2.0
#include "cli/node_text.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "cli/json.h"
#include "cli/table.h"

namespace dlrover::cli {
namespace {

using proto::local::FactState;
using proto::local::FactT;
using proto::local::NodeCheckReplyT;
using proto::local::RungT;
using Facts = std::vector<std::unique_ptr<FactT>>;

const char *word_of(FactState state) {
    switch (state) {
        case FactState::Good:
            return "ok";
        case FactState::Limited:
            return "limited";
        case FactState::Bad:
            return "bad";
    }
    return "?";
}

void add_line(std::string &out, const std::string &name, const char *word, const std::string &text,
              const std::string &change) {
    char head[40];
    std::snprintf(head, sizeof head, "  %-14s %-8s ", printable(name).substr(0, 20).c_str(), word);
    out += head + printable(text) + "\n";
    if (!change.empty()) out += std::string(25, ' ') + "to change it: " + printable(change) + "\n";
}

void add_facts(std::string &out, const char *title, const Facts &facts) {
    out += title;
    for (const auto &f : facts)
        if (f) add_line(out, f->name, word_of(f->state), f->text, f->change);
}

void write_facts(JsonWriter &json, const char *key, const Facts &facts) {
    json.key(key).begin_array();
    for (const auto &f : facts)
        if (f)
            json.begin_object()
                .field("name", f->name)
                .field("state", word_of(f->state))
                .field("text", f->text)
                .field("change", f->change)
                .end_object();
    json.end_array();
}

void write_ladder(JsonWriter &json, const std::vector<std::unique_ptr<RungT>> &ladder) {
    json.key("ladder").begin_array();
    for (const auto &r : ladder)
        if (r)
            json.begin_object()
                .field("name", r->name)
                .field("open", r->open)
                .field("text", r->text)
                .field("change", r->change)
                .end_object();
    json.end_array();
}

void write_site(JsonWriter &json, const proto::local::SiteStatusT *site) {
    json.key("site");
    if (!site) {
        json.null();
        return;
    }
    json.begin_object()
        .field("slurm_version", site->slurm_version)
        .field("database", site->database)
        .field("job_expansion", site->job_expansion)
        .field("contain", site->contain)
        .field("job_shrink", site->job_shrink)
        .field("node_changes", site->node_changes)
        .field("requeue", site->requeue)
        .field("slurmd_timeout_s", site->slurmd_timeout_s)
        .field("kill_wait_s", site->kill_wait_s)
        .field("cred_expire_s", site->cred_expire_s)
        .field("switch_type", site->switch_type)
        .end_object();
}

}  // namespace

bool is_sound(const NodeCheckReplyT &reply) {
    return std::ranges::none_of(reply.node_facts,
                                [](const auto &f) { return f && f->state == FactState::Bad; });
}

std::string node_check_text(const NodeCheckReplyT &reply) {
    std::string out = "Node " + printable(reply.node) + " of cluster " + printable(reply.cluster) +
                      ", dlroverd " + printable(reply.version) + "\n";
    add_facts(out, "\nThis node:\n", reply.node_facts);
    if (!reply.site) return out + "\nWhat the site allows is not known: slurmctld has not answered.\n";
    out += "\nThe site (Slurm " + printable(reply.site->slurm_version) + "):\n";
    add_facts(out, "", reply.site_facts);
    out += "\nWhat comes after a lost node, in this order:\n";
    for (const auto &r : reply.ladder)
        if (r) add_line(out, r->name, r->open ? "open" : "closed", r->text, r->change);
    return out;
}

std::string node_check_json(const NodeCheckReplyT &reply) {
    JsonWriter json;
    json.begin_object();
    json.field("node", reply.node).field("cluster", reply.cluster).field("version", reply.version);
    json.field("sound", is_sound(reply));
    write_facts(json, "node_facts", reply.node_facts);
    write_site(json, reply.site.get());
    write_facts(json, "site_facts", reply.site_facts);
    write_ladder(json, reply.ladder);
    json.end_object();
    return json.text() + "\n";
}

}  // namespace dlrover::cli
