// SPDX-License-Identifier: Apache-2.0
#include "daemon/record_store.h"

#include <fcntl.h>

#include <boost/test/unit_test.hpp>

#include "daemon/fd_store.h"

using namespace dlrover;
using namespace dlrover::daemon;

namespace {

UniqueFd some_fd() {
    return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(daemon_record_store)

BOOST_AUTO_TEST_CASE(names_are_checked) {
    RecordStore store;
    for (const char *name : {"", "a b", "a*", "a:b", "a\n"})
        BOOST_TEST((store.put(name, {}, UniqueFd()).code() == Code::invalid_argument), name);
    BOOST_TEST((store.put(std::string(201, 'a'), {}, UniqueFd()).code() == Code::invalid_argument));
    BOOST_TEST(store.put("group/7.0", {1}, UniqueFd()).ok());
}

BOOST_AUTO_TEST_CASE(every_bound_holds_and_a_refusal_changes_nothing) {
    RecordStore store({.records = 2, .descriptors = 1, .bytes = 20});
    BOOST_TEST(store.put("a", {1, 2, 3}, some_fd()).ok());
    BOOST_TEST((store.put("b", {1}, some_fd()).code() == Code::resource_exhausted));
    BOOST_TEST(
        (store.put("b", std::vector<std::uint8_t>(17), UniqueFd()).code() == Code::resource_exhausted));
    BOOST_TEST(store.put("b", {1}, UniqueFd()).ok());
    BOOST_TEST((store.put("c", {1}, UniqueFd()).code() == Code::resource_exhausted));
    BOOST_TEST(store.records().size() == 2u);
    // Replacing gives back what the old one had.
    for (int i = 0; i < 10; ++i) BOOST_TEST(store.put("a", std::vector<std::uint8_t>(15), some_fd()).ok());
    store.drop("a");
    BOOST_TEST(store.put("d", std::vector<std::uint8_t>(15), some_fd()).ok());
}

BOOST_AUTO_TEST_CASE(what_grows_with_ranks_leaves_room_for_new_steps) {
    RecordStore store({8, 4, 1000});
    int stored = 0;
    while (store.put("slot/1.0/0/" + std::to_string(stored), {1}, UniqueFd()).ok()) ++stored;
    BOOST_TEST(stored == 6);
    BOOST_TEST(!store.put("segment/1.0/1", {1}, UniqueFd()).ok());
    BOOST_TEST(!store.put("progress/1.0/0", {1}, UniqueFd()).ok());
    BOOST_TEST(store.put("group/2.0", {1}, UniqueFd()).ok());
    BOOST_TEST(store.put("promise/2.0", {1}, UniqueFd()).ok());
    BOOST_TEST(!store.put("world/2.0", {1}, UniqueFd()).ok());
}

BOOST_AUTO_TEST_CASE(each_kind_that_grows_with_ranks_and_each_bound_leaves_a_quarter) {
    for (const std::string kind : {"slot", "segment", "progress"}) {
        RecordStore by_descriptors({100, 8, 10000}), by_bytes({100, 100, 400});
        int descriptors = 0, records = 0;
        while (by_descriptors.put(kind + "/" + std::to_string(descriptors), {}, some_fd()).ok())
            ++descriptors;
        BOOST_TEST(descriptors == 6, kind);
        BOOST_TEST(by_descriptors.put(kind + "/x", {}, UniqueFd()).ok(), "without a descriptor it has room");
        std::vector<std::uint8_t> value(40 - kind.size() - 2);
        while (by_bytes.put(kind + "/" + std::to_string(records), value, UniqueFd()).ok()) ++records;
        BOOST_TEST(records == 7, kind);
        for (RecordStore *store : {&by_descriptors, &by_bytes})
            for (const char *other : {"group/2.0", "promise/2.0"})
                BOOST_TEST(store->put(other, std::vector<std::uint8_t>(40), some_fd()).ok(), kind << other);
    }
}

BOOST_AUTO_TEST_CASE(what_is_there_is_replaced_also_beyond_the_reserve) {
    RecordStore store({100, 4, 100});
    BOOST_TEST(store.put("slot/1", std::vector<std::uint8_t>(54), some_fd()).ok());
    BOOST_TEST(store.put("group/1", std::vector<std::uint8_t>(10), some_fd()).ok());
    for (const char *name : {"group/2", "group/3"}) BOOST_TEST(store.put(name, {}, some_fd()).ok());
    BOOST_TEST(store.put("slot/1", std::vector<std::uint8_t>(54), some_fd()).ok(), "by as much");
    BOOST_TEST(!store.put("slot/1", std::vector<std::uint8_t>(55), some_fd()).ok());
    BOOST_TEST(store.put("slot/1", std::vector<std::uint8_t>(10), some_fd()).ok(), "by less");
}

BOOST_AUTO_TEST_CASE(a_star_drops_a_prefix_only) {
    RecordStore store;
    for (const char *name : {"slot/1.0/0", "slot/1.0/1", "slot/10.0/0", "slot/1.0"})
        BOOST_TEST(store.put(name, {}, UniqueFd()).ok());
    std::vector<std::string> dropped;
    store.drop("slot/1.0/*", [&](const std::string &name) { dropped.push_back(name); });
    BOOST_TEST(dropped.size() == 2u);
    BOOST_TEST(store.records().size() == 2u);
    store.drop("slot/1.0");
    BOOST_TEST(store.records().contains("slot/10.0/0"));
    BOOST_TEST(store.records().size() == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
