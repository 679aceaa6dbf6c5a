# SPDX-License-Identifier: Apache-2.0
"""The ways of restoring that bench/ckpt_save compares: from the call until the state is back as tensors of the program."""

import argparse
import ctypes
import inspect
import pathlib
import shutil
import time

import ckpt_names as names
import dlrover_slurm
import torch
import torch.distributed as dist
from ckpt_states import blank_like, difference
from ckpt_ways import CopyAlone, Flash, make_all, timed
from dlrover_slurm import _session


class TimedOpening(_session.Opened):
    """What part of a restore is opening: the daemon's answer, mapping, and page tables and checksums where the node has not compared them while the
    program started."""

    took = 0.0

    def __init__(self, *arguments, **keywords) -> None:
        begun = time.perf_counter()
        super().__init__(*arguments, **keywords)
        TimedOpening.took = time.perf_counter() - begun


def put_into(target: dict, state: dict) -> dict:
    """As load_state_dict() does."""
    for name, tensor in target["model"].items():
        tensor.copy_(state["model"][name])
    return {**state, "model": target["model"]}


class Load:
    name = ""

    def begin(self) -> None:
        """Before the first load of a process."""

    def load(self) -> dict:
        raise NotImplementedError


class OursLoad(Load):
    name = names.OURS_LOAD

    def load(self) -> dict:
        return dlrover_slurm.load().state


class OursViews(Load):
    name = names.OURS_VIEWS

    def load(self) -> dict:
        return dlrover_slurm.load(views=True).state


class OursInto(Load):
    name = names.OURS_INTO

    def __init__(self, target: dict) -> None:
        self.target = target

    def load(self) -> dict:
        return put_into(self.target, dlrover_slurm.load(views=True).state)


class OursDcpLoad(Load):
    name = names.OURS_DCP_LOAD

    def __init__(self, target: dict) -> None:
        from dlrover_slurm import dcp
        self.dcp, self.target = dcp, target

    def load(self) -> dict:
        self.dcp.load(self.target)
        return self.target


class FlashViews(Load):
    name = names.FLASH_VIEWS

    def __init__(self, flash: Flash) -> None:
        self.flash = flash

    def begin(self) -> None:
        self.flash.forget_mapping()

    def load(self) -> dict:
        return self.flash.load()


class FlashClone(FlashViews):
    name = names.FLASH_CLONE

    def load(self) -> dict:
        state = self.flash.load()
        return {**state, "model": {name: tensor.clone() for name, tensor in state["model"].items()}}


class FlashInto(FlashViews):
    name = names.FLASH_INTO

    def __init__(self, flash: Flash, target: dict) -> None:
        super().__init__(flash)
        self.target = target

    def load(self) -> dict:
        return put_into(self.target, self.flash.load())


class TorchLoad(Load):
    """Its file was written just before: what is read is in the page cache."""

    name = names.TORCH_LOAD

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def load(self) -> dict:
        return torch.load(self.path)


class TorchMmap(TorchLoad):
    name = names.TORCH_MMAP

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__(path)
        if "mmap" not in inspect.signature(torch.load).parameters:
            raise AttributeError("this torch.load has no mmap")

    def load(self) -> dict:
        return torch.load(self.path, mmap=True)


class DcpLoad(Load):
    name = names.DCP_LOAD

    def __init__(self, folder: pathlib.Path, target: dict, state: dict) -> None:
        import torch.distributed.checkpoint as dcp
        self.dcp, self.path, self.target = dcp, folder / "dcp", target
        shutil.rmtree(self.path, ignore_errors=True)
        dcp.save(state, checkpoint_id=self.path)

    def load(self) -> dict:
        self.dcp.load(self.target, checkpoint_id=self.path)
        return self.target


class CopyInto(Load):
    """The bound of those that copy into tensors that are there."""

    name = names.COPY_ALONE

    def __init__(self, copy: CopyAlone, state: dict) -> None:
        self.copy, self.state = copy, state

    def load(self) -> dict:
        self.copy.save(0, self.state)
        return {**self.state, "model": self.copy.there}


def save_for_restore(options: argparse.Namespace, state: dict) -> None:
    """What ours restores in the next life of this rank."""
    if options.restore == "dcp":
        from dlrover_slurm import dcp
        saved = dcp.save(1, state)
    else:
        saved = dlrover_slurm.save(1, state)
    if not saved:
        raise SystemExit("the first save of all was skipped")


def make_loads(options: argparse.Namespace, state: dict, flash: "Flash | None") -> "dict[str, list[Load]]":
    """By group; what the others restore is saved here."""
    target = blank_like(state)
    through_dcp = options.restore == "dcp"
    if flash is not None and not flash.save(1, state):
        raise SystemExit("DLRover skipped its first save")
    into = [lambda: FlashInto(flash, target)] if flash is not None else []
    if not options.without_torch and options.state != "small":
        into.append(lambda: CopyInto(CopyAlone(state), state))
    if through_dcp:
        dcp = [] if options.without_torch else [lambda: DcpLoad(options.folder, target, state)]
        return {"dcp": make_all([lambda: OursDcpLoad(target), *dcp, *into])}
    views, tensors = [OursViews], [OursLoad]
    if flash is not None:
        views.append(lambda: FlashViews(flash))
        tensors.append(lambda: FlashClone(flash))
    if not options.without_torch:
        path = options.folder / "torch-load.pt"
        torch.save(state, path)
        views.append(lambda: TorchMmap(path))
        tensors.append(lambda: TorchLoad(path))
    makers = {"views": views, "tensors": tensors, "into": [lambda: OursInto(target), *into]}
    return {group: make_all(ways) for group, ways in makers.items()}


def check_equal(way: Load, got: dict, state: dict) -> None:
    wrong = difference(state, got)
    if wrong is not None:
        raise SystemExit(f"{way.name}: {wrong} is not as it was saved")


def give_back_memory() -> None:
    """What an earlier load has freed would serve a later one's tensors; a process that was just restarted has none of it."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def time_loads(options: argparse.Namespace, loads: "dict[str, list[Load]]", state: dict) -> dict:
    """{group: {way: times}}. The first loads of this process count of the group `options.first` alone, of which ours is the very first."""
    _session.Opened = TimedOpening
    seen = {group: {way.name: {"first": [], "first opened": [], "repeated": [], "opened": []} for way in ways} for group, ways in loads.items()}
    flat = [(group, way) for group, ways in loads.items() for way in ways]
    flat.sort(key=lambda entry: entry[0] != options.first)
    turn = options.turn % len(flat)
    for round_number in range(-1, options.rounds):
        for group, way in flat if round_number < 0 else flat[turn:] + flat[:turn]:
            if round_number < 0:
                way.begin()
            TimedOpening.took = 0.0
            took, got = timed(way.load)
            times = seen[group][way.name]
            if round_number < 0:
                check_equal(way, got, state)
            if round_number >= 0:
                times["repeated"].append(took)
                times["opened"].append(TimedOpening.took)
            elif group == options.first:
                times["first"].append(took)
                times["first opened"].append(TimedOpening.took)
            del got  # views keep their checkpoint open
            give_back_memory()
        turn = (turn + 1) % len(flat)
    dist.barrier()
    return seen
