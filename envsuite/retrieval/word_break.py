"""Finds words as Lucene 9's ``StandardTokenizer`` does.

Its rules are those of UAX #29 (word boundaries) at Unicode 12.1, with differences that matter for a search: a word must
have a letter or a digit; an ideograph or a hiragana is a word of its own; a run of Thai, Lao, Khmer or Burmese is one;
emoji, flags, key caps and symbols such as ★ ® are words (UTS #51); no word is longer than 255 UTF-16 units. The rules
form a regular language, compiled here to a table of states; at each place the longest match is the word.
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
    machine = _machine()
    of = properties().of
    classes = bytes([of[ord(character)] for character in text])
    wide = not text.isascii() and max(text) > "\uffff"
    start, length = 0, len(text)
    while start < length:
        limit = _limit(text, start) if wide else min(length, start + LONGEST)
        state, at, end = 0, start, 0
        while at < limit:
            state = machine.next[state][classes[at]]
            if state < 0:
                break
            at += 1
            if machine.accepts[state]:
                end = at
        if end:
            yield start, end
            start = end
            continue
        start += 1
        if at == limit:
            # A possible beginning of a word fills the window. In a long run of connectors that happens at every place,
            # until a window ends beyond the run.
            run = machine.idle.match(classes, start)
            start = max(start, run.end() - LONGEST) if run else start


def _limit(text: str, start: int) -> int:
    """Returns the last possible end of a word that begins at ``start``."""
    units, at = 0, start
    while at < len(text):
        units += 1 + (text[at] > "\uffff")
        if units > LONGEST:
            break
        at += 1
    return at


@dataclass(frozen=True)
class WordBreakMachine:
    """A deterministic automaton that begins in state 0."""

    next: list[list[int]]
    """(state, class) -> state; -1 where no word continues."""
    accepts: list[bool]
    """Whether a word may end in each state."""
    idle: re.Pattern[bytes]
    """Matches runs of classes that may precede a word but are never part of one."""


# The grammar is a tree: a set of classes, or an operator with its parts.
_Tree = frozenset[int] | tuple[object, ...]


def _then(*parts: _Tree) -> _Tree:
    return ("then", *parts)


def _either(*parts: _Tree) -> _Tree:
    return ("either", *parts)


def _many(part: _Tree) -> _Tree:
    return ("many", part)


def _some(part: _Tree) -> _Tree:
    return _then(part, _many(part))


def _maybe(part: _Tree) -> _Tree:
    return _either(part, _then())


def _grammar(class_names: tuple[frozenset[str], ...]) -> _Tree:
    """Returns the grammar of words."""

    def having(name: str, *without: str) -> frozenset[int]:
        return frozenset(i for i, names in enumerate(class_names) if name in names and not names & set(without))

    extend = _many(having("extend"))

    def cluster(name: str) -> _Tree:
        """Returns a character of a class with the characters that extend it."""
        return _then(having(name), extend)

    letter, hebrew, digit, katakana = map(cluster, ("letter", "hebrew", "digit", "katakana"))
    connectors = _many(cluster("connector"))
    digits = _then(digit, _many(_then(_either(connectors, cluster("mid_digit")), digit)))
    letters = _then(letter, _many(_then(_either(connectors, cluster("mid_letter")), letter)))
    hebrew_letters = _then(hebrew, _either(cluster("single_quote"), _then(cluster("double_quote"), hebrew)))
    kana = _then(katakana, _many(_then(connectors, katakana)))
    unit = _either(kana, _some(_either(hebrew_letters, digits, letters)))
    tail = _many(_then(cluster("connector"), connectors, unit))
    word = _then(connectors, unit, tail, connectors)

    # A presentation selector ends an emoji, so it is excluded from the characters that extend one.
    plain = _many(having("extend", "presentation"))
    emoji = having("pictograph") | having("emoji", "flag", "keycap_base", "modifier")
    joiners = _many(having("joiner"))
    pictogram = _then(joiners, emoji, plain, _maybe(having("emoji_presentation")))
    skin_tone = _then(_maybe(_then(joiners, having("modifier_base"), plain)), having("modifier"), plain)
    element = _either(pictogram, skin_tone)
    tags = _then(_some(having("tag")), having("tag_end"))
    sequence = _then(element, _either(_many(_then(having("joiner"), element)), tags))
    keycap = _then(having("keycap_base"), plain, _maybe(having("emoji_presentation")), having("keycap"), plain)
    flag = _then(cluster("flag"), cluster("flag"))

    single = _either(cluster("ideograph"), cluster("hiragana"), _some(cluster("complex")))
    return _either(word, sequence, keycap, flag, single)


@functools.cache
def _machine() -> WordBreakMachine:
    class_names = properties().names
    moves: list[list[tuple[frozenset[int], int]]] = []
    empty: list[list[int]] = []

    def node() -> int:
        moves.append([])
        empty.append([])
        return len(moves) - 1

    def build(tree: _Tree, start: int) -> int:
        """Adds the paths of ``tree`` from ``start``; returns the node where they end."""
        if isinstance(tree, frozenset):
            end = node()
            moves[start].append((tree, end))
            return end
        operator, *parts = tree
        if operator == "then":
            for part in parts:
                start = build(part, start)  # type: ignore[arg-type]
            return start
        if operator == "many":
            loop = node()
            empty[start].append(loop)
            empty[build(parts[0], loop)].append(loop)  # type: ignore[arg-type]
            return loop
        end = node()
        for part in parts:
            branch = node()
            empty[start].append(branch)
            empty[build(part, branch)].append(end)  # type: ignore[arg-type]
        return end

    def closure(nodes: set[int]) -> frozenset[int]:
        pending = list(nodes)
        while pending:
            for target in empty[pending.pop()]:
                if target not in nodes:
                    nodes.add(target)
                    pending.append(target)
        return frozenset(nodes)

    start = node()
    final = build(_grammar(class_names), start)
    states = {closure({start}): 0}
    table: list[list[int]] = []
    queue = list(states)
    for nodes in queue:
        row = []
        for number in range(len(class_names)):
            next_nodes = closure({target for n in nodes for classes, target in moves[n] if number in classes})
            if next_nodes and next_nodes not in states:
                states[next_nodes] = len(states)
                queue.append(next_nodes)
            row.append(states[next_nodes] if next_nodes else -1)
        table.append(row)
    idle = bytes(i for i, names in enumerate(class_names) if names in ({"connector"}, {"extend"}, {"extend", "joiner"}))
    return WordBreakMachine(table, [final in nodes for nodes in states], re.compile(b"[" + re.escape(idle) + b"]*"))
