// SPDX-License-Identifier: Apache-2.0
// Named points where a test kills or stops this process: DLROVER_FAULT=POINT[:NTH[:stop]] in the environment,
// honoured only in a build with --enable-fault-injection.
#pragma once

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

namespace dlrover {

#ifdef DLROVER_FAULT_INJECTION
/// SIGKILL (with "stop": SIGSTOP) to itself at the NTH (1, the default, is the first) passing of the point
/// that the environment names.
void fault_point(const char *name) noexcept;
#else
inline void fault_point(const char *) noexcept {}
#endif

}  // namespace dlrover
