// SPDX-License-Identifier: Apache-2.0
// The work of a node's GPUs, with a CUDA driver that has what faults a test wants (tests/fakes/work).
#include <dlfcn.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <optional>
#include <string>

#include "mover/gpu_check.h"
#include "sanitized.h"

using namespace dlrover;
using namespace dlrover::mover;
using namespace std::chrono_literals;
using Kind = GpuVerdict::Kind;

namespace {

/// An environment variable for a while; without a value it is not set.
class Variable {
  public:
    explicit Variable(const char *name, const char *value = nullptr) : name_(name) {
        if (const char *now = std::getenv(name)) before_ = now;
        set(value);
    }
    ~Variable() { set(before_ ? before_->c_str() : nullptr); }
    Variable(const Variable &) = delete;
    Variable &operator=(const Variable &) = delete;

  private:
    void set(const char *value) const { value ? ::setenv(name_, value, 1) : ::unsetenv(name_); }
    const char *name_;
    std::optional<std::string> before_;
};

/// Not that of a job that these tests may run in.
struct Clean {
    Variable visible{"CUDA_VISIBLE_DEVICES"}, step{"SLURM_STEP_GPUS"}, job{"SLURM_JOB_GPUS"},
        init{"FAKE_CUDA_INIT"};
};

Result<GpuDriver> fake_driver() {
    static void *library = ::dlopen(FAKE_GPUS "/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    BOOST_REQUIRE_MESSAGE(library, ::dlerror());
    return GpuDriver::from([](const char *symbol) { return ::dlsym(library, symbol); });
}

GpuVerdict work(const char *devices, unsigned promised = 0, std::chrono::milliseconds limit = 20s) {
    Variable gpus("FAKE_GPUS", devices);
    return work_on_gpus(fake_driver(), promised, std::chrono::steady_clock::now() + limit, 256);
}

/// What dlrover-mover has of it: by the program, in a process of its own.
GpuVerdict check(const char *devices, std::chrono::milliseconds limit = 60s) {
    Variable gpus("FAKE_GPUS", devices), path("LD_LIBRARY_PATH", FAKE_GPUS);
    return check_gpus(std::chrono::steady_clock::now() + limit, TEST_GPU_CHECK);
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(gpu_work, Clean)

BOOST_AUTO_TEST_CASE(sound_ones_pass) {
    auto verdict = work("sound,sound,sound", 3);
    BOOST_TEST((verdict.kind == Kind::sound), verdict.text);
    BOOST_TEST(verdict.devices == 3u);
    BOOST_TEST(verdict.text == "");
    BOOST_TEST(describe(verdict) == "sound GPUs: 3");
}

BOOST_AUTO_TEST_CASE(one_that_miscalculates_is_found_and_named) {
    for (const char *devices : {"sound,wrong,sound", "sound,a little", "sound,lazy"}) {
        auto verdict = work(devices);
        BOOST_TEST((verdict.kind == Kind::failed), devices);
        BOOST_TEST(verdict.text ==
                   "GPU 0000:01:00.0 (Fake): a product of matrices is wrong: it miscalculates");
    }
}

BOOST_AUTO_TEST_CASE(one_that_tells_an_error_is_named_with_it) {
    auto verdict = work("ecc");
    BOOST_TEST((verdict.kind == Kind::failed));
    BOOST_TEST(verdict.text ==
               "GPU 0000:00:00.0 (Fake): it did not do its work: CUDA_ERROR_ECC_UNCORRECTABLE (214)");
    BOOST_TEST((work("lost").kind == Kind::failed));
}

BOOST_AUTO_TEST_CASE(what_keeps_one_from_its_work_says_nothing_against_the_node) {
    BOOST_TEST((work("busy").kind == Kind::untried));
    BOOST_TEST((work("notready").kind == Kind::untried));
    BOOST_TEST((work("busy,wrong").kind == Kind::failed));
    auto verdict = work("sound,slow", 0, 1500ms);
    BOOST_TEST((verdict.kind == Kind::untried));
    BOOST_TEST(describe(verdict) == "GPUs not tried: GPU 0000:01:00.0 (Fake): it is not ready in time");
}

BOOST_AUTO_TEST_CASE(fewer_than_slurm_has_given_have_failed) {
    auto verdict = work("sound,gone,sound", 3);
    BOOST_TEST((verdict.kind == Kind::failed));
    BOOST_TEST(verdict.text == "CUDA finds 1 of the 3 GPUs of this step");
    BOOST_TEST((work("gone", 2).kind == Kind::untried), "all of them: more likely the driver's");
    BOOST_TEST((work("sound,gone").kind == Kind::sound));
    BOOST_TEST((work("slice,gone", 2).kind == Kind::untried), "CUDA shows one MIG device alone");
}

BOOST_AUTO_TEST_CASE(what_slurm_has_given) {
    BOOST_TEST(promised_gpus("0,1,2", "4,5,6") == 3u);
    BOOST_TEST(promised_gpus("0", "0") == 1u);
    BOOST_TEST(promised_gpus("4,5", "4,5") == 2u);
    BOOST_TEST(promised_gpus("0,7", "4,5") == 0u);
    for (const char *list : {"", "-1", "0,-1", "0,", "0,0", "GPU-8a", "MIG-1,MIG-2", "0 ,1", "99999999999"})
        BOOST_TEST(promised_gpus(list, "0,1") == 0u, list);
    BOOST_TEST(promised_gpus("0,1", "0") == 0u, "the user's own list");
    BOOST_TEST(promised_gpus(nullptr, "0") == 0u);
    BOOST_TEST(promised_gpus("0", nullptr) == 0u);
}

BOOST_AUTO_TEST_CASE(one_that_hangs_at_work_has_failed) {
    auto begin = std::chrono::steady_clock::now();
    BOOST_TEST((work("sound,hang", 0, 1500ms).kind == Kind::untried), "not long at work");
    auto verdict = work("sound,hang", 0, 8s);
    BOOST_TEST((std::chrono::steady_clock::now() - begin < 30s));
    BOOST_TEST((verdict.kind == Kind::failed));
    BOOST_TEST(verdict.text == "GPU 0000:01:00.0 (Fake): it does not come to an end of its work");
}

BOOST_AUTO_TEST_CASE(a_driver_that_does_not_begin) {
    for (const char *answer : {"802", "803", "999", "hang"}) {
        Variable init("FAKE_CUDA_INIT", answer);
        BOOST_TEST((work("sound", 0, 200ms).kind == Kind::untried), answer);
    }
    BOOST_TEST((work_on_gpus(Status(Code::unsupported, "no library"), 0, {}).kind == Kind::untried));
}

BOOST_AUTO_TEST_CASE(a_driver_that_lacks_a_function_is_none) {
    auto driver = GpuDriver::from([](const char *) { return nullptr; });
    BOOST_TEST(driver.status().message() == "libcuda.so.1 lacks cuInit");
}

BOOST_AUTO_TEST_CASE(verdicts_are_lines) {
    GpuVerdict verdict{Kind::failed, 3, 17us, "GPU 1:\nbad"};
    BOOST_TEST(to_line(verdict) == "failed 3 17 GPU 1: bad\n");
    auto back = parse_verdict(to_line(verdict));
    BOOST_REQUIRE(back.ok());
    BOOST_TEST((back->kind == Kind::failed && back->devices == 3 && back->work == 17us));
    BOOST_TEST(back->text == "GPU 1: bad");
    for (const char *line : {"", "\n", "sound\n", "sound 1 1", "sound x 1 \n", "sound 1 -5 \n", "good 1 1 \n",
                             "sound 99999999999999999999 1 \n"})
        BOOST_TEST(!parse_verdict(line).ok(), line);
}

BOOST_AUTO_TEST_CASE(only_gpus_of_the_step_are_touched) {
    BOOST_TEST(!has_gpus_of_its_own());
    BOOST_TEST((check("wrong").kind == Kind::untried));
    {
        Variable slurm("SLURM_STEP_GPUS", "0");
        BOOST_TEST(has_gpus_of_its_own());
        for (const char *none : {"NoDevFiles", "-1", ""}) {
            Variable visible("CUDA_VISIBLE_DEVICES", none);
            BOOST_TEST(!has_gpus_of_its_own(), none);
        }
    }
}

BOOST_AUTO_TEST_CASE(by_a_program_of_its_own) {
    Variable visible("CUDA_VISIBLE_DEVICES", "0");
#ifndef DLROVER_SANITIZED  // the driver's products of this size take it half a minute then
    auto sound = check("sound");
    BOOST_TEST((sound.kind == Kind::sound), sound.text);
    BOOST_TEST(sound.devices == 1u);
    BOOST_TEST(check("wrong").text.ends_with("it miscalculates"));
#endif
    auto hangs = check("hang", 500ms);
    BOOST_TEST((hangs.kind == Kind::untried));
    BOOST_TEST(hangs.text == "dlrover-gpu-check says nothing in time");
    auto missing = check_gpus(std::chrono::steady_clock::now() + 10s, "/nonexistent/gpu-check");
    BOOST_TEST((missing.kind == Kind::untried));
    BOOST_TEST(missing.text == "can not run /nonexistent/gpu-check: No such file or directory");
    auto other = check_gpus(std::chrono::steady_clock::now() + 10s, "/bin/true");
    BOOST_TEST((other.kind == Kind::untried));
    BOOST_TEST(other.text.starts_with("dlrover-gpu-check ends before it has said anything"));
}

BOOST_AUTO_TEST_SUITE_END()
