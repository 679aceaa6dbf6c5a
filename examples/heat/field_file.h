// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace heat {

/// Under a temporary name first: a reader never sees half a file.
void write_field(const std::string &path, const std::vector<double> &field);

}  // namespace heat
