// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/allocation.h"

#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "pmix_server/world.h"

using namespace dlrover;
using namespace dlrover::pmix;

namespace {

using Verb = proto::AllocationOrder::Verb;
constexpr pmix_status_t taken = PMIX_SUCCESS, wrong = PMIX_ERR_BAD_PARAM, unknown = PMIX_ERR_NOT_SUPPORTED;

class Infos {
  public:
    template <typename T>
    Infos &add(const char *key, const T &value, pmix_data_type_t type) {
        PMIX_INFO_LOAD(&all_.emplace_back(), key, &value, type);
        return *this;
    }
    /// The text stays the caller's.
    Infos &text(const char *key, const char *value) {
        auto &info = all_.emplace_back();
        PMIX_LOAD_KEY(info.key, key);
        info.value.type = PMIX_STRING;
        info.value.data.string = const_cast<char *>(value);
        return *this;
    }
    Infos &flag(const char *key) { return add(key, true, PMIX_BOOL); }
    std::vector<pmix_info_t> &all() { return all_; }
    pmix_status_t parse(pmix_alloc_directive_t directive, Allocation &out) const {
        return parse_allocation(directive, all_, out);
    }

  private:
    std::vector<pmix_info_t> all_;
};

Infos one_node() {
    Infos infos;
    infos.add(PMIX_ALLOC_NUM_NODES, 1, PMIX_INT);
    return infos;
}

/// Its keys and qualifiers stay others'.
class Query {
  public:
    Query(std::vector<std::string> keys, Infos qualifiers)
        : keys_(std::move(keys)), qualifiers_(std::move(qualifiers)) {
        for (auto &key : keys_) words_.push_back(key.data());
        words_.push_back(nullptr);
    }
    pmix_status_t parse(std::optional<proto::AllocationOrder> &out) {
        pmix_query_t query{};
        query.keys = words_.data();
        query.qualifiers = qualifiers_.all().data();
        query.nqual = qualifiers_.all().size();
        out.reset();
        return parse_status_query({&query, 1}, out);
    }

