"""Small models with random weights and sharp predictions, and what a plain forward pass says of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    PreTrainedModel,
    Qwen3Config,
)
from transformers.models.gemma2 import Gemma2ForCausalLM
from transformers.models.gemma3 import Gemma3ForCausalLM
from transformers.models.gpt_neox import GPTNeoXForCausalLM
from transformers.models.mistral import MistralForCausalLM
from transformers.models.qwen3 import Qwen3ForCausalLM

from envsuite.playing.engine import Completion
from trainers.rollout.engine import Engine

VOCABULARY = 97
POSITIONS = 320
_SHARED = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
NAMES = ("llama", "gpt2", "qwen3", "mistral", "gemma2", "gemma3", "gpt_neox")


@cache
def tiny_model(name: str) -> PreTrainedModel:
    """A model of that architecture, float32, in evaluation mode; the same weights each time."""
    torch.manual_seed(3)
    heads = {"num_key_value_heads": 2, "head_dim": 12}
    model: PreTrainedModel
    if name == "llama":
        model = LlamaForCausalLM(LlamaConfig(**_SHARED, num_key_value_heads=2))
    elif name == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**_SHARED, **heads))
    elif name == "mistral":
        model = MistralForCausalLM(MistralConfig(**_SHARED, **heads, sliding_window=40))
    elif name == "gemma2":
        layers = {"sliding_window": 40, "layer_types": ["sliding_attention", "full_attention"]}
        model = Gemma2ForCausalLM(Gemma2Config(**_SHARED, **heads, **layers, attn_logit_softcapping=5.0))
    elif name == "gemma3":
        config = Gemma3TextConfig(
            **_SHARED, **heads, sliding_window=40, layer_types=["sliding_attention", "full_attention"]
        )
        model = Gemma3ForCausalLM(config)
    elif name == "gpt_neox":
        model = GPTNeoXForCausalLM(GPTNeoXConfig(**_SHARED))
    else:
        config = GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=48,
            n_layer=2,
            n_head=4,
            n_positions=POSITIONS,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=None,
        )
        model = GPT2LMHeadModel(config)
    return model.train(False)


def plain_logprobs(model: PreTrainedModel, prompt: Sequence[int], response: Sequence[int]) -> list[float]:
    """Log-probability of each response token in one forward pass over prompt and response."""
    return plain_and_best_logprobs(model, prompt, response)[0]


def plain_and_best_logprobs(
    model: PreTrainedModel, prompt: Sequence[int], response: Sequence[int]
) -> tuple[list[float], list[float]]:
    """Log-probability of each response token, and of the likeliest token in its place."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits[0].float()
    rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
    return rows.gather(1, torch.tensor(list(response))[:, None])[:, 0].tolist(), rows.amax(-1).tolist()


def check_plain(model: PreTrainedModel, prompt: Sequence[int], done: Completion, near: float = 1e-4) -> None:
    """Fails unless an answer has the log-probabilities of a plain forward pass."""
    assert done.error is None
    np.testing.assert_allclose(done.logprobs, plain_logprobs(model, prompt, done.token_ids), rtol=0, atol=near)


def drained(engine: Engine) -> dict[int, Completion]:
    """All answers that are still to come, by their requests."""
    done: dict[int, Completion] = {}
    while engine.pending:
        done.update((answer.request_id, answer) for answer in engine.poll())
    return done


def greedy(model: PreTrainedModel, prompt: Sequence[int], count: int, stop_ids: Sequence[int] = ()) -> list[int]:
    """What transformers' ``generate`` says, without sampling."""
    ids = torch.tensor([list(prompt)])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=count,
        eos_token_id=list(stop_ids) or None,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()
