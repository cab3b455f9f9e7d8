"""Questions about the generated encyclopaedia, each with one answer, or none on any page."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from envsuite.core.draws import Draw
from envsuite.core.errors import UsageError
from envsuite.searchqa.entities import LINKED, WORKS, Entities, Entity, Value, table
from envsuite.searchqa.pages import answers, mention, names, value_text
from envsuite.searchqa.scoring import normalise_answer

STRATA = (
    *((("bridge", 2), 18), (("bridge", 3), 8), (("bridge", 4), 4)),
    *((("composition", 2), 18), (("composition", 3), 8), (("composition", 4), 4)),
    *((("comparison", 2), 12), (("comparison", 3), 3), (("comparison", 4), 5)),
    *((("inference", 2), 12), (("inference", 3), 5), (("inference", 4), 3)),
)
"""Kind and hops of a question, and their percentage."""
SPLITS = {"train": range(80), "validation": range(80, 90), "test": range(90, 100)}
"""Split -> the :func:`share` of the entities from which its questions start."""
UNANSWERABLE = 15
"""Percentage of the bridge and composition questions that ask for what no page states."""
NO_ANSWER = "unanswerable"
"""Answer of a question that cannot be answered."""
_STARTS = (
    *(("film", 25), ("novel", 15), ("song", 15), ("company", 12)),
    *(("museum", 8), ("university", 5), ("person", 20), ("town", 5)),
)
_ATTEMPTS = 600


@dataclass(frozen=True)
class DraftQuestion:
    """A question, before it has an id."""

    text: str
    answers: list[str]
    support: list[str]
    """Titles of the pages that state the facts of :attr:`query`, in the order in which they are needed."""
    kind: str
    hops: int
    """Number of facts, each on a page of its own."""
    query: Mapping[str, Any]
    """The question as a formula: where it starts, which relations it follows, and what it compares."""
    answerable: bool = True
    settled: tuple[int, str] | None = None
    """Entity and relation of the fact that is the answer; ``None`` for a comparison."""


@dataclass(frozen=True)
class Mention:
    """An entity as a question speaks of it."""

    text: str
    entity: Entity
    form: dict[str, Any]
    """``from`` and ``path`` of the formula."""
    pages: tuple[Entity, ...] = ()
    """Entities whose pages are needed to find :attr:`entity`."""
    said: tuple[Entity, ...] = ()
    """Entities that :attr:`text` names, to which no step leads back."""


def share(key: str, title: str) -> int:
    """Returns a number from 0 to 99 that decides on the split of the questions that start from an entity."""
    return int.from_bytes(hashlib.sha256(f"{key} split {title}".encode()).digest()[:8], "big") % 100


class QuestionSet:
    """Draws questions about entities.

    No question starts from, or compares, an entity from which a question of another split starts; and none but a
    comparison is settled by a fact that settles one of another split.

    Args:
        entities: The entities.
        key: Determines the questions, together with the entities.
    """

    def __init__(self, entities: Entities, key: str) -> None:
        self.entities = entities
        self._key = key
        self._titles = [entities.title(entity) for entity in entities.all]
        self._pools: dict[str, dict[str, list[Entity]]] = {split: {} for split in SPLITS}
        for entity in entities.all:
            number = share(key, self._titles[entity.number])
            split = next(name for name, numbers in SPLITS.items() if number in numbers)
            self._pools[split].setdefault(entity.kind, []).append(entity)
        self._texts: set[str] = set()
        self._forms: set[str] = set()
        self._settled: dict[tuple[int, str], str] = {}
        self._yes = self._unstated = False
        self.draw = Draw(f"{key} questions")
        self._pool = self._pools["train"]

    def draw_questions(self, counts: Mapping[str, int]) -> Iterator[tuple[str, DraftQuestion]]:
        """Yields split and question, of the small splits first.

        Args:
            counts: Number of questions of each split.

        Raises:
            UsageError: There are too few entities for so many questions.
        """
        makers: dict[str, Callable[[int], DraftQuestion | None]] = {
            "bridge": self._bridge,
            "composition": self._composition,
            "comparison": self._comparison,
            "inference": self._inference,
        }
        for split in reversed(SPLITS):
            self._pool = self._pools[split]
            for _ in range(counts[split]):
                kind, hops = self.draw.choose_weighted(STRATA)
                self._unstated = kind in ("bridge", "composition") and self.draw.chance(UNANSWERABLE)
                for _ in range(_ATTEMPTS):
                    question = makers[kind](hops)
                    if question is not None and self._is_new(question, split):
                        yield split, question
                        break
                else:
                    raise UsageError(
                        f"no further {kind} question of {hops} hops for {split} found among "
                        f"{len(self.entities.all):,} entities; ask for fewer questions, or for more entities"
                    )

    def _is_new(self, question: DraftQuestion, split: str) -> bool:
        """Whether no question has this text or formula; then enters it."""
        form = str(question.query)
        if question.text in self._texts or form in self._forms:
            return False
        if question.settled is not None and self._settled.setdefault(question.settled, split) != split:
            return False
        if question.kind == "comparison" and question.answers[0] in ("yes", "no"):
            self._yes = not self._yes
        self._texts.add(question.text)
        self._forms.add(form)
        return True

    def _draw_entity(self, kind: str) -> Entity | None:
        pool = self._pool.get(kind)
        return self.draw.choose(pool) if pool else None

    def _title(self, entity: Entity) -> str:
        return self._titles[entity.number]

    def _name_entity(self, entity: Entity) -> Mention:
        """Speaks of an entity by its name."""
        text = mention(self.entities, entity)
        if entity.kind in WORKS:
            text = f"the {entity.descriptor} {entity.name}"
        elif entity.kind == "river":
            text = f"the river {entity.name}"
        return Mention(text, entity, {"from": {"title": self._title(entity)}, "path": []}, said=(entity,))

    def _describe_entity(self, entity: Entity) -> Mention | None:
        """Speaks of an entity without its name; ``None`` if what is drawn fits others, too."""
        phrases = table("questions")["described"][entity.kind]
        facts = [(relation, value) for relation, value in self.entities.chains(entity) if relation in phrases]
        picks = self.draw.sample(facts, 2)
        if picks and self.draw.chance(60) and self._count_matches(entity.kind, picks[:1]) == 1:
            picks = picks[:1]
        if not picks or self._count_matches(entity.kind, picks) != 1:
            return None
        clauses = [
            str(phrases[relation]).format(value=value_text(self.entities, relation, value)) for relation, value in picks
        ]
        noun = entity.descriptor if entity.kind == "person" else entity.kind
        where = {relation: self._plain(relation, value) for relation, value in picks}
        form = {"from": {"kind": entity.kind, "where": where}, "path": []}
        neighbours = tuple(self.entities.all[int(value)] for relation, value in picks if relation in LINKED)
        return Mention(f"the {noun} {' and '.join(clauses)}", entity, form, said=neighbours)

    def _count_matches(self, kind: str, facts: Sequence[tuple[str, Value]]) -> int:
        """Returns the number of entities of which all of ``facts`` are true, on a page or not."""
        first, *further_sets = [
            {entity.number for entity in self.entities.index[kind, relation, value]} for relation, value in facts
        ]
        return len(first.intersection(*further_sets))

    def _plain(self, relation: str, value: Value) -> Value:
        return self._titles[int(value)] if relation in LINKED else value

    def _follow(self, side: Mention, relations: str, text: str) -> Mention | None:
        """Follows relations, separated by blanks; ``None`` if a page does not state one, or it leads back."""
        entity, pages = side.entity, list(side.pages)
        for relation in relations.split():
            value = entity.stated_value(relation)
            if value is None or relation not in LINKED:
                return None
            pages.append(entity)
            entity = self.entities.all[int(value)]
            if entity in pages or entity in side.said:
                return None
        form = {**side.form, "path": [*side.form["path"], *relations.split()]}
        return Mention(text, entity, form, tuple(pages), side.said)

    def _draw_wording(self, entry: Mapping[str, Sequence[str]], use: str, text: str) -> str:
        fitting = [phrase for phrase in entry[use] if "'s" not in phrase or len(text.split()) < 5]
        return self.draw.choose(fitting or entry[use]).format(x=text)

    def _walk(self, side: Mention, steps: int) -> Mention | None:
        """Follows ``steps`` drawn relations."""
        relations = table("questions")["relations"]
        for _ in range(steps):
            ways = [r for r, _ in self.entities.chains(side.entity) if r in LINKED and "phrase" in relations[r]]
            if not ways:
                return None
            relation = self.draw.choose(ways)
            further = self._follow(side, relation, self._draw_wording(relations[relation], "phrase", side.text))
            if further is None:
                return None
            side = further
        return side

    def _ask_relation(self, kind: str, side: Mention, relation: str) -> DraftQuestion | None:
        """Returns the question for a relation of what ``side`` speaks of."""
        entity, value = side.entity, side.entity.stated_value(relation)
        text = _capital(self._draw_wording(table("questions")["relations"][relation], "ask", side.text))
        if value is not None and relation in LINKED:
            if self.entities.all[int(value)] in (*side.pages, *side.said):
                return None
        golds = [NO_ANSWER] if value is None else answers(self.entities, relation, value)
        query = {**side.form, "path": [*side.form["path"], relation]}
        pages = [self._title(page) for page in (*side.pages, entity)]
        question = DraftQuestion(
            text, golds, pages, kind, len(pages), query, value is not None, settled=(entity.number, relation)
        )
        return None if _tells(question) else question

    def _last(self, kind: str, side: Mention | None) -> DraftQuestion | None:
        """Asks for a drawn relation, which no page states if the question is not to be answerable."""
        if side is None:
            return None
        wordings = table("questions")["relations"]
        if self._unstated:
            ways = sorted(side.entity.hidden)
        else:
            ways = [relation for relation, _ in self.entities.chains(side.entity) if relation in wordings]
        return self._ask_relation(kind, side, self.draw.choose(ways)) if ways else None

    def _composition(self, hops: int) -> DraftQuestion | None:
        entity = self._draw_entity(self.draw.choose_weighted(_STARTS))
        return None if entity is None else self._last("composition", self._walk(self._name_entity(entity), hops - 1))

    def _bridge(self, hops: int) -> DraftQuestion | None:
        entity = self._draw_entity(self.draw.choose_weighted(_STARTS))
        side = None if entity is None else self._describe_entity(entity)
        return None if side is None else self._last("bridge", self._walk(side, hops - 1))

    def _inference(self, hops: int) -> DraftQuestion | None:
        wordings = table("questions")["inferred"]
        relations = self.draw.choose(list(wordings))
        before = 0 if hops == 2 else 1 if hops == 4 else self.draw.below(2)
        entity = self._draw_entity(self.draw.choose_weighted(_STARTS))
        side = None if entity is None else self._walk(self._name_entity(entity), before)
        if side is None:
            return None
        if hops - before == 2:
            first, last = relations.split()
            through = self._follow(side, first, side.text)
            question = None if through is None else self._ask_relation("inference", through, last)
            if question is None or not question.answerable:
                return None
            text = _capital(self._draw_wording(wordings[relations], "ask", side.text))
            inference = replace(question, text=text)
            return None if _tells(inference) else inference
        phrase = self._draw_wording(wordings[relations], "phrase", side.text)
        return self._last("inference", self._follow(side, relations, phrase))

    def _comparison(self, hops: int) -> DraftQuestion | None:
        if hops == 2:
            return self._ask_same(1) if self.draw.chance(40) else self._ask_order()
        if hops == 3:
            return self._ordered_with_a_bridge()
        return self._ask_same(2) if self.draw.chance(50) else self._ask_order_of_owned()

    def _pair(self, kind: str) -> tuple[Entity, Entity] | None:
        first, second = self._draw_entity(kind), self._draw_entity(kind)
        return None if first is None or second is None or first is second else (first, second)

    def _ask_order(self) -> DraftQuestion | None:
        """Asks which of two entities comes first or last."""
        relation, kinds = self.draw.choose(_ORDERED)
        pair = self._pair(self.draw.choose(kinds))
        if pair is None:
            return None
        sides = [self._name_entity(entity) for entity in pair]
        return self._compare_sides(relation, table("questions")["compared"][relation], sides, "", sides)

    def _ordered_with_a_bridge(self) -> DraftQuestion | None:
        """Asks which of two people comes first or last; one of them is a work's author or the like."""
        work, person = self._draw_entity(self.draw.choose(list(WORKS))), self._draw_entity("person")
        if work is None or person is None:
            return None
        relation = self.draw.choose(list(WORKS[work.kind]))
        start = self._name_entity(work)
        phrase = self._draw_wording(table("questions")["relations"][relation], "phrase", start.text)
        end = self._follow(start, relation, phrase)
        if end is None or end.entity is person:
            return None
        sides = [self._name_entity(person), end]
        if self.draw.chance(50):
            sides.reverse()
        event = self.draw.choose(("birth", "death"))
        return self._compare_sides(event, table("questions")["compared"][event], sides, "", sides)

    def _ask_order_of_owned(self) -> DraftQuestion | None:
        """Asks for the one of two entities whose author, town or the like comes first or last."""
        relations, entry = self.draw.choose(list(table("questions")["owned"].items()))
        pair = self._pair(entry["kind"])
        if pair is None:
            return None
        sides = [self._name_entity(entity) for entity in pair]
        through, relation = relations.split()
        ends = [self._follow(side, through, side.text) for side in sides]
        if ends[0] is None or ends[1] is None or ends[0].entity is ends[1].entity:
            return None
        return self._compare_sides(relation, entry, sides, through, [ends[0], ends[1]])

    def _compare_sides(
        self, relation: str, wordings: Mapping[str, Any], sides: list[Mention], through: str, ends: list[Mention]
    ) -> DraftQuestion | None:
        """Returns the question for the side whose end comes first or last; ``None`` without two different values."""
        values = [end.entity.stated_value(relation) for end in ends]
        if values[0] is None or values[1] is None or values[0] == values[1]:
            return None
        pick = self.draw.choose(("first", "last"))
        winner = sides[0 if (int(values[0]) < int(values[1])) == (pick == "first") else 1]
        text = self.draw.choose(wordings[pick]).format(x=sides[0].text, y=sides[1].text)
        pages = [self._title(page) for end in ends for page in (*end.pages, end.entity)]
        query = {"compare": f"{through} {relation}".strip(), "pick": pick, "of": [side.form for side in sides]}
        golds = list(dict.fromkeys([*names(self.entities, winner.entity), winner.text]))
        return DraftQuestion(_capital(text), golds, list(dict.fromkeys(pages)), "comparison", len(pages), query)

    def _ask_same(self, steps: int) -> DraftQuestion | None:
        """Asks whether two entities have the same value of a relation; as often yes as no."""
        ways = [
            (kind, relations, texts)
            for kind, entries in table("questions")["same"].items()
            for relations, texts in entries.items()
            if len(relations.split()) == steps
        ]
        kind, relations, texts = self.draw.choose(ways)
        first = self._draw_entity(kind)
        end = None if first is None else self._follow(self._name_entity(first), relations, "")
        if first is None or end is None:
            return None
        for _ in range(60):
            second = self._draw_entity(kind)
            if second is None or second is first:
                continue
            second_end = self._follow(self._name_entity(second), relations, "")
            if second_end is None or (second_end.entity is end.entity) != self._yes:
                continue
            sides = [self._name_entity(first), self._name_entity(second)]
            text = self.draw.choose(texts).format(x=sides[0].text, y=sides[1].text)
            pages = [self._title(page) for side in (end, second_end) for page in side.pages]
            if len(set(pages)) < len(pages):
                return None
            query = {"same": relations, "of": [side.form for side in sides]}
            return DraftQuestion(_capital(text), ["yes" if self._yes else "no"], pages, "comparison", len(pages), query)
        return None


_ORDERED = (
    *(("birth", ("person",)), ("death", ("person",)), ("founded", ("university", "company", "town", "museum"))),
    *(("year", ("film", "novel", "song")), ("population", ("town",)), ("length", ("river",))),
)


def _tells(question: DraftQuestion) -> bool:
    """Whether the text of a question that is no comparison has its answer in it."""
    return any(f" {normalise_answer(answer)} " in f" {normalise_answer(question.text)} " for answer in question.answers)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
