// SPDX-License-Identifier: Apache-2.0
#include "examples/heat/options.h"

#include <getopt.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace heat {
namespace {

constexpr char usage[] =
    "usage: heat [--size CELLS] [--steps N] [--save-every N] [--step-us US] [--ballast-mb MB]\n"
    "            [--out FILE] [--phase-dir DIR] [--hang-on-peer-loss] [--older-may-live]\n"
    "Heat spreading over a square plate; each rank computes some rows of it.\n";

[[noreturn]] void refuse(const char *option, const char *value) {
    std::fprintf(stderr, "heat: %s: wrong value '%s'\n%s", option, value, usage);
    std::exit(2);
}

std::uint64_t number(const char *option, const char *text, std::uint64_t low, std::uint64_t high) {
    char *end = nullptr;
    errno = 0;
    unsigned long long value = std::strtoull(text, &end, 10);
    if (errno || end == text || *end || std::strchr(text, '-') || value < low || value > high)
        refuse(option, text);
    return value;
}

}  // namespace

Options parse_options(int argc, char **argv) {
    static const option known[] = {{"size", required_argument, nullptr, 's'},
                                   {"steps", required_argument, nullptr, 'n'},
                                   {"save-every", required_argument, nullptr, 'e'},
                                   {"step-us", required_argument, nullptr, 'u'},
                                   {"ballast-mb", required_argument, nullptr, 'b'},
                                   {"out", required_argument, nullptr, 'o'},
                                   {"phase-dir", required_argument, nullptr, 'p'},
                                   {"hang-on-peer-loss", no_argument, nullptr, 'l'},
                                   {"older-may-live", no_argument, nullptr, 'a'},
                                   {"help", no_argument, nullptr, 'h'},
                                   {}};
    Options o;
    if (const char *dir = std::getenv("HEAT_PHASE_DIR")) o.phase_dir = dir;
    for (int c; (c = getopt_long(argc, argv, "", known, nullptr)) != -1;) {
        switch (c) {
            case 's':
                o.size = static_cast<std::uint32_t>(number("--size", optarg, 8, 32768));
                break;
            case 'n':
                o.steps = number("--steps", optarg, 1, 1'000'000'000);
                break;
            case 'e':
                o.save_every = number("--save-every", optarg, 0, 1'000'000'000);
                break;
            case 'u':
                o.step_us = number("--step-us", optarg, 0, 60'000'000);
                break;
            case 'b':
                o.ballast_mb = number("--ballast-mb", optarg, 0, 65536);
                break;
            case 'o':
                o.out = optarg;
                break;
            case 'p':
                o.phase_dir = optarg;
                break;
            case 'l':
                o.hang_on_peer_loss = true;
                break;
            case 'a':
                o.older_may_live = true;
                break;
            case 'h':
                std::fputs(usage, stdout);
                std::exit(0);
            default:
                std::fputs(usage, stderr);
                std::exit(2);
        }
    }
    if (optind != argc) refuse("argument", argv[optind]);
    return o;
}

}  // namespace heat
