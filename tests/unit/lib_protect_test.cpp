// SPDX-License-Identifier: Apache-2.0
// Protected memory, on plain files and against a daemon: every case that names no store runs on both.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <fstream>
#include <functional>
#include <numeric>
#include <thread>
#include <tuple>

#include "lib_fake_daemon.h"
#include "lib_fixture.h"

using namespace dlrover;
using namespace dlrover::test;
using namespace std::chrono_literals;

namespace {

struct Files : Environment {
    /// One byte of the newest checkpoint's first chunk is another one.
    void spoil(std::uint64_t step) {
        std::string path = dir + "/rank-0/step-" + std::to_string(step) + ".dlrover";
        std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
        char byte = static_cast<char>(f.get() ^ 1);
        f.seekp(0);
        f.put(byte);
    }
};

struct Managed : Environment {
    FakeDaemon daemon;
    Managed() { manage(daemon.socket_path()); }
    void spoil(std::uint64_t step) {
        for (auto &seal : daemon.sealed())
            if (seal.train_step == step) daemon.flip(seal.slot, 0);
    }
};

using Stores = std::tuple<Files, Managed>;

bool wait_until(const std::function<bool()> &condition) {
    for (int i = 0; i < 500; ++i) {
        if (condition()) return true;
        std::this_thread::sleep_for(10ms);
    }
    return false;
}

bool said(const std::string &words) {
    return std::string(dlrover_error_text()).find(words) != std::string::npos;
}

std::vector<double> ramp(std::size_t count, double first) {
    std::vector<double> v(count);
    std::iota(v.begin(), v.end(), first);
    return v;
}

int protect(dlrover_context *c, int id, std::vector<double> &v) {
    return dlrover_protect(c, id, v.data(), v.size(), DLROVER_FLOAT64);
}

/// A checkpoint of one vector under id 1.
void save_vector(std::uint64_t step, std::size_t count, double first) {
    auto c = open_context();
    auto v = ramp(count, first);
    BOOST_REQUIRE(protect(c.get(), 1, v) == DLROVER_OK);
    BOOST_REQUIRE_MESSAGE(dlrover_checkpoint(c.get(), step) == DLROVER_OK, dlrover_error_text());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(lib_protect)

BOOST_AUTO_TEST_CASE_TEMPLATE(every_type_comes_back, Store, Stores) {
    Store store;
    const std::size_t sizes[18] = {1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 8, 16};
    std::vector<std::vector<unsigned char>> memory;
    auto c = open_context();
    BOOST_TEST(dlrover_restart_available(c.get()) == 0);
    BOOST_TEST(dlrover_restart_step(c.get()) == -1);
    for (std::uint32_t type = 0; type < 18; ++type) {
        memory.emplace_back(77 * sizes[type]);
        std::iota(memory.back().begin(), memory.back().end(), static_cast<unsigned char>(type));
    }
    // Any number is an id.
    auto id = [](std::uint32_t type) { return type == 5 ? INT32_MIN : static_cast<int>(type) * 1000 - 7; };
    auto protect_all = [&](dlrover_context *to) {
        for (std::uint32_t type = 0; type < 18; ++type)
            BOOST_TEST(dlrover_protect(to, id(type), memory[type].data(), 77, type) == DLROVER_OK);
    };
    protect_all(c.get());
    BOOST_TEST(dlrover_checkpoint(c.get(), 12) == DLROVER_OK);
    auto saved = memory;
    for (auto &bytes : memory) std::fill(bytes.begin(), bytes.end(), static_cast<unsigned char>(0xee));
    c = open_context();
    BOOST_TEST(dlrover_restart_available(c.get()) == 1);
    BOOST_TEST(dlrover_restart_step(c.get()) == 12);
    protect_all(c.get());
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_OK);
    BOOST_TEST((memory == saved));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(memory_grows_and_moves_between_checkpoints, Store, Stores) {
    Store store;
    auto c = open_context();
    std::vector<double> v;
    for (std::uint64_t step = 1; step <= 7; ++step) {
        v = ramp(step * 70000, static_cast<double>(step));
        v.shrink_to_fit();
        BOOST_TEST(protect(c.get(), 4, v) == DLROVER_OK);
        BOOST_TEST(dlrover_checkpoint(c.get(), step) == DLROVER_OK);
        std::uint64_t count = 0;
        auto again = open_context();
        BOOST_REQUIRE(dlrover_restart_size(again.get(), 4, &count) == DLROVER_OK);
        BOOST_TEST(count == step * 70000);
        std::vector<double> got(count);
        BOOST_TEST(protect(again.get(), 4, got) == DLROVER_OK);
        BOOST_TEST(dlrover_restart(again.get()) == DLROVER_OK);
        BOOST_TEST((got == v));
    }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(what_differs_is_named_and_nothing_is_written, Store, Stores) {
    Store store;
    auto c = open_context();
    auto a = ramp(100, 1), b = ramp(50, 1000);
    BOOST_TEST(protect(c.get(), 3, a) == DLROVER_OK);
    BOOST_TEST(protect(c.get(), 8, b) == DLROVER_OK);
    BOOST_TEST(dlrover_checkpoint(c.get(), 10) == DLROVER_OK);
    std::fill(a.begin(), a.end(), -1.0);
    auto kept = a;
    auto refused = [&](const std::string &id, const std::string &wanted, const std::string &saved) {
        BOOST_TEST(dlrover_restart(c.get()) == DLROVER_E_INVALID);
        for (auto &words : {id, wanted, saved, std::string("step 10"), std::string("nothing was restored")})
            BOOST_TEST(said(words), dlrover_error_text());
        BOOST_TEST((a == kept));
    };
    b.resize(51);
    BOOST_TEST(protect(c.get(), 8, b) == DLROVER_OK);
    refused("id 8", "51 elements of Float64 (408 bytes)", "50 elements of Float64 (400 bytes)");
    // The same number of bytes, another type.
    BOOST_TEST(dlrover_protect(c.get(), 8, b.data(), 50, DLROVER_INT64) == DLROVER_OK);
    refused("id 8", "50 elements of Int64 (400 bytes)", "50 elements of Float64 (400 bytes)");
    BOOST_TEST(dlrover_protect(c.get(), 8, b.data(), 50, DLROVER_FLOAT64) == DLROVER_OK);
    BOOST_TEST(dlrover_protect(c.get(), 9, b.data(), 2, DLROVER_FLOAT64) == DLROVER_OK);
    refused("id 9", "2 elements of Float64 (16 bytes)", "not in the checkpoint");
    BOOST_TEST(dlrover_unprotect(c.get(), 9) == DLROVER_OK);
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_OK);
    BOOST_TEST((a == ramp(100, 1)));
    b.resize(50);
    BOOST_TEST((b == ramp(50, 1000)));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(wrong_bytes_are_never_filled_in, Store, Stores) {
    Store store;
    save_vector(5, 1000, 1);
    store.spoil(5);
    auto c = open_context();
    auto v = ramp(1000, -1), kept = v;
    BOOST_TEST(protect(c.get(), 1, v) == DLROVER_OK);
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_E_CORRUPT);
    std::uint64_t count = 7;
    BOOST_TEST(dlrover_restart_size(c.get(), 1, &count) == DLROVER_E_CORRUPT);
    BOOST_TEST(count == 7u);
    BOOST_TEST((v == kept));
    store.spoil(5);
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_OK);
    BOOST_TEST((v == ramp(1000, 1)));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(nothing_to_restart_from, Store, Stores) {
    Store store;
    auto c = open_context();
    auto v = ramp(10, 0);
    std::uint64_t count = 0;
    BOOST_TEST(protect(c.get(), 1, v) == DLROVER_OK);
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_E_NOT_FOUND);
    BOOST_TEST(dlrover_restart_size(c.get(), 1, &count) == DLROVER_E_NOT_FOUND);
    BOOST_TEST((v == ramp(10, 0)));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(unprotected_memory_is_not_saved, Store, Stores) {
    Store store;
    auto c = open_context();
    auto a = ramp(10, 1), b = ramp(20, 2);
    BOOST_TEST(protect(c.get(), 1, a) == DLROVER_OK);
    BOOST_TEST(protect(c.get(), 2, b) == DLROVER_OK);
    std::uint64_t both = dlrover_protected_bytes(c.get());
    BOOST_TEST(both >= 240u);
    BOOST_TEST(dlrover_unprotect(c.get(), 2) == DLROVER_OK);
    BOOST_TEST(dlrover_unprotect(c.get(), 2) == DLROVER_E_NOT_FOUND);
    BOOST_TEST(said("id 2"));
    BOOST_TEST(dlrover_protected_bytes(c.get()) + 160 <= both);
    b = {};
    BOOST_TEST(dlrover_checkpoint(c.get(), 1) == DLROVER_OK);
    std::uint64_t count = 0;
    BOOST_TEST(dlrover_restart_size(c.get(), 1, &count) == DLROVER_OK);
    BOOST_TEST(count == 10u);
    BOOST_TEST(dlrover_restart_size(c.get(), 2, &count) == DLROVER_E_NOT_FOUND);
    BOOST_TEST(said("id 2"));
    BOOST_TEST(dlrover_unprotect(c.get(), 1) == DLROVER_OK);
    BOOST_TEST(dlrover_protected_bytes(c.get()) == 0u);
    BOOST_TEST(dlrover_checkpoint(c.get(), 2) == DLROVER_E_INVALID);
    BOOST_TEST(said("nothing is protected"));
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_E_INVALID);
    BOOST_TEST(said("nothing is protected"));
    BOOST_TEST(dlrover_restart_size(c.get(), 1, &count) == DLROVER_OK);
}

BOOST_AUTO_TEST_CASE_TEMPLATE(restarts_twice_and_in_stages, Store, Stores) {
    Store store;
    {
        auto c = open_context();
        std::uint64_t n = 300;
        auto v = ramp(n, 3);
        BOOST_TEST(dlrover_protect(c.get(), 0, &n, 1, DLROVER_UINT64) == DLROVER_OK);
        BOOST_TEST(protect(c.get(), 1, v) == DLROVER_OK);
        BOOST_TEST(dlrover_checkpoint(c.get(), 6) == DLROVER_OK);
    }
    auto c = open_context();
    std::uint64_t n = 0;
    BOOST_TEST(dlrover_protect(c.get(), 0, &n, 1, DLROVER_UINT64) == DLROVER_OK);
    BOOST_REQUIRE(dlrover_restart(c.get()) == DLROVER_OK);
    BOOST_REQUIRE(n == 300u);
    std::vector<double> v(n);
    BOOST_TEST(protect(c.get(), 1, v) == DLROVER_OK);
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_OK);
    BOOST_TEST((v == ramp(300, 3)));
    v.assign(n, 0);
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_OK);
    BOOST_TEST((v == ramp(300, 3)));
    BOOST_TEST(dlrover_checkpoint(c.get(), 7) == DLROVER_OK);
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_thousand_ids, Store, Stores) {
    Store store;
    std::vector<std::vector<double>> memory;
    for (int id = 0; id < 1000; ++id) memory.push_back(ramp(static_cast<std::size_t>(id % 40), id));
    auto protect_all = [&](dlrover_context *c) {
        bool ok = true;
        for (int i = 999; i >= 0; --i)
            ok = ok && protect(c, i, memory[static_cast<std::size_t>(i)]) == DLROVER_OK;
        BOOST_TEST(ok);
    };
    auto saved = memory;
    auto c = open_context();
    protect_all(c.get());
    BOOST_TEST(dlrover_prepare(c.get(), dlrover_protected_bytes(c.get())) == DLROVER_OK);
    for (std::uint64_t step : {1u, 2u, 3u, 4u}) BOOST_TEST(dlrover_checkpoint(c.get(), step) == DLROVER_OK);
    for (auto &v : memory) std::fill(v.begin(), v.end(), -1.0);
    c = open_context();
    bool sizes = true;
    for (int id = 0; id < 1000; ++id) {
        std::uint64_t count = 0;
        sizes = sizes && dlrover_restart_size(c.get(), id, &count) == DLROVER_OK &&
                count == static_cast<std::uint64_t>(id % 40);
    }
    BOOST_TEST(sizes);
    protect_all(c.get());
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_OK);
    BOOST_TEST((memory == saved));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(zero_elements_need_no_memory, Store, Stores) {
    Store store;
    auto c = open_context();
    BOOST_TEST(dlrover_protect(c.get(), 1, nullptr, 0, DLROVER_FLOAT32) == DLROVER_OK);
    BOOST_TEST(dlrover_checkpoint(c.get(), 0) == DLROVER_OK);
    std::uint64_t count = 9;
    auto again = open_context();
    BOOST_TEST(dlrover_restart_step(again.get()) == 0);
    BOOST_TEST(dlrover_restart_available(again.get()) == 1);
    BOOST_TEST(dlrover_restart_size(again.get(), 1, &count) == DLROVER_OK);
    BOOST_TEST(count == 0u);
    BOOST_TEST(dlrover_protect(again.get(), 1, nullptr, 0, DLROVER_FLOAT32) == DLROVER_OK);
    BOOST_TEST(dlrover_restart(again.get()) == DLROVER_OK);
    float value = 0;
    BOOST_TEST(dlrover_protect(again.get(), 1, &value, 1, DLROVER_FLOAT32) == DLROVER_OK);
    BOOST_TEST(dlrover_restart(again.get()) == DLROVER_E_INVALID);
    BOOST_TEST(said("1 elements of Float32 (4 bytes)"), dlrover_error_text());
    BOOST_TEST(said("0 elements of Float32 (0 bytes)"), dlrover_error_text());
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_piece_of_a_global_array, Store, Stores) {
    Store store;
    const std::uint64_t whole[] = {10, 8}, offset[] = {4, 0}, local[] = {3, 8}, other[] = {12, 8},
                        elsewhere[] = {5, 0};
    auto c = open_context();
    auto v = ramp(24, 1);
    double scalar = 2.5;
    auto array = [&](const std::uint64_t *global, const std::uint64_t *at) {
        return dlrover_protect_array(c.get(), 1, "field", v.data(), DLROVER_FLOAT64, 2, global, at, local);
    };
    BOOST_TEST(array(whole, offset) == DLROVER_OK);
    BOOST_TEST(dlrover_protect_array(c.get(), 2, "time", &scalar, DLROVER_FLOAT64, 0, nullptr, nullptr,
                                     nullptr) == DLROVER_OK);
    BOOST_TEST(dlrover_checkpoint(c.get(), 3) == DLROVER_OK);
    {
        dlrover_restore *raw = nullptr;
        BOOST_REQUIRE(dlrover_restore_open(c.get(), &raw) == DLROVER_OK);
        Restore r(raw);
        dlrover_chunk chunk;
        const void *data;
        std::uint64_t bytes;
        BOOST_TEST(dlrover_restore_count(raw) == 2u);
        BOOST_REQUIRE(dlrover_restore_find(raw, "field", &chunk, &data, &bytes) == DLROVER_OK);
        BOOST_TEST(chunk.ndim == 2u);
        BOOST_TEST(std::memcmp(chunk.global_shape, whole, sizeof whole) == 0);
        BOOST_TEST(std::memcmp(chunk.global_offset, offset, sizeof offset) == 0);
        BOOST_TEST(std::memcmp(chunk.local_shape, local, sizeof local) == 0);
        BOOST_TEST(std::memcmp(data, v.data(), 192) == 0);
    }
    v.assign(24, 0);
    std::uint64_t count = 0;
    BOOST_TEST(dlrover_restart_size(c.get(), 1, &count) == DLROVER_OK);
    BOOST_TEST(count == 24u);
    scalar = 0;
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_OK);
    BOOST_TEST((v == ramp(24, 1)));
    BOOST_TEST(scalar == 2.5);
    BOOST_TEST(array(other, offset) == DLROVER_OK);
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_E_INVALID);
    BOOST_TEST(said("id 1: array \"field\" is protected as 12x8"), dlrover_error_text());
    BOOST_TEST(said("has it as 10x8"), dlrover_error_text());
    BOOST_TEST(array(whole, elsewhere) == DLROVER_OK);
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_E_INVALID);
    BOOST_TEST(said("id 1 is protected (3x8 elements"), dlrover_error_text());
}

