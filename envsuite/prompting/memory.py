"""Memories: the part of the history that a prompt shows."""

from __future__ import annotations

import re
from dataclasses import dataclass

from envsuite.core.errors import UsageError, nearest


@dataclass(frozen=True)
class Window:
    """The last ``k`` observation-action pairs, in one user message that is rendered anew at each step."""

    k: int = 2

    def __post_init__(self) -> None:
        if self.k < 0:
            raise UsageError(f"{self}: the number of pairs must be 0 or more")

    def __str__(self) -> str:
        """Returns the description that :func:`make_memory` reads."""
        return f"window({self.k})"


@dataclass(frozen=True)
class Summary(Window):
    """The policy's own summary of all steps so far, and the last ``k`` observation-action pairs.

    The policy writes it in its answers, as ``<summary>…</summary>`` after the thought, so that it is sampled and
    trained like the rest of an answer. An answer without one keeps the last one.
    """

    def __str__(self) -> str:
        """Returns the description that :func:`make_memory` reads."""
        return f"summary({self.k})"

    @property
    def request(self) -> str:
        """The text that asks for a summary."""
        kept = {0: "", 1: ", the last step"}.get(self.k, f", the last {self.k} steps")
        return (
            "Before the action, write <summary>all that you will still need to know</summary>. Your next prompt shows "
            f"this summary{kept} and nothing older."
        )

    def updated(self, summary: str, response: str) -> str:
        """Returns the summary after ``response``: the last one in it that is complete, else ``summary``."""
        _, thought, answer = response.partition("</think>")
        before, end, _ = (answer if thought else response).rpartition("</summary>")
        _, start, text = before.rpartition("<summary>")
        return text.strip() if start and end else summary


@dataclass(frozen=True)
class Full:
    """The whole episode as a growing conversation: each prompt starts with the previous one."""

    def __str__(self) -> str:
        """Returns the description that :func:`make_memory` reads."""
        return "full"


@dataclass(frozen=True)
class Compact:
    """Like :class:`Full` until a prompt would exceed ``budget`` tokens; then the oldest half is left out."""

    budget: int = 1024
    """Maximum number of tokens in a prompt."""

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise UsageError(f"compact({self.budget}): the budget must be 1 token or more")

    def __str__(self) -> str:
        """Returns the description that :func:`make_memory` reads."""
        return f"compact({self.budget})"


@dataclass(frozen=True)
class Rendered:
    """The whole episode, rendered anew by the chat template at each step, which may leave out earlier thoughts."""

    def __str__(self) -> str:
        """Returns the description that :func:`make_memory` reads."""
        return "rendered"


Memory = Window | Full | Compact | Rendered

_FORMS = (
    'known: "window(K)" (the last K pairs), "summary(K)" (and the policy\'s own), "full", "compact(TOKENS)", "rendered"'
)
_SPEC = re.compile(r"([a-z]+)(?:\((-?[0-9]{1,9})\))?")


def make_memory(spec: str) -> Memory:
    """Makes a memory from its description: ``"window(2)"``, ``"summary(2)"``, ``"full"``, ``"compact(1024)"``.

    Raises:
        UsageError: ``spec`` is not a valid description.
    """
    match = _SPEC.fullmatch(spec.strip())
    name, number = match.groups() if match else (spec, None)
    if name == "full" and number is None:
        return Full()
    if name == "rendered" and number is None:
        return Rendered()
    if name == "window" and number is not None:
        return Window(int(number))
    if name == "summary" and number is not None:
        return Summary(int(number))
    if name == "compact" and number is not None:
        return Compact(int(number))
    near = nearest(name, ("window", "summary", "full", "compact", "rendered"), limit=1)
    form = {"window": "window(2)", "summary": "summary(2)", "compact": "compact(1024)"}
    hint = f" Did you mean {form.get(near[0], near[0])!r}?" if near else ""
    raise UsageError(f"unknown memory {spec!r}.{hint} {_FORMS[0].upper()}{_FORMS[1:]}")
