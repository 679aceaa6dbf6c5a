# SPDX-License-Identifier: Apache-2.0
"""Several ranks on this machine, plain files instead of a daemon.

The ranks are forked from this process, which has imported torch (that takes longer than most tests) and never computes with it."""

import os
import pathlib
import pickle
import signal
import sys
import time
import traceback

import torch
import torch.distributed

TOP = pathlib.Path(__file__).resolve().parents[2]
DEADLINE = float(os.environ.get("DLROVER_TEST_DEADLINE", "300"))  # seconds for one run of the ranks


class Killed:
    """What a rank gave back that ended by a signal."""

    def __init__(self, number):
        self.signal = number


class Failed:
    """What a rank gave back that ended with an exception, as ranks do when another one is gone."""

    def __init__(self, text):
        self.text = text


class Ranks:
    """Runs a function in several processes; every run is a new "generation" over the same checkpoints."""

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._runs = 0

    def __call__(self, count, function, *arguments, group="gloo", may_fail=False):
        """The results, by rank: what the function returned, or Killed, or (only where it may) Failed."""
        self._runs += 1
        work = self._folder / f"run-{self._runs}"
        work.mkdir()
        pids = [self._fork(rank, count, work, function, arguments, group) for rank in range(count)]
        statuses = self._wait(pids)
        results = [self._result(status, work, rank) for rank, status in enumerate(statuses)]
        failures = [result.text for result in results if isinstance(result, Failed)]
        assert may_fail or not failures, "\n".join(failures)
        return results

    def _fork(self, rank, count, work, function, arguments, group):
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(count),
                              MASTER_ADDR="localhost", MASTER_PORT="1",  # for programs that look at them; the store is a file
                              DLROVER_LOCAL_DIR=str(self._folder / "checkpoints"))  # fmt: skip
            torch.set_num_threads(1)
            torch.manual_seed(0)
            if group:
                torch.distributed.init_process_group(group, init_method=f"file://{work}/store", rank=rank, world_size=count)
            result = function(rank, *arguments)
            (work / f"result-{rank}").write_bytes(pickle.dumps(result))
            status = 0
        except BaseException:
            (work / f"error-{rank}").write_text(f"rank {rank}: {traceback.format_exc()}")
        finally:
            sys.stderr.flush()
            os._exit(status)

    @staticmethod
    def _wait(pids):
        """When a rank is killed or fails, the others may wait for it forever: they are killed then."""
        left, statuses, end = dict(enumerate(pids)), [None] * len(pids), time.monotonic() + DEADLINE
        while left:
            for rank, pid in list(left.items()):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    statuses[rank] = status
                    del left[rank]
            bad = any(status for status in statuses if status is not None)
            if bad and end > time.monotonic() + 5:
                end = time.monotonic() + 5
            if time.monotonic() > end:
                for pid in left.values():
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        return statuses

    @staticmethod
    def _result(status, work, rank):
        if os.WIFSIGNALED(status):
            return Killed(os.WTERMSIG(status))
        if os.WEXITSTATUS(status) != 0:
            return Failed((work / f"error-{rank}").read_text())
        return pickle.loads((work / f"result-{rank}").read_bytes())
