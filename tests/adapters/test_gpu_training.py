# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer and DLRover's checkpointers with tensors on a GPU, without one: tests/fakes/fake_gpu.py says how."""

import pytest
import torch
from fake_gpu import OnStreams, Sgd, assert_same, copy_of, held, installed, needs_driver, ramp
from trainers import STEPS, trainer
from transformers import TrainerCallback

import dlrover_slurm

pytestmark = needs_driver
SAVED = 5  # of STEPS; the thread that seals it comes after the next step
OPENED = 7


class Before(TrainerCallback):
    """Takes the model to the GPU. What it and its optimizer are when the callback behind this one saves them. The save is sealed behind step ``opened``, or
    (None) after an evaluation."""

    def __init__(self, gpu, gate, saved, opened):
        self._gpu, self._gate, self._saved, self._opened = gpu, gate, saved, opened

    def on_train_begin(self, args, state, control, model, **_):
        self._gpu.move(model, owned=False)  # the Trainer's own way makes copies

    def on_step_end(self, args, state, control, model, optimizer, **_):
        if state.global_step == self._saved:
            self.model = copy_of(model.state_dict())
            self.optimizer = [copy_of({k: v for k, v in one.items() if v.dim()}) for one in optimizer.state_dict()["state"].values()]
        if state.global_step == self._opened:
            self._gate.set()

    def on_evaluate(self, args, state, control, **_):
        if state.global_step == self._saved and self._opened is None:
            self._gate.set()
            dlrover_slurm.wait_saved()

    def on_train_end(self, args, state, control, **_):
        self._gate.set()


def run(folder, gpu, change, saved=SAVED, opened=OPENED, **named):
    """Trains with one save; ``change``: of the Trainer, before. The checkpoint is what the state was then."""
    from dlrover_slurm import _cuda, _session
    from dlrover_slurm.hf import DlroverCallback

    with pytest.MonkeyPatch.context() as patch, held() as gate, OnStreams(gpu):
        patch.setattr(_cuda, "SMALL_BYTES", 0)
        before, callback = Before(gpu, gate, saved, opened), DlroverCallback(saved, **named)
        made = trainer(folder, [before, callback])
        change(made)
        made.train()
        assert made.state.global_step == STEPS and callback.skipped == 0
        assert _session._own_sealing() is None, "the training has ended, and with it the save"
    checkpoint = dlrover_slurm.load()
    assert checkpoint is not None and checkpoint.step == saved
    assert_same(checkpoint.state["model"], before.model)
    for one, expected in zip(checkpoint.state["optimizer"]["state"].values(), before.optimizer):
        assert_same({k: v for k, v in one.items() if v.dim()}, expected)
    assert len(before.optimizer) > 10
    assert sum(gpu.copies()) >= sum(p.nbytes for p in made.model.parameters())
    return made


def undisturbed(rank, folder):
    """accelerate's wrapper of the optimizer steps through torch's hooks: once for each step of the training."""
    from dlrover_slurm import _session

    fences, fence = [], _session.fence_staged
    _session.fence_staged = lambda: fences.append(fence())
    with installed() as gpu:
        made = run(folder, gpu, lambda made: None)
    assert type(made.optimizer).__name__ == "AcceleratedOptimizer"
    assert len(fences) == STEPS, "the hook is there from the first step on"


def test_trainer(ranks, tmp_path):
    ranks(1, undisturbed, str(tmp_path), group=False)


def not_held_back(rank, folder):
    """What the test above would see if nothing held the step back: torch counts nothing that its fused optimizers change."""
    from dlrover_slurm import _session

    _session.fence_staged = lambda: None
    with installed() as gpu, pytest.raises(AssertionError, match=r"transformer\."):
        run(folder, gpu, lambda made: None)


def test_without_the_fence_the_step_would_be_saved(ranks, tmp_path):
    ranks(1, not_held_back, str(tmp_path), group=False)


def changing_buffer(rank, folder):
    with installed() as gpu:

        def change(made):
            made.model.register_buffer("seen", torch.zeros(20000))
            made.model.register_forward_pre_hook(lambda module, _: [module.seen.add_(1), None][1])

        run(folder, gpu, change)


def test_a_buffer_that_changes_in_the_forward_pass(ranks, tmp_path):
    ranks(1, changing_buffer, str(tmp_path), group=False)