BOOST_AUTO_TEST_CASE_TEMPLATE(pieces_change_places, Store, Stores) {
    Store store;
    auto c = open_context();
    const std::uint64_t whole = 20, size = 10, low = 0, high = 10;
    auto a = ramp(10, 1), b = ramp(10, 100);
    auto place = [&](int id, std::vector<double> &v, const std::uint64_t &at) {
        return dlrover_protect_array(c.get(), id, "x", v.data(), DLROVER_FLOAT64, 1, &whole, &at, &size);
    };
    BOOST_TEST(place(1, a, low) == DLROVER_OK);
    BOOST_TEST(place(2, b, high) == DLROVER_OK);
    BOOST_TEST(dlrover_checkpoint(c.get(), 1) == DLROVER_OK);
    BOOST_TEST(place(1, a, high) == DLROVER_OK);
    BOOST_TEST(dlrover_checkpoint(c.get(), 2) == DLROVER_E_INVALID);
    BOOST_TEST(said("id 1 and id 2 are the same piece of array \"x\""), dlrover_error_text());
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_E_INVALID);
    BOOST_TEST(place(2, b, low) == DLROVER_OK);
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_OK);
    BOOST_TEST((a == ramp(10, 100)));
    BOOST_TEST((b == ramp(10, 1)));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(with_a_ledger_and_other_chunks, Store, Stores) {
    Store store;
    auto c = open_context();
    auto v = ramp(10, 1);
    float extra[4] = {1, 2, 3, 4};
    BOOST_TEST(protect(c.get(), 1, v) == DLROVER_OK);
    dlrover_save *s = nullptr;
    BOOST_REQUIRE(dlrover_save_begin(c.get(), 4, dlrover_protected_bytes(c.get()) + 16, &s) == DLROVER_OK);
    auto chunk = floats("extra", 4);
    BOOST_TEST(dlrover_save_add_protected(s) == DLROVER_OK);
    BOOST_TEST(dlrover_save_add(s, &chunk, extra, sizeof extra) == DLROVER_OK);
    BOOST_TEST(dlrover_save_ledger(s, "here", 4) == DLROVER_OK);
    BOOST_TEST(dlrover_checkpoint(c.get(), 5) == DLROVER_E_INVALID, "one save at a time");
    BOOST_TEST(dlrover_save_commit(s) == DLROVER_OK);
    v.assign(10, 0);
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_OK);
    BOOST_TEST((v == ramp(10, 1)));
    BOOST_TEST(dlrover_unprotect(c.get(), 1) == DLROVER_OK);
    BOOST_REQUIRE(dlrover_save_begin(c.get(), 6, 100, &s) == DLROVER_OK);
    BOOST_TEST(dlrover_save_add_protected(s) == DLROVER_E_INVALID);
    BOOST_TEST(said("nothing is protected"));
    BOOST_TEST(dlrover_save_commit(s) == DLROVER_E_INVALID);
    BOOST_TEST(dlrover_restart_step(c.get()) < 6);
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_restore_that_is_open_is_left_alone, Store, Stores) {
    Store store;
    save_vector(1, 10, 1);
    auto c = open_context();
    auto v = ramp(10, 0);
    std::uint64_t count;
    BOOST_TEST(protect(c.get(), 1, v) == DLROVER_OK);
    dlrover_restore *r = nullptr;
    BOOST_REQUIRE(dlrover_restore_open(c.get(), &r) == DLROVER_OK);
    BOOST_TEST(dlrover_restart_size(c.get(), 1, &count) == DLROVER_E_INVALID);
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_E_INVALID);
    BOOST_TEST(dlrover_restore_count(r) == 1u);
    dlrover_restore_close(r);
    // What was opened for a size is in nobody's way.
    BOOST_TEST(dlrover_restart_size(c.get(), 1, &count) == DLROVER_OK);
    BOOST_REQUIRE(dlrover_restore_open(c.get(), &r) == DLROVER_OK);
    dlrover_restore_close(r);
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_OK);
    BOOST_TEST((v == ramp(10, 1)));
    BOOST_TEST(dlrover_restart_size(c.get(), 1, &count) == DLROVER_OK);
    c.reset();
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_forked_child_has_nothing, Store, Stores) {
    Store store;
    save_vector(1, 100, 1);
    auto c = open_context();
    auto v = ramp(100, -1);
    std::uint64_t count = 0;
    BOOST_TEST(protect(c.get(), 1, v) == DLROVER_OK);
    BOOST_TEST(dlrover_restart_size(c.get(), 1, &count) == DLROVER_OK);
    pid_t child = ::fork();
    if (child == 0) {
        double x = 0;
        const std::uint64_t one = 1, zero = 0;
        bool right = dlrover_protect(c.get(), 2, &x, 1, DLROVER_FLOAT64) == DLROVER_E_FORKED &&
                     dlrover_protect_array(c.get(), 2, "x", &x, DLROVER_FLOAT64, 1, &one, &zero, &one) ==
                         DLROVER_E_FORKED &&
                     dlrover_unprotect(c.get(), 1) == DLROVER_E_FORKED &&
                     dlrover_checkpoint(c.get(), 2) == DLROVER_E_FORKED &&
                     dlrover_restart_available(c.get()) == DLROVER_E_FORKED &&
                     dlrover_restart_step(c.get()) == -1 &&
                     dlrover_restart_size(c.get(), 1, &count) == DLROVER_E_FORKED &&
                     dlrover_restart(c.get()) == DLROVER_E_FORKED && dlrover_protected_bytes(c.get()) == 0 &&
                     v == ramp(100, -1);
        dlrover_close(c.get());
        ::_exit(right ? 0 : 1);
    }
    int status = 0;
    BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
    BOOST_TEST(status == 0);
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_OK);
    BOOST_TEST((v == ramp(100, 1)));
    BOOST_TEST(dlrover_checkpoint(c.get(), 2) == DLROVER_OK);
}

