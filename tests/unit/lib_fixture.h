// SPDX-License-Identifier: Apache-2.0
// Environment and small wrappers for the tests of the C interface.
#pragma once

#include <stdlib.h>

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lib/dlrover.h"

namespace dlrover::test {

struct Closer {
    void operator()(dlrover_context *c) const { dlrover_close(c); }
    void operator()(dlrover_restore *r) const { dlrover_restore_close(r); }
};
using Context = std::unique_ptr<dlrover_context, Closer>;
using Restore = std::unique_ptr<dlrover_restore, Closer>;

/// A clean environment for each test, put back afterwards.
struct Environment {
    Environment() {
        for (const char *name : names) ::unsetenv(name);
        char folder[] = "/tmp/dlrover-test-XXXXXX";
        dir = ::mkdtemp(folder);
        ::setenv("DLROVER_LOCAL_DIR", dir.c_str(), 1);
        ::setenv("DLROVER_TIMEOUT_MS", "3000", 1);
        ::setenv("DLROVER_COPY_THREADS", "2", 1);
    }
    ~Environment() {
        for (const char *name : names) ::unsetenv(name);
        std::filesystem::remove_all(dir);
    }
    void manage(const std::string &socket) {
        ::setenv("DLROVER_MANAGED", "1", 1);
        ::setenv("DLROVER_SOCKET", socket.c_str(), 1);
        ::setenv("DLROVER_JOB_ID", "7", 1);
        ::setenv("DLROVER_STEP_ID", "0", 1);
        ::setenv("DLROVER_GENERATION", "4294967297:3", 1);
        ::setenv("DLROVER_LINEAGE", "test/lineage", 1);
    }
    std::string dir;
    static constexpr const char *names[] = {"RANK",
                                            "WORLD_SIZE",
                                            "LOCAL_RANK",
                                            "LOCAL_WORLD_SIZE",
                                            "DLROVER_MANAGED",
                                            "DLROVER_SOCKET",
                                            "DLROVER_JOB_ID",
                                            "DLROVER_STEP_ID",
                                            "DLROVER_GENERATION",
                                            "DLROVER_LINEAGE",
                                            "DLROVER_FAULT",
                                            "DLROVER_TIMEOUT_MS",
                                            "GROUP_RANK",
                                            "DLROVER_COPY_THREADS",
                                            "DLROVER_LOCAL_DIR",
                                            "TORCHELASTIC_RESTART_COUNT"};
};

inline Context open_context() {
    dlrover_context *c = nullptr;
    BOOST_REQUIRE_MESSAGE(dlrover_open(&c) == DLROVER_OK, dlrover_error_text());
    return Context(c);
}

inline dlrover_chunk floats(const char *name, std::uint64_t count) {
    dlrover_chunk chunk{};
    chunk.name = name;
    chunk.dtype = DLROVER_FLOAT32;
    chunk.ndim = 1;
    chunk.global_shape[0] = chunk.local_shape[0] = count;
    return chunk;
}

inline std::vector<float> numbers(std::size_t count, float first) {
    std::vector<float> v(count);
    for (std::size_t i = 0; i < count; ++i) v[i] = first + static_cast<float>(i);
    return v;
}

/// One save of two chunks, skeleton and ledger. Returns the code of the first call that fails, or of the
/// commit.
inline int save_step(dlrover_context *c, std::uint64_t step, std::size_t count = 1000) {
    dlrover_save *s = nullptr;
    if (int code = dlrover_save_begin(c, step, count * 4 + 400, &s); code != DLROVER_OK) return code;
    auto a = numbers(count, static_cast<float>(step)), b = numbers(100, 7);
    dlrover_chunk chunks[2] = {floats("a", count), floats("b", 100)};
    const void *data[2] = {a.data(), b.data()};
    std::uint64_t bytes[2] = {count * 4, 400};
    int code = dlrover_save_add_many(s, 2, chunks, data, bytes);
    if (code == DLROVER_OK) code = dlrover_save_skeleton(s, "{}", 2);
    if (code == DLROVER_OK) code = dlrover_save_ledger(s, &step, sizeof step);
    if (code != DLROVER_OK) {
        dlrover_save_abort(s);
        return code;
    }
    return dlrover_save_commit(s);
}

/// What save_step() saved is there, byte for byte; returns the step.
inline std::int64_t check_restored(dlrover_context *c, std::size_t count = 1000) {
    dlrover_restore *raw = nullptr;
    BOOST_REQUIRE_MESSAGE(dlrover_restore_open(c, &raw) == DLROVER_OK, dlrover_error_text());
    Restore r(raw);
    auto step = dlrover_restore_step(raw);
    dlrover_chunk chunk;
    const void *data;
    std::uint64_t bytes;
    BOOST_REQUIRE(dlrover_restore_find(raw, "a", &chunk, &data, &bytes) == DLROVER_OK);
    BOOST_TEST(bytes == count * 4);
    auto expected = numbers(count, static_cast<float>(step));
    BOOST_TEST(std::memcmp(data, expected.data(), bytes) == 0);
    BOOST_TEST(reinterpret_cast<std::uintptr_t>(data) % 64 == 0u);
    BOOST_TEST(chunk.local_shape[0] == count);
    BOOST_REQUIRE(dlrover_restore_find(raw, "b", &chunk, &data, &bytes) == DLROVER_OK);
    BOOST_TEST(std::memcmp(data, numbers(100, 7).data(), 400) == 0);
    const void *ledger;
    BOOST_REQUIRE(dlrover_restore_ledger(raw, &ledger, &bytes) == DLROVER_OK);
    std::uint64_t position = 0;
    BOOST_REQUIRE(bytes == sizeof position);
    std::memcpy(&position, ledger, sizeof position);
    BOOST_TEST(position == static_cast<std::uint64_t>(step));
    return step;
}

}  // namespace dlrover::test
