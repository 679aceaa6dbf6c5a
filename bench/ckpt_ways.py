# SPDX-License-Identifier: Apache-2.0
"""The ways of saving that bench/ckpt_save compares, and what bounds them."""

import argparse
import concurrent.futures
import ctypes
import mmap
import os
import pathlib
import shutil
import sys
import time

import ckpt_names as names
import dlrover_slurm
import torch
import torch.distributed as dist
from ckpt_states import bytes_of

TRY_AGAIN = 75
MADV_HUGEPAGE, MADV_POPULATE_WRITE = 14, 23


def take_memory_back(size: int) -> None:
    """Free pages that a virtual machine's host has taken (free page reporting) cost more than all that is measured here, and nothing on a machine of
    one's own: as many are written and freed again."""
    with mmap.mmap(-1, size) as memory:
        memory.madvise(MADV_POPULATE_WRITE)


class Ours:
    name = names.OURS
    first, repeated = True, True  # what of it says something

    def save(self, step: int, state: dict) -> bool:
        return dlrover_slurm.save(step, state)

    def sync(self) -> bool:
        """Returns when the last save is on storage, files and fsync. False: not this process writes it."""
        return False

    def settle(self) -> None:
        """Ends what a save left behind, outside the timing."""

    def close(self) -> None:
        """At the end of the process."""


class OursDcp(Ours):
    name = names.OURS_DCP
    first = False  # it has its memory in common with save(), which comes before it

    def __init__(self) -> None:
        from dlrover_slurm import dcp
        self.dcp = dcp

    def save(self, step: int, state: dict) -> bool:
        return self.dcp.save(step, state)


