"""Searches for objects and brings them to their targets, from the turns of a game alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from envsuite.alfworld.placement import OPENABLE, RECEPTACLES, probability
from envsuite.alfworld.reading import Reading, kind, read
from envsuite.alfworld.sentences import SentenceGoal
from envsuite.core.errors import UsageError

Probability = Callable[[str, str], float]
"""Type of an object, type of a receptacle -> probability that the receptacle holds such an object."""


class Seeker:
    """Plays one game: hand it each turn with :meth:`observe`, and ask :meth:`act` for the next command.

    It uses only what the turns state. It searches receptacles in the order of the expected finds per command. It can
    join in the middle of a game that others have played so far: it searches again for what it has not seen.

    Args:
        goal: The goal of the game.
        probability: Prior of where objects are.
    """

    def __init__(self, goal: SentenceGoal, probability: Probability = probability) -> None:
        self.goal = goal
        self.probability = probability
        self._begin()

    def _begin(self) -> None:
        self.held: str | None = None
        """The object that is held; ``""`` for none, ``None`` if unknown."""
        self.receptacles: dict[str, None] = {}
        """The known receptacles of the room, in the order in which they became known."""
        self.here: frozenset[str] = frozenset()
        """Receptacles at the player's location."""
        self.lamps: dict[str, str] = {}
        """Lamps of the type that the goal names, each with a receptacle at its location."""
        self._commands: Mapping[str, None] = {}
        self._asked = ""
        self._looked_again = False
        self._forget()

    def _forget(self) -> None:
        self.inside: dict[str, set[str]] = {}
        """The objects seen in each receptacle that has been examined."""
        self._shut: dict[str, bool] = {}
        self.treated: set[str] = set()
        """Objects that have been treated as the goal demands."""
        self._useless: set[str] = set()
        self._refused: set[tuple[str, str]] = set()
        self._barred: set[str] = set()
        self._home = ""

    def observe(self, text: str, commands: Sequence[str]) -> None:
        """Updates its knowledge by a turn: the game's text, and the commands that it then offers."""
        reading = read(text)
        if reading.first:
            self._begin()
            self.held = ""
        if reading.refused and self._asked:
            self._barred.add(self._asked)
        self._asked = ""
        self._commands = dict.fromkeys(commands)
        self._locate(reading)
        self._note(reading)
        self._glance()
        self._judge()

    def act(self) -> str:
        """Returns the next command; the same until the next turn.

        Raises:
            UsageError: There is nothing left to try, or no turn has been observed.
        """
        if not self._commands:
            raise UsageError("the Seeker has seen no command that the game offers; call observe first")
        self._asked = next((c for c in self._wishes() if c in self._commands and c not in self._barred), "")
        if not self._asked and not self._looked_again:
            self._looked_again = True
            self._forget()
            self.held = None
            self._asked = "inventory"
        if not self._asked:
            raise UsageError(f"the expert has searched everything twice and found no way to reach {self.goal}")
        return self._asked

    def _locate(self, reading: Reading) -> None:
        elsewhere = [command[6:] for command in self._commands if command.startswith("go to ")]
        receptacles = [*reading.room, *elsewhere, *(receptacle for receptacle, _ in reading.inside), *reading.closed]
        here = [command[8:] for command in self._commands if command.startswith("examine ")]
        receptacles += [name for name in here if kind(name) in RECEPTACLES]
        self.receptacles.update(dict.fromkeys(sorted(receptacles, key=_by_number)))
        self.here = frozenset(self.receptacles).difference(elsewhere)

    def _note(self, reading: Reading) -> None:
        if reading.carried is not None:
            self.held = reading.carried
        if reading.taken is not None:
            self.held, source = reading.taken
            self.inside.setdefault(source, set()).discard(self.held)
        if reading.placed is not None:
            item, place = reading.placed
            self.held = ""
            self.inside.setdefault(place, set()).add(item)
        if reading.treated is not None and reading.treated[0] == self.goal.verb:
            self.treated.add(reading.treated[1])
        for receptacle, items in reading.inside:
            self.inside[receptacle] = set(items)

    def _glance(self) -> None:
        """Updates doors, lamps and the contents of open receptacles at this location from the commands."""
        takeable: dict[str, set[str]] = {receptacle: set() for receptacle in self.here}
        visible = set()
        for receptacle in self.here:
            self._shut[receptacle] = f"open {receptacle}" in self._commands
        for command in self._commands:
            verb, _, argument = command.partition(" ")
            item, _, place = argument.partition(" from ")
            if verb == "take":
                self.held = ""
                takeable.setdefault(place, set()).add(item)
            elif verb == "use" and kind(argument) == self.goal.lamp:
                self.lamps[argument] = min(self.here, default="")
            elif verb == "examine" and argument not in self.receptacles:
                visible.add(argument)
            elif verb == "move":
                self.held = argument.partition(" to ")[0]
        if self.held and self.held not in visible:
            self.held = None
        open_receptacles = [receptacle for receptacle in takeable if not self._shut.get(receptacle)]
        if self.held == "":
            self.inside.update({receptacle: takeable[receptacle] for receptacle in open_receptacles})
            return
        # While an object is held, the commands show which objects are at the location, not in which receptacle.
        news = visible - {self.held, *(item for place in open_receptacles for item in self.inside.get(place, ()))}
        news = {item for item in news if kind(item) == self.goal.item}
        unseen = [receptacle for receptacle in open_receptacles if receptacle not in self.inside]
        if not news or len(unseen) == 1:
            self.inside.update({receptacle: news for receptacle in unseen})

    def _judge(self) -> None:
        """Excludes receptacles and objects that have proved unsuitable."""
        if not self.held:
            return
        for receptacle in self.here:
            if not self._shut[receptacle] and f"move {self.held} to {receptacle}" not in self._commands:
                self._refused.add((kind(self.held), receptacle))
            treatment = f"{self.goal.verb} {self.held} with {receptacle}"
            if kind(receptacle) == self.goal.appliance and treatment not in self._commands:
                self._useless.add(self.held)

    def _wishes(self) -> Iterator[str]:
        """Yields commands, the best first; the first that the game offers is chosen."""
        if self.held is None:
            yield "inventory"
        elif self.held == "":
            yield from self._fetch()
        elif kind(self.held) != self.goal.item or self.held in self._useless:
            yield from self._put(self._places(self.held))
        elif self.goal.lamp:
            yield from (f"use {lamp}" for lamp in self.lamps)
            yield from (f"go to {place}" for place in self.lamps.values())
            yield from self._search({self.goal.lamp: 1.0})
        elif self.goal.verb and self.held not in self.treated:
            yield from (f"{self.goal.verb} {self.held} with {way}" for way in self.appliances())
            yield from (f"go to {way}" for way in self.appliances())
        else:
            yield from self._put(self.targets())

    def _fetch(self) -> Iterator[str]:
        """Yields commands that take an object of the goal, or that search for one."""
        home = self._settle() if self.goal.count > 1 else ""
        candidates = [
            (place not in self.here, self._shut.get(place, False), item, place)
            for place, items in self.inside.items()
            for item in items
            if kind(item) == self.goal.item and item not in self._useless and place != home
        ]
        for _, _, item, place in sorted(candidates):
            yield f"take {item} from {place}"
            yield from self._reach(place)
        weights = {self.goal.item: 1.0}
        if self.goal.lamp and not self.lamps:
            weights[self.goal.lamp] = 1.0
        yield from self._search(weights)

    def _put(self, places: Sequence[str]) -> Iterator[str]:
        """Yields commands that put the held object in the first of ``places`` that accepts it."""
        for place in places:
            if (kind(self.held or ""), place) not in self._refused:
                yield f"move {self.held} to {place}"
                yield from self._reach(place)

    def _settle(self) -> str:
        """Returns the receptacle in which the objects are gathered; empty while none holds one."""
        targets = (place for place in self.receptacles if kind(place) == self.goal.target)
        count = {place: self._count(place) for place in targets if (self.goal.item, place) not in self._refused}
        best = max(count, key=lambda place: (count[place], place == self._home), default="")
        self._home = best if count.get(best) else ""
        return self._home

    def _count(self, place: str) -> int:
        return sum(kind(item) == self.goal.item for item in self.inside.get(place, ()))

    def appliances(self) -> list[str]:
        """Returns the receptacles in which the object can be treated as the goal demands."""
        return [place for place in self.receptacles if kind(place) == self.goal.appliance]

    def targets(self) -> list[str]:
        """Returns the target receptacles, the best first: one that holds another object, then the nearest."""
        home = self._settle() if self.goal.count > 1 else ""
        targets = [place for place in self.receptacles if kind(place) == self.goal.target]
        return sorted(targets, key=lambda place: (place != home, self._cost(place)))

    def _places(self, item: str) -> list[str]:
        """Returns all receptacles, the most probable for ``item`` first."""
        return sorted(self.receptacles, key=lambda r: (r not in self.here, -self.probability(kind(item), kind(r))))

    def _search(self, weights: Mapping[str, float]) -> Iterator[str]:
        """Yields commands that examine receptacles not examined yet."""
        for place in self.order([place for place in self.receptacles if place not in self.inside], weights):
            yield from self._reach(place)
            yield f"examine {place}"

    def order(self, places: Sequence[str], weights: Mapping[str, float]) -> list[str]:
        """Returns the order in which to search: the most expected finds per command first.

        Args:
            places: Receptacles that have not been examined.
            weights: The weight of each type that is searched for.
        """

        def worth(place: str) -> float:
            chance = sum(weight * self.probability(item, kind(place)) for item, weight in weights.items())
            return chance / self._cost(place)

        # Where the goal is only to put an object, none is in a target yet, or the game would be won.
        plain = not (self.goal.verb or self.goal.lamp) and self.goal.count == 1
        return sorted(places, key=lambda place: (plain and kind(place) == self.goal.target, -worth(place)))

    def _reach(self, place: str) -> Iterator[str]:
        yield f"open {place}"
        yield f"go to {place}"

    def _cost(self, place: str) -> float:
        """Estimates the commands until the player is at ``place`` and it is open."""
        shut = float(self._shut[place]) if place in self._shut else OPENABLE.get(kind(place), 0.0)
        return shut + (place not in self.here) or 1.0


def _by_number(name: str) -> tuple[str, int]:
    word, _, number = name.partition(" ")
    return word, int(number) if number.isdecimal() else 0
