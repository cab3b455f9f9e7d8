r"""Whether an answer has the value of the right one.

Where the right answer is a number, an answer has to state one: what is left to be evaluated, such as ``17 * 23``, is
none. Integers, fractions, decimals and percentages are compared exactly, here. What else an answer may be (roots,
tuples, intervals, matrices, expressions) is compared by math-verify, in the process of
:mod:`envsuite.mathematics.judge`. Answers are written by models: nothing is evaluated here, and what could grow without
limit is not handed on.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from envsuite.mathematics.judge import same_expression
from envsuite.mathematics.notation import Number, exact, number, plain, strip_style, tokens

MOST_CHARACTERS = 2000
"""A longer answer is wrong, unless it is the right one to the letter."""
_MOST_EXPRESSION = 600  # characters of an expression that is compared
_DEPTH = 12  # of its brackets

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|\\boxed\s+(?=[0-9])")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_LABEL = re.compile(r"\banswer[\"*]*(?: is\b)?[\s*]*:?[\s*]*(?=\S)", re.IGNORECASE)

_ATOM = r"(?:[0-9]+(?:\.[0-9]+)?(?:\^\{-?[0-9/.]+\})?|\\sqrt(?:\[[0-9]+\])?\{[0-9]+\})"
_VALUE = re.compile(rf"[+-]?(?:{_ATOM}(?:/{_ATOM})?|\\frac\{{[+-]?{_ATOM}\}}\{{[+-]?{_ATOM}\}}|[0-9]+!)%?")
"""Forms of a number that are values: powers, roots, fractions of such, a factorial."""
_PURE = re.compile(r"(?=.*[0-9])(?:[0-9+\-*/^().,!{} ]|\\(?:frac|sqrt|binom|pi)(?![a-z]))+")
_SHORT = r"(?:[kcdmn]?m|[km]?g|m?[sl]|h)"
_NAME = re.compile(r" *(?:\\?(?!sqrt|ln|log|sin|cos|tan|exp|frac)[A-Za-z]+(?:_\{?\w+\}?)?'*(?:\([^()]*\))?)? *")
_MEASURE = re.compile(
    r"(?<=[0-9}%)!])(?: *\^ *(?:\\circ|\{ *\\circ *\}))?( *(?:(?:[^\W\d_]{3,}|(?<=[ /(])(?:[^\W\d_]{2}|[mgshL])|"
    rf"(?<=[0-9}}]){_SHORT})(?![^\W\d_])(?: ?\^ ?\{{-?[1-4]\}})?|[/. ]|(?<= )\(|(?<=[a-z])\))*)$"
)
_METRIC = re.compile(rf"{_SHORT}(?:\^\{{[0-9]\}})?")
_SCALE = re.compile(r"(?:dozen|half|hundred|thousand|[mbtr]+illion)s?\b", re.IGNORECASE)
_INTRODUCED = re.compile(
    r"(?:.*\b(?:is|equals)\b *:? *(?=[-+\\0-9.]))?"
    r"(?:(?!sqrt|ln|log|sin|cos|tan|exp|minus|negative)(?:[^\W\d_]{2,}(?![^\W\d_])|[aI]\b|[^\x00-\x7f\W\d_])[ ,:;.!]*)*"
)
_RETRACTED = re.compile(r", (?:and )?not\b.*")
_HEDGED = re.compile(
    r"^ *(?:[<>]|\\(?:neq?|leq?|geq?|[lg]t)(?![a-z]))|n't\b|\b(?:not|no|never|at (?:least|most)|under|over|above|below|"
    r"between|except|wrong|incorrect|false|(?:less|more|fewer|greater|larger|smaller|higher|lower) than)\b",
    re.IGNORECASE,
)
_BASED = re.compile(r"(?:[a-z] ?= ?)?\(?(-?[0-9A-Za-z]+)\)?(?:_\{?\(?([0-9a-z]+)\)?\}?)?")
_COUNTS = "zero one two three four five six seven eight nine ten eleven twelve".split()
_WORDS = re.compile(
    r"\(?(?:(?:an?|the|it is|option|choice) )?((?=.*[^\W\d_])[^\W_]+(?:[ -][^\W_]+)*)\)?", re.IGNORECASE
)
_BRACKETED = (re.compile(r"\\?\{.*\\?\}"), re.compile(r"\([^()]*,[^()]*\)"))
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,} +[A-Za-z]{2,}")

_WILD = re.compile(
    r"\^\s*\{[^}]*\^|\^\s*(?:\{[^{}]*\}|\w)\s*\^|\^\s*[{(]*\s*[+-]?[0-9.]{5}|[0-9]{5}\s*!|!\s*\)?\s*!|[0-9]{40}"
)
_SUMMED = re.compile(r"\\(?:sum|prod|int|lim)")


def is_right(right: str, answer: str) -> bool:
    r"""Returns whether ``answer`` has the value of ``right``.

    Any text is read in bounded time: an answer that takes more than two seconds of processor time to compare is wrong.

    The answer may be the value alone, or in ``\boxed{…}``, or else between ``<answer>`` and ``</answer>``, or else
    follow ``Answer:`` or ``the answer is``; the last of the kind counts.

    Args:
        right: The right answer: a number, LaTeX, or words.
        answer: What was answered: any text.

    Raises:
        WorkerLost: The process that compares expressions was lost.
    """
    if answer.strip() == right.strip():
        return True
    return max(len(right), len(answer)) <= MOST_CHARACTERS and _is_right(right, answer)


@lru_cache(maxsize=4096)
def _is_right(right: str, answer: str) -> bool:
    right, answer = plain(extract_answer(right)), plain(extract_answer(answer))
    if not answer:
        return False
    if tokens(answer) == tokens(right):
        return True
    if (quantity := _quantity(right)) is not None:
        return _states(quantity, answer)
    right_words, answer_words = strip_style(right), strip_style(answer)
    if (words := _words(right_words)) and (words == _words(answer_words) or _chooses(right_words, answer_words)):
        return True
    if "_" in right and (number := _BASED.fullmatch(right_words)) is not None and number[2]:
        return _same_in_base(number, answer_words)
    if "dots" in right or (_HEDGED.search(answer_words) and not _HEDGED.search(right_words)):
        return False
    if any(first.fullmatch(right) and second.fullmatch(answer) for first, second in (_BRACKETED, _BRACKETED[::-1])):
        return False
    if _is_wild(right) or _is_wild(answer) or (_SUMMED.search(answer) and not _SUMMED.search(right)):
        return False
    right, answer = exact(right), exact(answer)
    sides = answer.split("=")[:-1] if "=" not in right else []
    if any(_PURE.fullmatch(side) and not same_expression(right, side) for side in sides):
        return False
    return same_expression(right, answer, prose=_PROSE.search(answer) is not None)


class Quantity(NamedTuple):
    """A number, with how it was written, what it is called, and its unit."""

    number: Number
    text: str
    name: str
    unit: str


def _quantity(text: str) -> Quantity | None:
    r"""Reads ``5``, ``x = 5`` or ``5 \text{ km}``; returns ``None`` for what is no number."""
    name, _, value = strip_style(text).rpartition("=")
    value, unit = _split_unit(value)
    amount = number(value)
    if amount is None or not _NAME.fullmatch(name) or (unit and "\\text" not in text and "\\m" not in text):
        return None  # 2xy is no number of xy
    return Quantity(amount, value, name.strip(), unit)


def _split_unit(text: str) -> tuple[str, str]:
    """Returns the text before a unit or further words, without brackets around it, and the unit."""
    text = text.strip(" *").rstrip(" .,")
    match = _MEASURE.search(text)
    text, unit = (text, "") if match is None else (text[: match.start()], match[1].strip())
    while text[:1] + text[-1:] in ("()", "{}") and "," not in text:
        text = text[1:-1].strip()
    return text, unit


def _states(quantity: Quantity, answer: str) -> bool:
    """Returns whether a text states one value, the quantity; all sides of its equations have to be equal to it."""
    answer = _RETRACTED.sub("", strip_style(answer))
    if _HEDGED.search(answer):
        return False
    answer = _INTRODUCED.sub("", answer, count=1)
    if "\\approx" in answer:  # what stands before it is exact
        answer = next((part for part in answer.split("\\approx") if re.search("[0-9]", part)), "")
    states = False
    for side in answer.split("="):
        text, unit = _split_unit(side)
        form = _VALUE.fullmatch(text)
        if (amount := number(text)) is not None:
            clash = unit != quantity.unit and _METRIC.fullmatch(unit) and _METRIC.fullmatch(quantity.unit)
            if clash or _SCALE.match(unit) or not _equal(quantity.number, amount):
                return False
        elif form or ("=" in answer and _PURE.fullmatch(text)):
            if _is_wild(text) or not same_expression(quantity.text, text):
                return False
        elif not _NAME.fullmatch(side) or (side.strip() and quantity.name not in ("", side.strip())):
            return False
        states = states or amount is not None or form is not None
    return states


def extract_answer(answer: str) -> str:
    r"""Returns what is in the last ``\boxed{…}``, else ``<answer>``, else after the last ``answer:``, else all."""
    boxes = list(_BOX.finditer(answer))
    if boxes:
        start, depth = boxes[-1].end(), 1
        for place in range(start, len(answer)):
            depth += {"{": 1, "}": -1}.get(answer[place], 0)
            if depth == 0:
                return answer[start:place]
        return answer[start:]
    if tags := _TAG.findall(answer):
        return str(tags[-1])
    labels = list(_LABEL.finditer(answer))
    return answer[labels[-1].end() :] if labels else answer


def _equal(right: Number, answer: Number) -> bool:
    """Compares exactly, but for decimals; where a percentage is right, so is the number before its sign."""
    if right.value == answer.value or (right.percent and not answer.percent and right.value * 100 == answer.value):
        return True
    return right.rounds(answer.value) or answer.rounds(right.value)


def _words(text: str) -> str:
    """Returns plain words in lower case, without brackets and article, e.g. ``(C)`` as ``c``; empty for all else."""
    match = _WORDS.fullmatch(text.strip(" .'"))
    return match[1].lower() if match is not None else ""


def _chooses(right: str, answer: str) -> bool:
    """Returns whether an answer is the letter of a choice and what stands there: ``(B) 45`` for ``B``."""
    letter = right.strip("()")
    if len(letter) != 1 or not letter.isupper():
        return False
    return re.fullmatch(rf"(?:\({letter}\)|{letter}[:.)])(?!.*(?:\b(?:or|and)\b|\([A-J]\))).*", answer) is not None


def _same_in_base(right: re.Match[str], answer: str) -> bool:
    """Compares numbers in a base, ``52_8``; the answer may leave the base out."""
    match = _BASED.fullmatch(answer.replace(" ", ""))
    bases = [str(_COUNTS.index(base)) if base in _COUNTS else base for base in (right[2], match and match[2])]
    return match is not None and match[1].lower() == right[1].lower() and bases[1] in (None, bases[0])


def _is_wild(text: str) -> bool:
    """Whether an expression may take long to compare: towers of powers, factorials, long numbers, deep brackets."""
    depths = accumulate((letter in "{[(") - (letter in "}])") for letter in text)
    too_much = len(text) > _MOST_EXPRESSION or max(depths, default=0) > _DEPTH
    return too_much or bool(_WILD.search(text)) or any(sign.isdigit() and not sign.isascii() for sign in text)
