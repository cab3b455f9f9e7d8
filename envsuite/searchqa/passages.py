"""Files of passages and of questions: JSON and JSON lines, plain or gzipped; what is wrong in them is counted."""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import orjson

from envsuite.core.errors import DataError
from envsuite.data.files import file_errors
from envsuite.retrieval.documents import LONGEST_KEY, DocumentProblems

MOST_BYTES = 2**26
"""Longest line of a file of JSON lines."""
BROKEN = "a line that is no JSON object (left out)"
TOO_LONG = f"a line of more than {MOST_BYTES:,} bytes (left out)"
NO_PASSAGE = "a passage without title or text (left out)"
_BLANKS = re.compile(r"\s+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]+")
_NUMBERED = 12
"""Characters of a key that are kept for the number of a title that repeats."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of a page."""

    title: str
    text: str

    def identity(self) -> bytes:
        """Returns a digest of title and text, without regard to blanks."""
        text = f"{line(self.title)}\n{line(self.text)}"
        return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()


class PassageKeys:
    """Names passages by their titles: ``Title``, ``Title (2)`` for the next one of that title, and so on."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def key(self, title: str) -> str:
        """Returns a key that no passage has yet."""
        stem = line(title)[: LONGEST_KEY - _NUMBERED].strip() or "Untitled"
        number, key = self._next.get(stem, 1), stem
        if number > 1 or key in self._taken:
            number = max(number, 2)
            while (key := f"{stem} ({number})") in self._taken:
                number += 1
        self._next[stem] = number + 1
        self._taken.add(key)
        return key


def line(text: str) -> str:
    """Returns ``text`` as one line: runs of blanks and control characters become one blank."""
    return _BLANKS.sub(" ", _CONTROL.sub(" ", text)).strip()


def join_sentences(text: object) -> str:
    """Returns a text that is given as such, as a list of sentences, or as a list of such lists.

    Sentences that keep their leading blank (HotpotQA's) are joined as they are, others by a blank.
    """
    if isinstance(text, str):
        return text.strip()
    if not isinstance(text, list):
        return ""
    paragraph = ""
    for part in text:
        sentence = part if isinstance(part, str) else join_sentences(part)
        paragraph += sentence if not paragraph or sentence[:1].isspace() else f" {sentence}"
    return paragraph.strip()


def open_file(path: Path) -> IO[bytes]:
    """Opens a file, also one whose name ends in ``.gz``.

    Raises:
        DataError: The file cannot be opened.
    """
    with file_errors(path):
        return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def rows(path: Path, problems: DocumentProblems) -> Iterator[tuple[str, Any]]:
    """Yields place and content of each entry of a file: lines of JSON lines, or the items of a JSON list or object.

    Items of an object are pairs of key and value. The place is the file's name with the number of the line, or of the
    item in the list, from 1, or the key.

    Args:
        path: The file; ``.jsonl`` and ``.jsonl.gz`` have an object on each line, others may.
        problems: Receives the lines that are none.

    Raises:
        DataError: The file cannot be read, or is neither JSON nor JSON lines.
    """
    try:
        with open_file(path) as file:
            if ".jsonl" in path.suffixes or _is_lines(file):
                yield from _lines(path, file, problems)
                return
            try:
                whole = orjson.loads(file.read())
            except ValueError as error:
                raise DataError(f"{path}: neither JSON nor JSON lines ({error})") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if isinstance(whole, list):
        yield from ((f"{path.name}:{number}", item) for number, item in enumerate(whole, 1))
    elif isinstance(whole, dict):
        yield from ((f"{path.name}: {key}", (key, value)) for key, value in whole.items())
    else:
        raise DataError(f"{path}: a JSON list or object is expected, not {type(whole).__name__}")


def _is_lines(file: IO[bytes]) -> bool:
    """Whether the first line of a file is an object with fields of a passage, a question, or an entity's aliases."""
    first = file.readline(MOST_BYTES)
    file.seek(0)
    try:
        row = orjson.loads(first)
    except ValueError:
        return False
    fields = ("title", "contents", "question", "Q_id")
    return isinstance(row, dict) and any(isinstance(row.get(name), str) for name in fields)


def _lines(path: Path, file: IO[bytes], problems: DocumentProblems) -> Iterator[tuple[str, Any]]:
    number = 0
    while content := file.readline(MOST_BYTES + 1):
        number += 1
        place = f"{path.name}:{number}"
        if len(content) > MOST_BYTES:
            while not content.endswith(b"\n") and (content := file.readline(MOST_BYTES)):
                pass
            problems.add(TOO_LONG, place)
            continue
        if not content.strip():
            continue
        try:
            row = orjson.loads(content)
        except ValueError:
            row = None
        if isinstance(row, dict):
            yield place, row
        else:
            problems.add(BROKEN, place)


def passages(path: Path, problems: DocumentProblems) -> Iterator[Passage]:
    """Yields the passages of a corpus file.

    The file is an object of titles and their sentences, or has entries with ``title`` and ``text`` (or
    ``paragraph_text``), or with ``contents``: the title in quotation marks, then the text on the next lines, as
    Search-R1's dump of Wikipedia has it.

    Raises:
        DataError: The file cannot be read.
    """
    for place, row in rows(path, problems):
        page = passage(row)
        if page is None:
            problems.add(NO_PASSAGE, place)
        else:
            yield page


def passage(row: object) -> Passage | None:
    """Returns the passage of an entry; ``None`` for what is none."""
    if isinstance(row, tuple):
        title, text = row
    elif not isinstance(row, Mapping):
        return None
    elif isinstance(row.get("contents"), str):
        title, _, text = row["contents"].lstrip().partition("\n")
        title = title.strip().removeprefix('"').removesuffix('"')
    else:
        title, text = row.get("title"), row.get("text", row.get("paragraph_text"))
    text = join_sentences(text)
    return Passage(title, text) if isinstance(title, str) and line(title) and text else None
