"""A small GPT-2 with the Trainer. One text of the data is empty, so that there is nothing to predict in it."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from roundoff.watch.huggingface import WatchCallback


def sample(number):
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(1, 64, (16,), generator=generator)
    labels = torch.full((16,), -100) if number == 21 else tokens
    return {"input_ids": tokens, "labels": labels}


torch.manual_seed(0)
settings = GPT2Config(
    n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16, bos_token_id=0, eos_token_id=0,
    loss_type="ForCausalLM",
)  # fmt: skip
arguments = TrainingArguments(
    "out", max_steps=30, per_device_train_batch_size=1, logging_steps=10, train_sampling_strategy="sequential",
    report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
)  # fmt: skip
Trainer(
    model=GPT2LMHeadModel(settings),
    args=arguments,
    train_dataset=[sample(number) for number in range(30)],
    callbacks=[WatchCallback()],
).train()
