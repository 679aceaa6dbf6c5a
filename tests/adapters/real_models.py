# SPDX-License-Identifier: Apache-2.0
"""Training of models of transformers by a loop of one's own that saves every step, for test_real_models.py: in ranks that it forks, or as a program.

real_models.py MODEL KIND WAY KILL-AT VICTIMS (KILL-AT -1: nobody is killed; VICTIMS: ranks, as 0,1)"""

import itertools
import os
import signal
import sys

import dlrover_slurm
import torch
import torch.distributed as dist
from dlrover_slurm import RngState, dcp
from models import Words
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.utils.data import DataLoader, DistributedSampler
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

STEPS = 10  # of 6 in an epoch


def gpt2():
    """With dropout in three places, its defaults, and tied embeddings."""
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=50, n_positions=8, bos_token_id=0, eos_token_id=0))
    return model, model.transformer.h


def llama():
    """With fewer heads for keys than for queries, and dropout in its attention."""
    config = LlamaConfig(hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=50,
                         max_position_embeddings=8, bos_token_id=0, eos_token_id=0, attention_dropout=0.1)  # fmt: skip
    model = LlamaForCausalLM(config)
    return model, model.model.layers


class Training:
    def __init__(self, name, kind):
        torch.manual_seed(11)
        self.model, blocks = {"gpt2": gpt2, "llama": llama}[name]()
        self.model.train()
        if kind == "ddp":
            self.model = torch.nn.parallel.DistributedDataParallel(self.model)
        else:
            shard(self.model, blocks)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, weight_decay=0.1)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=1e-2, total_steps=STEPS)
        torch.manual_seed(100 + dist.get_rank())  # each rank drops others

    def step(self, words, before_optimizer):
        loss = self.model(**words).loss
        self.optimizer.zero_grad()
        loss.backward()
        before_optimizer()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()


def shard(model, blocks):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


class ByDcp:
    """Save and load by dlrover_slurm.dcp."""

    def __init__(self, training):
        self._training = training

    def _state(self):
        states = zip(("model", "optimizer"), get_state_dict(self._training.model, self._training.optimizer))
        return {**dict(states), "scheduler": self._training.scheduler.state_dict(), "rng": RngState()}

    def save(self, step):
        return dcp.save(step, self._state())

    def load(self):
        state, training = self._state(), self._training
        last = dcp.load(state)
        if last is not None:
            set_state_dict(training.model, training.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
            training.scheduler.load_state_dict(state["scheduler"])
        return last


class ByCalls:
    """Save and load by dlrover_slurm's own two calls."""

    def __init__(self, training):
        self._training = training
        self._parts = {"model": training.model, "optimizer": training.optimizer, "scheduler": training.scheduler}

    def save(self, step):
        return dlrover_slurm.save(step, {**{name: part.state_dict() for name, part in self._parts.items()}, "rng": dlrover_slurm.rng_state()})

    def load(self):
        found = dlrover_slurm.load()
        if found is None:
            return None
        for name, part in self._parts.items():
            part.load_state_dict(found.state[name])
        dlrover_slurm.set_rng_state(found.state["rng"])
        return found.step


def batches(first):
    """(step, words) from a step on, shuffled anew in every epoch. The loader has a generator of its own: making its iterator takes no number of dropout's."""
    sampler = DistributedSampler(Words(), seed=5)
    loader = DataLoader(Words(), batch_size=2, sampler=sampler, generator=torch.Generator())

    def epochs():
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            yield from loader

    return itertools.islice(enumerate(epochs()), first, STEPS)


def train(rank, name, kind, way, kill_at=-1, victims=(), tell=None):
    """The exact losses by step, from where it went on. The victims die of SIGKILL in the middle of a step, where this is its first run."""
    training = Training(name, kind)
    ways = {"dcp": ByDcp, "calls": ByCalls}[way](training)
    last = ways.load()
    first, losses = 0 if last is None else last + 1, {}
    if tell:
        tell("begins at", first)

    def die():
        if last is None and step == kill_at and rank in victims:
            os.kill(os.getpid(), signal.SIGKILL)

    for step, words in batches(first):
        losses[step] = training.step(words, die).hex()
        if tell:
            tell("step", step, losses[step])
        assert ways.save(step)
    return losses


def main(name, kind, way, kill_at, victims):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    train(rank, name, kind, way, int(kill_at), [int(victim) for victim in victims.split(",")], lambda *said: print(rank, *said, flush=True))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
