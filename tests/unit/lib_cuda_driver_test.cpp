// SPDX-License-Identifier: Apache-2.0
// The driver's functions are found by name; what an old driver lacks is either done without or named.
#include <dlfcn.h>

#include <set>

#include "fake_cuda.h"
#include "lib/cuda_driver.h"

using namespace dlrover;
using namespace dlrover::lib;
using namespace dlrover::test;

namespace {

Result<std::shared_ptr<const CudaDriver>> without(const std::set<std::string> &missing) {
    return CudaDriver::from([&](const char *symbol) -> void * {
        return missing.count(symbol) != 0 ? nullptr : ::dlsym(RTLD_DEFAULT, symbol);
    });
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(lib_cuda_driver, FakeCuda)

BOOST_AUTO_TEST_CASE(found_by_the_loader_once) {
    auto first = CudaDriver::load(), second = CudaDriver::load();
    BOOST_REQUIRE_MESSAGE(first.ok(), first.status().message());
    BOOST_TEST(first->get() == second->get());
    BOOST_TEST(((*first)->cuMemHostRegister != nullptr));
}

BOOST_AUTO_TEST_CASE(a_needed_function_that_is_missing_is_named) {
    for (const char *name : {"cuInit", "cuStreamWaitEvent", "cuMemcpyDtoHAsync_v2", "cuCtxPushCurrent_v2"}) {
        auto driver = without({name});
        BOOST_REQUIRE(!driver.ok());
        BOOST_TEST((driver.status().code() == Code::unsupported));
        BOOST_TEST(driver.status().message().find(name) != std::string::npos, driver.status().message());
    }
}

BOOST_AUTO_TEST_CASE(what_older_drivers_lack_is_done_without) {
    auto driver =
        without({"cuThreadExchangeStreamCaptureMode", "cuStreamIsCapturing", "cuMemHostRegister_v2"});
    BOOST_REQUIRE_MESSAGE(driver.ok(), driver.status().message());
    BOOST_TEST(((*driver)->cuMemHostRegister == nullptr));
    fake_cuda_reset();
    BOOST_TEST(CudaScope(**driver, nullptr).status().message().find("CUDA_ERROR_INVALID_CONTEXT") !=
               std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_driver_that_does_not_begin) {
    fake_cuda_fail_call("cuInit", 2);
    auto driver = without({});
    BOOST_REQUIRE(!driver.ok());
    BOOST_TEST(driver.status().message() ==
               "the CUDA driver does not begin: CUDA_ERROR_OUT_OF_MEMORY (2 of the CUDA driver)");
}

BOOST_AUTO_TEST_SUITE_END()