BOOST_AUTO_TEST_CASE_TEMPLATE(another_thread_moves_the_memory, Store, Stores) {
    Store store;
    auto c = open_context();
    auto first = ramp(50000, 1);
    BOOST_TEST(protect(c.get(), 1, first) == DLROVER_OK);
    std::atomic<bool> stop{false}, ok{true};
    std::thread mover([&] {
        while (!stop) {  // each vector is freed as soon as the next one is registered
            std::vector<double> v = ramp(50000, 1);
            ok = ok && protect(c.get(), 1, v) == DLROVER_OK && protect(c.get(), 1, first) == DLROVER_OK;
        }
    });
    for (std::uint64_t step = 1; step <= 30; ++step)
        ok = ok && dlrover_checkpoint(c.get(), step) == DLROVER_OK;
    stop = true;
    mover.join();
    BOOST_TEST(ok.load());
    first.assign(50000, 0);
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_OK);
    BOOST_TEST((first == ramp(50000, 1)));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_world_of_another_size_is_told_so, Store, Stores) {
    Store store;
    save_vector(1, 10, 1);
    if (std::is_same_v<Store, Files>) return;  // files: the other rank has none, there is nothing to find
    ::setenv("RANK", "0", 1);
    ::setenv("WORLD_SIZE", "2", 1);
    auto c = open_context();
    auto v = ramp(10, 0);
    BOOST_TEST(protect(c.get(), 1, v) == DLROVER_OK);
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_E_UNSUPPORTED);
    BOOST_TEST((v == ramp(10, 0)));
}

