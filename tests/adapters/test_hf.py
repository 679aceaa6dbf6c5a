# SPDX-License-Identifier: Apache-2.0
import os
import re
import signal
import warnings
from types import SimpleNamespace

import pytest
import torch
from conftest import nightly
from models import digest
from ranks import TOP, Killed, Ranks
from stored import LINEAGE, Stored, needs_programs
from test_memory import BUILD, PROGRAMS, standalone
from trainers import STEPS, trainer
from transformers import TrainerCallback

needs_daemon = pytest.mark.skipif(not all(p.exists() for p in [*PROGRAMS, BUILD / "dlrover"]), reason="the daemon's programs are not built here")


class KillAt(TrainerCallback):
    def __init__(self, step):
        self.step = step
        self.trained = []  # the steps of this process

    def on_step_end(self, args, state, control, **_):
        self.trained.append(state.global_step)
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def run(rank, folder, every, kill_at, resumes_from):
    from dlrover_slurm.hf import DlroverCallback

    callback, steps = DlroverCallback(every), KillAt(kill_at)
    made = trainer(folder, [callback, steps])
    path = callback.resume()
    assert (os.path.basename(path) if path else None) == resumes_from
    made.train(resume_from_checkpoint=path)
    assert path is None or not os.path.exists(os.path.dirname(path))
    logs = {entry["step"]: (entry["loss"], entry["learning_rate"]) for entry in made.state.log_history if "loss" in entry}
    return logs, {k: v.tolist() for k, v in made.model.state_dict().items()}, steps.trained


@pytest.mark.parametrize("count", [1, 2])
def test_losses_as_without_the_interruption(ranks, tmp_path, count):
    """Saved every 2nd step, killed in the 7th: it goes on from the 6th and trains no other step again, with dropout, a warm-up and the next batches."""
    alone = ranks(count, run, str(tmp_path), 1000, -1, None)
    assert all(isinstance(result, Killed) for result in ranks(count, run, str(tmp_path), 2, 7, None))
    resumed = ranks(count, run, str(tmp_path), 2, -1, "checkpoint-6")
    for (losses, weights, trained), (all_losses, all_weights, all_trained) in zip(resumed, alone):
        assert sorted(all_losses) == all_trained == list(range(1, STEPS + 1))
        assert trained == list(range(7, STEPS + 1))
        assert weights == all_weights
        assert losses == {step: values for step, values in all_losses.items() if step != 6}, "the 6th is logged after it is saved"


def told_early(rank, folder, every):
    """What the callback asked of the session, and after which step."""
    from dlrover_slurm import _session
    from dlrover_slurm.hf import DlroverCallback

    calls, callback = [], DlroverCallback(every)
    made = trainer(folder, [callback])
    prepare, save = _session.prepare, _session.save
    _session.prepare = lambda *given, **named: (calls.append(("prepare", made.state.global_step)), prepare(*given, **named))[1]
    _session.save = lambda *given, **named: (calls.append(("save", made.state.global_step)), save(*given, **named))[1]
    made.train()
    return calls


def test_memory_is_made_ready_after_the_first_step(ranks, tmp_path):
    [calls] = ranks(1, told_early, str(tmp_path / "third"), 3)
    assert calls == [("prepare", 1)] + [("save", step) for step in range(3, STEPS + 1, 3)]
    [calls] = ranks(1, told_early, str(tmp_path / "each"), 1)
    assert calls == [("save", step) for step in range(1, STEPS + 1)]


def refused(rank, folder):
    import dlrover_slurm
    from dlrover_slurm.hf import DlroverCallback

    made = trainer(folder, [DlroverCallback()])
    made.model.peft_config = {}
    with pytest.raises(dlrover_slurm.UnsupportedError, match="PEFT"):
        made.train()
    dlrover_slurm.save(1, {"x": 1})
    with pytest.raises(dlrover_slurm.UnsupportedError, match="not saved by DlroverCallback"):
        DlroverCallback().resume()


def test_what_can_not_be_brought_back_is_refused(ranks, tmp_path):
    ranks(1, refused, str(tmp_path))


def laid_out(rank, folder):
    from dlrover_slurm import hf

    statvfs, room = os.statvfs, {"/dev/shm": 100, folder: 1000}

    def small(path):
        return os.statvfs_result([1 if i <= 1 else room[path] if i == 4 else value for i, value in enumerate(statvfs(path))])

    os.chdir(folder)
    hf.tempfile.gettempdir = lambda: os.path.join(folder, "missing")
    hf.os.statvfs = small
    first = hf._private_folder(None, 100)
    assert first.startswith("/dev/shm/")
    second = hf._private_folder(None, 101)
    assert os.path.dirname(second) == folder and not os.path.exists(first)
    with pytest.raises(OSError, match=r"no room to lay out .* /dev/shm has 0 MiB, .* has 0 MiB; name a folder"):
        hf._private_folder(None, 1001)
    assert not os.path.exists(second)


