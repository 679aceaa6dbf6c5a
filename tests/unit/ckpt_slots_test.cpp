// SPDX-License-Identifier: Apache-2.0
#include "ckpt/slots.h"

#include <boost/test/unit_test.hpp>

using namespace dlrover;
using namespace dlrover::ckpt;

namespace {

const GenerationId g1{Term(1), 1}, g2{Term(1), 2};
auto any = [](SlotIndex) { return true; };

std::optional<Grant> save(SlotTable &t, std::uint64_t step, GenerationId g = g1, Holder h = 7) {
    auto grant = t.grant(h, TrainStep(step), g, any);
    if (grant) BOOST_TEST(t.seal(grant->slot, h, TrainStep(step), g).ok());
    return grant;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(ckpt_slots)

BOOST_AUTO_TEST_CASE(incomplete_steps_are_never_overwritten) {
    SlotTable t(3);
    for (std::uint64_t step : {1, 2, 3}) BOOST_TEST(save(t, step).has_value());
    BOOST_TEST(!save(t, 4).has_value());
    t.complete({g1, TrainStep(1)});
    BOOST_TEST(!save(t, 4).has_value());
    t.complete({g1, TrainStep(2)});
    auto grant = save(t, 4);
    BOOST_REQUIRE(grant.has_value());
    BOOST_TEST(grant->overwrites);
    BOOST_TEST(!t.find_newest(TrainStep(1)).has_value());
    BOOST_TEST(t.find_newest(TrainStep(2)).has_value());
}

BOOST_AUTO_TEST_CASE(the_oldest_goes_first_and_the_complete_one_before_is_kept) {
    SlotTable t(3);
    for (std::uint64_t step = 1; step < 20; ++step) {
        BOOST_REQUIRE(save(t, step).has_value());
        t.complete({g1, TrainStep(step)});
        if (step > 1) BOOST_TEST(t.find_newest(TrainStep(step - 1)).has_value());
    }
}

BOOST_AUTO_TEST_CASE(objects_that_can_never_be_complete_are_given_up) {
    SlotTable t(3);
    for (std::uint64_t step : {1, 2, 3}) BOOST_TEST(save(t, step).has_value());
    t.complete({g1, TrainStep(1)});
    BOOST_TEST(!save(t, 4).has_value());
    t.give_up(TrainStep(3), g2, TrainStep(1));  // another generation's objects
    BOOST_TEST(!save(t, 4).has_value());
    t.give_up(TrainStep(3), g1, TrainStep(1));
    BOOST_TEST(save(t, 4).has_value());
    for (std::uint64_t kept : {1, 3, 4}) BOOST_TEST(t.find_newest(TrainStep(kept)).has_value());
    BOOST_TEST(!t.find_newest(TrainStep(2)).has_value());
}

BOOST_AUTO_TEST_CASE(an_object_sealed_after_its_step_was_given_up_keeps_no_slot) {
    SlotTable t(2);
    for (std::uint64_t step : {1, 2}) {
        auto late = t.grant(7, TrainStep(step), g1, any);
        BOOST_REQUIRE(late.has_value());
        t.give_up(TrainStep(step + 1), g1, std::nullopt);
        BOOST_TEST(t.seal(late->slot, 7, TrainStep(step), g1).ok());
    }
    BOOST_TEST(save(t, 3).has_value());
    BOOST_TEST(save(t, 4).has_value());
    BOOST_TEST(!save(t, 5).has_value());  // nothing is known of 3 and 4
    t.complete({g1, TrainStep(3)});
    t.give_up(TrainStep(5), g1, TrainStep(3));
    BOOST_TEST(t.find_newest(TrainStep(3)).has_value());
    BOOST_TEST(save(t, 5).has_value());
}

BOOST_AUTO_TEST_CASE(a_slot_being_read_is_not_reused) {
    SlotTable t(2);
    save(t, 1);
    save(t, 2);
    t.complete({g1, TrainStep(2)});
    auto slot = *t.find_newest(TrainStep(1));
    t.add_reader(slot);
    BOOST_TEST(!save(t, 3).has_value());
    t.drop_reader(slot);
    BOOST_TEST(save(t, 3).has_value());
}

BOOST_AUTO_TEST_CASE(seal_needs_the_grant) {
    SlotTable t(2);
    auto grant = t.grant(7, TrainStep(5), g1, any);
    BOOST_TEST((t.seal(grant->slot, 8, TrainStep(5), g1).code() == Code::stale));
    BOOST_TEST((t.seal(grant->slot, 7, TrainStep(6), g1).code() == Code::stale));
    BOOST_TEST((t.seal(grant->slot, 7, TrainStep(5), g2).code() == Code::stale));
    BOOST_TEST((t.seal(SlotIndex(9), 7, TrainStep(5), g1).code() == Code::stale));
    BOOST_TEST(t.seal(grant->slot, 7, TrainStep(5), g1).ok());
    BOOST_TEST((t.seal(grant->slot, 7, TrainStep(5), g1).code() == Code::stale));
}

BOOST_AUTO_TEST_CASE(grants_end_with_the_connection_or_the_generation) {
    SlotTable t(2);
    auto a = t.grant(7, TrainStep(5), g1, any);
    t.release_grants_of(7);
    BOOST_TEST((t.slots()[a->slot.value()].state == SlotState::free));
    t.grant(7, TrainStep(5), g1, any);
    t.release_grants_before(g1);
    BOOST_TEST((t.seal(a->slot, 7, TrainStep(5), g1).ok()));
    auto b = t.grant(7, TrainStep(6), g1, any);
    t.release_grants_before(g2);
    BOOST_TEST((t.seal(b->slot, 7, TrainStep(6), g1).code() == Code::stale));
}

BOOST_AUTO_TEST_CASE(after_a_rewind_newer_objects_of_old_generations_are_void) {
    SlotTable t(3);
    save(t, 10);
    t.complete({g1, TrainStep(10)});
    save(t, 11);
    t.rewind(CheckpointId{g1, TrainStep(10)}, g2);
    BOOST_TEST(!t.find_newest(TrainStep(11)).has_value());
    BOOST_TEST(t.find_newest(TrainStep(10)).has_value());
    // One step further back: 10 is void too and 9 must not be overwritten because of it.
    SlotTable u(3);
    save(u, 9);
    save(u, 10);
    u.complete({g1, TrainStep(10)});
    u.rewind(CheckpointId{g1, TrainStep(9)}, g2);
    BOOST_TEST(!u.find_newest(TrainStep(10)).has_value());
    save(u, 10, g2);
    save(u, 11, g2);
    BOOST_TEST(!save(u, 12, g2).has_value());
    BOOST_TEST(u.find_newest(TrainStep(9)).has_value());
}

BOOST_AUTO_TEST_CASE(the_step_that_a_generation_goes_on_from_outlasts_its_being_saved_again) {
    const GenerationId g3{Term(1), 3};
    const CheckpointId first{g1, TrainStep(10)}, again{g2, TrainStep(10)};
    SlotTable t(3);
    save(t, 10);
    t.complete(first);
    t.rewind(first, g2);
    BOOST_TEST(save(t, 10, g2).has_value());
    BOOST_TEST(t.find(first).has_value());  // another rank may die before it has saved it again
    BOOST_TEST(save(t, 11, g2).has_value());
    BOOST_TEST(!save(t, 12, g2).has_value());
    SlotTable later = t;
    later.rewind(again, g3);  // the first may be the one that has its copies
    BOOST_TEST(later.find(first).has_value());
    BOOST_TEST(later.find(again).has_value());
    t.rewind(first, g3);
    BOOST_TEST(t.find(first).has_value());
    BOOST_TEST(!t.find(again).has_value());
    BOOST_TEST(!t.find_newest(TrainStep(11)).has_value());
}

BOOST_AUTO_TEST_CASE(once_all_have_saved_it_again_the_first_may_go) {
    const CheckpointId first{g1, TrainStep(10)}, again{g2, TrainStep(10)};
    SlotTable t(2);
    save(t, 10);
    t.complete(first);
    t.rewind(first, g2);
    save(t, 10, g2);
    BOOST_TEST(!save(t, 11, g2).has_value());
    t.complete(again);
    t.complete(first);  // an older word
    BOOST_TEST(save(t, 11, g2).has_value());
    BOOST_TEST(t.find(again).has_value());
    BOOST_TEST(!t.find(first).has_value());
}

/// Others may have copies of the first, or have saved the same step as it was then.
BOOST_AUTO_TEST_CASE(of_a_step_that_is_sealed_again_the_first_counts) {
    SlotTable t(3);
    auto first = save(t, 4);
    auto again = t.grant(1, TrainStep(4), g1, [](SlotIndex) { return true; });
    BOOST_REQUIRE(again.has_value());
    BOOST_TEST((t.seal(again->slot, 1, TrainStep(4), g1).code() == Code::already_exists));
    BOOST_TEST((*t.find_newest(TrainStep(4)) == first->slot));
    BOOST_TEST((t.slots()[again->slot.value()].state == SlotState::free));
}

BOOST_AUTO_TEST_CASE(a_grant_from_before_a_restart_is_adopted_by_its_writer) {
    SlotTable t(3);
    t.restore_sealed(SlotIndex(0), TrainStep(1), g1);
    t.restore_granted(SlotIndex(1), TrainStep(2), g1);
    t.adopt_grants(8, g2);
    BOOST_TEST((t.seal(SlotIndex(1), 8, TrainStep(2), g1).code() == Code::stale));
    t.adopt_grants(9, g1);
    BOOST_TEST(t.seal(SlotIndex(1), 9, TrainStep(2), g1).ok());
    BOOST_TEST(t.find_newest(TrainStep(1)).has_value());
}

BOOST_AUTO_TEST_CASE(what_is_void_is_not_written_while_it_is_read) {
    SlotTable t(1);
    auto grant = save(t, 1);
    BOOST_REQUIRE(grant.has_value());
    t.add_reader(grant->slot);
    t.void_slot(grant->slot);
    BOOST_TEST(!t.find({g1, TrainStep(1)}).has_value());
    BOOST_TEST(!save(t, 1).has_value());
    t.drop_reader(grant->slot);
    BOOST_TEST(save(t, 1).has_value());
}

BOOST_AUTO_TEST_CASE(memory_that_does_not_suffice_is_not_granted) {
    SlotTable t(3);
    auto grant = t.grant(7, TrainStep(1), g1, [](SlotIndex i) { return i.value() == 2; });
    BOOST_REQUIRE(grant.has_value());
    BOOST_TEST(grant->slot.value() == 2);
    BOOST_TEST(!t.grant(7, TrainStep(1), g1, [](SlotIndex) { return false; }).has_value());
}

BOOST_AUTO_TEST_SUITE_END()
