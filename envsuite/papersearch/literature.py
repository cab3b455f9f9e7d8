"""The built-in literature: papers with citations, and queries with gold papers, of any number, from a seed.

A topic has problems, methods and settings, each with three names that have no word in common. A paper treats one
problem by one method in one setting, and calls each by one of its names. A query asks for the papers with two of these
in common; its gold papers are those of them that are no newer than the query. Some use other names than the query: they
are to be found through the papers that they cite, or that cite them, since every paper cites older ones with which it
shares two of the three. So gold follows from the subjects of papers, and never from words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from envsuite.core.draws import Draw
from envsuite.core.settings import whole
from envsuite.papersearch.citing import MOST_PAPERS, Draws, Numbers, attach, calendar_days, keys
from envsuite.papersearch.vocabulary import FOLDER, KINDS, MOST_CONCEPTS, NAMES, Topic, topic_of
from envsuite.papersearch.wording import BRIDGES, Fill, write_paper, write_query
from envsuite.retrieval.documents import Document, DocumentProblems

GENERATOR = "literature 1"
"""Name and version of the generator; another version makes another literature."""
QUERIES = "queries 1"
"""Name and version of the queries."""
FIELD = 5_000
"""Papers of a field: topics that cite each other. A field depends on nothing but the seed and its number."""
TOPIC = 250
"""Papers of a topic on average."""
LEAST_PAPERS = 200
FIRST_DAY, DAYS, FOUNDING_DAYS = "2000-01-01", 9_131, 1_096
"""Papers are of 25 years; the first of each topic is of the first three."""
WAVES = 4_380
"""Days in which topics come into fashion."""
LEAST_GOLD, MOST_GOLD = 3, 20
"""Gold papers of a query."""
MOST_QUERIES = 12
"""Queries of a topic."""
PAIRS = {"method-problem": (1, 0), "problem-setting": (0, 2), "method-setting": (1, 2)}
"""Kind of a query -> the two kinds of concepts (places in :data:`KINDS`) of which it names one each."""


@dataclass(frozen=True)
class Field:
    """The papers of a field without their texts; each array has one entry for each paper."""

    number: int
    sizes: tuple[int, ...]
    """Papers of each topic."""
    topic: Numbers
    concept: Numbers
    """The concept of each kind. Shape: [n, 3]."""
    name: Numbers
    """Which of its names the paper uses. Shape: [n, 3]."""
    bridge: Numbers
    """A sentence of :data:`BRIDGES` that gives another name of a concept; -1 where there is none."""
    day: Numbers
    """Days after the first one."""

    @property
    def by_date(self) -> Numbers:
        """Returns the papers in the order in which they appeared."""
        return np.argsort(self.day, kind="stable")


class Literature:
    """Papers and queries from a seed; a :class:`~envsuite.retrieval.documents.Source`.

    Of ten topics seven are of the split train, one of validation and two of test; queries follow their topics. A task
    has, besides the usual fields, ``hidden``: the gold papers that use no word of the names in the query.

    Args:
        papers: Number of papers, from :data:`LEAST_PAPERS` to :data:`~envsuite.papersearch.citing.MOST_PAPERS`.
        seed: Determines them.
        queries: Number of queries that is not exceeded.

    Raises:
        UsageError: A number is out of range.
    """

    def __init__(self, papers: int = 10_000, seed: int = 0, queries: int = 2_000) -> None:
        self.papers = whole("papers", papers, LEAST_PAPERS, MOST_PAPERS)
        self.seed, self.queries = whole("corpus_seed", seed), whole("queries", queries, 1)
        self.problems = DocumentProblems()

    @property
    def name(self) -> str:
        """Number of papers and seed."""
        return f"generated literature ({self.papers:,} papers, seed {self.seed})"

    @property
    def size(self) -> int:
        """Number of papers."""
        return self.papers

    def digest(self) -> str:
        """Returns the SHA-256 (hex) of the arguments, the generator's version and its tables."""
        hasher = hashlib.sha256(f"{GENERATOR} {QUERIES} {self.papers} {self.seed} {self.queries}".encode())
        for path in sorted(FOLDER.glob("*.txt")):
            hasher.update(path.read_bytes())
        return hasher.hexdigest()

    def documents(self) -> Iterator[Document]:
        """Yields the papers, field by field."""
        for number in range(-(-self.papers // FIELD)):
            yield from self._documents(number)

    def tasks(self) -> Iterator[Mapping[str, Any]]:
        """Yields the queries, topic by topic."""
        fields = -(-self.papers // FIELD)
        per_topic = max(1, min(MOST_QUERIES, self.queries * TOPIC // self.papers))
        step = -(-self.papers // (TOPIC * self.queries))  # of fields, where there are more topics than queries
        counts = {"train": 0, "validation": 0, "test": 0}
        for number in range(0, fields, step):
            field = self.field(number)
            for topic in range(len(field.sizes)):
                split = {1: "validation", 2: "test", 6: "test"}.get(topic % 10, "train")
                for task in self._queries(field, topic, per_topic):
                    if sum(counts.values()) < self.queries:
                        yield {"id": f"{self.papers}-{self.seed}/{split}#{counts[split]}", **task, "split": split}
                        counts[split] += 1

    def field(self, number: int) -> Field:
        """Returns a field without texts and citations."""
        size = min(FIELD, self.papers - number * FIELD)
        draws = Draws(f"{GENERATOR} {self.seed} field {number} {size}")
        sizes = _sizes(size, draws)
        topics = len(sizes)
        topic = np.concatenate([np.arange(topics), np.repeat(np.arange(topics), sizes - 1)])
        concepts = concepts_of(sizes)[topic]
        concept = draws.below(concepts[:, None], size, 3)
        fashion = np.where(draws.below(5, size, 3) < 2, draws.below(concepts[:, None], size, 3), MOST_CONCEPTS)
        waves = _founding_days(self.seed, number)[:topics] + draws.below(WAVES, topics)
        since = waves[topic]
        late = draws.below(1 << 20, 2, size).max(axis=0)
        day = since + 1 + ((DAYS - 1 - since) * late >> 20)
        day[:topics] = _founding_days(self.seed, number)[:topics]
        bridge = np.where(draws.below(4, size) == 0, draws.below(len(BRIDGES), size), -1)
        name = np.array([0, 0, 0, 0, 0, 1, 1, 1, 2, 2])[draws.below(10, size, 3)]
        return Field(number, tuple(sizes.tolist()), topic, np.minimum(concept, fashion), name, bridge, day)

    def citations(self, field: Field) -> list[list[int]]:
        """Returns the numbers of the papers that each paper cites: of its own field, and founders of others."""
        draws = Draws(f"{GENERATOR} {self.seed} citations {field.number} {len(field.day)}")
        size, by_date = len(field.day), field.by_date
        groups = [(field.topic * MOST_CONCEPTS + field.concept[:, a]) * MOST_CONCEPTS + field.concept[:, b]
                  for a, b in PAIRS.values()]  # fmt: skip
        groups += [field.topic, np.zeros_like(field.topic)]
        columns = []
        for group, count, always in zip(groups, (4, 3, 3, 4, 2), (1, 1, 1, 1, 0), strict=True):
            targets = attach(group, by_date, count, draws)
            gaps = draws.below(2, size, count) == 1
            gaps[:, :always] = False
            columns.append(np.where(gaps | (targets < 0), -1, targets + field.number * FIELD))
        if field.number:
            founders = draws.below(field.number, size) * FIELD + draws.below(FIELD // TOPIC, size)
            cites_founder = (draws.below(3, size) == 0) & (field.day >= FOUNDING_DAYS)
            columns.append(np.where(cites_founder, founders, -1)[:, None])
        rows = np.sort(np.concatenate(columns, axis=1), axis=1)
        rows[:, 1:][rows[:, 1:] == rows[:, :-1]] = -1
        return [[number for number in row if number >= 0] for row in rows.tolist()]

    def topic(self, field: Field, topic: int) -> Topic:
        """Returns the words of a topic."""
        concepts = int(concepts_of(np.array(field.sizes[topic])))
        return topic_of(f"{GENERATOR} {self.seed} topic {field.number} {topic} {len(field.day)}", concepts)

    def _documents(self, number: int) -> Iterator[Document]:
        field = self.field(number)
        size = len(field.day)
        topics = [Fill.of(self.topic(field, topic)) for topic in range(len(field.sizes))]
        citations = self.citations(field)
        own = np.array(sorted({*range(number * FIELD, number * FIELD + size), *(n for row in citations for n in row)}))
        key_of = dict(zip(own.tolist(), (f"P{key:07d}" for key in keys(own, self.seed).tolist()), strict=True))
        draws = Draws(f"{GENERATOR} {self.seed} texts {number} {size}")
        dates = calendar_days(field.day, FIRST_DAY)
        arrays = (field.topic, field.concept, field.name, field.bridge, dates, draws.raw(size, 32))
        rows = zip(*(array.tolist() for array in arrays), strict=True)
        for place, (topic, concept, name, bridge, date, numbers) in enumerate(rows):
            title, text, facts = write_paper(topics[topic], concept, name, bridge, date // 10000, numbers)
            links = tuple([key_of[paper] for paper in citations[place]])
            yield Document(key_of[number * FIELD + place], title, text, date, links, facts)

    def _queries(self, field: Field, topic: int, most: int) -> Iterator[dict[str, Any]]:
        """Yields the queries of a topic without id and split."""
        draw = Draw(f"{GENERATOR} {self.seed} queries {field.number} {topic} {len(field.day)}")
        members = np.flatnonzero(field.topic == topic)
        members = members[np.argsort(field.day[members], kind="stable")]
        concepts = range(int(concepts_of(np.array(len(members)))))
        pairs = [(kind, a, b) for kind in PAIRS for a in concepts for b in concepts]
        words = self.topic(field, topic)
        count = 0
        for kind, a, b in draw.sample(pairs, len(pairs)):
            first, second = PAIRS[kind]
            same = members[(field.concept[members, first] == a) & (field.concept[members, second] == b)]
            if count == most or len(same) <= LEAST_GOLD:
                continue
            days = field.day[same].tolist()
            high = min(len(same) - 1, MOST_GOLD)
            low = max(LEAST_GOLD, min(high, len(same) * 3 // 5))
            last = low + draw.below(high - low + 1)
            cut_off = days[last - 1] + draw.below(max(1, days[last] - days[last - 1]))
            gold = same[: int(np.searchsorted(days, cut_off, side="right"))]
            if len(gold) > MOST_GOLD:
                continue
            name_pairs = [(i, j) for i in range(NAMES) for j in range(NAMES) for _ in range((NAMES - i) * (NAMES - j))]
            for names in draw.sample(name_pairs, 99):
                mentions = _mentions(field, gold, first, names[0]) | _mentions(field, gold, second, names[1])
                if mentions.any():
                    break
            count += 1
            gold_keys = [f"P{key:07d}" for key in keys(gold + field.number * FIELD, self.seed).tolist()]
            slots = {"pms"[first]: words.names[first][a][names[0]], "pms"[second]: words.names[second][b][names[1]]}
            yield {
                "text": write_query(kind, slots, draw),
                "gold": sorted(gold_keys),
                "date": int(calendar_days(np.array([cut_off]), FIRST_DAY)[0]),
                "kind": kind,
                "hidden": sorted(key for key, mention in zip(gold_keys, mentions.tolist(), strict=True) if not mention),
            }


def _mentions(field: Field, papers: Numbers, kind: int, name: int) -> Any:
    """Returns for each paper whether its text has this name of its concept of a kind. Shape: [n]."""
    used = field.name[papers, kind]
    kinds = np.array([KINDS.index(concept) for concept in BRIDGES] + [-1])
    return (used == name) | ((kinds[field.bridge[papers]] == kind) & ((used + 1) % NAMES == name))


def concepts_of(size: Numbers) -> Numbers:
    """Returns the number of concepts of each kind in a topic of ``size`` papers: pairs of them have some ten papers."""
    squares = np.array([10 * n * n for n in range(2, MOST_CONCEPTS + 1)])
    return np.maximum(2, np.searchsorted(squares, size, side="right") + 1)


def _sizes(size: int, draws: Draws) -> Numbers:
    """Returns the number of papers of each topic of a field; three topics at least, so that each split has one."""
    weights = 150 + draws.below(200, max(3, size // TOPIC))
    sizes: Numbers = weights * size // weights.sum()
    sizes[: size - int(sizes.sum())] += 1
    return sizes


@lru_cache(maxsize=64)
def _founding_days(seed: int, number: int) -> Numbers:
    """Returns the day of the first paper of each topic of a field; its paper has the same place in the field."""
    return Draws(f"{GENERATOR} {seed} founders {number}").below(FOUNDING_DAYS, max(3, FIELD // TOPIC))
