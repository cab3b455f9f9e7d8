"""The entities of the generated encyclopaedia: people, places, works and companies, with their relations and dates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import orjson

from envsuite.core.draws import Draw

Value = int | str
"""Number of an entity, date as YYYYMMDD, year, count, kilometres, or text: by the relation."""
LINKED = {
    **dict.fromkeys(("birthplace", "capital", "town", "headquarters"), "town"),
    **dict.fromkeys(("father", "mother", "spouse", "mayor", "founder", "director", "lead"), "person"),
    **dict.fromkeys(("performer", "composer", "author", "architect"), "person"),
    **dict.fromkeys(("studio", "publisher"), "company"),
    "university": "university",
    "country": "country",
    "river": "river",
}
"""Relation whose value is an entity -> kind of that entity."""
DATES = ("birth", "death")
"""Relations whose value is a date."""
HIDDEN = {
    "person": ("birth", "birthplace", "university"),
    "town": ("population", "mayor"),
    "river": ("length",),
    "film": ("lead", "studio"),
    "song": ("composer",),
    "novel": ("publisher",),
}
"""Kind -> relations that a page may leave out; no other page has them."""
SHARES = (
    ("river", 4),
    ("town", 13),
    ("university", 3),
    ("company", 8),
    ("film", 12),
    ("song", 7),
    ("novel", 8),
    ("museum", 3),
)
"""Kinds and their percentage of all entities; there is a country for each 150, and the rest are people."""
PROFESSIONS = (
    *(("film director", 13), ("novelist", 12), ("actor", 12), ("industrialist", 12), ("politician", 10)),
    *(("composer", 9), ("singer", 9), ("architect", 7), ("painter", 6), ("physician", 5), ("botanist", 5)),
)
FEWEST = 100
"""Entities of the smallest encyclopaedia."""
_LATEST = 1985
_LIVING = 2000
_SHARED_NAME = 8
"""Percentage of people and works that take the name of another one."""
_UNSTATED = 7
"""Percentage of the facts that may be left out that are left out."""


@cache
def table(name: str) -> dict[str, Any]:
    """Returns a table of words or texts of this package."""
    read: dict[str, Any] = orjson.loads((resources.files("envsuite.searchqa") / "tables" / f"{name}.json").read_bytes())
    return read


@dataclass(slots=True)
class Entity:
    """An entity, and what is true of it."""

    number: int
    kind: str
    """``"person"``, ``"town"``, ``"film"`` …: the keys of the table ``pages``."""
    name: str
    descriptor: str
    """Tells entities of one name apart: a profession, a kind, or a year and a kind."""
    facts: dict[str, Value] = field(default_factory=dict)
    """Relation -> its one value."""
    hidden: set[str] = field(default_factory=set)
    """Relations of :attr:`facts` that no page states."""
    male: bool = False

    def stated_value(self, relation: str) -> Value | None:
        """Returns the value of a relation if the entity's page states it."""
        return None if relation in self.hidden else self.facts.get(relation)


