# SPDX-License-Identifier: Apache-2.0
"""A client of PMIx in Python (Debian's python3-pmix): "FOLDER CODE". As pmix_program.c does, each rank publishes under a name of its own and finds what all the others
have, and rank 1 ends by a signal in the first run. The others write down the reason with which the end of their generation comes (event CODE). What each rank finds goes
to stdout as "rank R: NAME VALUE"."""

import os
import pathlib
import signal
import sys
import threading
import warnings

warnings.simplefilter("ignore")
import pmix  # noqa: E402

folder, code = pathlib.Path(sys.argv[1]), int(sys.argv[2])
client = pmix.PMIxClient()
ended = threading.Event()


def expect(what: str, status: int) -> None:
    if status != pmix.PMIX_SUCCESS:
        raise SystemExit(f"{what}: {client.error_string(status)}")


status, me = client.init([])
expect("init", status)
rank, everybody = me["rank"], {"nspace": me["nspace"], "rank": pmix.PMIX_RANK_WILDCARD}


def say(name: str, value: int) -> None:
    print(f"rank {rank}: {name} {value}", flush=True)


def on_end(_handler, _status, _source, infos, _results):
    reasons = [info["value"] for info in infos if info["key"] == "dlrover.reason"]
    (folder / f"heard-{rank}").write_text(reasons[0] if reasons else "nothing")
    ended.set()
    return pmix.PMIX_EVENT_ACTION_COMPLETE, []


def publish(value: int) -> None:
    expect("publish", client.publish([{"key": f"test.of-{rank}", "value": value, "val_type": pmix.PMIX_UINT32}]))


def look_up(size: int) -> int:
    """The sum of what all ranks have published; -1: one of them has not."""
    total = 0
    for other in range(size):
        found, data = client.lookup([{"key": f"test.of-{other}"}], [])
        if found == pmix.PMIX_ERR_NOT_FOUND:
            return -1
        expect("look up", found)
        total += data[0]["value"]
    return total


def main() -> None:
    got, size = client.get(everybody, pmix.PMIX_JOB_SIZE, [])
    expect("job size", got)
    again = (folder / "died").exists()
    client.register_event_handler([code], [], on_end)
    if again:
        say("left", look_up(size["value"]))
    expect("fence", client.fence([everybody], []))
    publish((1000 if again else 100) + rank)
    expect("fence", client.fence([everybody], []))
    say("published", look_up(size["value"]))
    if not again:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it comes together with the event, which may be before this rank has left the fence
    expect("fence", client.fence([everybody], []))
    if not again and rank == 1:
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if not again:
        ended.wait(10)
        os._exit(1)
    expect("finalize", client.finalize([]))


main()
