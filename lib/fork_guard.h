// SPDX-License-Identifier: Apache-2.0
// A forked child has no context: its descriptors of ours are closed, its mappings are not there, every call
// fails.
#pragma once

struct dlrover_context;

namespace dlrover::lib {

/// From now on a child of fork() closes this context's descriptors. false: too many contexts.
bool fork_guard_add(dlrover_context *context);
void fork_guard_remove(dlrover_context *context);
/// Whether this process is the child of one that had a context.
bool forked() noexcept;

}  // namespace dlrover::lib
