"""Plan and execute: an answer that says whether the subgoal changes, which it is now, and how it is pursued.

``<switch>KEEP</switch><subgoal>…</subgoal><action>…</action>``, after the thought. An answer without the first two is
one that keeps its subgoal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from envsuite.prompting.text import THOUGHT_END

BLOCKS = ("switch", "subgoal", "action")
"""The blocks of an answer, in their order."""
KEEP = "KEEP"
FORM = "<switch>KEEP or SWITCH</switch><subgoal>your subgoal</subgoal>"
REQUEST = (
    "Pursue one subgoal at a time. In <switch> write SWITCH where you choose a new subgoal, as in the first step, and "
    "KEEP where you go on with the last one; in <subgoal> write the subgoal, word for word the last one if you keep it."
)


@dataclass(frozen=True)
class PromptPlan:
    """The blocks of an answer."""

    spans: Mapping[str, tuple[int, int]]
    """Where each block that is there begins and ends in the answer, in characters, its tags included."""
    switch: bool
    """Whether the answer has a switch block with anything but KEEP (in any case, blanks around it aside) or nothing."""
    subgoal: str | None
    """Text of the subgoal block without blanks around it; ``None`` where there is none."""


def read_plan(answer: str, lowercase: bool = False) -> PromptPlan:
    """Finds the blocks of ``answer``. Never raises, and takes time linear in its length.

    Each block is the first of its name that is closed, after the thought and after the block before it.

    Args:
        answer: The completion, thought included.
        lowercase: Whether tags are found in any case.
    """
    flags = re.IGNORECASE if lowercase else re.NOFLAG
    thought = re.compile(re.escape(THOUGHT_END), flags).search(answer)
    position, spans, inner = 0 if thought is None else thought.end(), {}, {}
    for name in BLOCKS:
        opening = re.compile(f"<{name}>", flags).search(answer, position)
        closing = None if opening is None else re.compile(f"</{name}>", flags).search(answer, opening.end())
        if opening is not None and closing is not None:
            spans[name] = (opening.start(), closing.end())
            inner[name] = answer[opening.end() : closing.start()].strip()
            position = closing.end()
    return PromptPlan(spans, inner.get("switch", "").upper() not in ("", KEEP), inner.get("subgoal"))
