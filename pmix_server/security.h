// SPDX-License-Identifier: Apache-2.0
// How clients prove to PMIx's server who they are.
#pragma once

namespace dlrover::pmix {

enum class Security {
    munge,   ///< a credential of MUNGE's; native for clients that have none
    native,  ///< PMIx believes what they say
};

/// munge where its daemon takes connections here.
Security best_security();

}  // namespace dlrover::pmix
