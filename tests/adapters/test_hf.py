# SPDX-License-Identifier: Apache-2.0
import os
import signal

import pytest
import torch
import transformers
from conftest import Killed
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

STEPS = 9


class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        words = torch.randint(0, 50, (8,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": words, "labels": words}


def trainer(folder, callbacks):
    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=50, n_positions=8, bos_token_id=0, eos_token_id=0)
    transformers.set_seed(3)
    arguments = TrainingArguments(
        output_dir=folder, max_steps=STEPS, per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=1e-2,
        lr_scheduler_type="cosine", logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, seed=5,
        warmup_steps=2, dataloader_pin_memory=False, ddp_backend="gloo",
    )  # fmt: skip
    return Trainer(
        model=GPT2LMHeadModel(config), args=arguments, train_dataset=Words(), callbacks=callbacks
    )


class KillAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def run(rank, folder, every, kill_at, expect_resume):
    from dlrover_slurm.hf import DlroverCallback

    callback = DlroverCallback(every)
    made = trainer(folder, [callback, KillAt(kill_at)] if every else [KillAt(kill_at)])
    path = callback.resume() if every else None
    assert (path is not None) == expect_resume
    made.train(resume_from_checkpoint=path)
    assert path is None or not os.path.exists(os.path.dirname(path))
    logs = {entry["step"]: (entry["loss"], entry["learning_rate"]) for entry in made.state.log_history if "loss" in entry}
    return logs, {k: v.tolist() for k, v in made.model.state_dict().items()}


@pytest.mark.parametrize("count", [1, 2])
def test_losses_as_without_the_interruption(ranks, tmp_path, count):
    """Saved every 2nd step, killed in the 7th: it goes on from the 6th, with dropout, a warm-up and the next batches."""
    alone = ranks(count, run, str(tmp_path), 1000, -1, False)
    assert all(isinstance(result, Killed) for result in ranks(count, run, str(tmp_path), 2, 7, False))
    resumed = ranks(count, run, str(tmp_path), 2, -1, True)
    for (losses, weights), (all_losses, all_weights) in zip(resumed, alone):
        assert sorted(all_losses) == list(range(1, STEPS + 1))
        assert weights == all_weights
        assert {step: all_losses[step] for step in losses if step > 6} == {s: v for s, v in losses.items() if s > 6}


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
