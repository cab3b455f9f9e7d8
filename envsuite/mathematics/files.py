"""Files of problems: JSON lines in the layouts of DAPO-Math-17k, AIME, MATH-500 and GSM8K."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from envsuite.core.errors import DataError
from envsuite.data.files import file_errors
from envsuite.mathematics.answers import extract_answer
from envsuite.mathematics.problem import MathProblem

MOST_BYTES = 2**20
"""Longest line of a file."""
MOST_ANSWER = 1000
"""Longest answer, in characters."""
_TEXTS = ("problem", "question", "prompt")
_PARAGRAPHS = re.compile(r"\n\s*\n")
_WORDS = re.compile(r"[^a-z0-9]+")


def read(path: Path) -> Iterator[tuple[int, MathProblem, str]]:
    r"""Yields line number, problem and task type of each problem in a file of JSON lines.

    A line has the question in ``problem``, ``question`` (in SVAMP after its ``body``) or ``prompt``, and the answer in
    ``answer``, after the last ``####`` where it has one, as in GSM8K, or as MATH in the last ``\boxed{…}`` of its
    ``solution``. Or, in verl's layout, which is DAPO's, it has the question in the last message of the user in
    ``prompt`` and the answer in ``reward_model.ground_truth``. Names of fields may have capitals. Further fields are
    ignored, but for ``subject`` or ``type``, and ``level``, which make the type. That of other problems is empty.

    Raises:
        DataError: The file cannot be read, or a line has no question or no answer; the message names the line.
    """
    with file_errors(path), path.open("rb") as file:
        number = 0
        while line := file.readline(MOST_BYTES + 1):
            number += 1
            if len(line) > MOST_BYTES:
                raise DataError(f"{path}, line {number}: longer than {MOST_BYTES:,} bytes; give a line to each")
            if line.strip():
                yield number, *_problem(line, f"{path}, line {number}")


def _problem(line: bytes, where: str) -> tuple[MathProblem, str]:
    try:
        row = orjson.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error})") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: a problem is a JSON object, not {type(row).__name__}")
    row = {str(name).lower(): value for name, value in row.items()}
    text = _question(row)
    if not text:
        raise DataError(f"{where}: no question; give it as text in one of {', '.join(_TEXTS)}")
    model, solution = row.get("reward_model"), row.get("solution")
    boxed_answer = extract_answer(solution) if isinstance(solution, str) and "\\boxed" in solution else None
    truth = model.get("ground_truth") if isinstance(model, dict) else boxed_answer
    answer = _number_or_text(row.get("answer", truth))
    if not answer:
        raise DataError(f"{where}: no answer; give a number or text in answer (or in reward_model.ground_truth)")
    if len(answer) > MOST_ANSWER:
        raise DataError(f"{where}: the answer has {len(answer):,} characters, more than {MOST_ANSWER:,}")
    return MathProblem(text, answer), _type(row)


def _question(row: Mapping[str, Any]) -> str:
    value = next((row[name] for name in _TEXTS if name in row), None)
    if isinstance(value, list):  # a chat; what asks is the last that the user says
        turns = [turn for turn in value if isinstance(turn, dict) and turn.get("role", "user") == "user"]
        return _without_instructions(turns[-1].get("content") if turns else None)
    body = row.get("body")
    text = f"{body.strip()} {value}" if isinstance(body, str) and isinstance(value, str) else value
    return text.strip() if isinstance(text, str) else ""


def _without_instructions(content: object) -> str:
    """Drops the first and the last paragraph if they ask for a line ``Answer:``, since here a tool takes the answer."""
    paragraphs = _PARAGRAPHS.split(content.strip()) if isinstance(content, str) else []
    if len(paragraphs) > 1 and "Answer: $Answer" in paragraphs[0]:
        del paragraphs[0]
    if len(paragraphs) > 1 and '"Answer:"' in paragraphs[-1]:
        del paragraphs[-1]
    return "\n\n".join(paragraphs)


def _number_or_text(value: object) -> str:
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return str(value).rpartition("####")[2].strip() if isinstance(value, str | int | float) else ""


def _type(row: Mapping[str, Any]) -> str:
    subject, level = row.get("subject", row.get("type")), row.get("level")
    if not isinstance(subject, str) or not isinstance(level, str | int) or len(subject) > 100:
        return ""
    name = _WORDS.sub("-", f"{subject} {str(level).removeprefix('Level ')}".lower()).strip("-")
    return name if len(name) < 120 else ""
