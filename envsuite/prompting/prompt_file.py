"""Prompt files: the user message of a step, written as a Jinja template of its own.

Not to be confused with a model's chat template (:mod:`envsuite.prompting.template`), which wraps that message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsuite.core.errors import DataError, MissingExtra, UsageError, nearest
from envsuite.core.tools import Tool

if TYPE_CHECKING:
    from jinja2 import Template

VARIABLES: Mapping[str, str] = {
    "task": "the instruction of the episode",
    "observation": "what the world says now",
    "commands": "the admissible commands, a list; empty where the environment names none",
    "history": "the last k steps, oldest first, each with step (from 1), observation and action; k is the memory's",
    "summary": "the policy's own summary of the steps so far, with the memory summary(K); empty before its first one",
    "step_count": "how many steps were taken before this one",
    "current_step": "the number of this step, from 1",
    "tools": "the tools, each with name, description and parameters (JSON Schema)",
    "max_calls": "how many calls one step may have",
    "instructions": "the codec's instructions: tools and form of an answer; empty where they are switched off",
}
"""The variables of a prompt file, each with its meaning."""

LARGEST_FILE = 32_768
"""Maximum number of characters of a prompt file."""
_SUFFIX = ".jinja"


@dataclass(frozen=True)
class Past:
    """One step of the history."""

    step: int
    """Number of the step, from 1."""
    observation: str
    """The text that the action answers."""
    action: str
    """The action as the codec shows it; ``"none"`` for an answer that could not be parsed."""


@dataclass(frozen=True)
class Situation:
    """The values of a prompt file's variables at one step."""

    task: str
    observation: str
    commands: Sequence[str]
    history: Sequence[Past]
    current_step: int
    """Number of the step, from 1."""
    tools: Sequence[Tool]
    max_calls: int
    instructions: str
    summary: str = ""

    def variables(self) -> dict[str, Any]:
        """Returns the value of each of :data:`VARIABLES`, as strings, numbers, lists and dictionaries."""
        return {
            "task": self.task,
            "observation": self.observation,
            "commands": list(self.commands),
            "history": [vars(past) for past in self.history],
            "summary": self.summary,
            "step_count": self.current_step - 1,
            "current_step": self.current_step,
            "tools": [dict(tool.as_openai()["function"]) for tool in self.tools],
            "max_calls": self.max_calls,
            "instructions": self.instructions,
        }


class PromptFile:
    """A user message as a Jinja template, rendered anew at each step.

    Values appear as they are, whatever they contain: braces, ``{{``, ``{%``, control characters. The language is a
    part of Jinja's, in its immutable sandbox: variables, ``if``, ``for``, comments, ``raw``, the filters and tests
    listed in :mod:`envsuite.prompting.sandbox`. A file cannot call, define, import or include anything, and the work
    of one rendering is bounded.

    Attributes:
        variables: Names of the variables that the template uses.

    Args:
        source: The template.
        name: The file, for messages.

    Raises:
        UsageError: The template is too long or not valid, or an episode's first or later step cannot be rendered with
            it; the message names file and line, and the variables that exist.
        MissingExtra: Jinja is not installed.
    """

    def __init__(self, source: str, name: str) -> None:
        if len(source) > LARGEST_FILE:
            raise UsageError(f"prompt file {name}: {len(source)} characters; at most {LARGEST_FILE} are taken")
        self.source = source
        self.name = name
        self._template, self.variables = _compiled(source, name)
        for which, history in (("first step, which has no history", ()), ("later step", _SAMPLE_HISTORY)):
            try:
                self.render(_sample(history))
            except UsageError as error:
                raise UsageError(f"{error}. Tried with an episode's {which}") from error

    def render(self, situation: Situation) -> str:
        """Returns the user message.

        Raises:
            UsageError: A value that the template names does not exist in this step, or the rendering takes too long or
                is too large; the message names file and line.
        """
        from envsuite.prompting.sandbox import rendered

        return rendered(self._template, self.name, situation.variables())


def shipped() -> tuple[str, ...]:
    """Returns the names of the prompt files of this package."""
    folder = resources.files("envsuite.prompting") / "templates"
    return tuple(sorted(file.name.removesuffix(_SUFFIX) for file in folder.iterdir() if file.name.endswith(_SUFFIX)))


def load_prompt_file(name: str) -> PromptFile:
    """Loads and checks a prompt file.

    Args:
        name: The path of a file, or the name of one of :func:`shipped`.

    Raises:
        DataError: The file is missing, cannot be read or is not UTF-8.
        UsageError, MissingExtra: As :class:`PromptFile`.
    """
    if name in shipped():
        packaged = resources.files("envsuite.prompting") / "templates" / f"{name}{_SUFFIX}"
        return PromptFile(packaged.read_text(encoding="utf-8"), name)
    try:
        source = Path(name).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        near = nearest(name, shipped(), limit=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise DataError(
            f"prompt file {name}: no such file in {Path.cwd()}.{hint} Shipped are, by name: {', '.join(shipped())}"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(f"prompt file {name}: cannot be read as UTF-8 text ({error})") from error
    return PromptFile(source, name)


def _compiled(source: str, name: str) -> tuple[Template, frozenset[str]]:
    try:
        from envsuite.prompting.sandbox import compiled
    except ImportError as error:
        raise MissingExtra("prompt files need Jinja; install it with: pip install jinja2") from error
    return compiled(source, name, VARIABLES)


_SAMPLE_TOOLS = tuple(
    Tool(f"tool_{n}", "A tool.", {"type": "object", "properties": {"command": {"type": "string"}}}) for n in range(16)
)
_SAMPLE_HISTORY = tuple(Past(n, "A room.", "look") for n in range(1, 17))


def _sample(history: Sequence[Past]) -> Situation:
    """Returns a step of an episode with plenty of everything, which a valid file can render."""
    return Situation(
        task="Find the key.",
        observation="A room.",
        commands=[f"go {n}" for n in range(16)],
        history=history,
        current_step=len(history) + 1,
        tools=_SAMPLE_TOOLS,
        max_calls=1,
        instructions="Answer.",
        summary="The lamp is in room 3." if history else "",
    )
