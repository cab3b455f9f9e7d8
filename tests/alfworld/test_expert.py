"""What the expert reads from a game, and that it wins."""

import json
import random
import re

import pytest
from house import House, spoken
from hypothesis import given
from hypothesis import strategies as st

from envsuite.alfworld.env import ALFWorld
from envsuite.alfworld.expert import ALFWorldExpert
from envsuite.alfworld.placement import OPENABLE
from envsuite.alfworld.reading import INTRODUCTION, kind, read
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
def test_it_wins_in_every_house_in_which_that_can_be_done_and_takes_a_bounded_time(house):
    won, commands = play(house)
    assert won
    assert len(commands) <= 3 * len(house.place) + 30


@given(houses(solvable=False))
def test_where_there_is_no_such_thing_it_says_so_once_it_has_looked_everywhere(house):
    with pytest.raises(UsageError, match="searched everything twice"):
        play(house)
    assert not house.shut


@given(houses(), st.integers(0, 10**6), st.integers(0, 60))
def test_it_wins_from_where_others_have_left_a_game_or_though_every_third_command_is_somebody_else_s(house, seed, left):
    won, _ = play(house, 600 + left if left else 3000, random.Random(seed), left)
    assert won


ODDITIES = st.text(max_size=20) | st.sampled_from([
    "go to safe 1", "go to safe", "go to", "take cup 1 from safe 1", "take cup 1", "use", "move cup 1",
    "examine safe 1", "examine cup 1", "open safe 1", "open", "clean cup 1 with safe 1", "inventory",
    "On the safe 1, you see a cup 1, and a cup 2.", "You pick up the cup 1 from the safe 1.", "Nothing happens.",
    "You are carrying: a cup 1.", "-= Welcome to TextWorld, ALFRED! =-", "The safe 1 is closed.",
])  # fmt: skip


@given(st.sampled_from(FORMS), st.lists(st.tuples(ODDITIES, st.lists(ODDITIES, max_size=6)), max_size=8))
def test_whatever_a_game_says_and_offers_it_picks_of_the_offer_or_says_that_it_cannot(form, turns):
    seeker = Seeker(SentenceGoal.parse(form[2].format(item="cup", target="safe", lamp="lamp")))
    with pytest.raises(UsageError, match="call observe first"):
        seeker.act()
    for text, commands in turns:
        seeker.observe(text, commands)
        try:
            assert seeker.act() in (*commands, "inventory")
        except UsageError:
            pass


def test_it_follows_every_recorded_game_and_always_has_an_admissible_answer(shared):
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


@pytest.mark.parametrize("split", ["valid_seen", "valid_train"])
def test_one_expert_wins_games_of_all_six_families_at_once_within_the_horizon(games_root, split):
    ids, expert = ALFWorld(source=games_root, split=split).tasks.ids(split)[::9], ALFWorldExpert()
    playing = {task_id: ALFWorld(source=games_root, split=split) for task_id in ids}
    assert len({env.reset(options={"task_id": task_id})[1]["task_type"] for task_id, env in playing.items()}) == 6
    for _ in range(50):
        for task_id, env in list(playing.items()):
            action = expert.act(env)
            assert action == expert.act(env)
            assert action[0].arguments["command"] in env.observation["commands"]
            _, _, done, _, info = env.step(action)
            if done:
                assert info["success"], task_id
                del playing[task_id]
    assert not playing


WORDS = st.from_regex(r"[a-z]{2,12}", fullmatch=True)
THINGS = st.builds("{} {}".format, WORDS, st.integers(1, 40))


@given(st.sampled_from(FORMS), WORDS, WORDS, st.booleans())
def test_every_form_of_task_is_read_back(form, item, place, whole):
    family, verb, template = form
    sentence = template.format(item=item, target=place, lamp=place)
    goal = SentenceGoal.parse(f"Your task is to: {sentence}." if whole else sentence)
    lamp = "lamp" in template
    count = 2 if "two" in template else 1
    assert goal == SentenceGoal(family, item, "" if lamp else place, verb, count, place if lamp else "")


@given(st.text(max_size=60) | st.sampled_from(FORMS).map(lambda form: form[2].format(item="a b", target="c", lamp="d")))
def test_any_other_sentence_is_refused_with_the_forms_that_are_known(sentence):
    with pytest.raises(UsageError) as caught:
        SentenceGoal.parse(sentence)
    assert repr(sentence) in str(caught.value) and "find two {item} and put them in {target}" in str(caught.value)


def test_every_recorded_task_is_understood_as_the_folder_of_its_game_says(shared):
    with (shared / "data" / "alfworld" / "transcripts.jsonl").open() as lines:
        for row in map(json.loads, lines):
            family, item, _, target, _ = row["gamefile"].split("/")[1].lower().split("-")
            task = re.search(r"Your task is to: .*", row["reset"]["feedback"])
            assert task is not None
            goal = SentenceGoal.parse(task[0])
            assert (goal.family, goal.item, goal.target or goal.lamp) == (family, item, target)


@given(st.lists(THINGS, unique=True, max_size=8), THINGS, st.booleans())
def test_what_is_inside_a_receptacle_is_read_back(things, place, door):
    look = f"The {place} is open. In it, you see" if door else f"On the {place}, you see"
    for before in ("", f"You arrive at {place}. ", f"You open the {place}. "):
        said = read(f"{before}{look} {spoken(things)}.")
        assert said.inside == ((place, tuple(sorted(things))),)
        assert not (said.closed or said.room or said.taken or said.placed or said.first or said.refused)


@given(st.lists(THINGS, unique=True, min_size=1), THINGS, THINGS, st.sampled_from(["clean", "heat", "cool"]))
def test_room_hand_doors_and_what_was_done_are_read_back(names, thing, place, verb):
    room = f"You are in the middle of a room. Looking quickly around you, you see {spoken(names)}."
    first = read(f"{INTRODUCTION}\n\n{room}\n\nYour task is to: put a {thing.split()[0]} in safe.")
    assert first.first and first.room == tuple(sorted(names)) and not first.inside
    assert read(f"You are carrying: a {thing}.").carried == thing
    assert read("You are not carrying anything.").carried == ""
    assert read(f"You arrive at {thing}. The {thing} is closed.").closed == (thing,)
    assert read(f"You close the {thing}.").closed == (thing,)
    assert read(f"You pick up the {thing} from the {place}.").taken == (thing, place)
    assert read(f"You move the {thing} to the {place}.").placed == (thing, place)
    assert read(f"You {verb} the {thing} using the {place}.").treated == (verb, thing)
    assert read("Nothing happens.").refused


@given(st.text() | st.lists(st.sampled_from(["You see", " a ", "nothing", "On the ", "cup 1", ", ", "."])).map("".join))
def test_no_text_whatever_is_too_strange_to_be_read(text):
    read(text)
