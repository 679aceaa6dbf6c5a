# SPDX-License-Identifier: Apache-2.0
"""Small models in every way of distributing them, and what is in a state, exactly."""

import hashlib

import torch
import torch.distributed as dist
from torch import nn


class Net(nn.Module):
    """Sizes that no world size divides; a frozen layer; a buffer; the first and the last layer share their weights."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(7, 13)
        self.frozen = nn.Linear(13, 13)
        self.frozen.requires_grad_(False)
        self.up = nn.Linear(13, 12)
        self.down = nn.Linear(12, 13)
        self.last = nn.Linear(7, 13)
        self.last.weight = self.first.weight
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.seen += 1
        x = torch.relu(self.frozen(torch.relu(self.first(x))))
        x = self.down(torch.relu(self.up(x)))
        return x @ self.last.weight + self.last.bias.sum()


def build(kind, seed=1):
    torch.manual_seed(seed)
    model = Net()
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    else:
        shard(model, kind)
    return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)


def shard(model, kind):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    count = dist.get_world_size()
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if kind == "fsdp2":
        fully_shard(model, mesh=init_device_mesh("cpu", (count,)))
    elif kind == "hsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (2, count // 2), mesh_dim_names=("replicate", "shard")))
    elif kind == "tp":
        parallelize_module(model, init_device_mesh("cpu", (count,)), plan)
    elif kind == "fsdp2+tp":
        mesh = init_device_mesh("cpu", (count // 2, 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(model, mesh["tensor"], plan)
        fully_shard(model, mesh=mesh["data"])
    else:
        raise ValueError(kind)


def batch(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(4, 7, generator=generator), torch.randn(4, 7, generator=generator)


class Words(torch.utils.data.Dataset):
    """Sentences for a language model: what comes next is the next word of the same sentence."""

    def __len__(self):
        return 24

    def __getitem__(self, i):
        words = torch.randint(0, 50, (8,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": words, "labels": words}


def train(model, optimizer, steps, first=0, data_rank=0):
    """The losses, exactly."""
    losses = []
    for step in range(first, first + steps):
        x, y = batch(step, data_rank)
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses


def local(tensor):
    """This rank's part of a tensor."""
    if hasattr(tensor, "to_local"):
        return tensor.to_local()
    if hasattr(tensor, "local_shards"):
        return torch.cat([shard.tensor.reshape(-1) for shard in tensor.local_shards()] or [torch.empty(0)])
    return tensor


def digest(state, path=""):
    """{path: type, shape and bytes of this rank's part, or the value itself}"""
    if isinstance(state, dict):
        return {k: v for key, item in state.items() for k, v in digest(item, f"{path}/{key}").items()}
    if isinstance(state, (list, tuple)):
        return {k: v for i, item in enumerate(state) for k, v in digest(item, f"{path}/{i}").items()}
    if isinstance(state, torch.Tensor):
        part = local(state).detach().contiguous()
        data = part.reshape(-1).view(torch.uint8).numpy().tobytes() if part.numel() else b""
        return {path: (str(part.dtype), tuple(part.shape), hashlib.sha256(data).hexdigest())}
    return {path: state}
