r"""Whether an answer is right by the rule of DAPO's trainer, which compares normalised text and computes nothing.

The rule is that of ``math_dapo.py`` in verl, with which DAPO was trained. Its normalisation is the one that Minerva
(Lewkowycz et al. 2022, appendix D) applies to short answers: words for units go, ``\frac12`` becomes
``\frac{1}{2}``, and so on. So 0.5 is not 1/2, and ``\sqrt{8}`` not ``2\sqrt{2}``.
"""

from __future__ import annotations

import re

READ = 300
"""Characters at the end of an answer that are read."""
_LABEL = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
_LABELLED = re.compile(r"answer\s*:", re.IGNORECASE)
_REPLACED = (
    *(("an ", ""), ("a ", ""), (".$", "$"), (r"\$", ""), (r"\ ", ""), (" ", ""), ("mbox", "text")),
    *((r",\text{and}", ","), (r"\text{and}", ","), (r"\text{m}", r"\text{}")),
)
"""Texts and what they become, in this order."""
_WORDS = (
    r"square ways integers dollars mph inches hours km units \ldots sue points feet minutes digits cents degrees cm gm "
    "pounds meters meals edges students childrentickets multiples"
).split()
_NOTATION = (
    *(r"\text{s}", r"\text{.}", "\\text{\ns}", r"\text{}^2", r"\text{}^3", "\\text{\n}", r"\text{}", r"\mathrm{th}"),
    *(r"^\circ", r"^{\circ}", r"\;", r",\!", "{,}", '"', r"\dots"),
)
_DRESS = tuple(re.compile(rf"\\{name}\{{(.*?)\}}") for name in ("text", "textbf", "overline"))
_BOX = re.compile(r"\\boxed\{(.*)\}")


def is_right(right: str, answer: str) -> bool:
    r"""Returns whether ``answer`` is ``right`` by DAPO's rule.

    The answer is what follows the last ``Answer:`` in the last :data:`READ` characters, up to the end of the line; a
    label that is farther from the end makes it wrong. Without any label the text counts as if it followed one, since a
    call of the tool ``answer`` says the same. A ``\boxed{…}`` is no label.

    Args:
        right: The right answer.
        answer: What was answered: any text.
    """
    text = answer if _LABELLED.search(answer) else f"Answer: {answer}"
    answers = _LABEL.findall(text[-READ:])
    return bool(answers) and normalise_answer(answers[-1]) == normalise_answer(right)


def normalise_answer(text: str) -> str:
    """Returns a short answer as the rule compares it."""
    text = text.rpartition("=")[2]
    for before, after in _REPLACED:
        text = text.replace(before, after)
    for fragment in (*_WORDS, *_NOTATION):
        text = text.replace(fragment, "")
    text = "\n".join(map(_between_dollars, text.split("\n")))
    for dress in _DRESS:
        text = dress.sub(r"\1", text)
    text = _BOX.sub(r"\1", text)
    text = re.sub(r"frac([^{])(.)", r"frac{\1}{\2}", text)
    text = re.sub(r"sqrt([^{])", r"sqrt{\1}", text).replace("$", "")
    return (text.replace(",", "") if text.replace(",", "").isdigit() else text).strip()


def _between_dollars(line: str) -> str:
    """Returns the first two dollars of a line that has two, and what is between them."""
    parts = line.split("$", 2)
    return f"${parts[1]}$" if len(parts) == 3 else line
