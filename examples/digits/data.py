# SPDX-License-Identifier: Apache-2.0
"""The digits images and an order of samples that can be taken up in the middle of an epoch."""

import importlib.util
import pathlib

import numpy
import torch


def load_images() -> "tuple[torch.Tensor, torch.Tensor]":
    """1797 images of 8 x 8 pixels in [0, 1] and their labels.

    Reads scikit-learn's file directly: importing the package takes longer than a restart should.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("scikit-learn is not installed (apt install python3-sklearn)")
    path = pathlib.Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    table = numpy.loadtxt(path, delimiter=",", dtype=numpy.float32)
    return torch.from_numpy(table[:, :-1] / 16.0), torch.from_numpy(table[:, -1].astype(numpy.int64))


class Digits(torch.utils.data.Dataset):
    """Images with a little noise. The noise depends on seed, epoch and image alone, not on the loader process that makes it."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, seed: int) -> None:
        self.images, self.labels, self.seed = images, labels, seed

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, key: "tuple[int, int]") -> "tuple[torch.Tensor, torch.Tensor]":
        epoch, index = key
        noise = numpy.random.default_rng((self.seed, epoch, index)).normal(0.0, 0.05, 64).astype(numpy.float32)
        return self.images[index] + torch.from_numpy(noise), self.labels[index]


class Order(torch.utils.data.Sampler):
    """Batches of (epoch, index) for one rank, shuffled anew for every epoch, endless, from any position."""

    def __init__(self, count: int, batch: int, rank: int, ranks: int, seed: int, epoch: int, done: int) -> None:
        self.count, self.batch, self.rank, self.ranks, self.seed = count, batch, rank, ranks, seed
        self.epoch, self.done = epoch, done

    @property
    def batches_per_epoch(self) -> int:
        return self.count // (self.batch * self.ranks)

    def __iter__(self):
        epoch, batch = self.epoch, self.done
        while True:
            shuffle = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)).tolist()
            for position in range(batch, self.batches_per_epoch):
                begin = (position * self.ranks + self.rank) * self.batch
                yield [(epoch, index) for index in shuffle[begin : begin + self.batch]]
            epoch, batch = epoch + 1, 0


def make_loader(dataset: Digits, order: Order) -> torch.utils.data.DataLoader:
    # A generator of its own: otherwise each new iterator draws from the global one, and a resumed run differs from an undisturbed one.
    return torch.utils.data.DataLoader(dataset, batch_sampler=order, num_workers=2, generator=torch.Generator().manual_seed(0))
