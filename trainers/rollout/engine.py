"""The contract of engines: they turn prompts into tokens, or chat messages into an answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

from envsuite.core.errors import EnvsuiteError
from envsuite.core.images import Pixels
from envsuite.prompting import Answer
from envsuite.prompting.images import images_of
from trainers.settings import ConfigError
from trainers.settings.registry import Registry
from trainers.steps.experts import Parts
from trainers.steps.records import Logprobs, Tokens, Versions, as_tokens

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from trainers.policy.config import ModelConfig


class EngineFailed(EnvsuiteError, RuntimeError):
    """The engine cannot go on, or would sample from other weights; the run stops with a checkpoint."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Nucleus sampling: the smallest set of tokens with this probability mass; 1 keeps all."""
    top_k: int = 0
    """Only the k likeliest tokens; 0 keeps all."""
    max_tokens: int = 512
    """Most tokens of one response."""
    stop_ids: tuple[int, ...] = ()
    """Token ids that end a response (they are part of it)."""
    ignore_eos: bool = False
    """Go on past ``stop_ids`` to ``max_tokens``; for benchmarks."""


@dataclass(frozen=True, eq=False)
class Request:
    """One prompt to be continued."""

    request_id: int
    """Differs from that of every other request on its way."""
    prompt_ids: Tokens
    """May be given as any sequence; held as an array."""
    sampling: Sampling
    session: int | None = None
    """Requests of one session (an episode) often start with the tokens of the one before; an engine may keep what
    it computed for them until :meth:`Engine.release`."""
    seed: int | None = None
    """Makes the sample a function of prompt, weights and seed, whatever shares the batch."""
    images: tuple[Pixels, ...] = ()
    """The images that ids of the prompt below -1 are parts of (:mod:`envsuite.prompting.images`)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_ids", as_tokens(self.prompt_ids))


@dataclass(frozen=True, eq=False)
class Completion:
    """The answer to a request; the arrays have one value for each sampled token, and may be given as any sequence."""

    request_id: int
    token_ids: Tokens
    """The sampled tokens, the stop token included."""
    logprobs: Logprobs
    """Log-probability of each at the temperature of the request, under the weights that sampled it: of the softmax of
    logits / temperature, before top-p and top-k. For a greedy request, at temperature 1."""
    finish_reason: str
    """``"stop"``; ``"length"``: the limit of tokens, or the end of the context, was reached; ``"context"``: the prompt
    leaves no room for a response, and ``error`` says so; ``"error"``."""
    policy_version: Versions
    """Version of the weights that sampled each token. One number stands for all tokens."""
    error: str | None = None
    """Why there is no completion, e.g. a server that failed. The episode is started again; the run continues."""
    experts: Parts = ()
    """Experts of each token of prompt and response but the last, from an engine that :attr:`Engine.records_experts`."""

    @property
    def count(self) -> int:
        """Number of sampled tokens."""
        return len(self.token_ids)

    def __post_init__(self) -> None:
        ids = as_tokens(self.token_ids)
        versions = np.broadcast_to(np.asarray(self.policy_version, np.int64), ids.shape)
        object.__setattr__(self, "token_ids", ids)
        object.__setattr__(self, "logprobs", np.asarray(self.logprobs, np.float32))
        object.__setattr__(self, "policy_version", versions)


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


@dataclass(frozen=True, eq=False)
class ChatRequest:
    """Messages to be answered."""

    request_id: int
    """Differs from that of every other request on its way."""
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    """OpenAI's function schemas; ``None``: no tools."""
    sampling: Sampling
    """Its stop tokens and top-k mean nothing here."""
    session: int | None = None
    seed: int | None = None


@dataclass(frozen=True, eq=False)
class ChatCompletion:
    """The answer to messages."""

    request_id: int
    answer: Answer
    finish_reason: str
    """As that of a :class:`Completion`; ``"error"``: there is no answer, through no fault of the model."""
    error: str | None = None
    """Why there is no answer."""
    tokens: int = 0
    """Tokens of the answer, as the endpoint counts them; 0 where it does not."""
    prompt_tokens: int = 0
    """Tokens of the messages, counted alike."""
    cached_tokens: int = 0
    """Those of them that the endpoint had computed before."""
    counted: bool = True
    """Whether the endpoint counts."""

    @property
    def count(self) -> int:
        """Number of tokens of the answer."""
        return self.tokens


