# SPDX-License-Identifier: Apache-2.0
"""First process of a host: collects orphans for ever. Its death is the host's death.

Arguments: cluster, host (both for `ps` only), and a descriptor or -1. The descriptor is the reading end of a pipe from
`minicluster start`: end-of-file before a byte means that the start died, and the whole cluster ends with it.
"""

import os
import select
import signal
import sys


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        pass


def main():
    commit = int(sys.argv[3])
    wake, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    waiting = [wake] + ([commit] if commit >= 0 else [])
    while True:
        ready, _, _ = select.select(waiting, [], [])
        if commit in ready:
            if not os.read(commit, 1):
                return 1
            os.close(commit)
            waiting.remove(commit)
            commit = -1
        if wake in ready:
            os.read(wake, 4096)
            reap()


sys.exit(main())
