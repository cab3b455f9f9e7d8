"""The engine of this process for models whose state is more than keys and values: transformers' own generation."""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache
from transformers.generation.configuration_utils import GenerationMode

from envsuite.core.images import Pixels
from envsuite.playing.engine import Request, Sampling
from envsuite.playing.step import Parts, as_tokens
from trainers.policy.attention import attending, evaluating, narrow_windows
from trainers.policy.config import ComputeDtype
from trainers.policy.flat import flatten
from trainers.policy.kernels import kernel_of
from trainers.policy.precision import computing, float32_weights, weights_replaced
from trainers.policy.selfcheck import FAILURES, check_policy
from trainers.policy.tree import TokenSequence, token_tree
from trainers.policy.vision import model_inputs, own_positions
from trainers.processes.memory import ran_out
from trainers.rollout.engine import EngineSetup, longest_sequence
from trainers.rollout.hf_engine import CHECK_WINDOW, STEP_TOKENS, EngineRow, HFEngine

_LOG = logging.getLogger(__name__)
_NEAR = 1e-4  # of the self-test, in nats
_QUANTISED = 0.5
PADDED, ALIKE, WHOLE = "padded", "alike", "whole"
WAYS = {
    PADDED: "samples with transformers' cache, in waves of requests",
    ALIKE: "samples with transformers' cache, in waves of requests whose prompts are equally long",
    WHOLE: "samples without a cache, so that each token costs a pass over all before it",
}


class PlainEngine(HFEngine):
    """Samples by transformers' own cache, where :class:`HFEngine` cannot.

    Requests are taken in waves: the next ones begin when all of a wave have ended. Their prompts are padded on the
    left, where that changes nothing in this model; else those of one length make a wave; else nothing is kept, and each
    step computes what the trainer would. A short test at the start says which.
    """

    way: str
    """One of :data:`WAYS`."""
    _wave: _Wave | None = None

    @classmethod
    def from_setup(
        cls,
        setup: EngineSetup,
        *,
        max_length: int | None = None,
        cache_tokens: int | None = None,
        state_bytes: int | None = None,
    ) -> HFEngine:
        """The engine ``hf`` of a run: an :class:`HFEngine` where that computes what the model does, else one of these.

        Args:
            setup: The parts of the run that it is made from.
            max_length: Most tokens of prompt and response; by default what the model's positions allow.
            cache_tokens: Most tokens whose keys and values an :class:`HFEngine` keeps.
            state_bytes: Most bytes of states of recurrent layers that an :class:`HFEngine` keeps for later requests.
        """
        try:
            return HFEngine.from_setup(setup, max_length=max_length, cache_tokens=cache_tokens, state_bytes=state_bytes)
        except FAILURES as error:  # it is not written for every model
            if ran_out(error):
                raise
            why = str(error).partition("\n")[0]
        engine = super().from_setup(setup, max_length=max_length)
        assert isinstance(engine, cls)
        _LOG.warning("rollout.engine hf: %s: %s", WAYS[engine.way], why)
        return engine

    # -- the wave --------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Starts a wave when the last one has ended."""
        if self._running:
            return
        waiting: deque[EngineRow] = deque()
        wave: list[EngineRow] = []
        while self._waiting:
            row = self._waiting.popleft()
            longest = max(len(member.context) for member in [*wave, row])
            fits = len(wave) < self.max_batch and (len(wave) + 1) * longest <= STEP_TOKENS
            alike = self.way != ALIKE or longest == len(row.context) == len((wave or [row])[0].context)
            (wave if not wave or (fits and alike) else waiting).append(row)
        self._waiting, self._running = waiting, wave
        tokens = sum(len(row.context) for row in wave)
        self.prompt_tokens.total += tokens
        self.prompt_tokens.computed += tokens
        self._wave = _Wave(self, list(wave))

    def _logits(self, rows: list[EngineRow]) -> Tensor:
        assert self._wave is not None
        return self._wave.logits(rows)

    def _extend(self, row: EngineRow, token: int) -> None:
        row.context = np.append(row.context, token)

    def _end(self, row: EngineRow) -> Parts:
        return ()

    def _forget(self) -> None:
        super()._forget()
        self._wave = None

    @property
    def images(self) -> Sequence[Pixels]:
        """The images that ids below -1 are parts of."""
        return self._images.images

    def recompute_logits(self, contexts: list[NDArray[np.int64]]) -> Tensor:
        """Logits after each of these sequences as the trainer computes them."""
        zero = np.zeros(1, np.int64)
        ends = [TokenSequence(tokens, zero + len(tokens) - 1, zero, zero + i) for i, tokens in enumerate(contexts)]
        flat = flatten(token_tree(ends, images=self.images), self.model)
        with attending(self.model, kernel_of(self.model)):
            return flat.logits(self.model)

    # -- the model -------------------------------------------------------------------------------------------------

    @contextmanager
    def _working(self, compute_dtype: ComputeDtype) -> Iterator[None]:
        """The model in evaluation mode, computing in ``compute_dtype`` with its own attention."""
        with evaluating(self.model), computing(compute_dtype, self.model.device):
            yield

    def _positions(self) -> int:
        return longest_sequence(self.model.config) or 2**31

    def _check_model(self) -> None:
        """Takes the first way whose log-probabilities are the model's own, also of rows that go on without others.

        Raises:
            DataError: The trainer cannot compute the model.
        """
        check_policy(self.model)
        whole = all(parameter.is_floating_point() for parameter in self.model.parameters())
        for self.way in (PADDED, ALIKE):
            try:
                with narrow_windows(self.model, CHECK_WINDOW), float32_weights(self.model), self._working("float32"):
                    if self._deviation() <= (_NEAR if whole else _QUANTISED):
                        return
            except FAILURES as error:
                if ran_out(error):
                    raise
        self.way = WHOLE

    def _deviation(self) -> float:
        """Largest difference of log-probabilities to the model's own in a short test."""
        lengths = (9, 3, 7) if self.way == PADDED else (7, 7, 7)
        prompts = [(count + number + np.arange(count, dtype=np.int64) * 7) % self._vocabulary
                   for number, count in enumerate(lengths)]  # fmt: skip
        rows = [EngineRow(Request(0, as_tokens(prompt), Sampling()), 0, 0, prompt) for prompt in prompts]
        wave, largest = _Wave(self, list(rows)), 0.0
        for step in range(5):
            live_rows = rows if step < 3 else rows[1:2]
            for row, ours in zip(live_rows, wave.logits(live_rows), strict=True):
                own = self.model(torch.from_numpy(row.context).to(self.model.device)[None], use_cache=False).logits
                gap = (ours.float().log_softmax(-1) - own[0, -1].float().log_softmax(-1)).abs().max()
                largest = max(largest, float(gap))
                self._extend(row, (step * 5 + len(row.context)) % self._vocabulary)
        return largest


