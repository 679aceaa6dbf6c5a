# SPDX-License-Identifier: Apache-2.0
"""Training on a GPU, killed in its middle: every loss is, to the bit, that of the undisturbed training."""

import os
import signal

import pytest
import torch
from ranks import Killed
from torch import nn

STEPS, KILLED_AT = 14, 9
WIDTH = 1024  # so that weights are large enough to be copied behind the training


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second, self.last = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)

    def forward(self, x):
        return self.last(torch.relu(self.second(nn.functional.dropout(torch.relu(self.norm(self.first(x))), 0.1, self.training))))


def stepped(optimizer):
    optimizer.step()
    optimizer.zero_grad()


class Training:
    """What a training has: a model with buffers and dropout, an optimizer, a scheduler, an average of the weights, and a scaler where it computes in half precision."""

    def __init__(self, kind):
        torch.manual_seed(5)
        torch.cuda.manual_seed(6)
        self.kind = kind
        self.model = self.inner = Net().cuda()
        if kind == "fsdp2":
            from torch.distributed.fsdp import fully_shard

            for part in (self.model.first, self.model.second):
                fully_shard(part)
            fully_shard(self.model)
        elif kind == "ddp":
            self.model = nn.parallel.DistributedDataParallel(self.model)
        options = {"fused": {"fused": True}, "foreach": {"foreach": True}, "capturable": {"capturable": True}}.get(kind, {})
        self.optimizers = [torch.optim.AdamW(self.model.parameters(), lr=1e-3, **options)]
        if kind == "in backward":
            self.optimizers = [torch.optim.AdamW([p], lr=1e-3) for p in self.model.parameters()]
            for p, optimizer in zip(self.model.parameters(), self.optimizers):
                p.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: stepped(optimizer))
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizers[0], 3, 0.9)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**24, growth_interval=2) if kind == "half" else None
        self.average = {} if kind == "fsdp2" else {name: p.detach().clone() for name, p in self.inner.named_parameters()}

    def step(self, number):
        generator = torch.Generator().manual_seed(number)
        x, y = torch.randn(64, WIDTH, generator=generator).cuda(), torch.randint(0, 8, (64,), generator=generator).cuda()
        with torch.autocast("cuda", torch.float16, enabled=self.scaler is not None):
            loss = nn.functional.cross_entropy(self.model(x), y)
        if self.scaler:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizers[0])
            self.scaler.update()
        else:
            loss.backward()
            if self.kind != "in backward":
                self.optimizers[0].step()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.scheduler.step()
        with torch.no_grad():
            for name, p in self.inner.named_parameters():
                if name in self.average:
                    self.average[name].lerp_(p, 0.1)
        return loss

    def state(self):
        import dlrover_slurm

        state = {"model": self.model.state_dict(), "optimizers": [o.state_dict() for o in self.optimizers], "scheduler": self.scheduler.state_dict(),
                 "average": self.average, "rng": dlrover_slurm.rng_state()}  # fmt: skip
        return state | ({"scaler": self.scaler.state_dict()} if self.scaler else {})

    def save(self, step):
        import dlrover_slurm

        return dlrover_slurm.save(step, self.state(), wait=5.0)

    def load(self):
        """The step that it goes on from."""
        import dlrover_slurm

        last = dlrover_slurm.load(map_location="cuda")
        if last is None:
            return None
        self.model.load_state_dict(last.state["model"])
        for optimizer, values in zip(self.optimizers, last.state["optimizers"]):
            optimizer.load_state_dict(values)
        self.scheduler.load_state_dict(last.state["scheduler"])
        for name, value in last.state["average"].items():
            self.average[name].copy_(value)
        if self.scaler:
            self.scaler.load_state_dict(last.state["scaler"])
        dlrover_slurm.set_rng_state(last.state["rng"])
        return last.step


