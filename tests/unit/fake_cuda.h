// SPDX-License-Identifier: Apache-2.0
// Around the fake CUDA driver of the tests.
#pragma once

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "tests/fakes/libcuda.h"

namespace dlrover::test {

/// A driver as new, and at the end of the test no broken rule.
struct FakeCuda {
    FakeCuda() {
        fake_cuda_reset();
        stream = fake_cuda_stream(0);
    }
    ~FakeCuda() {
        BOOST_TEST(std::string(fake_cuda_violations()) == "");
        BOOST_TEST(fake_cuda_capture_mode() == 0);
        BOOST_TEST(fake_cuda_context_depth() == 1);
        BOOST_TEST(fake_cuda_left() == 0);
        fake_cuda_reset();
    }
    FakeCuda(const FakeCuda &) = delete;
    FakeCuda &operator=(const FakeCuda &) = delete;

    void *stream;  ///< "s0", the program's
};

/// Bytes that tell where they belong.
inline std::vector<char> pattern(std::size_t bytes, unsigned seed) {
    std::vector<char> v(bytes);
    for (std::size_t i = 0; i < bytes; ++i) v[i] = static_cast<char>((i * 31 + i / 997 + seed * 101) & 0xff);
    return v;
}

/// Memory of a device with these bytes in it.
inline char *on_device(const std::vector<char> &bytes, int device = 0, bool pooled = false) {
    auto *memory = static_cast<char *>(fake_cuda_allocate(device, bytes.size(), pooled));
    std::memcpy(memory, bytes.data(), bytes.size());
    return memory;
}

inline std::vector<std::string> calls() {
    std::vector<std::string> lines;
    std::string text = fake_cuda_log();
    for (std::size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
        lines.push_back(text.substr(at, end - at));
    return lines;
}

inline std::size_t count_calls(const std::string &beginning, const std::string &with = "") {
    std::size_t n = 0;
    for (const auto &line : calls())
        n += line.starts_with(beginning) && line.find(with) != std::string::npos ? 1u : 0u;
    return n;
}

}  // namespace dlrover::test