BOOST_FIXTURE_TEST_CASE(wrong_arguments_are_refused_and_change_nothing, Files) {
    auto c = open_context();
    auto v = ramp(10, 1);
    const std::uint64_t ten = 10, one = 1, zero = 0;
    std::uint64_t count;
    BOOST_TEST(protect(c.get(), 1, v) == DLROVER_OK);
    BOOST_TEST(dlrover_protect(c.get(), 1, nullptr, 10, DLROVER_FLOAT64) == DLROVER_E_INVALID);
    BOOST_TEST(said("id 1: the pointer is NULL"), dlrover_error_text());
    BOOST_TEST(dlrover_protect(c.get(), 1, v.data(), 10, 18) == DLROVER_E_INVALID);
    BOOST_TEST(said("id 1"), dlrover_error_text());
    BOOST_TEST(dlrover_protect(c.get(), 1, v.data(), UINT64_MAX / 4, DLROVER_FLOAT64) == DLROVER_E_INVALID);
    BOOST_TEST(dlrover_protect(nullptr, 1, v.data(), 10, DLROVER_FLOAT64) == DLROVER_E_INVALID);
    auto array = [&](const char *name, void *p, std::uint32_t type, std::uint32_t ndim, auto *global,
                     auto *at, auto *local) {
        return dlrover_protect_array(c.get(), 1, name, p, type, ndim, global, at, local);
    };
    const std::uint64_t *none = nullptr;
    BOOST_TEST(array(nullptr, v.data(), DLROVER_FLOAT64, 1, &ten, &zero, &ten) == DLROVER_E_INVALID);
    BOOST_TEST(array("", v.data(), DLROVER_FLOAT64, 1, &ten, &zero, &ten) == DLROVER_E_INVALID);
    BOOST_TEST(array("protected.2", v.data(), DLROVER_FLOAT64, 1, &ten, &zero, &ten) == DLROVER_E_INVALID);
    BOOST_TEST(array("x", nullptr, DLROVER_FLOAT64, 1, &ten, &zero, &ten) == DLROVER_E_INVALID);
    BOOST_TEST(array("x", v.data(), 18, 1, &ten, &zero, &ten) == DLROVER_E_INVALID);
    BOOST_TEST(array("x", v.data(), DLROVER_FLOAT64, 17, &ten, &zero, &ten) == DLROVER_E_INVALID);
    BOOST_TEST(array("x", v.data(), DLROVER_FLOAT64, 1, none, &zero, &ten) == DLROVER_E_INVALID);
    BOOST_TEST(array("x", v.data(), DLROVER_FLOAT64, 1, &ten, none, &ten) == DLROVER_E_INVALID);
    BOOST_TEST(array("x", v.data(), DLROVER_FLOAT64, 1, &ten, &zero, none) == DLROVER_E_INVALID);
    BOOST_TEST(array("x", v.data(), DLROVER_FLOAT64, 1, &ten, &one, &ten) == DLROVER_E_INVALID);
    BOOST_TEST(said("id 1"), dlrover_error_text());
    BOOST_TEST(dlrover_unprotect(nullptr, 1) == DLROVER_E_INVALID);
    BOOST_TEST(dlrover_protected_bytes(nullptr) == 0u);
    BOOST_TEST(dlrover_checkpoint(nullptr, 1) == DLROVER_E_INVALID);
    BOOST_TEST(dlrover_checkpoint(c.get(), UINT64_MAX) == DLROVER_E_INVALID);
    BOOST_TEST(dlrover_save_add_protected(nullptr) == DLROVER_E_INVALID);
    BOOST_TEST(dlrover_restart_available(nullptr) == DLROVER_E_INVALID);
    BOOST_TEST(dlrover_restart_step(nullptr) == -1);
    BOOST_TEST(dlrover_restart_size(c.get(), 1, nullptr) == DLROVER_E_INVALID);
    BOOST_TEST(dlrover_restart_size(nullptr, 1, &count) == DLROVER_E_INVALID);
    BOOST_TEST(dlrover_restart(nullptr) == DLROVER_E_INVALID);
    // What was registered first is still there.
    BOOST_TEST(dlrover_checkpoint(c.get(), 1) == DLROVER_OK);
    v.assign(10, 0);
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_OK);
    BOOST_TEST((v == ramp(10, 1)));
}

