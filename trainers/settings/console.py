"""The console of the trainer's commands, on which texts of models and environments are escaped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from envsuite.core.escaping import escape_controls, raw


class EscapingConsole(Console):
    """Rich's console without markup, whose texts are escaped. Its colours and cursor go to the stream behind."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, **options)

    @property
    def file(self) -> IO[str]:
        """The stream that it writes to."""
        return raw(cast(Any, super().file))

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yields what is drawn, its texts escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escape_controls(segment.text), segment.style)
