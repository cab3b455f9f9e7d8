"""The interface of a codec, and the result of parsing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from envsuite.core.tools import Action, Tool


@dataclass(frozen=True)
class Parsed:
    """The result of parsing: an action, or the reason why there is none. Exactly one of the two is ``None``."""

    action: Action | None
    error: str | None


class Codec(ABC):
    """A format of actions: instructions for the model, and a parser of its completions.

    Everything before the first ``</think>`` of a completion is thought and is never parsed as an action. After it, the
    parser skips bodies that are not well-formed; it neither guesses nor lower-cases nor truncates. The environment
    checks whether the tool exists and its arguments fit, and answers with text that the agent can learn from.
    """

    name: ClassVar[str]

    @abstractmethod
    def system(self, tools: Sequence[Tool], max_calls: int, *, listed: bool = False) -> str:
        """Returns instructions for the system message: the tools, and the format of an action.

        Args:
            tools: The tools of the environment.
            max_calls: Maximum number of calls in one step.
            listed: Whether the chat template lists the tools itself.
        """

    @abstractmethod
    def parse(self, completion: str, tools: Sequence[Tool], max_calls: int) -> Parsed:
        """Parses ``completion``. Never raises, whatever the string, and takes time linear in its length."""

    @abstractmethod
    def write(self, action: Action, thought: str = "", tools: Sequence[Tool] | None = None) -> str:
        """Formats ``action`` as an agent writes it; the inverse of :meth:`parse`.

        Args:
            action: The calls.
            thought: The thought before the action.
            tools: The tools of the environment. Without them, a call whose only argument is ``command`` counts as a
                call of the one command tool.

        Raises:
            UsageError: ``thought`` contains ``</think>``, or ``action`` cannot be written as JSON.
        """

    @abstractmethod
    def show(self, action: Action) -> str:
        """Formats ``action`` briefly, for a history."""

    def chat_tools(self, tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
        """Returns the tools for the chat template; ``None`` if the codec describes them itself."""
        return None
