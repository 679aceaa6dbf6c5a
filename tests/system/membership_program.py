# SPDX-License-Identifier: Apache-2.0
"""The program of test_membership.py: "PYTHONPATH [pmix] FOLDER"; what it writes says events_case.py. It hears by dlrover_slurm.on_membership(); pmix: as a client of PMIx
(Debian's python3-pmix), instead."""

import os
import pathlib
import signal
import sys
import threading
import time
import typing
import warnings

sys.path.insert(0, sys.argv[1])

import dlrover_slurm as dlrover  # noqa: E402
from event_codes import event_code  # noqa: E402

Kind = dlrover.EventKind
LONGEST_S = 5.0
NAMES = {Kind.GENERATION_ENDS: "generation", Kind.RANK_LOST: "rank-lost", Kind.NODE_LOST: "node-lost", Kind.CHECKPOINT_SAFE: "safe", Kind.CHECKPOINT_DURABLE: "durable",
         Kind.ALLOCATION_CHANGED: "allocation", Kind.DRAINING: "draining"}
PMIX_NAMES = {"GENERATION": "generation", "RANK_LOST": "rank-lost", "NODE_LOST": "node-lost", "STEP_SAFE": "safe", "STEP_DURABLE": "durable",
              "ALLOCATION_CHANGED": "allocation", "DRAINING": "draining"}
Note = typing.Callable[[str, "dict[str, object]"], None]


def values(event: "dlrover.Event") -> "dict[str, object]":
    found: "dict[str, object]" = {"rank": event.rank, "node": event.node or None, "step": event.step}
    if event.kind == Kind.GENERATION_ENDS:
        found.update(generation=":".join(map(str, event.generation)), reason=event.text)
    if event.kind == Kind.ALLOCATION_CHANGED:
        found["node.count"] = event.text.split()[3]  # "the group has 3 nodes now"
    return {"dlrover." + name: value for name, value in found.items() if value is not None}


def listen(note: Note) -> None:
    def on_event(event: "dlrover.Event") -> None:
        if event.kind in NAMES:
            note(NAMES[event.kind], values(event))

    dlrover.on_membership(on_event)


def listen_by_pmix(note: Note) -> None:
    warnings.simplefilter("ignore")
    import pmix

    names = {event_code(what): name for what, name in PMIX_NAMES.items()}

    def on_event(_handler: int, code: int, _source: dict, infos: "list[dict]", _results: list) -> tuple:
        note(names[code], {info["key"]: info["value"] for info in infos if info["key"].startswith("dlrover.")})
        return pmix.PMIX_EVENT_ACTION_COMPLETE, []

    client = pmix.PMIxClient()
    status, me = client.init([])
    assert status == pmix.PMIX_SUCCESS, client.error_string(status)
    assert me["rank"] == dlrover.world().rank, me
    for code in names:
        client.register_event_handler([code], [], on_event)


def main() -> None:
    folder, rank = pathlib.Path(sys.argv[-1]), dlrover.world().rank
    heard = open(folder / f"heard-{rank}", "a", buffering=1)
    ended, lost = threading.Event(), threading.Event()

    def note(name: str, told: "dict[str, object]") -> None:
        head = f"{time.time_ns() // 1000} {os.uname().nodename} {os.environ['DLROVER_GENERATION']} {name}"
        heard.write("\t".join([head, *(f"{key}={value}" for key, value in told.items())]) + "\n")
        if name == "generation":
            ended.set()
        if name in ("rank-lost", "node-lost"):
            lost.set()

    def leave(*_: object) -> None:
        """Of what is said at the end nothing is to be missed: every generation ends by a loss here, and either word may be the last."""
        for word in (ended, lost):
            word.wait(LONGEST_S)
        time.sleep(float(os.environ.get("LINGER_S", "0")))
        os._exit(1)

    signal.signal(signal.SIGTERM, leave)
    (listen_by_pmix if "pmix" in sys.argv[2:-1] else listen)(note)
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
