"""Finds words as Lucene 9's ``StandardTokenizer`` does.

Its rules are those of UAX #29 (word boundaries) at Unicode 12.1, with differences that matter for a search: a word must
have a letter or a digit; an ideograph or a hiragana is a word of its own; a run of Thai, Lao, Khmer or Burmese is one;
emoji, flags, key caps and symbols such as ★ ® are words (UTS #51); no word is longer than 255 UTF-16 units. The rules
are regular expressions over the classes of characters; at each place the longest match is the word.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

import orjson

LONGEST = 255
"""UTF-16 units of the longest word; a longer one is split there, and the rest is scanned as a new start."""

# ASCII text of up to LONGEST characters needs no table.
_ASCII_WORD = re.compile(r"_*[A-Za-z0-9](?:_*[A-Za-z0-9]|(?<=[A-Za-z])[.:'][A-Za-z]|(?<=[0-9])[.,;'][0-9])*_*")


@dataclass(frozen=True)
class Properties:
    """Classes of code points."""

    names: tuple[frozenset[str], ...]
    """Properties of each class."""
    of: bytes
    """Class of each code point."""
    lower: dict[int, int]
    """Java's lower case of the code points that have one."""


@functools.cache
def properties() -> Properties:
    """Reads the table that ``tools/unicode_tables.py`` generated."""
    table = orjson.loads((resources.files("envsuite.retrieval") / "unicode_12_1.json").read_bytes())
    of = bytearray(0x110000)
    starts = [(int(start, 16), int(number)) for start, number in (run.split() for run in table["runs"])]
    for (start, number), (end, _) in zip(starts, [*starts[1:], (len(of), 0)], strict=True):
        of[start:end] = bytes([number]) * (end - start)
    lower = {c: c + by for first, last, step, by in table["lower"] for c in range(first, last + 1, step)}
    return Properties(tuple(map(frozenset, table["classes"])), bytes(of), lower)


def words(text: str) -> list[str]:
    """Returns the words of ``text`` in order, as written."""
    if text.isascii() and len(text) <= LONGEST:
        return _ASCII_WORD.findall(text)
    return [text[start:end] for start, end in _spans(text)]


def _spans(text: str) -> Iterator[tuple[int, int]]:
    rules, between = _patterns()
    classes = text.translate(properties().of)
    wide = not text.isascii() and max(text) > "\uffff"
    start = 0
    while start < len(text):
        limit = _limit(text, start) if wide else start + LONGEST
        match = rules.match(classes, start, limit)
        end = max(map(match.end, range(1, rules.groups + 1))) if match else -1
        if end > start:
            yield start, end
            start = end
        else:  # in a long run of connectors a word may begin only where its window ends beyond the run
            start = max(start + 1, between.match(classes, start).end() - LONGEST)  # type: ignore[union-attr]


def _limit(text: str, start: int) -> int:
    """Returns the last possible end of a word that begins at ``start``."""
    units, at = 0, start
    while at < len(text):
        units += 1 + (text[at] > "\uffff")
        if units > LONGEST:
            break
        at += 1
    return at


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Returns a pattern with a group for each kind of word, and one of classes that may precede a word but are none.

    Both match texts of characters whose code points are classes.
    """
    names = properties().names

    def one_of(*numbers: int) -> str:
        return f"[{re.escape(''.join(map(chr, numbers)))}]"

    def having(name: str, *without: str) -> str:
        return one_of(*(i for i, own in enumerate(names) if name in own and own.isdisjoint(without)))

    def cluster(name: str) -> str:
        """Returns a character of a class with the characters that extend it."""
        return f"{having(name)}{having('extend')}*+"

    letter, hebrew, digit, connector = map(cluster, ("letter", "hebrew", "digit", "connector"))
    hebrew_quote = f"{hebrew}(?:{cluster('single_quote')}|{cluster('double_quote')}{hebrew})"
    digits, letters = f"{digit}(?:{cluster('mid_digit')}{digit})*", f"{letter}(?:{cluster('mid_letter')}{letter})*"
    unit = f"(?:(?:{cluster('katakana')})+|(?:{hebrew_quote}|{digits}|{letters})+)"
    word = f"(?:{connector})*+{unit}(?:(?:{connector})++{unit})*(?:{connector})*+"

    # A presentation selector ends an emoji, so it is excluded from the characters that extend one.
    plain, joiner, presentation = having("extend", "presentation"), having("joiner"), having("emoji_presentation")
    parts = {"flag", "keycap_base", "modifier"}
    emoji = one_of(*(i for i, own in enumerate(names) if "pictograph" in own or ("emoji" in own and not own & parts)))
    skin_tone = f"{having('modifier')}{plain}*"
    picture = f"(?:{joiner}*{emoji}|{skin_tone}(?<={joiner}){emoji})(?:{plain}|(?<={joiner}){emoji})*"
    sequence = f"(?:{picture}{presentation}{joiner})*(?:{picture}{presentation}?|{skin_tone})"
    subdivision_flag = f"{joiner}*{emoji}{plain}*{presentation}{having('tag')}+{having('tag_end')}"
    keycap = f"{having('keycap_base')}{plain}*{presentation}?{having('keycap')}{plain}*"
    flag = cluster("flag") * 2

    single = f"{cluster('ideograph')}|{cluster('hiragana')}|(?:{cluster('complex')})+"
    kinds = (word, sequence, subdivision_flag, keycap, flag, single)
    idle = (i for i, own in enumerate(names) if own in ({"connector"}, {"extend"}, {"extend", "joiner"}))
    return re.compile("".join(f"(?:(?=({kind}))|)" for kind in kinds)), re.compile(f"{one_of(*idle)}*")
