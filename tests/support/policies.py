"""A policy that changes, what a plain forward pass says of it, and whether vLLM's answers agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from tiny_models import greedy
from tiny_runs import tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from envsuite.playing.engine import Completion, Request, Sampling
from trainers.rollout.engine import Engine

PROMPTS = [[7, 8, 9, 10 + i] for i in range(8)]
WriteAdapter = Callable[[PreTrainedModel, Mapping[str, torch.Tensor], Path, torch.dtype], dict[str, int]]


def wide_llama(tied: bool) -> PreTrainedModel:
    """A Llama of three layers, with heads as wide as vLLM's kernels want them."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer()), hidden_size=128, intermediate_size=192, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=512, initializer_range=0.2,
        bos_token_id=None, eos_token_id=tokenizer().eos_token_id, pad_token_id=None, tie_word_embeddings=tied,
    )  # fmt: skip
    return LlamaForCausalLM(config).train(False)


def change(policy: PreTrainedModel, name: str = "", by: float = 0.05) -> None:
    """Adds noise to what is trained, where its name starts with ``name``."""
    with torch.no_grad():
        for key, parameter in policy.named_parameters():
            if key.startswith(name) and parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * by)


def logprobs(
    policy: PreTrainedModel, prompt: Sequence[int], response: Sequence[int], temperature: float = 1.0
) -> np.ndarray:
    """Log-probability of each response token in one forward pass."""
    with torch.no_grad():
        logits = policy(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor([*response]).long()[:, None])[:, 0].numpy()


def check_sampled(
    engine: Engine, policy: PreTrainedModel, temperature: float, version: int, near: float = 2e-4
) -> list[Completion]:
    """Answers to PROMPTS; fails unless they have the policy's log-probabilities and the version, twice the same."""
    sampling = Sampling(temperature=temperature, max_tokens=40, stop_ids=tuple(range(3, 23)))
    answers = engine.generate(PROMPTS, sampling, seed=1)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ids = answer.token_ids.tolist()
        np.testing.assert_allclose(answer.logprobs, logprobs(policy, prompt, ids, temperature), atol=near)
        assert answer.finish_reason == ("stop" if ids[-1] in sampling.stop_ids else "length")
        assert not {*ids[:-1]} & {*sampling.stop_ids}
        assert answer.policy_version.tolist() == [version] * len(ids)
    again = engine.generate(PROMPTS, sampling, seed=1)
    assert [a.token_ids.tolist() for a in again] == [a.token_ids.tolist() for a in answers]
    return answers


def check_greedy(engine: Engine, policy: PreTrainedModel) -> None:
    """Fails unless greedy answers to PROMPTS are those of transformers, with log-probabilities at temperature 1."""
    answers = engine.generate(PROMPTS, Sampling(temperature=0.0, max_tokens=12, ignore_eos=True))
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ids = answer.token_ids.tolist()
        assert ids == greedy(policy, prompt, 12)[: len(ids)] and len(ids) == 12
        np.testing.assert_allclose(answer.logprobs, logprobs(policy, prompt, ids), atol=2e-4)


def ask_all(engine: Engine, tokens: int = 400) -> None:
    """Submits PROMPTS, for answers of so many tokens."""
    sampling = Sampling(max_tokens=tokens, ignore_eos=True)
    engine.submit([Request(i, prompt, sampling, i, i) for i, prompt in enumerate(PROMPTS)])


def drained(engine: Engine) -> list[Completion]:
    """All answers that are still to come."""
    answers: list[Completion] = []
    while engine.pending:
        answers += engine.poll()
    return answers


def check_update_in_flight(
    engine: Engine, before: PreTrainedModel, policy: PreTrainedModel, tokens: int = 400, near: float = 2e-4
) -> list[int]:
    """Fails unless each answer to PROMPTS has all tokens, first of ``before`` as version 1, then of ``policy`` as 2.

    Returns how many tokens of each answer are of version 1.
    """
    answers, first = drained(engine), []
    assert sorted(answer.request_id for answer in answers) == [*range(len(PROMPTS))]
    for answer in answers:
        ids, versions, prompt = answer.token_ids.tolist(), answer.policy_version, PROMPTS[answer.request_id]
        assert len(ids) == tokens and set(versions.tolist()) == {1, 2} and (np.diff(versions) >= 0).all()
        old = int((versions == 1).sum())
        first.append(old)
        np.testing.assert_allclose(answer.logprobs[:old], logprobs(before, prompt, ids[:old]), atol=near)
        under_new = logprobs(policy, prompt, ids)
        np.testing.assert_allclose(answer.logprobs[old:], under_new[old:], atol=near)
        assert np.abs(answer.logprobs[:old] - under_new[:old]).max() > 0.01, "the weights did change"
    return first


def check_adapter(engine: Engine, policy: PreTrainedModel) -> None:
    """Fails unless ``engine`` answers PROMPTS with the adapter of ``policy``, and the adapter does something."""
    answers = engine.generate(PROMPTS, Sampling(temperature=0.7, max_tokens=20, ignore_eos=True), seed=1)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ids = answer.token_ids.tolist()
        own = logprobs(policy, prompt, ids, 0.7)
        np.testing.assert_allclose(answer.logprobs, own, atol=2e-4)
        policy.disable_adapters()
        assert np.abs(own - logprobs(policy, prompt, ids, 0.7)).max() > 0.01, "the adapter does something"
        policy.enable_adapters()


def corrupting(write: WriteAdapter) -> WriteAdapter:
    """Writes an adapter with one changed weight in layer 1, and returns what ``write`` says of the right one."""

    def corrupted(
        model: PreTrainedModel, tensors: Mapping[str, torch.Tensor], folder: Path, dtype: torch.dtype
    ) -> dict[str, int]:
        found = write(model, tensors, folder, dtype)
        name = "base_model.model.model.layers.1.mlp.up_proj.lora_A.weight"
        changed = tensors[name].clone()
        changed[0, 0] += 1e-6
        write(model, {**tensors, name: changed}, folder, dtype)
        return found

    return corrupted
