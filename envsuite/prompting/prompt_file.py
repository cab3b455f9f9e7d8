"""Prompt files: the user message of a step, written as a Jinja template of its own.

Not to be confused with a model's chat template (:mod:`envsuite.prompting.template`), which wraps that message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from envsuite.core.errors import MissingExtra, UsageError, nearest
from envsuite.core.tools import Tool
from envsuite.prompting.shipped import read_template

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.sandbox import ImmutableSandboxedEnvironment

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
    "examples": "demonstrations, as text; empty where there are none",
}
"""The variables of a prompt file, each with its meaning."""

LARGEST_PROMPT = 1_000_000
"""Maximum number of characters of a rendered prompt."""
FOLDER = "templates"
"""Folder of the prompt files of this package."""


@dataclass(frozen=True)
class PastStep:
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
    history: Sequence[PastStep]
    current_step: int
    """Number of the step, from 1."""
    tools: Sequence[Tool]
    max_calls: int
    instructions: str
    summary: str = ""
    examples: str = ""

    def variables(self) -> dict[str, Any]:
        """Returns the value of each of :data:`VARIABLES`, as strings, numbers, lists and dictionaries."""
        return {
            **vars(self),
            "commands": list(self.commands),
            "history": [vars(step) for step in self.history],
            "step_count": self.current_step - 1,
            "tools": [dict(tool.as_openai()["function"]) for tool in self.tools],
        }


class PromptFile:
    """A user message as a Jinja template, rendered anew at each step.

    Values appear as they are, whatever they contain: braces, ``{{``, ``{%``, control characters. Templates run in
    Jinja's immutable sandbox, as chat templates do in transformers: they reach neither files nor Python's internals.

    Attributes:
        variables: Names of the variables that the template uses.

    Args:
        source: The template.
        name: The file, for messages.

    Raises:
        UsageError: The template is not valid, or an episode's first or later step cannot be rendered with it; the
            message names file and line, and the variables that exist.
        MissingExtra: Jinja is not installed.
    """

    def __init__(self, source: str, name: str) -> None:
        self.source = source
        self.name = name
        self._template, self.variables = _compile_file(source, name)
        for which, history in (("first step, which has no history", ()), ("later step", _SAMPLE_HISTORY)):
            try:
                self.render(_sample(history))
            except UsageError as error:
                raise UsageError(f"{error}. Tried with an episode's {which}") from error

    def render(self, situation: Situation) -> str:
        """Returns the user message.

        Raises:
            UsageError: A value that the template names does not exist in this step, or the prompt is too large; the
                message names file and line.
        """
        from jinja2 import TemplateError

        parts: list[str] = []
        length = 0
        try:
            for part in self._template.generate(situation.variables()):
                parts.append(part)
                if (length := length + len(part)) > LARGEST_PROMPT:
                    raise _file_error(self.name, None, f"the prompt has more than {LARGEST_PROMPT} characters")
        except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise _file_error(self.name, _line(error, self.name), str(error)) from error
        return "".join(parts)


def load_prompt_file(name: str) -> PromptFile:
    """Loads and checks a prompt file.

    Args:
        name: The path of a file, or the name of one of this package.

    Raises:
        DataError: The file is missing, cannot be read or is not UTF-8.
        UsageError, MissingExtra: As :class:`PromptFile`.
    """
    return PromptFile(read_template(name, FOLDER, "prompt file"), name)


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    try:
        from jinja2 import StrictUndefined
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise MissingExtra("prompt files need Jinja; install it with: pip install jinja2") from error
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = _tojson
    return environment


def _tojson(value: Any, indent: int | None = None) -> str:
    """Replaces Jinja's filter, which escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _compile_file(source: str, name: str) -> tuple[Template, frozenset[str]]:
    """Compiles a prompt file; returns it with the names of the variables that it uses."""
    environment = _environment()
    from jinja2 import Template, TemplateError, nodes
    from jinja2.meta import find_undeclared_variables

    try:
        tree = environment.parse(source, name, name)
        used = frozenset(find_undeclared_variables(tree)) - set(environment.globals)
        for variable in tree.find_all(nodes.Name):
            if variable.name in used - set(VARIABLES):
                near = nearest(variable.name, tuple(VARIABLES), limit=1)
                hint = f". Nearest: {near[0]!r}" if near else ""
                raise _file_error(name, variable.lineno, f"unknown variable {variable.name!r}{hint}")
        code = environment.compile(tree, name, name)
        return Template.from_code(environment, code, environment.make_globals(None)), used
    except TemplateError as error:
        raise _file_error(name, getattr(error, "lineno", None), str(error.message)) from error
    except (RecursionError, SyntaxError, ValueError) as error:  # nested too deeply, or a number of thousands of digits
        raise _file_error(name, None, f"{type(error).__name__}: {error}") from error


def _file_error(name: str, line: int | None, problem: str) -> UsageError:
    where = name if line is None else f"{name}, line {line}"
    return UsageError(f"prompt file {where}: {problem.rstrip('.')}. Variables: {', '.join(VARIABLES)}")


def _line(error: BaseException, name: str) -> int | None:
    """Returns the line of the file at which ``error`` was raised."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == name:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


_SAMPLE_TOOLS = tuple(
    Tool(f"tool_{n}", "A tool.", {"type": "object", "properties": {"command": {"type": "string"}}}) for n in range(16)
)
_SAMPLE_HISTORY = tuple(PastStep(n, "A room.", "look") for n in range(1, 17))


def _sample(history: Sequence[PastStep]) -> Situation:
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
        examples="Example 1",
    )