def test_where_a_checkpoint_is_laid_out(ranks, tmp_path):
    """In memory; where that has no room, in the first folder that has; a folder of an earlier life is removed wherever it lay."""
    ranks(1, laid_out, str(tmp_path), group=False)


# ---- at another number of ranks ----

SAVED = 5  # step


class Watch(TrainerCallback):
    """What a training begins with, what it is after the saved step, and what its steps take."""

    def __init__(self, rank):
        self.rank, self.first, self.saved, self.samples, self.numbers = rank, None, None, {}, None

    def on_train_begin(self, args, state, control, model, optimizer, lr_scheduler, **_):
        self.first = (state.global_step, states(model, optimizer, lr_scheduler))
        torch.manual_seed(100 + self.rank)
        model.register_forward_pre_hook(lambda module, given, named: self.take(state.global_step + 1, named["input_ids"]), with_kwargs=True)

    def take(self, step, words):
        if self.numbers is None:
            self.numbers = torch.get_rng_state().tolist()
        self.samples.setdefault(step, []).extend(map(tuple, words.tolist()))

    def on_step_end(self, args, state, control, model, optimizer, lr_scheduler, **_):
        if state.global_step == SAVED:
            self.saved = (states(model, optimizer, lr_scheduler), torch.get_rng_state().tolist())


def states(model, optimizer, scheduler):
    return digest({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()})


def watched(rank, folder, environment, resumes, named={}, ignored=()):
    """What the Watch saw, the training's end, and what was warned of."""
    from dlrover_slurm.hf import DlroverCallback

    os.environ.update(environment)
    callback, watch = DlroverCallback(SAVED), Watch(rank)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        made = trainer(folder, [callback, watch], **named)
        if ignored:
            made.model._ddp_params_and_buffers_to_ignore = list(ignored)
        if not resumes:
            made.train()
        else:
            path = callback.resume()
            assert os.path.basename(path) == f"checkpoint-{SAVED}"
            callback.every = 1000
            made.train(resume_from_checkpoint=path)
            assert not os.path.exists(os.path.dirname(path))
    said = [str(w.message) for w in seen if "DlroverCallback" in str(w.message)]
    return watch, (made.state.global_step, made.state.epoch, digest(made.model.state_dict())), said


@pytest.fixture
def by_two(ranks, tmp_path):
    """What the ranks saw that saved, and what others need to go on from there."""
    saw = [watch for watch, _, _ in ranks(2, watched, str(tmp_path), {"DLROVER_LINEAGE": LINEAGE}, False)]
    assert saw[0].saved[0] == saw[1].saved[0] and saw[0].saved[1] != saw[1].saved[1]
    with Stored(tmp_path).put(SAVED).offered() as environment:
        yield saw, environment


@needs_programs
@pytest.mark.parametrize("count, samples, place, what", [(1, 4, (0, 20), "are trained again"), (3, 12, (2, 12), "are left out")])
def test_another_number_of_ranks(ranks, tmp_path, by_two, count, samples, place, what):
    """Model, optimizer and schedule of the saved step; the batches of a training that had that many ranks from its beginning."""
    saw, environment = by_two
    resumed = ranks(count, watched, str(tmp_path), environment, True)
    undisturbed = Ranks(tmp_path / "undisturbed")(count, watched, str(tmp_path), {}, False)
    for rank, (watch, end, said) in enumerate(resumed):
        assert watch.first == (SAVED, saw[0].saved[0])
        assert watch.numbers == saw[rank % 2].saved[1]
        assert watch.samples == {step: taken for step, taken in undisturbed[rank][0].samples.items() if step > SAVED}
        assert sorted(watch.samples) == list(range(SAVED + 1, STEPS + 1))
        assert end == (STEPS, undisturbed[0][1][1], resumed[0][1][2]), "all ranks have the same model"
        assert len(said) == (rank == 0)
    text = resumed[0][2][0]
    assert re.search(rf"step 5 was saved by 2 ranks with 8 samples a step, this world has {count} with {samples}\. ", text), text
    behind = "behind {} epochs and {} samples"
    assert re.search(rf"{behind.format(*place)}, where .* {behind.format(1, 16)}; the samples between {what}\. ", text), text


