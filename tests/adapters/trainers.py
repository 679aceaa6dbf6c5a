# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with small models."""

import torch
import transformers
from models import Words
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

STEPS = 9


def trainer(folder, callbacks, **named):
    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=50, n_positions=8, bos_token_id=0, eos_token_id=0)
    transformers.set_seed(3)
    arguments = TrainingArguments(**{**dict(
        output_dir=folder, max_steps=STEPS, per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=1e-2,
        lr_scheduler_type="cosine", logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, seed=5,
        warmup_steps=2, dataloader_pin_memory=False, ddp_backend="gloo",
    ), **named})  # fmt: skip
    return Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Words(), callbacks=callbacks)


def count_up(module, _):
    module.seen.add_(1 + torch.distributed.get_rank())


def large_trainer(folder, callbacks):
    """With four ranks whose sums are taken in the same order from the first step on (DDP would arrange its buckets anew after it), and a large buffer that
    differs from rank to rank."""
    config = GPT2Config(n_layer=2, n_head=2, n_embd=96, vocab_size=1500, n_positions=8, bos_token_id=0, eos_token_id=0)
    transformers.set_seed(3)
    model = GPT2LMHeadModel(config)
    model.register_buffer("seen", torch.zeros(20000))
    model.register_forward_pre_hook(count_up)
    arguments = TrainingArguments(
        output_dir=folder, max_steps=STEPS, per_device_train_batch_size=1, learning_rate=1e-2, lr_scheduler_type="cosine", logging_steps=1,
        save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, seed=5, warmup_steps=2, dataloader_pin_memory=False, ddp_backend="gloo",
        ddp_find_unused_parameters=True, ddp_broadcast_buffers=False,
    )  # fmt: skip
    return Trainer(model=model, args=arguments, train_dataset=Words(), callbacks=callbacks)
