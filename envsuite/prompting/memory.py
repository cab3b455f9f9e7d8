"""Memories: the part of the history that a prompt shows."""

from __future__ import annotations

import re
from dataclasses import dataclass

from envsuite.core.errors import UsageError, nearest


@dataclass(frozen=True)
class Window:
    """The last ``k`` observation-action pairs, in one user message that is rendered anew at each step.

    With ``block`` above 1 the oldest pairs are left out ``block`` at a time, so that successive prompts begin with the
    same history: of ``block`` steps, all but one extend the history of the step before.
    """

    k: int = 2
    """Fewest pairs shown, once there are as many."""
    block: int = 1
    """Number of pairs that are left out at once: the history has ``k`` to ``k + block - 1`` pairs."""

    def __post_init__(self) -> None:
        if self.k < 0:
            raise UsageError(f"{self}: the number of pairs must be 0 or more")
        if self.block < 1:
            raise UsageError(f"{self}: the number of pairs that are left out at once must be 1 or more")

    def __str__(self) -> str:
        """Returns the description that :func:`make_memory` reads."""
        return f"window({self._numbers})"

    @property
    def shares(self) -> bool:
        """Whether the message is written so that successive prompts have their beginning in common."""
        return self.block > 1

    def first(self, steps: int) -> int:
        """Returns the index of the oldest pair that is shown after ``steps`` steps."""
        return max(0, steps - self.k) // self.block * self.block

    @property
    def _numbers(self) -> str:
        return f"{self.k},{self.block}" if self.block != 1 else str(self.k)


@dataclass(frozen=True)
class Summary(Window):
    """The policy's own summary of all steps so far, and the last ``k`` observation-action pairs.

    The policy writes it in its answers, as ``<summary>…</summary>`` after the thought, so that it is sampled and
    trained like the rest of an answer. An answer without one keeps the last one.
    """

    def __str__(self) -> str:
        """Returns the description that :func:`make_memory` reads."""
        return f"summary({self._numbers})"

    @property
    def request(self) -> str:
        """The text that asks for a summary."""
        steps = {0: "", 1: ", the last step"}.get(self.k, f", the last {self.k} steps")
        if self.shares:
            steps = f", the last {self.k} to {self.k + self.block - 1} steps"
        return (
            "Before the action, write <summary>all that you will still need to know</summary>. Your next prompt shows "
            f"this summary{steps} and nothing older."
        )

    def update(self, summary: str, response: str) -> str:
        """Returns the summary after ``response``: the last one in it that is complete, else ``summary``."""
        _, thought, answer = response.partition("</think>")
        before, end, _ = (answer if thought else response).rpartition("</summary>")
        _, start, text = before.rpartition("<summary>")
        return text.strip() if start and end else summary


@dataclass(frozen=True)
class FullMemory:
    """The whole episode as a growing conversation: each prompt starts with the previous one."""

    def __str__(self) -> str:
        """Returns the description that :func:`make_memory` reads."""
        return "full"


@dataclass(frozen=True)
class CompactMemory:
    """Like :class:`FullMemory` until a prompt would exceed ``budget`` tokens; then the oldest half is left out."""

    budget: int = 1024
    """Maximum number of tokens in a prompt."""

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise UsageError(f"compact({self.budget}): the budget must be 1 token or more")

    def __str__(self) -> str:
        """Returns the description that :func:`make_memory` reads."""
        return f"compact({self.budget})"


@dataclass(frozen=True)
class RenderedMemory:
    """The whole episode, rendered anew by the chat template at each step, which may leave out earlier thoughts."""

    def __str__(self) -> str:
        """Returns the description that :func:`make_memory` reads."""
        return "rendered"


Memory = Window | FullMemory | CompactMemory | RenderedMemory

_FORMS = (
    'known: "window(K)" (the last K pairs), "window(K,B)" (the oldest B are left out at once), "summary(K)" and '
    '"summary(K,B)" (and the policy\'s own), "full", "compact(TOKENS)", "rendered"'
)
_SPEC = re.compile(r"([a-z]+)(?:\((-?[0-9]{1,9})(?:\s*,\s*(-?[0-9]{1,9}))?\))?")
_WINDOWS = {"window": Window, "summary": Summary}


def make_memory(spec: str) -> Memory:
    """Makes a memory from its description, such as ``"window(2)"``, ``"window(2,4)"``, ``"full"``, ``"compact(1024)"``.

    Raises:
        UsageError: ``spec`` is not a valid description.
    """
    match = _SPEC.fullmatch(spec.strip())
    name, *digits = match.groups() if match else (spec,)
    numbers = [int(number) for number in digits if number is not None]
    if name == "full" and not numbers:
        return FullMemory()
    if name == "rendered" and not numbers:
        return RenderedMemory()
    if name in _WINDOWS and numbers:
        return _WINDOWS[name](*numbers)
    if name == "compact" and len(numbers) == 1:
        return CompactMemory(*numbers)
    near = nearest(name, ("window", "summary", "full", "compact", "rendered"), limit=1)
    form = {"window": "window(2)", "summary": "summary(2)", "compact": "compact(1024)"}
    hint = f" Did you mean {form.get(near[0], near[0])!r}?" if near else ""
    raise UsageError(f"unknown memory {spec!r}.{hint} {_FORMS[0].upper()}{_FORMS[1:]}")
