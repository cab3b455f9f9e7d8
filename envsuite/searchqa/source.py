"""Where published questions and their passages come from: the official files of the data sets, and corpora."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from envsuite.core.errors import DataError, unknown
from envsuite.retrieval.collection import SPLITS
from envsuite.retrieval.documents import Document, DocumentProblems
from envsuite.searchqa.layouts import TWO_WIKI, FileQuestion, read_question
from envsuite.searchqa.passages import Passage, PassageKeys, line, open_file, passages, rows

VERSION = 2
"""Version of the reading: increased where the same files give other pages or tasks."""
SAME_ID = "a question with the id of another one (left out)"
NO_CONTEXT = "a question without passages, and no corpus is given (left out)"
NOT_THERE = "a supporting page that is not in the corpus (left out)"
ALIASES = "id_aliases.json"
"""2WikiMultiHopQA's aliases of entities, beside its questions: on each line ``Q_id``, ``aliases`` and ``demonyms``."""
NO_ALIASES = f"a file of 2WikiMultiHopQA without {ALIASES} beside it (its questions have one right answer each)"
BROKEN_ALIASES = f"a line of {ALIASES} without Q_id and aliases (left out)"
_SPLIT = re.compile(r"(?:^|[^a-z])(?:(?P<train>train)|(?P<validation>dev|valid(?:ation)?|val)|(?P<test>test))(?![a-z])")
_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")


class QuestionFiles:
    """Questions in official files, on the passages that come with them or on a corpus of their own.

    A passage has its title as key, ``Title (2)`` and so on if others had the title before. Without a corpus, passages
    of the same title and text are one page, in the order in which questions bring them. With one, a supporting page is
    the passage of the same title and text, or else the first one of the title. The aliases of 2WikiMultiHopQA's answers
    are read from :data:`ALIASES` in the folder of its file, as its official script takes them.

    Args:
        files: Files of questions, or folders of such (``*.json``, ``*.jsonl``, also with ``.gz``), in which
            :data:`ALIASES` and names with the word ``corpus`` are left out.
        corpus: A file of passages (see :func:`envsuite.searchqa.passages.passages`) instead of those of the questions.
        split: Split of all questions: ``"train"``, ``"validation"`` or ``"test"``. By default that of each file's
            name: ``train`` at the end of a word, ``dev`` or ``valid`` for validation; test for others.
        strict: Whether the first problem is an error.

    Raises:
        DataError: There is no such file, or a folder has none.
        UnknownName: There is no such split.
    """

    def __init__(
        self, files: Sequence[Path], corpus: Path | None = None, split: str | None = None, strict: bool = False
    ) -> None:
        if split is not None and split not in SPLITS:
            raise unknown("split", split, SPLITS)
        self.files = [file for path in files for file in _files(path)]
        if not self.files:
            raise DataError("no file of questions is given; give files of HotpotQA, 2WikiMultiHopQA or MuSiQue")
        if corpus is not None and not corpus.is_file():
            raise DataError(f"{corpus}: there is no such file of passages")
        self.corpus = corpus
        self.split = split
        self._aliases: dict[Path, dict[str, tuple[str, ...]]] = {}
        self.problems = DocumentProblems(strict)
        self._digest = ""

    @property
    def name(self) -> str:
        """Names of the files."""
        names = [file.name for file in self.files] + ([self.corpus.name] if self.corpus else [])
        return " + ".join(names)

    @property
    def size(self) -> int | None:
        """Unknown before the files are read."""
        return None

    def digest(self) -> str:
        """Returns a SHA-256 of the files' contents and the splits.

        Raises:
            DataError: A file cannot be read.
        """
        if not self._digest:
            hasher = hashlib.sha256(f"questions {VERSION}".encode())
            beside = dict.fromkeys(path for file in self.files if (path := file.parent / ALIASES).is_file())
            for file in (*self.files, *([self.corpus] if self.corpus else []), *beside):
                split = "corpus" if file == self.corpus else "aliases" if file in beside else self._split_of(file)
                with open_file(file) as content:
                    try:
                        hasher.update(f"\n{split} {hashlib.file_digest(content, 'sha256').hexdigest()}".encode())  # type: ignore[arg-type]
                    except (OSError, EOFError) as error:
                        raise DataError(f"{file}: cannot be read ({error})") from error
            self._digest = hasher.hexdigest()
        return self._digest

    def documents(self) -> Iterator[Document]:
        """Yields the passages.

        Raises:
            DataError: A file cannot be read.
        """
        for key, passage in self._pages(self.problems):
            yield Document(key, line(passage.title), passage.text)

    def tasks(self) -> Iterator[dict[str, Any]]:
        """Yields the questions as tasks.

        Raises:
            DataError: A file cannot be read.
        """
        problems = DocumentProblems()  # documents() has counted what is wrong with the files
        titles = {p if isinstance(p, str) else p.title for _, q in self._questions(problems) for p in q.support}
        exact: dict[bytes, str] = {}
        first: dict[str, str] = {}
        for key, passage in self._pages(problems):
            if passage.title in titles:
                exact.setdefault(passage.identity(), key)
                first.setdefault(passage.title, key)
        for split, question in self._questions(problems):
            support = []
            for page in question.support:
                title = page if isinstance(page, str) else page.title
                page_key = first.get(title)
                if isinstance(page, Passage):
                    page_key = exact.get(page.identity(), page_key)
                if page_key is None:
                    self.problems.add(NOT_THERE, f"{question.id}: {line(title)[:80]}")
                else:
                    support.append(page_key)
            yield {
                "id": question.task_id,
                "text": question.text,
                "answers": list(question.answers),
                "support": list(dict.fromkeys(support)),
                "kind": question.kind,
                "hops": question.hops,
                "data_set": question.data_set,
                "split": split,
                "answerable": question.answerable,
                "question_id": question.id,
            }

    def self_contained(self) -> Iterator[str]:
        """Yields the id of each question that has passages, or all where there is a corpus."""
        yield from (question.id for _, question in self._questions(DocumentProblems()))

    def _split_of(self, file: Path) -> str:
        if self.split is not None:
            return self.split
        splits = [match.lastgroup for match in _SPLIT.finditer(re.sub(r"\d", " ", file.name.lower()))]
        return str(splits[-1]) if splits else "test"

    def _questions(self, problems: DocumentProblems) -> Iterator[tuple[str, FileQuestion]]:
        task_ids: set[str] = set()
        for file in self.files:
            split, aliases = self._split_of(file), self._aliases_beside(file, problems)
            warn = not aliases
            for place, row in rows(file, problems):
                question = read_question(row, place, problems, aliases)
                if question is None:
                    continue
                if question.data_set == TWO_WIKI and warn:
                    problems.add(NO_ALIASES, file.name)
                    warn = False
                if question.task_id in task_ids:
                    problems.add(SAME_ID, f"{place} ({question.id[:80]})")
                    continue
                if not question.context and self.corpus is None:
                    problems.add(NO_CONTEXT, f"{place} ({question.id[:80]})")
                    continue
                task_ids.add(question.task_id)
                yield split, question

    def _aliases_beside(self, file: Path, problems: DocumentProblems) -> dict[str, tuple[str, ...]]:
        """Returns the aliases of entities by id, from the folder of a file of questions; read once."""
        path = file.parent / ALIASES
        if path not in self._aliases:
            self._aliases[path] = dict(_aliases(path, problems)) if path.is_file() else {}
        return self._aliases[path]

    def _pages(self, problems: DocumentProblems) -> Iterator[tuple[str, Passage]]:
        keys, identities = PassageKeys(), set[bytes]()
        if self.corpus is None:
            pages: Iterator[Passage] = (page for _, question in self._questions(problems) for page in question.context)
        else:
            for _ in self._questions(problems):  # to count what is wrong with them
                pass
            pages = passages(self.corpus, problems)
        for passage in pages:
            identity = passage.identity()
            if identity not in identities:
                identities.add(identity)
                yield keys.key(passage.title), passage


