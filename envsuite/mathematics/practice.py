"""The teacher to imitate on PythonMath, and the words that it takes."""

from __future__ import annotations

import re

from envsuite.core.draws import Draw
from envsuite.core.practice import Practice, Spelling
from envsuite.mathematics import prompts
from envsuite.mathematics.env import PythonMathEnv
from envsuite.mathematics.kinds import FAMILIES
from envsuite.mathematics.player import Calculator
from envsuite.prompting.phrases import phrases


def practice() -> Practice:
    """Returns teacher and vocabulary."""
    return Practice(Calculator, texts, fresh="problem_seed", spelling=Spelling(codes=True))


def texts() -> list[str]:
    """Returns the texts of PythonMath: every wording and code of its families, and numbers below 10,000 in parts."""
    problems = [
        family.problem(family.draw(Draw(f"{family.name} {wording}")), wording)
        for family in FAMILIES
        for wording in range(len(family.wordings))
    ]
    return [
        *(re.sub("[0-9]{3,}", "10", text) for problem in problems for text in (problem.text, problem.code)),
        *(f"1{number:02}" for number in range(100)),
        *(prompts.START, prompts.NOTHING_PRINTED, prompts.CHECK, prompts.NO_ANSWER, prompts.RIGHT, prompts.WRONG),
        *_PYTHON.splitlines(),
        *phrases(PythonMathEnv.tools),
    ]


_PYTHON = """
python[print(1+2)] answer[-3/4] 1.5 x=(1) timeout: stopped after 5 s. Ellipsis None True False
stderr: Traceback (most recent call last): File "<cell 1>", line 1, in <module> ~~^~~
NameError: name 'x' is not defined ZeroDivisionError: division by zero ValueError TypeError Error
SyntaxError: '(' was never closed unmatched ')' invalid syntax. Perhaps you forgot a comma? unexpected EOF
Invalid action: unknown tool 'x'; known: python, answer. Tools:
"""
