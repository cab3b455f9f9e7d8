"""The expert plays from what the games show."""

import json
import random
import re
from pathlib import Path

import pytest
from house import House
from hypothesis import given
from hypothesis import strategies as st

from envsuite.alfworld.placement import OPENABLE
from envsuite.alfworld.reading import kind
from envsuite.alfworld.seeking import Seeker
from envsuite.alfworld.sentences import FORMS, SentenceGoal
from envsuite.core.errors import UsageError

KINDS = ("cabinet", "drawer", "shelf", "countertop", "safe", "diningtable", "sinkbasin", "microwave", "fridge")


@st.composite
def houses(draw: st.DrawFn, *, solvable: bool = True) -> House:
    """A house with any number of receptacles, some at one place, some with doors; most things are somewhere else."""
    rng = random.Random(draw(st.integers(0, 10**9)))
    *_, form = draw(st.sampled_from(FORMS))
    names = [f"{k} {i}" for k in KINDS for i in range(1, rng.choice([1, 2, 4, 9]) + 1)]
    task = form.format(item="cup", target=rng.choice(KINDS), lamp="desklamp")
    goal = SentenceGoal.parse(task)
    place = {name: rng.randrange(3 * len(names) // 2) for name in names}
    doors = frozenset(name for name in names if kind(name) in OPENABLE and rng.random() < 0.8)
    shut = {name for name in doors if rng.random() < 0.9}
    things = [f"{k} {i}" for k in ("mug", "pen", "book") for i in range(1, rng.randrange(1, 5))]
    things += [f"cup {i}" for i in range(1, goal.count + 1 + rng.randrange(2))] if solvable else []
    things += ["desklamp 1"]
    inside = {thing: rng.choice(names) for thing in things}
    useless = ""
    if solvable:
        if goal.verb and rng.random() < 0.5:
            useless = "cup 9"
            inside[useless] = rng.choice(names)
        if rng.random() < 0.3:
            inside["cup 0"] = rng.choice([n for n in names if kind(n) != goal.target])  # cannot be picked up
    targets = [name for name in names if kind(name) == goal.target]
    refusing = frozenset(targets[1:]) if rng.random() < 0.2 else frozenset[str]()
    return House(goal, task, place, inside, shut, doors, refusing, frozenset([useless]), at=-1)


def play(house: House, limit: int = 400, others: random.Random | None = None, left: int = 0) -> tuple[bool, list[str]]:
    """The expert's commands, after ``left`` of others; with ``others``, every third is theirs, too."""
    seeker, turn = Seeker(house.goal), house.reset()
    commands: list[str] = []
    while not turn.won and len(commands) < limit:
        if others is not None and len(commands) < left:
            commands.append(others.choice(turn.commands))
        else:
            seeker.observe(turn.feedback, turn.commands)
            commands.append(seeker.act())
            assert commands[-1] == seeker.act() and commands[-1] in turn.commands
            if others is not None and not left and len(commands) % 3 == 0:
                commands[-1] = others.choice(turn.commands)
        turn = house.step(commands[-1])
    return turn.won, commands


@given(houses())
def test_it_wins_in_every_house_in_which_that_can_be_done_and_takes_a_bounded_time(house: House) -> None:
    won, commands = play(house)
    assert won
    assert len(commands) <= 3 * len(house.place) + 30


@given(houses(solvable=False))
def test_where_there_is_no_such_thing_it_says_so_once_it_has_looked_everywhere(house: House) -> None:
    with pytest.raises(UsageError, match="searched everything twice"):
        play(house)
    assert not house.shut


@given(houses(), st.integers(0, 10**6), st.integers(0, 60))
def test_it_wins_from_where_others_have_left_a_game_or_though_every_third_command_is_somebody_else_s(
    house: House, seed: int, left: int
) -> None:
    won, _ = play(house, 600 + left if left else 3000, random.Random(seed), left)
    assert won


ODDITIES = st.text(max_size=20) | st.sampled_from([
    "go to safe 1", "go to safe", "go to", "take cup 1 from safe 1", "take cup 1", "use", "move cup 1",
    "examine safe 1", "examine cup 1", "open safe 1", "open", "clean cup 1 with safe 1", "inventory",
    "On the safe 1, you see a cup 1, and a cup 2.", "You pick up the cup 1 from the safe 1.", "Nothing happens.",
    "You are carrying: a cup 1.", "-= Welcome to TextWorld, ALFRED! =-", "The safe 1 is closed.",
])  # fmt: skip


@given(st.sampled_from(FORMS), st.lists(st.tuples(ODDITIES, st.lists(ODDITIES, max_size=6)), max_size=8))
def test_whatever_a_game_says_and_offers_it_picks_of_the_offer_or_says_that_it_cannot(
    form: tuple[str, str, str], turns: list[tuple[str, list[str]]]
) -> None:
    seeker = Seeker(SentenceGoal.parse(form[2].format(item="cup", target="safe", lamp="lamp")))
    with pytest.raises(UsageError, match="call observe first"):
        seeker.act()
    for text, commands in turns:
        seeker.observe(text, commands)
        try:
            assert seeker.act() in (*commands, "inventory")
        except UsageError:
            pass


def test_it_follows_every_recorded_game_and_always_has_an_admissible_answer(shared: Path) -> None:
    with (shared / "data" / "alfworld" / "transcripts.jsonl").open() as lines:
        for row in map(json.loads, lines):
            task = re.search(r"Your task is to: .*", row["reset"]["feedback"])
            assert task is not None
            seeker = Seeker(SentenceGoal.parse(task[0]))
            for step in (row["reset"], *row["steps"]):
                commands = tuple(step["admissible_commands"])
                seeker.observe(step["feedback"], commands)
                if step.get("won"):
                    break
                assert seeker.act() in commands
                if any(command.startswith("take ") for command in commands):
                    assert seeker.held == ""
                if "carrying: a" in step["feedback"]:
                    assert f"carrying: a {seeker.held}." in step["feedback"]
                for command in commands:
                    if command.startswith("take "):
                        thing, place = command[5:].split(" from ")
                        assert thing in seeker.inside[place]
