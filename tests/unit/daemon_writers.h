// SPDX-License-Identifier: Apache-2.0
// Writers of nodes that are in one process, as the test plays them.
#pragma once

#include "tests/unit/daemon_nodes.h"

namespace dlrover::daemon::test {

/// A node's writer. What it is told to do is done at once, unless `trouble` says why not, or it is `slow`.
struct Writer : Helper {
    explicit Writer(Node &n) : Helper(n, local::Role::Writer) { connect(); }
    void connect() {
        say_hello<local::WriterHelloT>();
        welcome = node.port->take<local::WriterWelcomeT>(client.id);
    }
    void pump() {
        for (auto &message : take_orders()) {
            if (auto *look = message.body.AsLookAtFolder()) answer_look(*look);
            if (auto *test = message.body.AsTestFolder()) answer_test(*test);
            if (auto *store = message.body.AsStoreObject()) {
                stored.emplace_back(store->checkpoint->train_step, store->rank);
                if (slow)
                    held = {store->order, store->rank};
                else
                    answer_store(store->order, store->rank);
            }
            if (auto *complete = message.body.AsCompleteCheckpoint()) {
                completed.push_back(complete->checkpoint->train_step);
                local::CheckpointStoredT answer;
                answer.order = complete->order;
                answer.ok = true;
                answer.text = remark;
                if (!slow) say(std::move(answer));
            }
            cancelled += message.body.AsCancelOrder() != nullptr;
        }
    }
    void answer_look(const local::LookAtFolderT &look) {
        local::FolderFoundT found;
        found.order = look.order;
        found.ok = trouble.empty();
        found.text = trouble;
        found.next_term = next_term;
        if (newest_step > 0) {
            found.newest = std::make_unique<local::StoredCheckpointT>();
            found.newest->generation = std::make_unique<proto::Generation>(1, 3);
            found.newest->train_step = newest_step;
            found.newest->world_size = 4;
        }
        say(std::move(found));
    }
    void answer_test(const local::TestFolderT &test) {
        (test.make ? marks_made : marks_sought).push_back(test.node);
        local::FolderTestedT answer;
        answer.order = test.order;
        answer.ok = test.make || !apart;
        say(std::move(answer));
    }
    void say_storage_answers() { say(local::StorageAnsweredT{}); }
    void say_written(std::uint64_t bytes, std::uint64_t order_offset = 0) {
        local::ObjectProgressT word;
        word.order = held.first + order_offset;
        word.rank = held.second;
        word.bytes = bytes;
        say(std::move(word));
    }
    void answer_store(std::uint64_t order, std::uint32_t rank) {
        local::ObjectStoredT answer;
        answer.order = order;
        answer.rank = rank;
        answer.memory_damaged = damaged.contains(rank);
        answer.ok = trouble.empty() && !answer.memory_damaged;
        answer.text = answer.memory_damaged ? "a checksum is wrong" : trouble;
        say(std::move(answer));
    }

    std::optional<local::WriterWelcomeT> welcome;
    std::string trouble, remark;
    bool slow = false, apart = false;  ///< apart: its folder is another one than the others'
    std::vector<std::string> marks_made, marks_sought;
    std::set<std::uint32_t> damaged;               ///< ranks whose objects in memory are
    std::pair<std::uint64_t, std::uint32_t> held;  ///< (order, rank) that is not answered
    std::uint64_t newest_step = 0, next_term = 0;
    std::vector<std::pair<std::uint64_t, std::uint32_t>> stored;  ///< (step, rank)
    std::vector<std::uint64_t> completed;
    int cancelled = 0;
};

}  // namespace dlrover::daemon::test
