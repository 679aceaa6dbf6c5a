// SPDX-License-Identifier: Apache-2.0
// Checkpoints on storage: the term of a run stands above those that are there, and a world without a step in
// memory goes on from the newest of them.
#include "elastic/member_state.h"

namespace dlrover::elastic {
namespace {

constexpr Duration look_again = std::chrono::seconds(2);
constexpr Duration back_patience = std::chrono::seconds(5);

}  // namespace

/// Before its first reign a run does not know which terms others of its lineage have used.
bool Member::State::floor_unknown() const {
    return config.storage && !storage.found && promise.generation.number == 0 && !promise.world &&
           !promise.voted_for;
}

void Member::State::ask_storage() {
    if (storage.pending || now < storage.retry_at) return;
    storage.pending = true;
    storage.passed_over = to_pass_over();
    out.push_back(LookAtStorage{++storage.last_request, storage.passed_over});
}

void Member::State::on_storage(const LocalStorage &m) {
    if (!storage.pending || m.request != storage.last_request || finish) return;
    storage.pending = false;
    storage.found = m;
    if (!m.text.empty()) note(Note::Kind::warning, m.text);
    if (role == Role::leader)
        consider();
    else if (role == Role::follower)
        on_tick_follower();
}

/// Whether the prepared world can be decided, as far as that needs storage.
bool Member::State::storage_settled() {
    bool back = preparing->search == Search::further_back;
    if (!config.storage || (!back && newest_in_memory(preparing->nodes))) return true;
    if (storage.passed_over != to_pass_over()) storage.forget();
    if (storage.found) return storage_answered();
    ask_storage();
    // An older step is not worth a long wait, unless a person wants it.
    Duration patience = preparing->by_person ? config.timings.join : back_patience;
    if (back && now - preparing->since >= patience) {
        storage.forget();
        storage.found.emplace();
    }
    return storage.found && storage_answered();
}

/// Where storage is needed that can not be used: the first world does not begin, before any work is lost; a
/// later one waits a while.
bool Member::State::storage_answered() {
    bool back = preparing->search == Search::further_back;
    bool below = storage.found->next_term >= promise.term && !bugged(PlantedBug::storage_terms_ignored);
    if (storage.found->ok && below) {
        // Whoever let this run begin could not look.
        term_seen = std::max(term_seen, storage.found->next_term);
        step_down("the checkpoints on storage are of higher terms");
        election_deadline = now + place_delay();
        return false;
    }
    if (storage.found->ok || back) return true;
    bool first = preparing->id.number == 1;
    if (first || now - preparing->since >= config.timings.join) {
        finish_group(1, storage.found->text);
        return false;
    }
    storage.found.reset();
    storage.retry_at = now + look_again;
    return false;
}

}  // namespace dlrover::elastic
