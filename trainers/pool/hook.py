"""A function of the user's that sees each text before it is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from envsuite.core.errors import UsageError
from envsuite.core.functions import function_in
from envsuite.core.tools import ToolCall
from trainers.steps import Step

Hook = Callable[[Any], Any]
"""Returns JSON with each text in it replaced; keys stay."""
_TEXTS = ("observation", "state_key", "parse_error", "prompt_text", "response_text", "info")


def load_hook(name: str) -> Hook:
    """Loads a function from a text to the one that is stored in its place, ``None`` for none.

    It returns equal texts for equal ones. Where it fails, the error names it, and nothing is stored.

    Args:
        name: ``file.py:function``.

    Raises:
        UsageError: There is no such file or function, or the file raises an error.
    """
    try:
        function = function_in(name)
    except UsageError as error:
        raise UsageError(f"hook: {error}") from error

    def over(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: over(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [*map(over, value)]
        if not isinstance(value, str):
            return value
        try:
            made = function(value)
            if not isinstance(made, str | None):
                raise TypeError(f"it returned {type(made).__name__}, and has to return a text, or None to drop it")
        except Exception as error:
            raise UsageError(f"hook {name}: {type(error).__name__}: {error}; nothing was stored") from error
        return made or ""

    return over


def rewritten(step: Step, hook: Hook) -> Step:
    """Returns a step with its texts replaced, those of its calls too."""
    texts = {name: hook(vars(step)[name]) for name in _TEXTS}
    if step.action is not None:
        texts["action"] = tuple(ToolCall(one.name, hook(one.arguments)) for one in step.action)
    return replace(step, **texts)
