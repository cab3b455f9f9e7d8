"""How the prompts of an environment's episodes are written, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from envsuite.core.errors import UsageError
from envsuite.prompting.codecs.base import Codec
from envsuite.prompting.memory import Memory, Window
from envsuite.prompting.prompt_file import PromptFile


@dataclass(frozen=True)
class PromptSpec:
    """How the prompts of episodes are written: as token ids (``Conversation``) or as messages (``Chat``).

    Raises:
        UsageError: The memory does not go with a prompt file.
    """

    codec: Codec
    """The format of actions."""
    memory: Memory
    """The part of the history in a prompt."""
    instructions: bool = True
    """Begin with the codec's instructions; ``False`` for a model that was trained on the format."""
    commands: bool = True
    """Show the admissible commands with each observation that is not history."""
    prompt_file: PromptFile | None = None
    """Renders the user message of each step, in which the codec's instructions are a variable; there is no other
    message then, and the memory is a window."""
    examples: str = ""
    """Text of demonstrations, below the instructions; in a prompt file a variable."""
    max_tokens: int | None = None
    """Maximum number of tokens of a prompt; ``None`` for no limit. An endpoint counts for itself."""
    truncate: Literal["episode", "left"] = "episode"
    """Where a prompt is longer: ``"episode"`` raises ``PromptTooLong``, ``"left"`` leaves out its first tokens, the
    beginning of the chat template included."""
    template_arguments: Mapping[str, Any] | None = None
    """Arguments of the chat template, such as ``enable_thinking``; ``None``: the codec's."""

    def __post_init__(self) -> None:
        if self.prompt_file is not None and not isinstance(self.memory, Window):
            raise UsageError(
                f"prompt file {self.prompt_file.name}: it is rendered anew at each step, but the memory is "
                f"{self.memory}, whose prompts are continued; take window(K) or summary(K)"
            )
