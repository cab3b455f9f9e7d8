"""What a game says: its own texts, of which Inform 7's conditions and lists are read here, and Inform 7's sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

SENTENCES = {
    "take": "You pick up {0} from the ground.", "take/c": "You take {0} from {1}.", "take/s": "You take {0} from {1}.",
    "drop": "You drop {0} on the ground.", "insert": "You put {0} into {1}.", "put": "You put {0} on {1}.",
    "open": "You open {0}{inside}.", "close": "You close {0}.", "lock": "You lock {0}.", "unlock": "You unlock {0}.",
    "eat": "You eat {0}. Not bad.", "drink": "You drink {0}. Not bad.", "make": "Adding the meal to your inventory.",
    "slice": "You slice {0}.", "dice": "You dice {0}.", "chop": "You chop {0}.", "burned": "You burned {0}!",
    "stove": "You fried {0}.", "oven": "You roasted {0}.", "toaster": "You grilled {0}.",
}  # fmt: skip
"""Rule, or a part of its name, -> what Inform 7 says of it; ``inside`` is what is seen in something that was opened."""
PORTABLE, SUPPORTERS = ("o", "k", "f", "meal"), ("s", "stove")
"""Types of entities that can be carried, and of those that entities are put on."""
CUTS = ("sliced", "diced", "chopped")
COOKINGS = ("needs_cooking", "burned", "roasted", "fried", "grilled")
"""States of food, the first of which is said: ``needs_cooking`` as "raw"."""
WON, LOST = "\n\n*** The End ***", "\n\n*** You lost! ***"
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


class StoryScene:
    """What is where in a state of a game.

    Args:
        infos: Names, types and texts of all rooms and entities, by id.
        facts: The facts of the state.
        entities: Ids of all entities, in the order of Inform 7's objects.
        before: The scene before the last command, if there was one.
    """

    def __init__(
        self, infos: Mapping[str, Any], facts: Iterable[Any], entities: Sequence[str], before: StoryScene | None = None
    ) -> None:
        self._infos, self._entities = infos, entities
        self._holders, self._traits = dict[str, str](), dict[str, set[str]]()
        for fact in facts:
            names = [argument.name for argument in fact.arguments]
            if fact.name in ("at", "in", "on"):
                self._holders[names[0]] = names[1]
            elif len(names) == 1:
                self._traits.setdefault(names[0], set()).add(fact.name)
        latest: Sequence[str] = before._latest if before else entities
        arrivals = [entity for entity in latest if before and self._holders.get(entity) != before._holders.get(entity)]
        self._latest: Sequence[str] = [*dict.fromkeys((*arrivals, *latest))]

    def after(self, facts: Iterable[Any]) -> StoryScene:
        """Returns the scene that follows."""
        return StoryScene(self._infos, facts, self._entities, self)

    def contents(self, holder: str, latest: bool = True) -> list[str]:
        """Returns the ids of what is in, on or at something, the one that came last first, or as they are numbered.

        Inform 7 names them in the first order where it lists them itself, and in the other in the package's texts.
        """
        return [
            entity for entity in (self._latest if latest else self._entities) if self._holders.get(entity) == holder
        ]

    def list_inside(self, holder: str) -> Iterator[str]:
        """Yields the ids of the entities in a room or entity, each before what is in it."""
        for entity in self.contents(holder):
            yield entity
            yield from self.list_inside("I" if entity == "P" else entity)

    def room(self) -> str:
        """Returns what ``look`` says."""
        info = self._infos[here := self._holders["P"]]
        loose = [entity for entity in self.contents(here, latest=False) if self._infos[entity].type in PORTABLE]
        floor = f"\n\nThere is {self._list(loose)} on the floor." if loose else ""
        return _tidy(f"-= {info.name.title()} =-\n{self._fill(info.desc, here)}{floor}")

    def inventory(self) -> str:
        """Returns what ``inventory`` says."""
        return f"You are carrying: {self._list(load)}." if (load := self.contents("I")) else "You are carrying nothing."

    def describe(self, entity: str) -> str:
        """Returns what ``examine`` says of an entity."""
        on = self._infos[entity].type in SUPPORTERS
        contents = self.contents(entity) if on or self._is(entity, "open") else []
        place = f"{'On' if on else 'In'} {self.the(entity)} {'is' if len(contents) == 1 else 'are'}"
        inside = f"\n\n{place} {self._list(contents)}." if contents else ""
        text = _tidy(self._fill(self._infos[entity].desc or "", entity) + inside)
        return text or f"You see nothing special about {self.the(entity)}."

    def inside(self, entity: str) -> str:
        """Returns the end of the sentence that says that something has been opened."""
        return f", revealing {self._list(contents)}" if (contents := self.contents(entity)) else ""

    def the(self, entity: str) -> str:
        """Returns the name of an entity with the article, which doors have none of."""
        info = self._infos[entity]
        return str(info.name) if info.type == "d" else f"the {info.name}"

    def _is(self, entity: str, trait: str) -> bool:
        traits = self._traits.get(entity, ())
        return trait in traits or (trait == "closed" and "locked" in traits)

    def _list(self, entities: Sequence[str], article: bool = True) -> str:
        names = [self._name(entity, article) for entity in entities]
        return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))

    def _name(self, entity: str, article: bool) -> str:
        info, traits = self._infos[entity], self._traits.get(entity, ())
        states = [next((state for state in states if state in traits), "") for states in (CUTS, COOKINGS)]
        name = " ".join(filter(None, (*states, info.name))).replace("needs_cooking", "raw")
        return f"{info.indefinite or ('an' if name[0] in 'aeiouAEIOU' else 'a')} {name}" if article else name

    def _fill(self, text: str, entity: str) -> str:
        """Returns a text of the package with its conditions decided and its lists written."""
        parts, active, has_case = list[str](), True, False
        for number, part in enumerate(re.split(r"\[(.*?)\]", text)):
            word, _, condition = part.partition("if ")
            if part in ("otherwise", "end if"):
                active = part == "end if" or not has_case
            elif number % 2 and word in ("", "else "):
                active = not (word and has_case) and self._holds(condition, entity)
                has_case = active or bool(word and has_case)
            elif active:
                parts.append(self._value(part, entity) if number % 2 else part)
        return "".join(parts)

    def _holds(self, condition: str, entity: str) -> bool:
        if " and " in condition:
            return all(self._holds(part, entity) for part in condition.split(" and "))
        first, *words = condition.removeprefix("the ").split()
        if first == "there":  # is something on the s_0
            return ("something" in words) == bool(self.contents(words[-1]))
        return (
            not self.contents(first)
            if words[-1:] == ["nothing"]
            else self._is(first if words else entity, (words or [first])[-1])
        )

    def _value(self, part: str, entity: str) -> str:
        if part == "noun":
            return self._name(entity, article=False)
        entities = self.contents(part.split()[-1], latest=False)
        verb = ("is " if len(entities) == 1 else "are ") if part.startswith("is-are") else ""
        return verb + (self._list(entities, "a list" in part) or "nothing")


def describe_action(scene: StoryScene, action: Any) -> str:
    """Returns what an action, which has led to the scene, makes the game say."""
    rule, _, tail = action.name.partition("/")
    entities = re.findall(r"\{(.*?)\}", action.command_template)
    if rule in ("look", "go"):
        return scene.room()
    if rule in ("inventory", "examine"):
        return scene.describe(entities[0]) if entities else scene.inventory()
    part = tail.rpartition("/")[2] if tail.endswith("burned") else tail.partition("/")[0] if rule == "cook" else rule
    names = [scene.the(entity) for entity in entities]
    return SENTENCES.get(action.name, SENTENCES[part]).format(
        *names, inside=scene.inside(entities[0]) if entities else ""
    )


def describe_points(progress: Any, points: int) -> str:
    """Returns what the game says of the points that have been added to earlier ones, and of its end."""
    more = progress.score - points
    text = f"\n\nYour score has just gone up by {NUMBERS[more]} point{'s' * (more > 1)}." if more else ""
    return text + (WON if progress.completed else LOST if progress.failed else "")


def _tidy(text: str) -> str:
    """Returns a text without blanks at the ends of lines, and with one empty line between paragraphs."""
    text = "\n".join(line.strip() for line in text.strip().split("\n"))
    return re.sub(r"\n\n+", "\n\n", re.sub(r"(?<!\w)'|'(?!\w)", '"', text))
