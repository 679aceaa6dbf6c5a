// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

namespace dlrover {

/// While it lives this thread gets no signals, and a thread started meanwhile never gets any: they are the
/// program's, or its loop's.
class SignalsBlocked {
  public:
    SignalsBlocked() noexcept {
        sigset_t all;
        ::sigfillset(&all);
        ::pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked &) = delete;
    SignalsBlocked &operator=(const SignalsBlocked &) = delete;

  private:
    sigset_t before_;
};

}  // namespace dlrover
