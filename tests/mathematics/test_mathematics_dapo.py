"""DAPO's rule against verdicts of the original.

``dapo_verdicts.json`` has what ``compute_score`` of verl's ``math_dapo.py`` (commit 012542c) said of 2,400 pairs: for
each answer, in each dress, 1 if it is right.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from envsuite.core import ToolCall
from envsuite.mathematics import dapo
from envsuite.mathematics.answers import is_right
from envsuite.mathematics.env import PythonMathEnv


def recorded() -> Iterator[tuple[str, str, bool]]:
    """Right answer, text, and verdict of each pair."""
    told = json.loads((Path(__file__).parent / "dapo_verdicts.json").read_text())
    for case in told["cases"]:
        texts = [dress.replace("{}", answer) for answer in case["answers"] for dress in told["dresses"]]
        for text, verdict in zip(texts, case["verdicts"], strict=True):
            yield case["right"], text, verdict == "1"


def test_verdicts_are_those_of_the_original() -> None:
    pairs = list(recorded())
    assert len(pairs) == 2400 and sum(verdict for *_, verdict in pairs) == 765
    assert [pair for *pair, verdict in pairs if dapo.is_right(*pair) != verdict] == []


@pytest.mark.parametrize(
    "answer", ["34", " 34 ", "$34$", "n = 34", r"\boxed{34}", "34\nthat is", "34 cm", "35", "34.0", ""]
)
def test_an_answer_without_a_label_is_judged_as_with_one(answer: str) -> None:
    assert dapo.is_right("34", answer) == dapo.is_right("34", f"Answer: {answer}") == (answer not in ("35", "34.0", ""))


def test_the_environment_judges_by_the_rule_that_is_chosen() -> None:
    for scorer, reward in (("value", 1.0), ("dapo", -1.0)):
        env = PythonMathEnv(reward="signed", scorer=scorer)
        _, info = env.reset(seed=0)
        assert info["versions"].get("scorer", "value") == scorer
        text = f"({env.problem.answer})"
        assert is_right(env.problem.answer, text)
        _, found, *_, info = env.step([ToolCall("answer", {"text": text})])
        assert (found, info["success"]) == (reward, reward == 1.0)
        env.reset(seed=0)
        assert env.step([ToolCall("answer", {"text": f"Answer: {env.problem.answer}"})])[1] == 1.0
        env.close()
