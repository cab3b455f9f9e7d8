"""Write the table of Unicode 12.1 properties by which ``envsuite.retrieval`` finds words.

Needed only to make the table anew, in a virtual environment of its own, since it takes a release of ``regex`` that
speaks Unicode 12.1 (what Lucene 9 follows):

    python3.11 -m venv /tmp/unicode && /tmp/unicode/bin/pip install regex==2019.12.20
    /tmp/unicode/bin/python tools/unicode_tables.py

Every code point belongs to one class, the set of properties it has; the file lists the classes, then where in the
code points each run of a class begins. Lower case is Java's, one code point to one: ``unicodedata`` has the same
except for U+0130, whose full lower case has two.
"""

from __future__ import annotations

import itertools
import json
import sys
import unicodedata
from pathlib import Path

import regex

OUTPUT = Path(__file__).resolve().parents[1] / "envsuite/retrieval/unicode_12_1.json"
RELEASE = "2.5.72"
LAST = 0x10FFFF

PROPERTIES = {
    "letter": r"[\p{WB=ALetter}\p{WB=Hebrew_Letter}]",
    "hebrew": r"\p{WB=Hebrew_Letter}",
    "digit": r"\p{WB=Numeric}|(?=\p{Nd})[\p{Block=Halfwidth_and_Fullwidth_Forms}]",
    "katakana": r"\p{WB=Katakana}",
    "mid_letter": r"[\p{WB=MidLetter}\p{WB=MidNumLet}\p{WB=Single_Quote}]",
    "mid_digit": r"[\p{WB=MidNum}\p{WB=MidNumLet}\p{WB=Single_Quote}]",
    "single_quote": r"\p{WB=Single_Quote}",
    "double_quote": r"\p{WB=Double_Quote}",
    "connector": r"\p{WB=ExtendNumLet}",
    "extend": r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]",
    "joiner": r"\p{WB=ZWJ}",
    "presentation": r"[\uFE0E\uFE0F]",
    "emoji_presentation": r"\uFE0F",
    "flag": r"\p{WB=Regional_Indicator}",
    "ideograph": r"\p{Script=Han}",
    "hiragana": r"\p{Script=Hiragana}",
    "complex": r"\p{LB=Complex_Context}",
    "emoji": r"\p{Emoji}|\p{Extended_Pictographic}",
    "pictograph": r"\p{Extended_Pictographic}",
    "modifier_base": r"\p{Emoji_Modifier_Base}",
    "modifier": r"\p{Emoji_Modifier}",
    "keycap_base": r"[0-9#*]",
    "keycap": r"\u20E3",
    "tag": r"[\U000E0020-\U000E007E]",
    "tag_end": r"\U000E007F",
}


def class_runs() -> tuple[list[list[str]], list[tuple[int, int]]]:
    """The classes that occur, each as the names of its properties, and (first code point, class) of each run."""
    tests = {name: regex.compile(pattern) for name, pattern in PROPERTIES.items()}
    classes: dict[tuple[str, ...], int] = {(): 0}
    runs = []
    properties = (tuple(n for n, test in tests.items() if test.match(chr(c))) for c in range(LAST + 1))
    for held, group in itertools.groupby(enumerate(properties), key=lambda numbered: numbered[1]):
        runs.append((next(group)[0], classes.setdefault(held, len(classes))))
    return [list(held) for held in classes], runs


def lower_runs() -> list[list[int]]:
    """(first, last, step, distance): code points whose lower case lies ``distance`` further."""
    pairs = [(0x130, 0x69)]
    for code in range(LAST + 1):
        small = chr(code).lower()
        if len(small) == 1 and ord(small) != code and not regex.match(r"\p{Cn}", chr(code)):
            pairs.append((code, ord(small)))
    runs: list[list[int]] = []
    for code, small in sorted(pairs):
        last = runs[-1] if runs else None
        if last and small - code == last[3] and code - last[1] in ((1, 2) if last[0] == last[1] else (last[2],)):
            last[2] = code - last[1]
            last[1] = code
        else:
            runs.append([code, code, 1, small - code])
    return runs


def main() -> None:
    """Write the file."""
    if regex.__version__ != RELEASE:
        sys.exit(f"regex {regex.__version__} follows another Unicode: pip install regex==2019.12.20")
    classes, runs = class_runs()
    lines = [
        "{",
        '"made_by": "tools/unicode_tables.py with regex 2019.12.20 from PyPI; do not edit",',
        '"unicode": "12.1.0",',
        f'"unicodedata": "{unicodedata.unidata_version}",',
        '"classes": [\n' + ",\n".join(json.dumps(names) for names in classes) + "],",
        '"runs": [\n' + ",\n".join(_wrapped([f'"{start:x} {number}"' for start, number in runs])) + "],",
        '"lower": [\n' + ",\n".join(_wrapped([json.dumps(run, separators=(",", ":")) for run in lower_runs()])) + "]",
        "}",
    ]
    OUTPUT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.stdout.write(f"{OUTPUT}: {len(classes)} classes in {len(runs)} runs\n")


def _wrapped(items: list[str], width: int = 12) -> list[str]:
    return [",".join(items[i : i + width]) for i in range(0, len(items), width)]


if __name__ == "__main__":
    main()
