"""Codecs: the formats in which an agent writes actions, with their parsers."""

from __future__ import annotations

import inspect
from typing import Any

from envsuite.core.errors import unknown
from envsuite.prompting.codecs.base import Codec
from envsuite.prompting.codecs.native import NativeCodec
from envsuite.prompting.codecs.search import SearchR1Codec
from envsuite.prompting.codecs.tags import BracketsCodec, TagsCodec
from envsuite.prompting.codecs.tools import ToolsCodec

CODECS: dict[str, type[Codec]] = {
    codec.name: codec for codec in (TagsCodec, BracketsCodec, ToolsCodec, SearchR1Codec, NativeCodec)
}


def make_codec(name: str, **options: Any) -> Codec:
    """Makes the codec called ``name``.

    Raises:
        UnknownName: The codec does not exist, or does not have an option.
        UsageError: The tokenizer's chat template does not go with the codec.
    """
    if name not in CODECS:
        raise unknown("codec", name, CODECS)
    names = list(inspect.signature(CODECS[name]).parameters)
    for option in options:
        if option not in names:
            raise unknown(f"option of codec {name}", option, names)
    return CODECS[name](**options)
