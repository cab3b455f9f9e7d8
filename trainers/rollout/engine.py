"""The contract of engines: they turn prompts into tokens, or chat messages into an answer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from envsuite.playing.engine import BaseEngine, Completion, Request, Sampling
from envsuite.playing.step import Parts, Tokens, as_tokens
from envsuite.prompting.images import images_of
from trainers.settings import ConfigError
from trainers.settings.registry import Registry

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from trainers.policy.config import ModelConfig


def refusal(prompt_ids: Tokens, max_length: int, vocabulary: int, images: int = 0) -> tuple[str, str] | None:
    """Finish reason and message of a completion whose prompt cannot be continued; ``None`` where it can.

    Args:
        prompt_ids: The prompt.
        max_length: Most tokens of prompt and response together.
        vocabulary: Number of token ids that the model has.
        images: Number of images that ids below -1 may refer to.
    """
    if not len(prompt_ids):
        return "error", "the prompt is empty"
    if len(prompt_ids) >= max_length:
        room = f"which leaves no room for a response within {max_length}"
        return "context", f"the prompt has {len(prompt_ids)} tokens, {room}"
    if images_of(prompt_ids).max() >= images and prompt_ids.min() < -1:
        return "error", f"the prompt refers to more than its {images} images"
    text = np.where(prompt_ids < -1, 0, prompt_ids)
    lowest, highest = text.min(), text.max()
    if lowest < 0 or highest >= vocabulary:
        return "error", f"the prompt has token ids outside 0..{vocabulary - 1} ({lowest}..{highest})"
    return None


@dataclass
class RequestRow:
    """A request on its way, with what was sampled of it so far."""

    request: Request
    limit: int
    """Most response tokens."""
    seed: int
    ids: list[int] = field(default_factory=list, kw_only=True)
    logprobs: list[float] = field(default_factory=list, kw_only=True)
    versions: list[int] = field(default_factory=list, kw_only=True)
    """Version of the weights that sampled each token."""

    def completion(self, reason: str, experts: Parts = ()) -> Completion:
        """The answer to the request."""
        ids, logprobs = np.array(self.ids, np.int32), np.array(self.logprobs, np.float32)
        versions = np.array(self.versions, np.int64)
        return Completion(self.request.request_id, ids, logprobs, reason, versions, experts=experts)


def refusal_completion(request: Request, reason: str, error: str) -> Completion:
    """The completion of a request that is not sampled for, with the reason and message of :func:`refusal`."""
    none = np.empty(0, np.int32)
    return Completion(request.request_id, none, none.astype(np.float32), reason, none.astype(np.int64), error)


@dataclass(frozen=True)
class EngineSetup:
    """The parts of a run that an engine is made from."""

    model: PreTrainedModel
    """The policy itself, on its device: an engine in the same process may sample from it without a copy, unless it is
    sharded."""
    tokenizer: PreTrainedTokenizerBase
    config: ModelConfig
    """Where the policy was loaded from, and its format."""
    slots: int
    """Most requests on their way at a time."""
    accelerator: Accelerator | None = None
    """The processes of the run, each of which has an engine; ``None``: this one alone."""
    structure: PreTrainedModel | None = None
    """Where the policy is sharded over the processes: its model as it was before, without weights. No engine can sample
    from the policy then; one that would gives these modules memory, and copies the weights in each
    :meth:`Engine.sync`."""

    @property
    def device(self) -> torch.device:
        """The device of this process, on which the policy will be."""
        return self.model.device if self.accelerator is None else self.accelerator.device


def longest_sequence(settings: PreTrainedConfig) -> int | None:
    """Most tokens that a model computes by its configuration; ``None`` where it says nothing."""
    positions = getattr(settings.get_text_config(decoder=True), "max_position_embeddings", None)
    return None if positions is None else int(positions)


def check_length(setting: str, length: Any, settings: PreTrainedConfig, path: str) -> None:
    """Checks an engine's longest sequence against the model's.

    Raises:
        ConfigError: The model's is shorter.
    """
    longest = longest_sequence(settings)
    if isinstance(length, int) and longest is not None and length > longest:
        raise ConfigError(
            f"rollout.engine_options: {setting} is {length}, but model.path {path} computes {longest} tokens at most "
            "(max_position_embeddings); make it smaller, or leave it out"
        )


class Engine(BaseEngine[Request, Completion]):
    """Continues prompts, many at a time, each at its own pace. :meth:`from_setup` gets an :class:`EngineSetup`."""

    records_experts: bool = False
    """Whether completions tell the experts of each token."""

    @abstractmethod
    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Sample with other weights from now on; whatever was computed with earlier ones is dropped.

        A request on its way keeps its tokens and continues under the new weights; each token has the version of the
        weights that sampled it. Called between polls, also with a version that the engine has: what it kept is
        dropped then, too, so that a resumed run computes what the first would have.

        Args:
            weights: Name and tensor of every parameter of the policy, read at most once; where an adapter is trained,
                those of the whole model with it merged.
            version: Becomes :attr:`policy_version`.

        Raises:
            EngineFailed: The engine has not taken the weights.
        """

    def rest(self) -> None:
        """Nothing is asked until the next :meth:`sync`: memory that the update could use may be given back."""

    def metrics(self) -> dict[str, float]:
        """Returns metrics of the requests since the last :meth:`sync`, by their names."""
        return {}

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int | None = None
    ) -> list[Completion]:
        """Continue all ``prompts`` and return the completions in their order."""
        self.submit([
            Request(i, as_tokens(prompt), sampling, seed=None if seed is None else seed + i)
            for i, prompt in enumerate(prompts)
        ])  # fmt: skip
        completions: dict[int, Completion] = {}
        while self.pending:
            completions.update((completion.request_id, completion) for completion in self.poll())
        return [completions[i] for i in range(len(prompts))]


ENGINES: Registry[BaseEngine[Any, Any]] = Registry(
    "rollout.engine",
    group="trainers.engines",
    places={
        "expert": "trainers.gateway.teaching:ExpertEngine",
        "hf": "trainers.rollout.plain_engine:PlainEngine",
        "openai": "envsuite.playing.endpoint:EndpointEngine",
        "vllm": "trainers.rollout.vllm.engine:VLLMEngine",
    },
)