class Entities:
    """Entities drawn from a seed.

    Args:
        count: About how many; at least :data:`FEWEST`.
        key: Determines them, together with ``count``.
    """

    def __init__(self, count: int, key: str) -> None:
        self.draw = Draw(f"{key} entities")
        self.all: list[Entity] = []
        self.of_kind: dict[str, list[Entity]] = {}
        self.bearers: Counter[str] = Counter()
        """Name -> number of entities of that name."""
        self._taken: set[tuple[str, str]] = set()
        self._names: dict[str, list[Entity]] = {"person": [], "work": []}
        self._by_profession: dict[str, list[Entity]] = {}
        self._in_country: dict[int, list[Entity]] = {}
        numbers = {kind: max(2, count * share // 100) for kind, share in SHARES}
        numbers["country"] = max(3, count // 150)
        numbers["person"] = count - sum(numbers.values())
        self._places(numbers)
        self._people(numbers["person"])
        self._institutions_and_works(numbers)
        for entity in self.all:
            for relation in HIDDEN.get(entity.kind, ()):
                if relation in entity.facts and self.draw.chance(_UNSTATED):
                    entity.hidden.add(relation)
        self.index = self._build_index()
        """(kind, relation, value) -> the entities of which it is true, stated or not."""

    def _build_index(self) -> dict[tuple[str, str, Value], list[Entity]]:
        index: dict[tuple[str, str, Value], list[Entity]] = {}
        for entity in self.all:
            for relation, value in entity.facts.items():
                index.setdefault((entity.kind, relation, value), []).append(entity)
        return index

    def title(self, entity: Entity) -> str:
        """Returns the title of an entity's page; the descriptor is part of it where others have the name."""
        return entity.name if self.bearers[entity.name] == 1 else f"{entity.name} ({entity.descriptor})"

    def _new(self, kind: str, name: str, descriptor: str, **facts: Value) -> Entity:
        entity = Entity(len(self.all), kind, name, descriptor, dict(facts))
        self.all.append(entity)
        self.of_kind.setdefault(kind, []).append(entity)
        self.bearers[name] += 1
        self._taken.add((name, descriptor))
        return entity

    def _places(self, numbers: dict[str, int]) -> None:
        draw = self.draw
        for _ in range(numbers["country"]):
            currency = draw.choose(table("names")["currencies"])
            self._new("country", self._place("countries", "country"), "country", currency=currency)
        countries = self.of_kind["country"]
        rivers: dict[int, list[Entity]] = {}
        for _ in range(numbers["river"]):
            country, name = draw.choose(countries).number, self._place("rivers", "river")
            river = self._new("river", name, "river", country=country, length=40 + draw.below(1900))
            rivers.setdefault(country, []).append(river)
        for number in range(numbers["town"]):
            country = (countries[number] if number < len(countries) else draw.choose(countries)).number
            population = 900 + draw.below(9) * 10 ** (2 + draw.below(4)) + draw.below(9000)
            year = 800 + draw.below(950)
            name = self._place("towns", "town")
            town = self._new("town", name, "town", country=country, founded=year, population=population)
            if country in rivers and draw.chance(70):
                town.facts["river"] = draw.choose(rivers[country]).number
            self._in_country.setdefault(country, []).append(town)
        for entity in countries:
            entity.facts["capital"] = draw.choose(self._in_country[entity.number]).number

    def _place(self, endings: str, descriptor: str) -> str:
        """Returns a name of a place that no other place of the kind has; longer ones where the short ones are used."""
        names = table("names")
        for attempt in range(10_000):
            middle = "".join(self.draw.choose(names["middle"]) for _ in range(attempt // 8 + self.draw.below(2)))
            name = f"{self.draw.choose(names['begin'])}{middle}{self.draw.choose(names[endings])}"
            is_shared = self.bearers[name] and endings != "towns"
            if (name, descriptor) not in self._taken and not is_shared:
                return name
        raise AssertionError("names grow longer until one is free")

    def _surname(self) -> str:
        names = table("names")
        middle = self.draw.choose(names["middle"]) if self.draw.chance(40) else ""
        return f"{self.draw.choose(names['begin'])}{middle}{self.draw.choose(names['surnames'])}"

    def _people(self, count: int) -> None:
        """Adds families of up to four generations."""
        while (remainder := count - len(self.of_kind.get("person", []))) > 0:
            draw = self.draw
            surname, home = self._surname(), draw.choose(self.of_kind["country"]).number
            line = [self._person(surname, True, 1840 + draw.below(80), home)]
            for elder in line:  # grows while it is walked: children follow
                if remainder <= len(line) * 2 or not draw.chance(75):
                    continue
                couple = self._marry(elder, home)
                line += [self._child(couple, home) for _ in range(1 + draw.below(3)) if self._young(couple)]

    def _young(self, couple: tuple[Entity, Entity]) -> bool:
        return int(couple[0].facts["birth"]) // 10_000 < _LATEST - 45

    def _person(self, surname: str, male: bool, year: int, home: int) -> Entity:
        draw, names = self.draw, table("names")
        profession = draw.choose_weighted(PROFESSIONS)
        name = f"{draw.choose(names['men' if male else 'women'])} {surname}"
        if self._names["person"] and draw.chance(_SHARED_NAME):
            namesake = draw.choose(self._names["person"])
            name, male = namesake.name, namesake.male
        while (name, profession) in self._taken:
            name = f"{draw.choose(names['men' if male else 'women'])} {self._surname()}"
        country = home if draw.chance(75) else draw.choose(self.of_kind["country"]).number
        birthplace = draw.choose(self._in_country[country]).number
        person = self._new("person", name, profession, birth=_day(draw, year), birthplace=birthplace)
        person.male = male
        if (died := year + 38 + draw.below(55)) < _LIVING:
            person.facts["death"] = _day(draw, died)
        self._names["person"].append(person)
        self._by_profession.setdefault(profession, []).append(person)
        return person

    def _marry(self, person: Entity, home: int) -> tuple[Entity, Entity]:
        """Returns father and mother of a new couple."""
        year = int(person.facts["birth"]) // 10_000 + self.draw.below(9) - 4
        spouse = self._person(self._surname(), not person.male, year, home)
        spouse.male = not person.male  # a shared name would otherwise decide
        person.facts["spouse"], spouse.facts["spouse"] = spouse.number, person.number
        return (person, spouse) if person.male else (spouse, person)

    def _child(self, couple: tuple[Entity, Entity], home: int) -> Entity:
        father, mother = couple
        year = max(int(parent.facts["birth"]) // 10_000 for parent in couple) + 20 + self.draw.below(18)
        child = self._person(father.name.rpartition(" ")[2], self.draw.chance(50), year, home)
        child.facts |= {"father": father.number, "mother": mother.number}
        return child

    def _by(self, profession: str) -> Entity:
        return self.draw.choose(self._by_profession.get(profession) or self.of_kind["person"])

    def _institutions_and_works(self, numbers: dict[str, int]) -> None:
        draw = self.draw
        for kind, profession in (("university", "politician"), ("company", "industrialist"), ("museum", "architect")):
            for _ in range(numbers[kind]):
                person, town = self._by(profession), draw.choose(self.of_kind["town"])
                year = _active(draw, person)
                name = self._institution(kind, town.name, person.name.rpartition(" ")[2])
                where, who = ("headquarters" if kind == "company" else "town"), "founder"
                who = "architect" if kind == "museum" else who
                self._new(kind, name, kind, **{where: town.number, "founded": year, who: person.number})
        for kind, roles in WORKS.items():
            for _ in range(numbers[kind]):
                people = {role: self._by(profession) for role, profession in roles.items()}
                year = _active(draw, next(iter(people.values())))
                name, descriptor = self._title(kind, year)
                work = self._new(kind, name, descriptor, year=year)
                work.facts |= {role: person.number for role, person in people.items()}
                if kind != "song":
                    company = draw.choose(self.of_kind["company"]).number
                    work.facts["studio" if kind == "film" else "publisher"] = company
                self._names["work"].append(work)
        for person in self.of_kind["person"]:
            if draw.chance(70):
                person.facts["university"] = draw.choose(self.of_kind["university"]).number
        for town in self.of_kind["town"]:
            town.facts["mayor"] = self._by("politician").number

    def _institution(self, kind: str, town: str, surname: str) -> str:
        plural = {"university": "universities", "company": "companies", "museum": "museums"}[kind]
        while True:
            name = str(self.draw.choose(table("names")[plural])).format(town=town, surname=surname)
            if not self.bearers[name]:
                return name
            surname, town = self._surname(), self.draw.choose(self.of_kind["town"]).name

    def _title(self, kind: str, year: int) -> tuple[str, str]:
        """Returns name and descriptor of a work; now and then it has the title of an earlier one."""
        draw, names = self.draw, table("names")
        if self._names["work"] and draw.chance(_SHARED_NAME):
            name = draw.choose(self._names["work"]).name
            for descriptor in (kind, f"{year} {kind}"):
                if (name, descriptor) not in self._taken:
                    return name, descriptor
        for attempt in range(10_000):
            noun, noun2 = draw.sample(names["nouns"], 2)
            words = {"noun": noun, "noun2": noun2, "adjective": draw.choose(names["adjectives"])}
            words |= {"town": draw.choose(self.of_kind["town"]).name, "woman": draw.choose(names["women"])}
            name = str(draw.choose(names["titles"])).format(**words)
            name += f" of {self._surname()}" if attempt > 20 else ""
            if not self.bearers[name]:
                return name, kind
        raise AssertionError("titles take surnames until one is free")

    def chains(self, entity: Entity) -> Iterator[tuple[str, Value]]:
        """Yields the relations that the page of ``entity`` states, with their values."""
        for relation in table("pages")[entity.kind]:
            if relation in entity.facts and relation not in entity.hidden:
                yield relation, entity.facts[relation]


WORKS: dict[str, dict[str, str]] = {
    "film": {"director": "film director", "lead": "actor"},
    "song": {"composer": "composer", "performer": "singer"},
    "novel": {"author": "novelist"},
}
"""Kind of work -> its people, and their professions."""


def _day(draw: Draw, year: int) -> int:
    return year * 10_000 + (1 + draw.below(12)) * 100 + 1 + draw.below(28)


def _active(draw: Draw, person: Entity) -> int:
    """Returns a year in the working life of ``person``."""
    return int(person.facts["birth"]) // 10_000 + 24 + draw.below(28)
