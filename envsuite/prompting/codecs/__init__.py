"""Codecs: the formats in which an agent writes actions, with their parsers."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from envsuite.core.errors import unknown
from envsuite.prompting.codecs.base import Codec, Parsed
from envsuite.prompting.codecs.tags import BracketsCodec, TagsCodec
from envsuite.prompting.codecs.tools import ToolsCodec

__all__ = ["CODECS", "BracketsCodec", "Codec", "Parsed", "TagsCodec", "ToolsCodec", "make_codec"]

CODECS: dict[str, type[Codec]] = {codec.name: codec for codec in (TagsCodec, BracketsCodec, ToolsCodec)}


def make_codec(name: str, **options: Any) -> Codec:
    """Makes the codec called ``name``.

    Raises:
        UnknownName: The codec does not exist, or does not have an option.
    """
    if name not in CODECS:
        raise unknown("codec", name, CODECS)
    known = [field.name for field in fields(CODECS[name])]  # type: ignore[arg-type]
    for option in options:
        if option not in known:
            raise unknown(f"option of codec {name}", option, known)
    return CODECS[name](**options)
