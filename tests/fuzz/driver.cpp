// SPDX-License-Identifier: Apache-2.0
// A fuzz target without libFuzzer: all seeds, all files given as arguments, then mutations from a fixed
// random seed, so that "make check" does the same on every machine. FUZZ_RUNS and FUZZ_SEED change how many
// and which.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "fuzz.h"

using dlrover::fuzz::Bytes;

namespace {

constexpr std::size_t max_input_bytes = 1u << 16;
Bytes current;  ///< the input that runs, for the report of a crash

class Mutator {
  public:
    Mutator(std::vector<Bytes> seeds, std::uint64_t seed) : seeds_(std::move(seeds)), random_(seed) {}

    Bytes next() {
        Bytes input = seeds_[below(seeds_.size())];
        for (std::size_t i = 0, n = 1 + below(4); i < n; ++i) mutate(input);
        if (input.size() > max_input_bytes) input.resize(max_input_bytes);
        return input;
    }

  private:
    std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }
    std::uint8_t byte() { return static_cast<std::uint8_t>(random_()); }

    void mutate(Bytes &input) {
        if (input.empty()) return input.push_back(byte());
        std::size_t at = below(input.size());
        switch (below(8)) {
            case 0:
                input[at] = static_cast<std::uint8_t>(input[at] ^ (1u << below(8)));
                break;
            case 1:
                input[at] = byte();
                break;
            case 2:
                input.resize(at);
                break;
            case 3:
                input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), byte());
                break;
            case 4:
                input.erase(input.begin() + static_cast<std::ptrdiff_t>(at));
                break;
            case 5:
                write_number(input, at);
                break;
            case 6:
                splice(input, at);
                break;
            default:
                repeat(input, at);
        }
    }
    void write_number(Bytes &input, std::size_t at) {
        static const std::uint64_t numbers[] = {0,
                                                1,
                                                0x7f,
                                                0xff,
                                                0x7fff,
                                                0xffff,
                                                0x7fffffff,
                                                0xffffffff,
                                                0xfffffffc,
                                                0x7fffffffffffffff,
                                                0xffffffffffffffff,
                                                0x80000000};
        std::uint64_t number = numbers[below(std::size(numbers))];
        std::memcpy(input.data() + at, &number,
                    std::min<std::size_t>(std::size_t{1} << below(4), input.size() - at));
    }
    void splice(Bytes &input, std::size_t at) {
        const Bytes &other = seeds_[below(seeds_.size())];
        if (other.empty()) return;
        std::size_t from = below(other.size());
        input.resize(at);
        input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
    }
    void repeat(Bytes &input, std::size_t at) {
        std::size_t n = std::min<std::size_t>(1 + below(64), input.size() - at);
        Bytes piece(input.begin() + static_cast<std::ptrdiff_t>(at),
                    input.begin() + static_cast<std::ptrdiff_t>(at + n));
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), piece.begin(), piece.end());
    }

    std::vector<Bytes> seeds_;
    std::mt19937_64 random_;
};

std::uint64_t number_from(const char *variable, std::uint64_t otherwise) {
    const char *text = std::getenv(variable);
    return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// Writes the input that was running next to the program; async-signal-safe but for its luck with `current`.
void on_crash(int number) {
    static const char text[] = "fuzz: crashed; the input follows in hexadecimal\n";
    (void)!::write(2, text, sizeof text - 1);
    for (std::uint8_t b : current) {
        char hex[2] = {"0123456789abcdef"[b >> 4], "0123456789abcdef"[b & 15]};
        (void)!::write(2, hex, 2);
    }
    (void)!::write(2, "\n", 1);
    std::signal(number, SIG_DFL);
    std::raise(number);
}

bool run(Bytes input) {
    current = std::move(input);
    return dlrover::fuzz::run(current);
}

}  // namespace

int main(int argc, char **argv) {
    for (int number : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) std::signal(number, on_crash);
    auto seeds = dlrover::fuzz::seeds();
    dlrover::fuzz::require(!seeds.empty(), "a target has seeds");
    for (const auto &seed : seeds) dlrover::fuzz::require(run(seed), "every seed is accepted");
    for (int i = 1; i < argc; ++i) {
        std::ifstream file(argv[i], std::ios::binary);
        dlrover::fuzz::require(file.good(), "every file can be read");
        run(Bytes(std::istreambuf_iterator<char>(file), {}));
    }
    std::uint64_t runs = number_from("FUZZ_RUNS", 20000), accepted = 0, done = 0;
    // A slow machine (or a sanitizer) does fewer rather than time out.
    auto until = std::chrono::steady_clock::now() + std::chrono::seconds(number_from("FUZZ_SECONDS", 20));
    run({});
    Mutator mutator(std::move(seeds), number_from("FUZZ_SEED", 1));
    for (; done < runs && std::chrono::steady_clock::now() < until; ++done) accepted += run(mutator.next());
    std::printf("%s: %d files, %llu mutations, %llu of them accepted\n", argv[0], argc - 1,
                static_cast<unsigned long long>(done), static_cast<unsigned long long>(accepted));
    dlrover::fuzz::require(done > 0 && accepted < done, "mutations are run and some are refused");
    return 0;
}