BOOST_FIXTURE_TEST_CASE(more_than_there_is_memory_for, Files) {
    auto c = open_context();
    double x = 0;
    for (int id : {1, 2})
        BOOST_TEST(dlrover_protect(c.get(), id, &x, UINT64_MAX / 16, DLROVER_FLOAT64) == DLROVER_OK);
    BOOST_TEST(dlrover_protected_bytes(c.get()) == UINT64_MAX);
    BOOST_TEST(dlrover_checkpoint(c.get(), 1) == DLROVER_E_INVALID);
    BOOST_TEST(dlrover_unprotect(c.get(), 2) == DLROVER_OK);
    BOOST_TEST(dlrover_checkpoint(c.get(), 1) < 0);
    BOOST_TEST(dlrover_protect(c.get(), 1, &x, 1, DLROVER_FLOAT64) == DLROVER_OK);
    BOOST_TEST(dlrover_checkpoint(c.get(), 1) == DLROVER_OK);
}

BOOST_FIXTURE_TEST_CASE(no_free_slot_is_a_skipped_checkpoint, Managed) {
    save_vector(1, 100, 1);
    auto c = open_context();
    auto v = ramp(100, 1);
    BOOST_TEST(protect(c.get(), 1, v) == DLROVER_OK);
    dlrover_restore *r = nullptr;
    BOOST_REQUIRE(dlrover_restore_open(c.get(), &r) == DLROVER_OK);
    BOOST_TEST(dlrover_checkpoint(c.get(), 2) == DLROVER_OK);
    BOOST_TEST(dlrover_checkpoint(c.get(), 3) == DLROVER_OK);
    BOOST_TEST(dlrover_checkpoint(c.get(), 4) == DLROVER_E_SKIPPED,
               "the daemon offers the slot that we read");
    BOOST_TEST(daemon.page()->saves_skipped.load() == 1u);
    dlrover_restore_close(r);
    BOOST_TEST(dlrover_checkpoint(c.get(), 5) == DLROVER_OK);
    // What was opened for a size does not keep a slot from the next saves.
    std::uint64_t count;
    BOOST_TEST(dlrover_restart_size(c.get(), 1, &count) == DLROVER_OK);
    for (std::uint64_t step = 6; step < 12; ++step)
        BOOST_TEST(dlrover_checkpoint(c.get(), step) == DLROVER_OK);
    BOOST_TEST(daemon.page()->saves_skipped.load() == 1u);
}