class _Wave:
    """Rows that go on together, one token in each step, with transformers' cache."""

    def __init__(self, engine: PlainEngine, rows: list[EngineRow]) -> None:
        self.engine = engine
        self.rows = rows
        self._model: Any = engine.model
        self._ids: Tensor | None = None
        self._model_kwargs: dict[str, Any] = {}

    def logits(self, rows: list[EngineRow]) -> Tensor:
        """Logits of the next token of ``rows``, (rows, vocabulary); of the wave, those that have not ended."""
        engine, model = self.engine, self._model
        if engine.way == WHOLE:
            return engine.recompute_logits([row.context for row in rows])
        if self._ids is None:
            inputs = self._first_inputs()
        else:
            if len(rows) < len(self.rows):
                self._drop(rows)
            last = torch.tensor([[int(row.context[-1])] for row in self.rows], device=model.device)
            self._ids = torch.cat([self._ids, last], 1)
            inputs = model.prepare_inputs_for_generation(self._ids, next_sequence_length=1, **self._model_kwargs)
        with weights_replaced(engine._rounded or {}):
            output = model(**inputs)
        self._model_kwargs = model._update_model_kwargs_for_generation(output, self._model_kwargs)
        self._model_kwargs.pop("mm_encoder_outputs", None)
        logits: Tensor = output.logits[:, -1]
        places = {id(row): place for place, row in enumerate(self.rows)}
        return logits[[places[id(row)] for row in rows]]

    def _first_inputs(self) -> dict[str, Any]:
        """Arguments of the pass over the prompts, padded on the left."""
        model, length = self._model, max(len(row.context) for row in self.rows)
        tokens = np.stack([np.pad(row.context, (length - len(row.context), 0)) for row in self.rows])
        mask = np.stack([np.arange(length) >= length - len(row.context) for row in self.rows])
        parameters = inspect.signature(model.forward).parameters
        inputs = model_inputs(model, tokens, self.engine.images)
        self._ids = inputs.pop("input_ids", torch.zeros(tokens.shape, dtype=torch.long, device=model.device))
        self._model_kwargs = {
            **inputs,
            "use_cache": True,
            "attention_mask": torch.from_numpy(mask).long().to(model.device),
        }
        if "position_ids" in parameters:
            place = np.maximum(mask.cumsum(1) - 1, 0)
            own = own_positions(model, tokens, self.engine.images, place)
            self._model_kwargs["position_ids"] = torch.from_numpy(place if own is None else own).to(model.device)
        if "logits_to_keep" in parameters:
            self._model_kwargs["logits_to_keep"] = 1
        kwargs, config = self._model_kwargs, model.generation_config
        model._prepare_cache_for_generation(config, kwargs, GenerationMode.SAMPLE, len(self.rows), length)
        first: dict[str, Any] = model.prepare_inputs_for_generation(self._ids, is_first_iteration=True, **kwargs)
        return first

    def _drop(self, rows: list[EngineRow]) -> None:
        """Leaves out the rows of the wave that have ended, where the cache can."""
        cache = next((value for value in self._model_kwargs.values() if type(value) is DynamicCache), None)
        if cache is None or self._ids is None:
            return
        row_ids = {id(row) for row in rows}
        places = torch.tensor([i for i, row in enumerate(self.rows) if id(row) in row_ids], device=self._ids.device)
        cache.reorder_cache(cast(torch.LongTensor, places))
        self.rows, self._ids = rows, self._ids[places]
        for name in ("attention_mask", "position_ids"):
            if name in self._model_kwargs:
                self._model_kwargs[name] = self._model_kwargs[name][..., places, :]
