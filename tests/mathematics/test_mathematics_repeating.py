"""Nobody is paid who repeats the question: where the right answer is a number, an answer is one that was computed.

DAPO's rule against verdicts of the original.

``dapo_verdicts.json`` has what ``compute_score`` of verl's ``math_dapo.py`` (commit 012542c) said of 2,400 pairs: for
each answer, in each dress, 1 if it is right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from envsuite.core import ToolCall
from envsuite.mathematics import dapo
from envsuite.mathematics.answers import is_right
from envsuite.mathematics.env import SCORERS, PythonMathEnv
from envsuite.mathematics.generate import BY_STRATUM
from envsuite.mathematics.problem import MathProblem
from envsuite.mathematics.source import builtin_problems

FORMULAS = (
    (r"Compute (.*)\.", r"\1"),
    (r"What is (\d+) times (\d+), (plus|minus) (\d+)", r"\1 \\times \2 \3 \4"),
    (r"Multiply (\d+) by (\d+) and (add|subtract) (\d+)", r"\1 \\cdot \2 \3 \4"),
    (r"sum of (\d+) and (\d+), times (\d+)", r"(\1 + \2)(\3)"),
    (r"Add (\d+) and (\d+) and multiply by (\d+)", r"\3 \\cdot (\1 + \2)"),
    (r"much does (\d+) times (\d+) exceed (\d+) times (\d+)", r"\1 * \2 - \3 * \4"),
    (r"(\d+)/(\d+) (?:\+|and) (\d+)/(\d+)", r"\\frac{\1}{\2} + \\frac{\3}{\4}"),
    (r"(\d+)/(\d+) (?:\+|and) (\d+)/(\d+)", r"\\frac{\1 \\cdot \4 + \3 \\cdot \2}{\2 \\cdot \4}"),
    (r"committee of (\d+) .* from (\d+)", r"\\binom{\2}{\1}"),
    (r"exactly (\d+) elements does a set of (\d+)", r"\\frac{\2!}{\1!(\2-\1)!}"),
    (r"orders can (\d+) red, (\d+) green and (\d+)", r"\\frac{(\1+\2+\3)!}{\1!\2!\3!}"),
    (r"have (\d+) letters A, (\d+) letters B, (\d+)", r"\\frac{(\1+\2+\3)!}{\1! \\cdot \2! \\cdot \3!}"),
    (r"with (-?\d+), and each further term is (-?\d+) more .* first (\d+)", r"\\frac{\3(2 \\cdot \1 + (\3-1)(\2))}{2}"),
    (r"first (\d+) terms .* term (-?\d+) and difference (-?\d+)", r"\\sum_{k=0}^{\1-1} (\2 + \3 k)"),
    (r"with (-?\d+), and each further term is (-?\d+) times .* first (\d+)", r"\1 \\cdot \\frac{\2^{\3} - 1}{\2 - 1}"),
    (r"first (\d+) terms .* term (-?\d+) and ratio (-?\d+)", r"(\2 * \3**\1 - \2) / (\3 - 1)"),
    (r"divisor of (\d+) and (\d+)", r"\\gcd(\1, \2)"),
    (r"when (\d+)\^(\d+) is divided by (\d+)", r"\1^{\2} \\bmod \3"),
    (r"power (\d+) .* (\d+)", r"\1^{\2}"),
)  # fmt: skip
"""What a player of regular expressions reads in a question, and what it makes of it without computing anything."""
SIGNS = {"plus": "+", "minus": "-", "add": "+", "subtract": "-"}
DRESSES = (
    "{}",
    r"\boxed{{{}}}",
    "x = {}",
    "The answer is {}.",
    "({})",
    r"\frac{{{}}}{{1}}",
    "({})^1",
    "{0} = {0}",
    "print({})",
)


def repeated(problem: MathProblem) -> Iterator[str]:
    """What such a player answers: the question, its formulas, and those of a line of code that is not run."""
    yield problem.text
    yield from re.findall(r"[0-9(][0-9 +*/^()-]{4,}[0-9)]", problem.text)
    printed = problem.code.rpartition("print(")[2].removesuffix(")")
    if not printed.isidentifier():
        yield printed
    for pattern, formula in FORMULAS:
        if match := re.search(pattern, problem.text):
            yield re.sub("|".join(SIGNS), lambda word: SIGNS[word[0]], match.expand(formula))


@pytest.mark.seconds
@pytest.mark.parametrize("task_type", BY_STRATUM)
def test_repeating_the_question_is_wrong_in_any_dress(task_type):
    problems = builtin_problems()
    for number in range(40):
        problem = problems.problem(f"{task_type}/test#{number}")
        assert is_right(problem.answer, problem.answer) and is_right(problem.answer, f"It is {problem.answer}.")
        for answer in repeated(problem):
            paid = [text for dress in DRESSES if is_right(problem.answer, text := dress.format(answer))]
            assert paid == [], problem


def test_math_verify_as_it_is_evaluates_the_question_and_is_an_option():
    problem, judged = builtin_problems().problem("arithmetic-1/test#0"), SCORERS["math-verify"]
    assert any(judged(problem.answer, answer) for answer in repeated(problem))
    assert judged("42", r"\boxed{42}") and not judged("42", "43")


def recorded() -> Iterator[tuple[str, str, bool]]:
    """Right answer, text, and verdict of each pair."""
    told = json.loads((Path(__file__).parent / "dapo_verdicts.json").read_text())
    for case in told["cases"]:
        texts = [dress.replace("{}", answer) for answer in case["answers"] for dress in told["dresses"]]
        for text, verdict in zip(texts, case["verdicts"], strict=True):
            yield case["right"], text, verdict == "1"


def test_verdicts_are_those_of_the_original():
    pairs = list(recorded())
    assert len(pairs) == 2400 and sum(verdict for *_, verdict in pairs) == 765
    assert [pair for *pair, verdict in pairs if dapo.is_right(*pair) != verdict] == []


@pytest.mark.parametrize(
    "answer", ["34", " 34 ", "$34$", "n = 34", r"\boxed{34}", "34\nthat is", "34 cm", "35", "34.0", ""]
)
def test_an_answer_without_a_label_is_judged_as_with_one(answer):
    assert dapo.is_right("34", answer) == dapo.is_right("34", f"Answer: {answer}") == (answer not in ("35", "34.0", ""))


def test_the_environment_judges_by_the_rule_that_is_chosen():
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