def sync_file(path: pathlib.Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


class TorchSave(Ours):
    name = names.TORCH

    def __init__(self, folder: pathlib.Path) -> None:
        self.path = folder / "torch-save.pt"

    def save(self, step: int, state: dict) -> bool:
        torch.save(state, self.path)
        return True

    def sync(self) -> bool:
        sync_file(self.path)
        return True

    def settle(self) -> None:
        self.path.unlink(missing_ok=True)


class Dcp(Ours):
    name = names.DCP

    def __init__(self, folder: pathlib.Path) -> None:
        import torch.distributed.checkpoint as dcp
        self.dcp, self.path = dcp, folder / "dcp"
        self.dcp.save  # torch 1.13 has the module under another name and without this

    def save(self, step: int, state: dict) -> bool:
        self.dcp.save(state, checkpoint_id=self.path)
        return True

    def sync(self) -> bool:
        for path in self.path.rglob("*"):
            if path.is_file():
                sync_file(path)
        return True

    def settle(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class DcpAsync(Dcp):
    name = names.DCP_ASYNC

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self.path, self.future = folder / "dcp-async", None
        self.dcp.async_save

    def save(self, step: int, state: dict) -> bool:
        self.future = self.dcp.async_save(state, checkpoint_id=self.path)
        return True

    def sync(self) -> bool:
        self.future.result()
        return super().sync()

    def settle(self) -> None:
        if self.future is not None:
            self.future.result()
        super().settle()


class Flash(Ours):
    """DLRover's own; its saver runs in a process that local rank 0 forks itself, as where dlrover-run did not start the program.
    With several ranks each is a shard of its own."""

    name = names.FLASH

    def __init__(self, folder: pathlib.Path) -> None:
        """The folder is that of all ranks."""
        from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer
        from dlrover.trainer.torch.flash_checkpoint.engine import CheckpointEngine, start_saver_process
        self.folder, self.types = folder / "dlrover", StorageType
        self.folder.mkdir(parents=True, exist_ok=True)
        CheckpointEngine.saver_proc = start_saver_process()
        time.sleep(2)  # it must listen before the first message, as under dlrover-run
        shards = dist.get_world_size()
        try:
            self.checkpointer = DdpCheckpointer(str(self.folder), local_shard_num=shards, global_shard_num=shards)
        except TimeoutError as error:  # its first message was lost all the same
            print(error, file=sys.stderr)
            os._exit(TRY_AGAIN)

    def save(self, step: int, state: dict) -> bool:
        return self.put(step, state, self.types.MEMORY)

    def put(self, step: int, state: dict, kind: object) -> bool:
        self.checkpointer.save_checkpoint(step, state, storage_type=kind)
        return self.checkpointer._engine._cached_step == step  # it tells nobody that a save was skipped

    def load(self) -> dict:
        return self.checkpointer.load_checkpoint()

    def forget_mapping(self) -> None:
        """The next load maps the memory anew, as in a process that has just been started."""
        self.checkpointer._engine.close()
        self.checkpointer._engine._shm_handler.reset()

    def close(self) -> None:
        """Its saver would outlive this process otherwise, and its memory too."""
        dist.barrier()
        saver = self.checkpointer._engine.saver_proc
        if saver is not None:
            saver.terminate()
            saver.join()
        self.checkpointer._engine._shm_handler.shared_memory.unlink()

    def settle(self) -> None:
        """It keeps every checkpoint."""
        for path in self.folder.glob("[0-9]*"):
            shutil.rmtree(path, ignore_errors=True)

    def stored(self) -> int:
        try:
            return int((self.folder / "dlrover_latest.txt").read_text() or -1)
        except (OSError, ValueError):
            return -1


class FreshPages(Ours):
    """How long the kernel takes for as much new shared memory as a first save needs, by two threads: whoever makes it waits for that."""

    name = names.FRESH_PAGES
    repeated = False

    def __init__(self, size: int) -> None:
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.madvise = ctypes.CDLL(None, use_errno=True).madvise  # without Python's lock, other than that of its mmap module
        self.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self.threads = max(1, min(2, os.cpu_count() // dist.get_world_size()))
        self.pool = concurrent.futures.ThreadPoolExecutor(self.threads)
        self.memory = None
        list(self.pool.map(time.sleep, [0.1] * self.threads))  # so that its threads are there
        self.make(mmap.PAGESIZE)
        self.settle()

    def make(self, size: int) -> None:
        file = os.memfd_create("bench")
        try:
            os.ftruncate(file, size)
            self.memory = mmap.mmap(file, size)
        finally:
            os.close(file)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.madvise(address, size, MADV_HUGEPAGE)  # as ours does; it takes effect where shmem_enabled says "advise"
        part = -(-size // self.threads // mmap.PAGESIZE) * mmap.PAGESIZE
        list(self.pool.map(lambda at: self.populate(address + at, min(part, size - at)), range(0, size, part)))

    def populate(self, address: int, size: int) -> None:
        if self.madvise(address, size, MADV_POPULATE_WRITE) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"{self.name}: madvise: {os.strerror(error)}")

    def save(self, step: int, state: dict) -> bool:
        self.make(self.size)
        return True

    def settle(self) -> None:
        if self.memory is not None:
            self.memory.close()
            self.memory = None

    def close(self) -> None:
        self.pool.shutdown()


class CopyAlone(Ours):
    """The same bytes by torch into memory that nobody else has to have: an orientation for what any save, or restore, that copies can reach."""

    name = names.COPY_ALONE
    first = False

    def __init__(self, state: dict) -> None:
        self.there = {name: tensor.clone() for name, tensor in state["model"].items()}

    def save(self, step: int, state: dict) -> bool:
        for name, tensor in state["model"].items():
            self.there[name].copy_(tensor)
        return True


def make_all(makers: list) -> list:
    """Those that the interpreter and the kernel at hand have."""
    made, absent = [], []
    for make in makers:
        try:
            made.append(make())
        except (ImportError, AttributeError, OSError, dlrover_slurm.UnsupportedError) as error:
            absent.append(str(error))
    print("not here:", "; ".join(absent) or "nothing", file=sys.stderr)
    return made


def make_ways(options: argparse.Namespace, state: dict) -> "list[Ours]":
    if options.only:
        return [{"ours": Ours, "flash": lambda: Flash(options.folder.parent), "fresh": lambda: FreshPages(bytes_of(state))}[options.only]()]
    makers = [Ours]
    if options.dlrover:
        makers.append(lambda: Flash(options.folder.parent))
    if not options.without_torch:
        makers.append(lambda: TorchSave(options.folder))
        if dist.get_world_size() == 1:
            makers += [lambda: Dcp(options.folder), lambda: DcpAsync(options.folder)]
    if options.flush:
        return make_all(makers)
    makers.append(lambda: FreshPages(bytes_of(state)))
    if not options.without_torch and dist.get_world_size() == 1:
        makers.append(OursDcp)
    if not options.without_torch and options.state != "small":
        makers.append(lambda: CopyAlone(state))
    return make_all(makers)


def timed(call) -> tuple:
    """(the longest of all ranks, which begin together: a training waits for it; what the call gave)"""
    dist.barrier()
    begun = time.perf_counter()
    result = call()
    worst = torch.tensor([time.perf_counter() - begun], dtype=torch.float64)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return float(worst[0]), result


def everywhere(value: bool) -> bool:
    """Whether it is so at every rank."""
    each = torch.tensor([int(value)])
    dist.all_reduce(each, dist.ReduceOp.MIN)
    return bool(each[0])
