# SPDX-License-Identifier: Apache-2.0
"""Whether a step is on storage, whole: by the names in the folder of the job's checkpoints, or without a daemon among the plain files."""

from __future__ import annotations

import concurrent.futures
import os
import re
import threading
from typing import Callable, Iterator

from . import _session
from ._errors import NotFoundError
from ._progress import phase

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 3.0  # seconds; every rank of a job looks
_MANIFEST = re.compile(r"step-(\d+)\.gen-(\d+)\.(\d+)\.(\d+)\.manifest")
_PLAIN_FILE = re.compile(r"step-(\d+)\.dlrover")


def _numbers(folder: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, ...]]:
    """In the names that are such."""
    for found in map(pattern.fullmatch, os.listdir(folder)):
        if found is not None:
            yield tuple(map(int, found.groups()))


def _on_storage(generation: tuple[int, int], step: int) -> bool:
    """Or a newer one of this run of the job: where that is complete it goes to storage in its place. NotFoundError: this process can not see it."""
    top, lineage = os.environ.get("DLROVER_CKPT_DIR", ""), os.environ.get("DLROVER_LINEAGE", "")
    if not os.path.isdir(top):
        raise NotFoundError(f"the folder {top or 'of --dlrover-ckpt-dir'} can not be seen here (a container needs it, too)")
    name = "".join(c if c > " " and c not in "/%\\\x7f" else f"%{ord(c):02X}" for c in lineage)  # docs/format-storage.md
    run, reign = divmod(generation[0], 1 << 32)
    return any(
        its_run == run and (its_reign, its_number, found) >= (reign, generation[1], step)
        for found, its_run, its_reign, its_number in _numbers(os.path.join(top, name), _MANIFEST)
    )


def _in_files(ranks: int, step: int) -> bool:
    """Or newer ones: a rank keeps its last two."""
    top = os.environ.get("DLROVER_LOCAL_DIR") or "dlrover-checkpoints"
    return all(any(found >= step for found, in _numbers(os.path.join(top, f"rank-{rank}"), _PLAIN_FILE)) for rank in range(ranks))


class _Watch:
    """Looks until it is there. Storage that hangs holds this thread, and nobody else."""

    def __init__(self, there: Callable[[], bool]) -> None:
        self._there = there
        self._over = threading.Event()
        self.trouble = ""
        self.found: concurrent.futures.Future[None] = concurrent.futures.Future()
        threading.Thread(target=self._run, name="dlrover-durable", daemon=True).start()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._over.is_set():
            try:
                if self._there():
                    return self.found.set_result(None)
                self.trouble = ""
            except OSError as error:  # it may come back
                self.trouble = str(error)
            except Exception as error:
                return self.found.set_exception(error)
            self._over.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def close(self) -> None:
        self._over.set()


def why_not_durable(step: int, generation: tuple[int, int], timeout: float) -> str:
    """Waits until a step that this process has saved in that generation is on storage, all ranks' parts. Empty: it is; else why that is not known."""
    world = _session.world()
    watch = _Watch(lambda: _on_storage(generation, step) if world.managed else _in_files(world.world_size, step))
    try:
        with phase("storage"):
            watch.found.result(min(max(timeout, 0.0), threading.TIMEOUT_MAX))
        return ""
    except concurrent.futures.TimeoutError:
        return f"not after {timeout:g} s" + (f" ({watch.trouble})" if watch.trouble else "")
    except NotFoundError as error:
        return str(error)
    finally:
        watch.close()
