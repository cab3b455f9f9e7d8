"""A Qwen3 of some thousand parameters with a tokenizer of its own, which has learnt a few conversations by heart."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
STEPS = 300
KEPT_WHOLE = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
Messages = list[dict[str, Any]]


def make(folder: Path, template: str, learnt: str, conversations: Sequence[Messages], tools: Messages) -> None:
    """Write such a model into ``folder``, with a chat template.

    It learns what the assistant says in ``conversations``, as another template, ``learnt``, renders and marks it.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=SPECIAL, initial_alphabet=alphabet)
    bpe.train_from_iterator([str(conversations), str(tools)], trainer)
    bpe.add_tokens(KEPT_WHOLE)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    tokenizer.chat_template = learnt
    batch = tokenizer.apply_chat_template(
        list(conversations),
        tools=tools,
        return_assistant_tokens_mask=True,
        return_dict=True,
        return_tensors="pt",
        padding=True,
    )
    labels = batch["input_ids"].masked_fill(batch.pop("assistant_masks") == 0, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        loss = model(**batch, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    tokenizer.chat_template = template
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