@needs_programs
def test_as_many_samples_in_a_step_keep_the_place(ranks, tmp_path, by_two):
    """One rank that accumulates twice as many batches trains what two would have trained in each step, and there is nothing to warn of."""
    saw, environment = by_two
    [(watch, end, said)] = ranks(1, watched, str(tmp_path), environment, True, {"gradient_accumulation_steps": 4})
    together = {step: saw[0].samples[step] + saw[1].samples[step] for step in range(SAVED + 1, STEPS + 1)}
    assert {step: sorted(taken) for step, taken in watch.samples.items()} == {step: sorted(taken) for step, taken in together.items()}
    assert (watch.first, end[0], said) == ((SAVED, saw[0].saved[0]), STEPS, [])


@needs_programs
def test_two_after_one_end_with_the_epochs(ranks, tmp_path):
    """A training of epochs has half as many steps then, and goes on from the saved one."""
    epochs = {"max_steps": -1, "num_train_epochs": 2}
    [(saw, (last, _, _), _)] = ranks(1, watched, str(tmp_path), {"DLROVER_LINEAGE": LINEAGE}, False, epochs)
    assert last == 12
    with Stored(tmp_path).put(SAVED).offered() as environment:
        resumed = ranks(2, watched, str(tmp_path), environment, True, epochs)
    for watch, (step, epoch, _), _ in resumed:
        assert (watch.first, sorted(watch.samples), step, epoch) == ((SAVED, saw.saved[0]), [6], 6, 2.0)
        assert watch.numbers == saw.saved[1]
    assert "saved by 1 rank with 4 samples" in resumed[0][2][0] and "at step 6 instead of 12." in resumed[0][2][0]


def position(ranks, length, accumulates=1, per_rank=2, step=50, max_steps=100, **named):
    """``length``: batches of a rank in an epoch; None: nobody knows."""
    from dlrover_slurm._hf_position import Position

    args = SimpleNamespace(**{"train_batch_size": per_rank, "gradient_accumulation_steps": accumulates, "world_size": ranks, **named})
    return Position.of(args, SimpleNamespace(global_step=step, max_steps=max_steps, train_batch_size=1), None if length is None else range(length))


def test_where_the_trainer_goes_on():
    """4 ranks with 2 samples each had 100 to train in an epoch, the last step of it with fewer."""
    from dlrover_slurm._hf_position import difference

    def told(here, saved=position(4, 13), skip=False):
        return difference(saved, here, (4, 2), skip)

    def goes_on(then, now):
        return "goes on behind {} epochs and {} samples, where the saved training would have gone on behind {} epochs and {} samples; ".format(*now, *then)

    saved = position(4, 13)
    assert (saved.batch, saved.epochs, saved.samples) == (8, 3, 88)
    assert told(position(2, 25, accumulates=2)) == told(position(2, 13, per_rank=4)) == ""
    assert goes_on((3, 88), (2, 0)) + "the samples between are trained again" in told(position(2, 25))
    assert goes_on((3, 88), (7, 16)) + "the samples between are left out" in told(position(8, 7))
    assert goes_on((3, 0), (2, 0)) in told(position(2, 25), skip=True)
    assert goes_on((0, 400), (0, 200)) in told(position(2, None), position(4, None))
    assert told(position(2, None), position(4, None), skip=True) == "", "from its beginning"
    assert told(position(2, 13, per_rank=4, max_steps=40)).endswith("at step 40 instead of 100: nothing is left to train")
    assert position(4, 13, auto_find_batch_size=True).batch == 4


def generators(rank):
    """Of the GPU that a rank had, for the one that it has now, in the form that the Trainer wants: rng_state.pth of one process, or of several."""
    from dlrover_slurm import hf

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 3)
        patch.setattr(torch.cuda, "current_device", lambda: 1)
        patch.setattr(torch.cuda, "get_rng_state_all", lambda: ["first", "second"])
        patch.setattr(torch.cuda, "get_rng_state", lambda: "only")
        of_several = hf._rng_state()
        assert (of_several["cuda"], of_several["device"]) == (["first", "second"], 1)
        assert hf._rng_of_another(of_several)["cuda"] == ["second"] * 3
        torch.distributed.destroy_process_group()
        of_one = hf._rng_state()
        assert of_one["cuda"] == "only" and "device" not in of_one
        assert hf._rng_of_another(of_one)["cuda"] == "only" and hf._rng_of_another(of_several)["cuda"] == "second"
        several = SimpleNamespace(world_size=3)
        patch.setattr(hf._session, "world", lambda: several)
        assert hf._rng_of_another(of_one)["cuda"] == ["only"] * 3
    assert hf._rng_of_another({"cuda": "kept"}) == {"cuda": "kept"}, "no GPU here"


