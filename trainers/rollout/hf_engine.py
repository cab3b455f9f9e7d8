"""The engine of this process: continuous batching on the live transformers model, CPU or GPU."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from envsuite.core.errors import UsageError
from envsuite.core.images import ImageTable
from envsuite.playing.engine import Completion, Request
from envsuite.playing.step import Parts
from envsuite.prompting.images import renumber_images
from trainers.policy.attention import attending, evaluating, narrow_windows, unsupported_reason
from trainers.policy.config import ComputeDtype
from trainers.policy.precision import Weights, computing, float32_weights, rounded_weights, weights_replaced
from trainers.policy.recurrent import is_recurrent
from trainers.policy.routing import routing
from trainers.policy.rows import ALWAYS, rows_reason, use_rows
from trainers.policy.transfer import to_device
from trainers.policy.vision import model_inputs, own_positions
from trainers.processes.memory import free
from trainers.rollout.engine import (
    Engine,
    EngineSetup,
    RequestRow,
    check_length,
    longest_sequence,
    refusal,
    refusal_completion,
)
from trainers.rollout.model_copy import ModelCopy
from trainers.rollout.radix_cache import CachedSequence as Cached
from trainers.rollout.radix_cache import RadixCache, RadixNode
from trainers.rollout.sampling import mix, sample, uniforms
from trainers.rollout.slot_attention import NAME
from trainers.rollout.step_plan import StepPlan
from trainers.settings import ConfigError

STEP_TOKENS = 8192  # most prompt tokens of one forward pass; bounds the memory of activations
CHECK_WINDOW = 4  # sliding window of the self-test, in tokens
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.5}  # of the self-test, in nats
_ROUNDING = 2.0  # times what rounding alone changes in the model by itself: a sharp model has large logits


@dataclass
class EngineRow(RequestRow):
    """A request of :class:`HFEngine` on its way."""

    context: NDArray[np.int64]
    """Prompt, and what was sampled before the weights changed, if they did."""
    cached: Cached | None = None
    """Its keys and values, once it runs."""


@dataclass
class PromptTokens:
    """How many tokens of prompts there were since the last :meth:`HFEngine.sync`, for what the cache is worth."""

    total: int = 0
    """Tokens of all prompts that have begun."""
    computed: int = 0
    """Those of them that no sequence had computed before."""


class HFEngine(Engine):
    """Samples from a transformers model in this process, without a copy of its weights.

    Only where they are rounded, for bfloat16, is there a copy of the linear layers in that format, from the first poll
    after an update to the next update; of frozen layers, from the first poll on.

    Requests join and leave the batch at any step. Keys and values stay in a radix tree over tokens: a prompt that
    begins like anything that was computed under the present weights (the last prompt of its episode and the response, a
    group's identical prompts, a common instruction) takes that beginning from there. Each forward pass is one flat row
    of tokens, single ones of running responses beside whole prompts of new ones, and pads nothing.

    A request that is on its way when the weights change goes on under the new ones; versions and log-probabilities are
    those of the weights that sampled each token.
    """

    takes_images = True

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_batch: int = 64,
        max_length: int | None = None,
        cache_tokens: int | None = None,
        state_bytes: int | None = None,
        compute_dtype: ComputeDtype = "float32",
    ) -> None:
        """Wrap ``model``.

        Args:
            model: Any decoder-only model whose attention is chosen by ``config._attn_implementation``.
            max_batch: Most requests that generate at once.
            max_length: Most tokens of prompt and response; by default what the model's positions allow.
            cache_tokens: Most tokens whose keys and values are kept, those of running requests included, which have
                theirs in any case; 0 keeps them while they are used. By default twice ``max_batch`` sequences of the
                greatest length so far, where memory has room for them.
            state_bytes: Most bytes of states of recurrent layers that are kept for later requests, besides those of
                running ones; by default four states for each of ``max_batch``, where memory has room for them.
            compute_dtype: Number format of forward passes, that of the trainer.

        Raises:
            UsageError: The model's answers through this engine differ from its own.
        """
        self.model = model
        self.max_batch = max_batch
        self.compute_dtype: ComputeDtype = compute_dtype
        self._copy: ModelCopy | None = None
        self._frozen: Weights | None = None
        self._rounded: Weights | None = None
        self.policy_version = 0
        self._unseeded = 0
        self._vocabulary: int = model.config.get_text_config(decoder=True).vocab_size
        self._cache = RadixCache(
            max_batch, cache_tokens, lambda: free(model.device), states=is_recurrent(model), state_bytes=state_bytes
        )
        self._ends: dict[int, RadixNode] = {}
        self.prompt_tokens = PromptTokens()
        """Prompts since the last :meth:`sync`."""
        self._images = ImageTable()
        self._waiting: deque[EngineRow] = deque()
        self._running: list[EngineRow] = []
        self._done: list[Completion] = []
        self._check_model()
        self.max_length: int = max_length or self._positions()

    @classmethod
    def check_model(cls, options: Mapping[str, Any], settings: PreTrainedConfig, path: str) -> None:
        """Refuses sequences that are longer than the model's, and a cache of less than nothing."""
        for name, what in (("cache_tokens", "keys and values"), ("state_bytes", "states")):
            if isinstance(most := options.get(name), int) and most < 0:
                effect = f"0 keeps no {what} of requests that have ended"
                raise ConfigError(f"rollout.engine_options: {name} is {most}, but must be 0 or more; {effect}")
        check_length("max_length", options.get("max_length"), settings, path)

    @classmethod
    def from_setup(
        cls,
        setup: EngineSetup,
        *,
        max_length: int | None = None,
        cache_tokens: int | None = None,
        state_bytes: int | None = None,
    ) -> HFEngine:
        """The engine of a run; it samples from the policy itself, or from a copy where the policy is sharded.

        Args:
            setup: The parts of the run that it is made from.
            max_length: Most tokens of prompt and response; by default what the model's positions allow.
            cache_tokens: Most tokens whose keys and values are kept; by default those of twice as many sequences as
                there are requests at a time, where memory has room for them.
            state_bytes: Most bytes of states of recurrent layers that are kept for later requests; by default those of
                four states for each request at a time, where memory has room for them.
        """
        dtype = setup.config.compute_dtype
        copy = None
        if setup.structure is not None:
            copy = ModelCopy(setup.model, setup.structure, dtype, setup.device)
        model = setup.model.train(False) if copy is None else copy.model
        if copy is not None and (reason := rows_reason(setup.model)) is not None:
            use_rows(model, reason)
        engine = cls(
            model, max_batch=setup.slots, max_length=max_length, cache_tokens=cache_tokens, state_bytes=state_bytes,
            compute_dtype=dtype,
        )  # fmt: skip
        engine._copy = copy
        return engine

    # -- the contract ----------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; one that cannot be served is answered with an error by the next :meth:`poll`."""
        for request in requests:
            seed = request.seed
            if seed is None:
                seed, self._unseeded = mix(0, self._unseeded), self._unseeded + 1
            if rejection := refusal(request.prompt_ids, self.max_length, self._vocabulary, len(request.images)):
                self._done.append(refusal_completion(request, *rejection))
                continue
            limit = min(request.sampling.max_tokens, self.max_length - len(request.prompt_ids))
            self._waiting.append(EngineRow(request, limit, mix(seed, 0), self._number_images(request)))

    def poll(self, timeout: float | None = None) -> list[Completion]:
        """Work until at least one request is finished, or ``timeout`` seconds have passed; at least one step."""
        if not self._done and self.pending:
            until = None if timeout is None else time.monotonic() + timeout
            if self._frozen is None:
                self._frozen = rounded_weights(self.model, self.compute_dtype, trained=False)
            if self._rounded is None:
                self._rounded = self._frozen | rounded_weights(self.model, self.compute_dtype, trained=True)
            with self._working(self.compute_dtype):
                while not self._done:
                    self._step()
                    if until is not None and time.monotonic() >= until:
                        break
        completions, self._done = self._done, []
        return completions

    @property
    def pending(self) -> int:
        """Requests not yet returned."""
        return len(self._waiting) + len(self._running) + len(self._done)

    def release(self, session: int) -> None:
        """Let the keys and values that only ``session`` has used go first when room is needed."""
        if (node := self._ends.pop(session, None)) is not None:
            self._cache.leave(node)

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Drop what was computed with earlier weights; ``weights``, those of the model itself, are not read."""
        if self._copy is not None:
            self._copy.refresh()
        self.policy_version = version
        self._rounded = None
        self.prompt_tokens = PromptTokens()
        self._forget()

    def rest(self) -> None:
        """Gives back the memory of keys, values, rounded weights and a copy, which the next :meth:`sync` would drop."""
        self._rounded = None
        if self._copy is not None:
            self._copy.release()
        self._forget()

    def metrics(self) -> dict[str, float]:
        """Returns the share of the prompts' tokens that had to be computed."""
        tokens = self.prompt_tokens
        return {"tokens/prefill": tokens.computed / tokens.total} if tokens.total else {}

    def abandon(self, request_id: int, session: int | None) -> None:
        """Stops working on a request; what has been computed for it is kept as that of any other."""
        self._waiting = deque(row for row in self._waiting if row.request.request_id != request_id)
        for row in self._running:
            if row.request.request_id == request_id and row.cached is not None:
                self._cache.finish(row.cached)
        self._running = [row for row in self._running if row.request.request_id != request_id]

    def _number_images(self, request: Request) -> NDArray[np.int64]:
        """Returns the request's prompt with its images numbered as those of the engine."""
        if not request.images:
            return request.prompt_ids.astype(np.int64)
        return renumber_images(request.prompt_ids, self._images.numbers(request.images))

    def _forget(self) -> None:
        """Drops keys and values, to be computed again where requests are under way; and images without a request."""
        for row in reversed(self._running):
            row.cached = None
            self._waiting.appendleft(row)
        self._running = []
        self._cache.clear()
        self._ends = {}
        self._images.clear()
        for row in self._waiting:
            row.context = np.concatenate([self._number_images(row.request), np.array(row.ids, np.int64)])

    # -- one step --------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Admits requests, runs the model once, draws a token for each row, and releases finished rows."""
        self._admit()
        rows = self._running
        logits = self._logits(rows)
        draws = uniforms(
            np.array([row.seed for row in rows], np.uint64), np.array([len(row.ids) for row in rows], np.uint64)
        )
        ids, logprobs = sample(logits, [row.request.sampling for row in rows], draws)
        self._advance(rows, ids.tolist(), logprobs.tolist())

    def _logits(self, rows: list[EngineRow]) -> Tensor:
        """Logits of the next token of each running row, shape (rows, vocabulary)."""
        return self._forward([row.cached for row in rows if row.cached is not None], self._cache)

    def _extend(self, row: EngineRow, token: int) -> None:
        """Notes the next token of a row that goes on."""
        assert row.cached is not None
        self._cache.extend(row.cached, token)

    def _end(self, row: EngineRow) -> Parts:
        """Gives back what a row that has ended held; returns the experts of its tokens, if they are known."""
        assert row.cached is not None
        slots = row.cached.slots[: row.cached.length]
        experts = self._cache.pages.experts.of(slots, len(row.request.prompt_ids)) if self.records_experts else ()
        node = self._cache.finish(row.cached)
        if row.request.session is not None:
            self._ends[row.request.session] = node
        return experts

    def _advance(self, rows: list[EngineRow], ids: list[int], logprobs: list[float]) -> None:
        """Append each row's token; finished rows leave."""
        self._running = []
        for row, token, logprob in zip(rows, ids, logprobs, strict=True):
            row.ids.append(token)
            row.logprobs.append(logprob)
            row.versions.append(self.policy_version)
            sampling = row.request.sampling
            stop = token in sampling.stop_ids and not sampling.ignore_eos
            if not stop and len(row.ids) < row.limit:
                self._extend(row, token)
                self._running.append(row)
                continue
            self._done.append(row.completion("stop" if stop else "length", self._end(row)))

    def _admit(self) -> None:
        """Move waiting requests into the batch, and order it so that those that begin alike are neighbours."""
        budget, count = STEP_TOKENS, len(self._running)
        room = self._cache.room if self._waiting else 0.0
        while self._waiting and len(self._running) < self.max_batch and budget > 0 and self._has_room(room):
            row = self._waiting.popleft()
            row.cached = self._cache.begin(row.context)
            new_tokens = row.cached.length - row.cached.ready
            self.prompt_tokens.total += len(row.context)
            self.prompt_tokens.computed += new_tokens
            self._running.append(row)
            budget -= new_tokens
        if len(self._running) > count:
            self._running.sort(key=lambda row: [] if row.cached is None else self._cache.pages_of(row.cached))

    def _has_room(self, room: float) -> bool:
        """Whether ``room`` tokens are enough for the next request beside those that run, each as long as it may be."""
        rows = (*self._running, self._waiting[0])
        return len(rows) == 1 or sum(len(row.request.prompt_ids) + row.limit for row in rows) <= room

    # -- the model -------------------------------------------------------------------------------------------------

    @contextmanager
    def _working(self, compute_dtype: ComputeDtype) -> Iterator[None]:
        """The model in evaluation mode, attending through slots, computing in ``compute_dtype``."""
        with evaluating(self.model), attending(self.model, NAME), computing(compute_dtype, self.model.device):
            yield

    def _forward(self, sequences: Sequence[Cached], cache: RadixCache, every: bool = False) -> Tensor:
        """Compute what is planned for ``sequences``.

        Returns:
            Logits after the last token of each sequence, shape (sequences, vocabulary); with ``every``, of each token
            of the flat batch.
        """
        plan = StepPlan(cache, [s for s in sequences if s.ready < s.length], self.model.device, self.model.dtype)
        ends = {id(span.row): span.end - 1 for span in plan.spans}
        # The last token of a sequence without new ones is new in another.
        last = [ends[id(s)] if id(s) in ends else plan.place(int(s.slots[s.length - 1])) for s in sequences]
        if cache.states is not None:
            plan.carry(sequences, last)
        arguments = {
            **model_inputs(self.model, plan.tokens, self._images.images),
            "position_ids": to_device(self._positions_of(plan), self.model.device),
            "use_cache": False,
            "logits_to_keep": 0 if every else to_device(np.array(last), self.model.device),
            "slot_plan": plan,
        }
        with weights_replaced(self._rounded or {}), routing(self.model) as choices:
            output = self.model(**arguments)
        experts = choices.experts(self.model)
        self.records_experts = experts is not None
        if experts is not None:
            cache.pages.experts.keep(plan.slots, experts.cpu().numpy())
        cache.mark_computed()
        for sequence in sequences:
            sequence.ready, sequence.source = sequence.length, sequence.state
        logits: Tensor = output.logits[0]
        return logits

    def _positions_of(self, plan: StepPlan) -> NDArray[np.int64]:
        """Returns the positions of the flat batch, with a dimension for each kind of them before its tokens."""
        if not self._images.images:
            return plan.positions[None]
        # Of the tokens that are stored, those of images alone matter.
        rows = [span.row for span in plan.spans]
        place = [np.flatnonzero((row.tokens[: row.length] < -1) | (np.arange(row.length) >= row.ready)) for row in rows]
        tokens = np.concatenate([row.tokens[own] for row, own in zip(rows, place, strict=True)])
        counts = [len(own) for own in place]
        end = np.repeat(np.cumsum(counts), counts)
        positions = own_positions(self.model, tokens, self._images.images, np.concatenate(place), end)
        new = np.concatenate([own >= row.ready for row, own in zip(rows, place, strict=True)])
        return plan.positions[None] if positions is None else positions[:, :, new]

    def _positions(self) -> int:
        """The longest sequence that the model's configuration provides for."""
        if (longest := longest_sequence(self.model.config)) is None:
            raise UsageError(
                f"the configuration of {type(self.model).__name__} does not say how long a sequence may be; "
                "give HFEngine max_length"
            )
        return longest

    def _check_model(self) -> None:
        """Compare this engine's logits with the model's own, on two short sequences that go past any sliding window.

        An architecture that keeps state outside attention, or mixes tokens of a row otherwise, differs here. In
        float32 rounding hides nothing; in the format that is sampled in, only that format's rounding may remain.
        """
        kind = type(self.model).__name__
        reason = rows_reason(self.model)
        if reason := unsupported_reason(self.model) if reason == ALWAYS else reason:
            raise UsageError(f"keys and values of {kind} are not all that it keeps: {reason}")
        formats: tuple[ComputeDtype, ...] = ("float32", "bfloat16")
        exact: Tensor | None = None
        for compute_dtype in formats[: 1 + (self.compute_dtype == "bfloat16")]:
            with narrow_windows(self.model, CHECK_WINDOW):
                ours, own = self._logprobs(compute_dtype)
            exact = own if exact is None else exact
            is_quantised = not all(parameter.is_floating_point() for parameter in self.model.parameters())
            tolerance = _TOLERANCE["bfloat16" if is_quantised else compute_dtype]
            tolerance = max(tolerance, _ROUNDING * float((own - exact).abs().max()))
            off = float((ours - own).abs().max())
            if not off <= tolerance:
                raise UsageError(
                    f"{kind} gives other log-probabilities through the hf engine than by itself (off by {off:.3g} in a "
                    f"short test in {compute_dtype}): it does not take its attention from transformers' attention "
                    "interface, or it keeps state elsewhere"
                )

    def _logprobs(self, compute_dtype: ComputeDtype) -> tuple[Tensor, Tensor]:
        """Returns the log-probabilities of this engine and of the model by itself, of shape (tokens, vocabulary).

        The last token of each prompt is computed after the others, as sampled ones are.
        """
        prompts = [(count + np.arange(count, dtype=np.int64) * 7) % self._vocabulary for count in (7, 3)]
        cache = RadixCache(len(prompts), states=self._cache.states is not None)
        sequences = [cache.begin(prompt[:-1]) for prompt in prompts]
        wide = float32_weights(self.model) if compute_dtype == "float32" else nullcontext()
        with wide, self._working(compute_dtype):
            first = self._forward(sequences, cache, every=True).float().split_with_sizes([len(p) - 1 for p in prompts])
            for sequence, prompt in zip(sequences, prompts, strict=True):
                cache.extend(sequence, int(prompt[-1]))
            last = self._forward(sequences, cache).float()
            ours = torch.cat([torch.cat([part, own[None]]) for part, own in zip(first, last, strict=True)])
            self._cache.token_bytes = cache.token_bytes
            if cache.states is not None and self._cache.states is not None:
                self._cache.states.slot_bytes = cache.states.slot_bytes
            with attending(self.model, "eager"):  # which knows a soft cap in every version of transformers
                own = torch.cat([self.model(to_device(p, self.model.device)[None]).logits[0] for p in prompts]).float()
        return ours.log_softmax(-1), own.log_softmax(-1)
