"""What a message has to say."""

from __future__ import annotations


def lacks(text: str, told: str) -> list[str]:
    """The parts of ``told``, which stand between " … ", that are not in ``text``."""
    return [part for part in told.split(" … ") if part not in text]