def test_generators_of_other_gpus(ranks):
    ranks(1, generators)


def refuses(rank, environment):
    import dlrover_slurm
    from dlrover_slurm.hf import DlroverCallback

    os.environ.update(environment)
    with pytest.raises(dlrover_slurm.UnsupportedError, match="saved by 2 ranks that were not one DDP group, or of which DDP left .* this world has 1"):
        DlroverCallback().resume()


def alike(rank):
    from dlrover_slurm import hf

    return hf._alike(torch.nn.Linear(1, 1))


def test_models_of_ranks_that_are_no_group_are_not_alike(ranks):
    assert (ranks(2, alike, group=False), ranks(2, alike), ranks(1, alike, group=False)) == ([False] * 2, [True] * 2, [True])


@needs_programs
def test_what_ranks_do_not_hold_alike_is_refused_at_another_number(ranks, tmp_path):
    ranks(2, watched, str(tmp_path), {"DLROVER_LINEAGE": LINEAGE}, False, {}, ["transformer.ln_f.weight"])
    with Stored(tmp_path).put(SAVED).offered() as environment:
        ranks(1, refuses, environment, group=False)


PROGRAM = """
import json, os, signal, subprocess, sys, time, torch, torch.distributed as dist
sys.path.insert(0, sys.argv[3])
from trainers import large_trainer
from transformers import TrainerCallback
from dlrover_slurm.hf import DlroverCallback

kill, command, _, folder = sys.argv[1:5]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()

def checkpoint_of(step):
    "As the daemon tells of it, once it is complete."
    while True:
        asked = subprocess.run([command, "status", os.environ["DLROVER_JOB_ID"], "--json"], capture_output=True)
        for c in (c for g in json.loads(asked.stdout)["groups"] for c in g["checkpoints"]):
            if c["train_step"] == step and c["complete"]:
                return c
        time.sleep(0.02)

class Killer(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if kill == "kill" and state.global_step == 7 and rank == 1 and path is None:
            checkpoint_of(6)
            os.kill(os.getpid(), signal.SIGKILL)

callback = DlroverCallback(2)
made = large_trainer(folder, [callback, Killer()])
path = callback.resume()
print(rank, "resumes from", os.path.basename(path) if path else "nothing", flush=True)
made.train(resume_from_checkpoint=path)
buffers = made.model.state_dict()["seen"].flatten()[0].item()
for entry in made.state.log_history:
    if "loss" in entry:
        print(rank, "step", entry["step"], entry["loss"].hex(), entry["learning_rate"].hex(), buffers, flush=True)
if rank == 0:
    print("bytes", checkpoint_of(8)["bytes"], "of", sum(p.nbytes for p in made.model.parameters()), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def under_a_daemon(tmp_path, kill):
    """What the ranks said: from where they went on; losses, learning rate and the buffer by rank and step; the last checkpoint's bytes, the parameters'."""
    script = tmp_path / f"{kill}.py"
    script.write_text(PROGRAM)
    done = standalone(4, script, kill, BUILD / "dlrover", TOP / "tests" / "adapters", tmp_path)
    resumed = re.findall(r"^0 resumes from (\S+)$", done.stdout, re.M)
    steps = {(int(r), int(s)): rest for r, s, rest in re.findall(r"^(\d) step (\d+) (.+)$", done.stdout, re.M)}
    kept, parameters = map(int, re.search(r"^bytes (\d+) of (\d+)$", done.stdout, re.M).groups())
    return resumed, steps, kept, parameters


@needs_daemon
@nightly
def test_what_ddp_holds_alike_is_kept_once_on_a_node(tmp_path):
    """Parameters and optimizer state; a rank killed in the 7th step: all go on from the 6th with the same losses."""
    resumed, alone, kept, parameters = under_a_daemon(tmp_path, "no")
    assert resumed == ["nothing"] and len(alone) == 4 * STEPS
    assert len({alone[rank, STEPS].split()[-1] for rank in range(4)}) == 4, "each rank's own buffer"
    assert 3 * parameters < kept < 1.3 * 3 * parameters, "the checkpoints of all four ranks"
    resumed, again, kept_again, _ = under_a_daemon(tmp_path, "kill")
    assert resumed == ["nothing", "checkpoint-6"]
    assert {key for key in alone if key[1] != 6} == set(again), "the 6th is logged after it is saved"
    assert all(alone[key] == said for key, said in again.items()) and abs(kept_again - kept) < 0.01 * kept