RequestT = TypeVar("RequestT")
CompletionT = TypeVar("CompletionT")


class BaseEngine(ABC, Generic[RequestT, CompletionT]):
    """The part of an engine that the rollout manager uses, whether it takes tokens or messages."""

    takes_images: ClassVar[bool] = False
    """Whether requests may have images."""
    max_length: int | None = None
    """Most tokens of prompt and response together; ``None`` where the engine does not know."""
    policy_version: int = 0
    """Number of optimiser steps that the weights have seen which sample now."""
    background: bool = False
    """Whether it works on requests between two polls, in servers or other processes."""
    stopped: str | None = None
    """Why no further request will be answered; the episodes that are left are then not played."""

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> None:
        """Refuses settings before anything is loaded; an engine whose settings cannot be wrong has nothing to check.

        Args:
            options: Those that :meth:`from_setup` is called with; their names have been checked.

        Raises:
            ConfigError: They cannot work; the message names the setting.
        """
        return

    @classmethod
    def check_machine(cls, options: Mapping[str, Any]) -> None:
        """Refuses settings that this machine lacks something for; a plan for other machines does not ask.

        Args:
            options: Those that :meth:`from_setup` is called with; :meth:`check` has seen them.

        Raises:
            ConfigError: It does; the message names what, and the remedy.
        """
        return

    @classmethod
    def check_model(cls, options: Mapping[str, Any], settings: PreTrainedConfig, path: str) -> None:
        """Refuses settings that contradict the model, before its weights are read.

        Args:
            options: Those that :meth:`from_setup` is called with; :meth:`check` has seen them.
            settings: The model's configuration.
            path: ``model.path``, for messages.

        Raises:
            ConfigError: They do; the message names both.
        """
        return

    @classmethod
    def from_setup(cls, setup: Any, *args: Any, **options: Any) -> BaseEngine[RequestT, CompletionT]:
        """The engine of a run; ``options`` are the settings ``rollout.engine_options``."""
        raise NotImplementedError(f"{cls.__name__} cannot be chosen by name: it has no from_setup")

    @abstractmethod
    def submit(self, requests: Sequence[RequestT]) -> None:
        """Queue requests; returns at once. One that cannot be served is answered with an error by :meth:`poll`."""

    @abstractmethod
    def poll(self, timeout: float | None = None) -> list[CompletionT]:
        """Wait until at least one request is finished, and return all that are.

        Args:
            timeout: Seconds to wait at most; ``None`` for no limit. An engine that works only while it is polled does
                some work whatever the timeout.

        Returns:
            ``[]`` only if nothing is pending, or if the time was up.

        Raises:
            EngineFailed: The engine cannot go on.
        """

    @property
    @abstractmethod
    def pending(self) -> int:
        """Number of requests submitted and not yet returned."""

    def release(self, session: int) -> None:
        """Forget what is kept for ``session``."""

    def abandon(self, request_id: int, session: int | None) -> None:
        """Give up a request that was not answered in time; what it is answered later is ignored.

        The next request of the session should go to another server, if there is one.
        """

    def where(self, session: int | None) -> str:
        """Where the requests of a session are computed, for messages: the engine, or the server that has them."""
        return "the engine"

    def close(self) -> None:
        """End what the engine started. Does nothing the second time."""


class ChatEngine(BaseEngine[ChatRequest, ChatCompletion]):
    """Answers messages with a model that is not trained here: no tokens, no log-probabilities, no weights.

    For evaluation, baselines and demonstrations; training refuses it. :meth:`from_setup` is called with the number of
    requests at a time.
    """

    name: str
    """Name of the model."""
    most: int
    """Most requests at a time; more episodes at a time would only wait for each other."""

    def usage(self) -> dict[str, Any]:
        """Returns what was asked for so far, and what it cost, for reports."""
        return {}


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
        "openai": "trainers.rollout.openai.engine:OpenAIEngine",
        "vllm": "trainers.rollout.vllm.engine:VLLMEngine",
    },
)