def question_files(path: Path) -> QuestionFiles:
    """Returns the questions of a file or folder, on the corpus beside them if none of them has passages."""
    files = QuestionFiles([path])
    if next(files.self_contained(), None) is not None:
        return files
    folder = path if path.is_dir() else path.parent
    corpora = (file for file in sorted(folder.iterdir()) if "corpus" in file.name.lower())
    return QuestionFiles([path], next((file for file in corpora if file.name.endswith(_SUFFIXES)), None))


def _aliases(path: Path, problems: DocumentProblems) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields the entities of a file of aliases: id, and aliases and demonyms, as the official script takes both."""
    for place, row in rows(path, problems):
        names = [row.get(name) for name in ("aliases", "demonyms")] if isinstance(row, dict) else []
        if names and isinstance(row.get("Q_id"), str) and isinstance(names[0], list):
            every = [*names[0], *(names[1] if isinstance(names[1], list) else ())]
            yield row["Q_id"], tuple(name for name in every if isinstance(name, str))
        else:
            problems.add(BROKEN_ALIASES, place)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and file.name.endswith(_SUFFIXES))
        files = [file for file in files if "corpus" not in file.name.lower() and file.name != ALIASES]
        if not files:
            raise DataError(f"{path}: there are no files of questions ({', '.join(_SUFFIXES)}) in it")
        return files
    if not path.is_file():
        raise DataError(f"{path}: there is no such file or folder of questions")
    return [path]
