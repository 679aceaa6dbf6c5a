# SPDX-License-Identifier: Apache-2.0
"""The program of test_membership.py; what it writes says events_case.py."""

import os
import pathlib
import signal
import sys
import threading
import time

sys.path.insert(0, sys.argv[1])

import dlrover_slurm as dlrover  # noqa: E402

Kind = dlrover.EventKind
LONGEST_S = 5.0
NAMES = {Kind.GENERATION_ENDS: "generation", Kind.RANK_LOST: "rank-lost", Kind.NODE_LOST: "node-lost", Kind.CHECKPOINT_SAFE: "safe", Kind.CHECKPOINT_DURABLE: "durable",
         Kind.ALLOCATION_CHANGED: "allocation", Kind.DRAINING: "draining"}


def values(event: "dlrover.Event") -> "dict[str, object]":
    found: "dict[str, object]" = {"rank": event.rank, "node": event.node or None, "step": event.step}
    if event.kind == Kind.GENERATION_ENDS:
        found.update(generation=":".join(map(str, event.generation)), reason=event.text)
    if event.kind == Kind.ALLOCATION_CHANGED:
        found["node.count"] = event.text.removeprefix("the group has ").removesuffix(" nodes now")
    return {"dlrover." + name: value for name, value in found.items() if value is not None}


def main() -> None:
    folder, rank = pathlib.Path(sys.argv[2]), dlrover.world().rank
    heard = open(folder / f"heard-{rank}", "a", buffering=1)
    ended, lost = threading.Event(), threading.Event()

    def on_event(event: "dlrover.Event") -> None:
        if event.kind in NAMES:
            head = f"{time.time_ns() // 1000} {os.uname().nodename} {os.environ['DLROVER_GENERATION']} {NAMES[event.kind]}"
            heard.write("\t".join([head, *(f"{name}={value}" for name, value in values(event).items())]) + "\n")
        if event.kind == Kind.GENERATION_ENDS:
            ended.set()
        if event.kind in (Kind.RANK_LOST, Kind.NODE_LOST):
            lost.set()

    def leave(*_: object) -> None:
        """Of what is said at the end nothing is to be missed: every generation ends by a loss here, and either word may be the last."""
        for told in (ended, lost):
            told.wait(LONGEST_S)
        time.sleep(float(os.environ.get("LINGER_S", "0")))
        os._exit(1)

    signal.signal(signal.SIGTERM, leave)
    dlrover.on_membership(on_event)
    checkpoint = dlrover.load()
    step, go = checkpoint.step if checkpoint else 0, folder / "go"
    while not go.exists() or step < int(go.read_text()):
        step += 1
        time.sleep(0.02)
        dlrover.report_step(step)
        try:
            dlrover.save(step, {"step": step, "data": bytes(4096)})
        except dlrover.StaleError:  # SIGTERM is on its way
            signal.pause()


if __name__ == "__main__":
    main()
