// SPDX-License-Identifier: Apache-2.0
// Named points where a test kills or stops this process (DLROVER_FAULT=POINT[:NTH[:stop]] in the environment)
// or has a call fail; honoured only in a build with --enable-fault-injection.
#pragma once

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

namespace dlrover {

#ifdef DLROVER_FAULT_INJECTION
/// SIGKILL (with "stop": SIGSTOP) to itself at the NTH (1, the default, is the first) passing of the point
/// that the environment names.
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