class Sharded(Training):
    """By FSDP2, saved through torch.distributed.checkpoint's states."""

    def state(self):
        from dlrover_slurm import RngState
        from torch.distributed.checkpoint.state_dict import get_state_dict

        return {**dict(zip(("model", "optimizer"), get_state_dict(self.model, self.optimizers[0]))), "scheduler": self.scheduler.state_dict(), "rng": RngState()}

    def save(self, step):
        from dlrover_slurm import dcp

        return dcp.save(step, self.state())

    def load(self):
        from dlrover_slurm import dcp
        from torch.distributed.checkpoint.state_dict import set_state_dict

        state = self.state()
        last = dcp.load(state)
        if last is not None:
            set_state_dict(self.model, self.optimizers[0], model_state_dict=state["model"], optim_state_dict=state["optimizer"])
            self.scheduler.load_state_dict(state["scheduler"])
        return last


def train(rank, kind, kill_at):
    """The losses by step, exactly, from where it went on, and the average of the weights at the end."""
    import dlrover_slurm

    torch.cuda.set_device(0)
    torch.use_deterministic_algorithms(True)
    training = (Sharded if kind == "fsdp2" else Training)(kind)
    last = training.load()
    losses = {}
    for step in range(0 if last is None else last + 1, STEPS):
        losses[step] = training.step(step).item().hex()
        assert training.save(step)
        if step == kill_at and last is None:
            os.kill(os.getpid(), signal.SIGKILL)
    dlrover_slurm.wait_saved()
    return losses, {name: value.sum().item().hex() for name, value in training.average.items()}


@pytest.mark.parametrize("kind", ["plain", "fused", "foreach", "capturable", "in backward", "half", "ddp", "fsdp2"])
def test_killed_in_its_middle(kind, ranks, tmp_path):
    group = {"ddp": "nccl", "fsdp2": "nccl"}.get(kind)
    from ranks import Ranks

    (losses, average), = Ranks(tmp_path / "undisturbed")(1, train, kind, -1, group=group)
    assert len(losses) == STEPS
    assert isinstance(ranks(1, train, kind, KILLED_AT, group=group)[0], Killed)
    (resumed, resumed_average), = ranks(1, train, kind, KILLED_AT, group=group)
    first = min(resumed)
    assert KILLED_AT - 1 <= first <= KILLED_AT + 1, "it went on from the newest or the one before, whose copy was under way"
    assert resumed == {step: loss for step, loss in losses.items() if step >= first}
    assert resumed_average == average


def by_trainer(rank, folder, kill_at):
    from dlrover_slurm.hf import DlroverCallback
    from models import Words
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

    class Kill(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    set_seed(3)
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=768, vocab_size=1500, n_positions=8, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(output_dir=folder, max_steps=STEPS, per_device_train_batch_size=2, learning_rate=1e-3, lr_scheduler_type="cosine", logging_steps=1,
                                  save_strategy="no", report_to=[], disable_tqdm=True, seed=5, warmup_steps=2, full_determinism=True)  # fmt: skip
    callback = DlroverCallback(1)
    made = Trainer(model=model, args=arguments, train_dataset=Words(), callbacks=[callback, Kill()])
    assert next(model.parameters()).is_cuda
    path = callback.resume()
    made.train(resume_from_checkpoint=path)
    return None if path is None else int(path.rpartition("-")[2]), {entry["step"]: entry["loss"] for entry in made.state.log_history if "loss" in entry}


def test_hugging_face_trainer(ranks, tmp_path):
    from ranks import Ranks

    (_, losses), = Ranks(tmp_path / "undisturbed")(1, by_trainer, str(tmp_path / "a"), -1, group=None)
    assert len(losses) == STEPS
    assert isinstance(ranks(1, by_trainer, str(tmp_path / "b"), KILLED_AT, group=None)[0], Killed)
    (step, resumed), = ranks(1, by_trainer, str(tmp_path / "b"), -1, group=None)
    assert step is not None and KILLED_AT - 2 <= step <= KILLED_AT
    assert {at: loss for at, loss in losses.items() if at > step}.items() <= resumed.items()
