# SPDX-License-Identifier: Apache-2.0
import os
import re
import signal

import pytest
from conftest import nightly
from ranks import TOP, Killed
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


def one_of_two(rank):
    import dlrover_slurm

    os.environ["DLROVER_LINEAGE"] = LINEAGE
    assert dlrover_slurm.save(1, {"hf": 1, "trainer": "{}", "rng": {}}, replicated=True)


def alone(rank, environment):
    import dlrover_slurm
    from dlrover_slurm.hf import DlroverCallback

    os.environ.update(environment)
    with pytest.raises(dlrover_slurm.UnsupportedError, match="saved by 2 ranks, this world has 1"):
        DlroverCallback().resume()


@needs_programs
def test_another_number_of_ranks_is_refused(ranks, tmp_path):
    ranks(2, one_of_two, group=False)
    with Stored(tmp_path).put().offered() as environment:
        ranks(1, alone, environment, group=False)


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