BOOST_FIXTURE_TEST_CASE(sizes_and_restart_are_one_restore_for_the_daemon, Managed) {
    save_vector(1, 100, 1);
    auto c = open_context();
    std::uint64_t count = 0;
    for (int i = 0; i < 5; ++i) BOOST_TEST(dlrover_restart_size(c.get(), 1, &count) == DLROVER_OK);
    std::vector<double> v(count);
    BOOST_TEST(protect(c.get(), 1, v) == DLROVER_OK);
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_OK);
    BOOST_TEST(wait_until([&] { return daemon.count(local::Body::RestoreDone) == 1; }));
    BOOST_TEST(daemon.count(local::Body::Restore) == 1u);
    BOOST_TEST(daemon.last_restore_done().ok);
    v.resize(7);
    BOOST_TEST(protect(c.get(), 1, v) == DLROVER_OK);
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_E_INVALID);
    BOOST_TEST(wait_until([&] { return daemon.count(local::Body::RestoreDone) == 2; }));
    BOOST_TEST(!daemon.last_restore_done().ok);
    BOOST_TEST(daemon.last_restore_done().text.find("id 1") != std::string::npos);
}

BOOST_FIXTURE_TEST_CASE(the_daemon_restarts_between_the_calls, Managed) {
    save_vector(1, 100, 1);
    auto c = open_context();
    std::uint64_t count = 0;
    std::vector<double> v(100);
    BOOST_TEST(protect(c.get(), 1, v) == DLROVER_OK);
    BOOST_TEST(dlrover_restart_size(c.get(), 1, &count) == DLROVER_OK);
    daemon.stop(true);
    daemon.start();
    BOOST_TEST(dlrover_restart(c.get()) == DLROVER_OK);
    BOOST_TEST((v == ramp(100, 1)));
    daemon.stop(true);
    daemon.start();
    BOOST_TEST(dlrover_checkpoint(c.get(), 2) == DLROVER_OK);
    ::setenv("DLROVER_TIMEOUT_MS", "200", 1);
    auto hasty = open_context();
    BOOST_TEST(protect(hasty.get(), 1, v) == DLROVER_OK);
    daemon.stop(true);
    BOOST_TEST(dlrover_checkpoint(hasty.get(), 3) == DLROVER_E_UNAVAILABLE);
    BOOST_TEST(dlrover_restart(hasty.get()) == DLROVER_E_UNAVAILABLE);
    BOOST_TEST((v == ramp(100, 1)));
    daemon.start();
    BOOST_TEST(dlrover_checkpoint(hasty.get(), 3) == DLROVER_OK);
}

BOOST_AUTO_TEST_SUITE_END()
