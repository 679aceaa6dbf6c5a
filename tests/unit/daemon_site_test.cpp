// SPDX-License-Identifier: Apache-2.0
#include "daemon/site.h"

#include "daemon/interfaces.h"
#include "daemon/node_probe.h"
#include "daemon_nodes.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace dlrover::daemon::test;

namespace {

const local::RungT &rung(const Rungs &rungs, const std::string &name) {
    auto it = std::ranges::find(rungs, name, [](const auto &r) { return r->name; });
    BOOST_REQUIRE(it != rungs.end());
    return **it;
}

const local::FactT *fact(const Facts &facts, const std::string &name) {
    auto it = std::ranges::find(facts, name, [](const auto &f) { return f->name; });
    return it == facts.end() ? nullptr : it->get();
}

SiteCapabilities generous() {
    SiteCapabilities site;
    site.version = "22.05.8";
    site.database = site.job_expansion = site.node_changes = true;
    return site;
}

/// A node of which people ask.
struct Asked : World {
    Node n1{*this, "n1"};
    Client person = n1.client(local::Role::Cli, bob);
    std::optional<local::NodeCheckReplyT> reply() { return n1.port->take<local::NodeCheckReplyT>(person.id); }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(daemon_site)

BOOST_AUTO_TEST_CASE(the_ladder_of_a_site_that_allows_all) {
    auto rungs = ladder_of(generous(), true);
    std::vector<std::string> names;
    for (const auto &r : rungs) {
        names.push_back(r->name);
        BOOST_TEST(r->open, r->name);
        BOOST_TEST(r->change == "", r->name);
    }
    std::vector<std::string> order{"spare", "job expansion", "companion job", "fewer nodes", "requeue"};
    BOOST_TEST(names == order, boost::test_tools::per_element());
}

/// One thing at a time is missing; the reason names it.
BOOST_AUTO_TEST_CASE(what_closes_job_expansion) {
    SiteCapabilities site = generous();
    BOOST_TEST(site.can_expand());
    auto closed_for = [](const SiteCapabilities &s, const std::string &word) {
        auto rungs = ladder_of(s, true);
        const auto &r = rung(rungs, "job expansion");
        BOOST_TEST(!s.can_expand());
        BOOST_TEST(!r.open);
        BOOST_TEST(r.text.find(word) != std::string::npos, r.text);
    };
    site.job_expansion = false;
    closed_for(site, "permit_job_expansion");
    site = generous();
    site.database = false;
    closed_for(site, "slurmdbd");
    site = generous();
    site.job_shrink = false;
    closed_for(site, "disable_job_shrink");
    site = generous();
    site.contain = true;
    closed_for(site, "Contain");
    site = generous();
    site.switch_type = "hpe_slingshot";
    closed_for(site, "hpe_slingshot");
}

BOOST_AUTO_TEST_CASE(what_closes_companion_jobs) {
    SiteCapabilities site = generous();
    BOOST_TEST(!rung(ladder_of(site, false), "companion job").open);
    site.switch_type = "nvidia_imex";
    BOOST_TEST(!rung(ladder_of(site, true), "companion job").open);
    site.switch_type = "cray_aries";
    BOOST_TEST(rung(ladder_of(site, true), "companion job").open);
}

BOOST_AUTO_TEST_CASE(without_shrink_a_lost_node_stays_in_the_job_and_a_majority_goes_on) {
    SiteCapabilities site = generous();
    site.job_shrink = false;
    site.slurmd_timeout_s = 77;
    auto rungs = ladder_of(site, true);
    const auto &r = rung(rungs, "fewer nodes");
    BOOST_TEST(r.open);
    BOOST_TEST(r.text.find("77 s") != std::string::npos, r.text);
    BOOST_TEST(r.text.find("half of them have the job requeued") != std::string::npos, r.text);
    BOOST_TEST((fact(site_facts(site), "job shrink")->state == local::FactState::Limited));
}

BOOST_FIXTURE_TEST_CASE(a_person_asks_and_hears_what_there_is, Asked) {
    slurm.site = generous();
    n1.say(person, local::NodeCheckRequestT(), 9);
    BOOST_TEST(!reply().has_value());
    loop.advance(100ms);
    auto heard = reply();
    BOOST_REQUIRE(heard.has_value());
    BOOST_TEST(heard->node == "n1");
    BOOST_REQUIRE(heard->site);
    BOOST_TEST(heard->site->database);
    BOOST_TEST(heard->ladder.size() == 5u);
    BOOST_TEST((fact(heard->node_facts, "slurmctld")->state == local::FactState::Good));
    BOOST_TEST((fact(heard->node_facts, "memory")->state == local::FactState::Good));
}

BOOST_FIXTURE_TEST_CASE(slurmctld_is_away, Asked) {
    slurm.away = true;
    n1.say(person, local::NodeCheckRequestT());
    loop.advance(100ms);
    auto heard = reply();
    BOOST_REQUIRE(heard.has_value());
    BOOST_TEST(!heard->site);
    BOOST_TEST((fact(heard->node_facts, "slurmctld")->state == local::FactState::Bad));
}

BOOST_FIXTURE_TEST_CASE(whoever_does_not_answer_is_named_in_time, Asked) {
    loop.advance(1s);
    slurm.silent = true;
    n1.say(person, local::NodeCheckRequestT());
    loop.advance(5s);
    BOOST_TEST(!reply().has_value());
    loop.advance(2s);
    auto heard = reply();
    BOOST_REQUIRE(heard.has_value());
    BOOST_TEST((fact(heard->node_facts, "slurmctld")->state == local::FactState::Bad));
    slurm.speak();  // too late
    loop.advance(2s);
    BOOST_TEST(!reply().has_value());
}

/// However many ask, Slurm is asked once.
BOOST_FIXTURE_TEST_CASE(askers_share_one_look, Asked) {
    loop.advance(1s);
    slurm.site_asked = 0;
    for (int i = 0; i < 5; ++i) n1.say(person, local::NodeCheckRequestT());
    loop.advance(100ms);
    for (int i = 0; i < 5; ++i) BOOST_TEST(reply().has_value());
    n1.say(person, local::NodeCheckRequestT());
    BOOST_TEST(reply().has_value(), "what was found just now is still true");
    BOOST_TEST(slurm.site_asked == 1u);
    loop.advance(2s);
    n1.say(person, local::NodeCheckRequestT());
    loop.advance(100ms);
    BOOST_TEST(slurm.site_asked == 2u);
}

BOOST_AUTO_TEST_CASE(a_site_is_asked_until_it_answers_and_again_after_it_was_away) {
    ManualLoop loop;
    MemorySlurm slurm{loop};
    slurm.away = true;
    Site site(loop, slurm);
    site.start();
    loop.advance(1s);
    BOOST_TEST(!site.known().has_value());
    slurm.away = false;
    loop.advance(31s);
    BOOST_REQUIRE(site.known().has_value());
    BOOST_TEST(!site.known()->database);
    loop.advance(10min);
    BOOST_TEST(slurm.site_asked == 2u, "no timer asks a Slurm that has answered");
    slurm.site.database = true;
    slurm.returned();
    loop.advance(1s);
    BOOST_TEST(site.known()->database);
}

BOOST_AUTO_TEST_CASE(the_interface_of_an_address) {
    Facts facts;
    probe_address("127.0.0.1", "", facts);
    probe_address("127.0.0.1", "eth77", facts);
    probe_address("203.0.113.9", "", facts);
    BOOST_REQUIRE(facts.size() == 3u);
    BOOST_TEST((facts[0]->state == local::FactState::Limited), facts[0]->text);
    BOOST_TEST((facts[1]->state == local::FactState::Bad));
    BOOST_TEST(facts[1]->text.find("eth77") != std::string::npos);
    BOOST_TEST((facts[2]->state == local::FactState::Bad));
}

BOOST_AUTO_TEST_CASE(a_faster_interface_that_is_not_used) {
    auto address = [](const char *text) { return *transport::parse_address(text); };
    std::vector<Interface> all{{"lo", true, true, 900000, {address("127.0.0.1")}},
                               {"eth0", true, false, 1000, {address("10.0.0.1"), address("fd00::1")}},
                               {"eth1", true, false, 0, {address("10.0.1.1")}},
                               {"ib0", true, false, 100000, {address("10.1.0.1")}},
                               {"ib1", false, false, 200000, {address("10.2.0.1")}}};
    BOOST_TEST(network_text(all, "10.0.0.1") ==
               "eth0, 1000 Mbit/s; ib0, 100000 Mbit/s, is there and not used");
    BOOST_TEST(network_text(all, "fd00::1") == network_text(all, "10.0.0.1"));
    BOOST_TEST(network_text(all, "10.1.0.1") == "ib0, 100000 Mbit/s", "one that is down is no better");
    BOOST_TEST(tells_of_faster(network_text(all, "10.0.0.1")));
    BOOST_TEST(!tells_of_faster(network_text(all, "10.1.0.1")));
    BOOST_TEST(network_text(all, "10.0.1.1") == "eth1", "nothing is said where the speed is not known");
    for (const char *text : {"", "10.9.9.9", "a name"}) BOOST_TEST(network_text(all, text) == "", text);
}

BOOST_AUTO_TEST_CASE(the_interfaces_of_this_node) {
    auto all = read_interfaces();
    auto loopback = std::ranges::find(all, "lo", &Interface::name);
    BOOST_REQUIRE((loopback != all.end()));
    BOOST_TEST((loopback->up && loopback->loopback));
    BOOST_TEST(interface_of(all, std::vector{*transport::parse_address("127.0.0.1")}) == &*loopback);
}

BOOST_AUTO_TEST_SUITE_END()
