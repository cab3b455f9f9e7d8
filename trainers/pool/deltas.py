"""Steps as rows: a prompt is the beginning that it shares with an earlier step of its session, and what follows."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import DataError, UsageError
from envsuite.playing.step import Step
from trainers.steps.parquet import step_of, step_row
from trainers.steps.prefixes import common_length

COLUMNS = (
    *("session", "request", "parent", "kept", "kept_text", "prompt_ids", "response_ids", "response_logprobs"),
    *("policy_version", "prompt_text", "rest", "digest"),
)
"""Columns of a row. ``kept`` and ``kept_text`` are the tokens of the prompt and response, and the characters of the
text, of the ``parent``, an earlier request of its session, with which the prompt begins; ``prompt_ids`` and
``prompt_text`` are the rest. Arrays are int32, int32, float32 and int64; one version stands for all tokens of a
response. ``rest`` has the other fields as JSON. It and the arrays are compressed. ``digest`` tells the step, as it was
given, from others."""
_KINDS = {"prompt_ids": np.int32, "response_ids": np.int32, "response_logprobs": np.float32, "policy_version": np.int64}
Row = dict[str, Any]


class StepPrefix(NamedTuple):
    """The parts of a step with which later ones may begin."""

    request: int | None
    tokens: NDArray[np.int32]
    """Prompt and response, shape (tokens,)."""
    text: str


_NOTHING = StepPrefix(None, np.empty(0, np.int32), "")


def digest(step: Step, where: str) -> bytes:
    """Returns 16 bytes that tell a step from others.

    Args:
        step: The step.
        where: Its name in messages.

    Raises:
        UsageError: Training could not use it, or it cannot be written.
    """
    count, logprob_count = len(step.response_ids), len(step.response_logprobs)
    problems = {
        f"{count} response tokens have {logprob_count} log-probabilities; give one for each": count != logprob_count,
        f"its reward is {step.reward}; it must be a finite number": not np.isfinite(step.reward),
        "it has images, which a pool does not store; write the episode to a file of episodes": bool(step.images),
    }
    for problem in (text for text, there in problems.items() if there):
        raise UsageError(f"{where}: {problem}")
    return blake2b(json.dumps(step_row(step, where), default=_plain).encode(), digest_size=16).digest()


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else blake2b(value.tobytes()).hexdigest()


def encode(step: Step, request: int, earlier: Sequence[StepPrefix]) -> tuple[Row, StepPrefix]:
    """Returns the row of a step, and that with which later ones may begin.

    Args:
        step: The step.
        request: Its number in its session.
        earlier: Earlier steps of the session; the parent is the one with which the prompt shares most.
    """
    fields = step_row(step, f"request {request}")
    text = fields["prompt_text"] or ""
    overlaps = [(common_length(whole.tokens, step.prompt_ids), _common(whole.text, text)) for whole in earlier]
    overlap, parent = max(zip(overlaps, earlier, strict=True), key=lambda pair: pair[0], default=((0, 0), _NOTHING))
    arrays = {name: fields.pop(name) for name in _KINDS}
    versions = np.unique(arrays["policy_version"])
    arrays["policy_version"] = versions if len(versions) == 1 else arrays["policy_version"]
    arrays["prompt_ids"] = step.prompt_ids[overlap[0] :]
    row: Row = {"request": request, "parent": parent.request, "kept": overlap[0], "kept_text": overlap[1]}
    row |= {name: zlib.compress(values.tobytes()) for name, values in arrays.items()}
    row["prompt_text"] = None if fields.pop("prompt_text") is None else text[overlap[1] :]
    content = json.dumps({**fields, "images": []}, separators=(",", ":"), default=_plain)
    row["rest"] = zlib.compress(content.encode())
    return row, StepPrefix(request, np.concatenate([step.prompt_ids, step.response_ids]), text)


def _common(first: str, second: str) -> int:
    return common_length(*(np.frombuffer(text.encode("utf-32-le"), np.int32) for text in (first, second)))


def decode(rows: Iterable[Row], where: str) -> dict[int, tuple[Step, StepPrefix]]:
    """Reverses :func:`encode`; returns what it was given and what it returned by request.

    Args:
        rows: All rows of a session, in the order in which they were made.
        where: Name of the session in messages.

    Raises:
        DataError: A row is damaged.
    """
    wholes: dict[int | None, StepPrefix] = {None: _NOTHING}
    steps = {}
    try:
        for row in rows:
            parent, fields, text = wholes[row["parent"]], json.loads(zlib.decompress(row["rest"])), row["prompt_text"]
            arrays = {name: np.frombuffer(zlib.decompress(row[name]), kind) for name, kind in _KINDS.items()}
            prompt = np.concatenate([parent.tokens[: row["kept"]], arrays.pop("prompt_ids")])
            text = None if text is None else parent.text[: row["kept_text"]] + text
            step = step_of({**fields, **arrays, "prompt_ids": prompt, "prompt_text": text})  # without texts
            step = replace(step, prompt_text=text, response_text=fields["response_text"])
            whole = StepPrefix(row["request"], np.concatenate([prompt, step.response_ids]), text or "")
            wholes[row["request"]], steps[row["request"]] = whole, (step, whole)
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise DataError(f"{where}: a row is damaged ({type(error).__name__}: {error})") from error
    return steps
