// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>

#include "transport/bulk_ucx.h"

namespace dlrover::transport {
namespace {

namespace fs = std::filesystem;

/// "4: ACTIVE"
bool is_active(const fs::path &port) {
    std::ifstream file(port / "state");
    std::string line;
    return std::getline(file, line) && line.find("ACTIVE") != std::string::npos;
}

}  // namespace

bool rdma_present(const std::string &devices) {
    std::error_code error;
    for (fs::directory_iterator device(devices, error), end; !error && device != end;
         device.increment(error)) {
        std::error_code none;
        for (fs::directory_iterator port(device->path() / "ports", none); !none && port != end;
             port.increment(none))
            if (is_active(port->path())) return true;
    }
    return false;
}

}  // namespace dlrover::transport
