# SPDX-License-Identifier: Apache-2.0
"""What the ways of saving and restoring are called, in the worker of bench/ckpt_save, in its tables and in bench/ckpt_plot."""

OURS, OURS_DCP, FLASH = "dlrover_slurm.save", "dlrover_slurm.dcp.save", "DLRover save_checkpoint"
TORCH, DCP, DCP_ASYNC = "torch.save", "torch DCP save", "torch DCP async_save"
#: Not ways of saving: what none of them can do without.
FRESH_PAGES, COPY_ALONE = "fresh shared pages, nothing copied", "torch copy_ into memory that is there"

#: No way of saving either: what a GPU's reading of the same bytes takes from a training that does not wait for it.
PLAIN = "plain copy, waited for by nobody"

#: What bounds a restore to a GPU.
FROM_PINNED = "the same tensors from pinned memory"

#: Those that --apart gives a process of their own.
APART = {"ours": OURS, "flash": FLASH, "fresh": FRESH_PAGES}

OURS_LOAD, OURS_VIEWS, OURS_INTO, OURS_DCP_LOAD = ("dlrover_slurm.load", "dlrover_slurm.load(views=True)", "dlrover_slurm.load(views=True), copy_",
                                                   "dlrover_slurm.dcp.load")
FLASH_VIEWS, FLASH_CLONE, FLASH_INTO = "DLRover load_checkpoint", "DLRover load_checkpoint, clone", "DLRover load_checkpoint, copy_"
TORCH_LOAD, TORCH_MMAP, DCP_LOAD = "torch.load", "torch.load(mmap=True)", "torch DCP load"

#: What a restore leaves the program with; in each group ours stands first.
GROUPS = {
    "views": "restored as views of memory or of a file",
    "tensors": "restored as new tensors",
    "into": "restored into tensors that are there",
    "dcp": "restored through torch.distributed.checkpoint, into tensors that are there",
}
OURS_OF_GROUP = {"views": OURS_VIEWS, "tensors": OURS_LOAD, "into": OURS_INTO, "dcp": OURS_DCP_LOAD}
