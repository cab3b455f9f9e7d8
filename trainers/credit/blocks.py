"""Blocks of planned answers: which tokens say whether the subgoal changes, which it is, and how it is pursued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase

from envsuite.prompting.plan import read_plan
from trainers.credit.estimators.returns import steps_in_order
from trainers.credit.providers import Provider
from trainers.steps import StepTable
from trainers.steps.columns import BLOCK, BLOCKS, LOW_START, PLANNED, SEGMENT, SWITCH, SWITCH_PROBABILITY

_BROKEN = "\ufffd"


class Blocks(Provider):
    """Reads the blocks of each response from its text, and tells them by its tokens.

    A token is in the block in which the first of its characters is; a block has its tags. So a token that ends one
    block and begins the next is in the former, and one that ends the thought with the first characters of a block is in
    none. A token without characters (a control token, or the first bytes of a character) is where the next one begins.

    The probability of a switch is read from the sampled log-probabilities of the tokens of the switch block: their
    product where the agent switches, 1 less it where it keeps its subgoal, and 0 where there is no such block.

    Args:
        tokenizer: The policy's.
        lowercase: Whether answers are read in lower case (``prompt.lowercase``).
    """

    supplies: ClassVar[tuple[str, ...]] = PLANNED

    def __init__(self, tokenizer: PreTrainedTokenizerBase, lowercase: bool = False) -> None:
        self.tokenizer = tokenizer
        self.lowercase = lowercase
        self._pieces: dict[int, str] = {}

    def columns(self, steps: StepTable) -> StepTable:
        """``steps`` with the columns of planned answers."""
        n = len(steps)
        block = np.zeros(len(steps.response.values), np.int8)
        switch, start, probability = np.zeros(n, np.bool_), np.zeros(n, np.int64), np.zeros(n)
        for row in range(n):
            text, begins = self.begins(steps.response[row].tolist())
            plan = read_plan(text, self.lowercase)
            own = block[steps.response.offsets[row] : steps.response.offsets[row + 1]]
            for name, (begin, end) in plan.spans.items():
                own[(begins >= begin) & (begins < end)] = BLOCKS[name]
            switch[row] = plan.switch
            if "subgoal" in plan.spans:
                start[row] = np.searchsorted(begins, plan.spans["subgoal"][1])
            mask = own == BLOCKS["switch"]
            if mask.any():
                likelihood = float(np.exp(steps.logprob[row][mask].astype(np.float64).sum()))
                probability[row] = likelihood if plan.switch else 1.0 - likelihood
        order, lengths = steps_in_order(steps)
        segment = switch.copy()
        segment[order[(np.cumsum(lengths) - lengths)[lengths > 0]]] = True
        return steps.with_token_columns(**{BLOCK: block}).with_columns(**{
            SWITCH: switch, SEGMENT: segment, LOW_START: start, SWITCH_PROBABILITY: probability,
        })  # fmt: skip

    def begins(self, ids: Sequence[int]) -> tuple[str, NDArray[np.int64]]:
        """Returns the text of a response, and of each token the place of its first character; they never decrease."""
        text = self._decode(ids)
        pieces = [self._piece(token) for token in ids]
        if "".join(pieces) == text:
            return text, np.cumsum([0, *map(len, pieces)], dtype=np.int64)[:-1]
        # Tokens that are parts of characters, or whose text depends on those before.
        parts = self._stream_pieces(ids)
        if parts is not None and text.startswith("".join(parts)):  # a character may be cut off at the end
            return text, np.cumsum([0, *map(len, parts)], dtype=np.int64)[:-1]
        places = [len(self._decode(ids[:count]).rstrip(_BROKEN)) for count in range(len(ids))]
        return text, np.minimum(np.maximum.accumulate(np.array(places, np.int64)), len(text))

    def _stream_pieces(self, ids: Sequence[int]) -> list[str] | None:
        """Returns the text that each token completes; ``None`` where it cannot be told, as of broken characters."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        stream = DecodeStream(skip_special_tokens=True)
        try:
            return [stream.step(backend, token) or "" for token in ids]
        except Exception:  # it has no class of its own: "Invalid prefix encountered while decoding stream"
            return None

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            self._pieces[token] = self._decode([token])
        return self._pieces[token]

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))