  private:
    std::vector<std::string> keys_;
    std::vector<char *> words_;
    Infos qualifiers_;
};

pmix_status_t parse(pmix_alloc_directive_t directive, std::uint64_t nodes, Allocation &out) {
    return Infos().add(PMIX_ALLOC_NUM_NODES, nodes, PMIX_UINT64).parse(directive, out);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(allocations)

BOOST_AUTO_TEST_CASE(a_number_of_nodes_is_taken) {
    Allocation out;
    BOOST_TEST(parse(PMIX_ALLOC_EXTEND, 2, out) == taken);
    BOOST_TEST((out.more == 2u && out.fewer == 0u));
    BOOST_TEST(parse(PMIX_ALLOC_RELEASE, 16384, out) == taken);
    BOOST_TEST((out.more == 0u && out.fewer == 16384u));
    BOOST_TEST(Infos()
                   .add("some.key", 1, PMIX_INT)
                   .add(PMIX_ALLOC_NUM_NODES, 3, PMIX_INT)
                   .parse(PMIX_ALLOC_EXTEND, out) == taken);
    BOOST_TEST(out.more == 3u);
}

BOOST_AUTO_TEST_CASE(what_is_no_number_of_nodes_is_refused) {
    Allocation out;
    BOOST_TEST(parse(PMIX_ALLOC_EXTEND, 0, out) == wrong);
    BOOST_TEST(parse(PMIX_ALLOC_EXTEND, 16385, out) == wrong);
    BOOST_TEST(Infos().parse(PMIX_ALLOC_EXTEND, out) == wrong);
    BOOST_TEST(Infos().add(PMIX_ALLOC_NUM_NODES, -1, PMIX_INT).parse(PMIX_ALLOC_EXTEND, out) == wrong);
    BOOST_TEST(Infos().add(PMIX_ALLOC_NUM_NODES, 1.0, PMIX_DOUBLE).parse(PMIX_ALLOC_EXTEND, out) == wrong);
    BOOST_TEST(parse(PMIX_ALLOC_REAQUIRE, 1, out) == unknown);
    std::uint32_t hour = 3600;
    BOOST_TEST(Infos()
                   .add(PMIX_ALLOC_NUM_NODES, 1, PMIX_INT)
                   .add(PMIX_ALLOC_TIME, hour, PMIX_UINT32)
                   .parse(PMIX_ALLOC_EXTEND, out) == unknown);
}

BOOST_AUTO_TEST_CASE(a_new_allocation_is_taken_with_its_terms) {
    Allocation out;
    BOOST_TEST(parse(PMIX_ALLOC_NEW, 2, out) == taken);
    BOOST_REQUIRE(out.order.has_value());
    BOOST_TEST((out.more == 0u && out.fewer == 0u));
    BOOST_TEST((out.order->verb == Verb::create && out.order->nodes == 2u && !out.order->seconds));
    BOOST_TEST((out.order->partition.empty() && out.order->label.empty()));
    std::uint32_t seconds = 90;
    auto whole = Infos()
                     .add(PMIX_ALLOC_NUM_NODES, 1, PMIX_INT)
                     .add(PMIX_ALLOC_TIME, seconds, PMIX_UINT32)
                     .text(PMIX_ALLOC_QUEUE, "long")
                     .text(PMIX_ALLOC_REQ_ID, "the tests");
    BOOST_TEST(whole.parse(PMIX_ALLOC_NEW, out) == taken);
    BOOST_TEST(
        (out.order->seconds == 90u && out.order->partition == "long" && out.order->label == "the tests"));
    BOOST_TEST(whole.parse(PMIX_ALLOC_EXTEND, out) == unknown);
    // More seconds than Slurm can count are as many as it can.
    BOOST_TEST(one_node().add(PMIX_ALLOC_TIME, UINT64_MAX, PMIX_UINT64).parse(PMIX_ALLOC_NEW, out) == taken);
    BOOST_TEST((out.order->seconds == UINT32_MAX));
}

BOOST_AUTO_TEST_CASE(a_new_allocation_that_can_not_be_is_refused) {
    Allocation out;
    std::uint32_t zero = 0;
    float megabytes = 100;
    BOOST_TEST(parse(PMIX_ALLOC_NEW, 0, out) == wrong);
    BOOST_TEST(parse(PMIX_ALLOC_NEW, 16385, out) == wrong);
    BOOST_TEST(Infos().text(PMIX_ALLOC_QUEUE, "long").parse(PMIX_ALLOC_NEW, out) == wrong);
    BOOST_TEST(one_node().add(PMIX_ALLOC_TIME, zero, PMIX_UINT32).parse(PMIX_ALLOC_NEW, out) == wrong);
    for (const char *queue : {"", "a b", "a\n"})
        BOOST_TEST(one_node().text(PMIX_ALLOC_QUEUE, queue).parse(PMIX_ALLOC_NEW, out) == wrong);
    BOOST_TEST(one_node().text(PMIX_ALLOC_REQ_ID, "").parse(PMIX_ALLOC_NEW, out) == wrong);
    BOOST_TEST(one_node().text(PMIX_ALLOC_REQ_ID, "tab\t").parse(PMIX_ALLOC_NEW, out) == wrong);
    std::string longer(65, 'x');
    BOOST_TEST(one_node().text(PMIX_ALLOC_REQ_ID, longer.c_str()).parse(PMIX_ALLOC_NEW, out) == wrong);
    BOOST_TEST(one_node().add(PMIX_ALLOC_MEM_SIZE, megabytes, PMIX_FLOAT).parse(PMIX_ALLOC_NEW, out) ==
               unknown);
    BOOST_TEST(one_node().text(PMIX_ALLOC_ID, "58").parse(PMIX_ALLOC_NEW, out) == unknown);
}

BOOST_AUTO_TEST_CASE(an_allocation_is_released_by_its_number) {
    Allocation out;
    BOOST_TEST(Infos().text(PMIX_ALLOC_ID, "58").parse(PMIX_ALLOC_RELEASE, out) == taken);
    BOOST_TEST((out.order && out.order->verb == Verb::release && out.order->allocation == JobId(58)));
    for (const char *id : {"", "0", "58.0", "-1", " 58", "4294967294"})
        BOOST_TEST(Infos().text(PMIX_ALLOC_ID, id).parse(PMIX_ALLOC_RELEASE, out) == wrong, id);
    BOOST_TEST(one_node().text(PMIX_ALLOC_ID, "58").parse(PMIX_ALLOC_RELEASE, out) == wrong);
    BOOST_TEST(Infos().text(PMIX_ALLOC_ID, "58").parse(PMIX_ALLOC_EXTEND, out) == unknown);
    BOOST_TEST(one_node().text(PMIX_ALLOC_ID, "58").parse(PMIX_ALLOC_EXTEND, out) == unknown);
}

BOOST_AUTO_TEST_CASE(how_an_allocation_is_may_be_asked) {
    std::optional<proto::AllocationOrder> out;
    Infos id, other;
    id.text(PMIX_ALLOC_ID, "58").flag(PMIX_QUERY_REFRESH_CACHE);
    other.text(PMIX_ALLOC_ID, "58").text(PMIX_NSPACE, "dlrover.57.0.0.g1-1");
    BOOST_TEST(Query({"dlrover.generation"}, id).parse(out) == taken);
    BOOST_TEST(!out.has_value());
    BOOST_TEST(Query({PMIX_QUERY_ALLOC_STATUS}, id).parse(out) == taken);
    BOOST_TEST((out && out->verb == Verb::status && out->allocation == JobId(58)));
    BOOST_TEST(Query({PMIX_QUERY_ALLOC_STATUS}, other).parse(out) == unknown);
    BOOST_TEST(Query({PMIX_QUERY_ALLOC_STATUS, "dlrover.generation"}, id).parse(out) == unknown);
    BOOST_TEST(Query({"dlrover.generation", PMIX_QUERY_ALLOC_STATUS}, id).parse(out) == unknown);
    BOOST_TEST(Query({PMIX_QUERY_ALLOC_STATUS}, Infos()).parse(out) == wrong);
    BOOST_TEST(Query({PMIX_QUERY_ALLOC_STATUS}, Infos().text(PMIX_ALLOC_ID, "mine")).parse(out) == wrong);
}

BOOST_AUTO_TEST_CASE(whose_ranks_ask_is_in_their_namespace) {
    auto step = step_of("dlrover.57.3.0.g4294967297-12");
    BOOST_REQUIRE(step.has_value());
    BOOST_TEST((step->first == JobId(57) && step->second == StepId(3)));
    for (const char *name :
         {"", "dlrover", "dlrover.57", "dlrover.57.3", "dlrover.x.3.0.g1-1", "dlrover..3.0"})
        BOOST_TEST(!step_of(name).has_value(), name);
}

BOOST_AUTO_TEST_CASE(answers_are_errors_that_fit) {
    using State = proto::local::ScaleState;
    Allocation more{1, 0}, fewer{0, 1};
    BOOST_TEST(allocation_status(State::Taken, more) == PMIX_SUCCESS);
    BOOST_TEST(allocation_status(State::OutOfLimits, more) == PMIX_ERR_OUT_OF_RESOURCE);
    BOOST_TEST(allocation_status(State::OutOfLimits, fewer) == PMIX_ERR_BAD_PARAM);
    BOOST_TEST(allocation_status(State::Unable, fewer) == PMIX_ERR_NOT_SUPPORTED);
    BOOST_TEST(allocation_status(State::NotNow, fewer) == PMIX_ERR_RESOURCE_BUSY);
}

BOOST_AUTO_TEST_SUITE_END()
