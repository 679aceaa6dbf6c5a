// SPDX-License-Identifier: Apache-2.0
// Faults for the tests, in a module of its own (built with -DDLROVER_SPANK_FAULTS): fault=HOOK:KIND in
// plugstack.conf.
#pragma once

#include "spank_plugin/module.h"

namespace dlrover::spank {

#ifdef DLROVER_SPANK_FAULTS
/// Throws, fails or hangs where `hook` is the one that fault= names.
Status inject_fault(const char *hook, const ModuleArgs &args);
#else
inline Status inject_fault(const char *, const ModuleArgs &) {
    return {};
}
#endif

}  // namespace dlrover::spank