class ScheduleFree(torch.optim.AdamW):
    """Has other weights for the evaluation, and torch counts no change of ``.data``."""

    def train(self):
        self._to(1.0)

    def eval(self):
        self._to(-1.0)

    def _to(self, sign):
        if getattr(self, "_sign", 1.0) != sign:
            self._sign = sign
            for group in self.param_groups:
                for p in group["params"]:
                    p.data.neg_()


def schedule_free(rank, folder):
    with installed() as gpu:

        def change(made):
            made.create_optimizer = lambda *_: setattr(made, "optimizer", ScheduleFree(made.model.parameters(), lr=0.01)) or made.optimizer
            made.args.eval_strategy, made.args.eval_steps = "steps", 1
            made.eval_dataset = made.train_dataset

        run(folder, gpu, change, opened=None)


def test_an_optimizer_with_weights_for_the_evaluation(ranks, tmp_path):
    ranks(1, schedule_free, str(tmp_path), group=False)


def best_model(rank, folder):
    """The Trainer loads it after the last step, and tells nobody before."""
    with installed() as gpu:

        def change(made):
            made.args.load_best_model_at_end = True
            made._load_best_model = lambda: [p.data.zero_() for p in made.model.parameters()]
            made.add_callback(Best())

        made = run(folder, gpu, change, saved=STEPS, opened=-1)
        assert not any(p.any() for p in made.model.parameters())


class Best(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        state.best_model_checkpoint = "checkpoint-1"


def test_the_best_model_at_the_end(ranks, tmp_path):
    ranks(1, best_model, str(tmp_path), group=False)


class Clip(TrainerCallback):
    """As critics of some GANs have it; torch counts no change of ``.data``."""

    def on_step_end(self, args, state, control, model, **_):
        for p in model.parameters():
            p.data.clamp_(-1e-3, 1e-3)


def not_staged(rank, folder):
    with installed() as gpu:
        run(folder, gpu, lambda made: made.add_callback(Clip()), stage=False)


def test_without_staging_any_callback_may_change_anything(ranks, tmp_path):
    ranks(1, not_staged, str(tmp_path), group=False)


# ---- DLRover's names ----


def checkpointer(rank, name):
    """save_checkpoint returns, the training goes on, and what was saved is what was there then."""
    from dlrover_slurm import _session, compat

    kept_until_saved = name != "FsdpFullCheckpointer"
    with installed() as gpu, held() as gate:
        if not kept_until_saved:
            gate.set()
        model = gpu.move(torch.nn.Linear(1000, 600))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        before = copy_of(model.state_dict())
        made = getattr(compat, name)("/nonexistent/checkpoints")
        arguments = [{"model": model.state_dict()}] if name == "DdpCheckpointer" else [model, optimizer]
        assert made.save_checkpoint(1, *arguments, storage_type=compat.StorageType.MEMORY)
        assert (_session._own_sealing() is not None) == kept_until_saved
        Sgd(gpu, list(model.parameters()), 9.0).step()
        gate.set()
        made.wait_latest_checkpoint()
        assert _session._own_sealing() is None and 1000 * 600 * 4 in gpu.copies()
        if name == "DdpCheckpointer":
            assert_same(made.load_checkpoint()["model"], before)
        else:
            assert made.load_checkpoint(model, optimizer) == {}
            assert_same(model.state_dict(), before)


@pytest.mark.parametrize("name", ["DdpCheckpointer", "FsdpShardCheckpointer", "FsdpFullCheckpointer"])
def test_checkpointers(ranks, name):
    ranks(1, checkpointer, name)


def finished(rank):
    from dlrover_slurm import _session, compat

    with installed() as gpu:
        made, weights = compat.DdpCheckpointer("/nonexistent/checkpoints"), gpu.weights(ramp())
        made.stage = False
        assert made.save_checkpoint(1, {"x": weights}, storage_type=compat.StorageType.MEMORY)
        assert _session._own_sealing() is None
        with held() as gate:
            made.stage = True
            assert made.save_checkpoint(2, {"x": weights}, storage_type=compat.StorageType.MEMORY)
            weights.add_(1)
            gate.set()
            with pytest.warns(UserWarning, match="step 2 was not saved: .* x was changed"):
                made.wait_latest_checkpoint()
        assert torch.equal(made.load_checkpoint()["x"], ramp())


def test_a_checkpointer_that_does_not_stage(ranks):
    ranks(1, finished, group=False)
