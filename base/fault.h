// SPDX-License-Identifier: Apache-2.0
// Named points where a test kills or stops this process (DLROVER_FAULT=POINT[:NTH[:stop]] in the environment,
// or an order in a file) or has a call fail; honoured only in a build with --enable-fault-injection.
#pragma once

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

namespace dlrover {

#ifdef DLROVER_FAULT_INJECTION
/// SIGKILL (with "stop": SIGSTOP) to itself at the NTH (1, the default, is the first) passing of the point
/// that the environment names.
/// DLROVER_FAULT_ORDER=FILE is for a process that runs already: the file holds POINT, or POINT and a host's
/// name with a space between, and is looked at each time. Who finds its own there renames it FILE.HOST.PID
/// and dies: one process of all that look at the file.
void fault_point(const char *name) noexcept;
/// The error that a call at this point is to fail with, or 0. DLROVER_FAULT_ERROR=POINT:ERRNO:FILE: as long
/// as FILE is there.
int fault_error(const char *name) noexcept;
#else
inline void fault_point(const char *) noexcept {}
inline int fault_error(const char *) noexcept {
    return 0;
}
#endif

}  // namespace dlrover
