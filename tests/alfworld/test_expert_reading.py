"""Task sentences and game texts as the expert reads them."""

import json
import re
from pathlib import Path

import pytest
from house import spoken
from hypothesis import given
from hypothesis import strategies as st

from envsuite.alfworld.reading import INTRODUCTION, read
from envsuite.alfworld.sentences import FORMS, SentenceGoal
from envsuite.core.errors import UsageError

WORDS = st.from_regex(r"[a-z]{2,12}", fullmatch=True)
THINGS = st.builds("{} {}".format, WORDS, st.integers(1, 40))


@given(st.sampled_from(FORMS), WORDS, WORDS, st.booleans())
def test_every_form_of_task_is_read_back(form: tuple[str, str, str], item: str, place: str, whole: bool) -> None:
    family, verb, template = form
    sentence = template.format(item=item, target=place, lamp=place)
    goal = SentenceGoal.parse(f"Your task is to: {sentence}." if whole else sentence)
    lamp = "lamp" in template
    count = 2 if "two" in template else 1
    assert goal == SentenceGoal(family, item, "" if lamp else place, verb, count, place if lamp else "")


@given(st.text(max_size=60) | st.sampled_from(FORMS).map(lambda form: form[2].format(item="a b", target="c", lamp="d")))
def test_any_other_sentence_is_refused_with_the_forms_that_are_known(sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        SentenceGoal.parse(sentence)
    assert repr(sentence) in str(caught.value) and "find two {item} and put them in {target}" in str(caught.value)


def test_every_recorded_task_is_understood_as_the_folder_of_its_game_says(shared: Path) -> None:
    with (shared / "data" / "alfworld" / "transcripts.jsonl").open() as lines:
        for row in map(json.loads, lines):
            family, item, _, target, _ = row["gamefile"].split("/")[1].lower().split("-")
            task = re.search(r"Your task is to: .*", row["reset"]["feedback"])
            assert task is not None
            goal = SentenceGoal.parse(task[0])
            assert (goal.family, goal.item, goal.target or goal.lamp) == (family, item, target)


@given(st.lists(THINGS, unique=True, max_size=8), THINGS, st.booleans())
def test_what_is_inside_a_receptacle_is_read_back(things: list[str], place: str, door: bool) -> None:
    look = f"The {place} is open. In it, you see" if door else f"On the {place}, you see"
    for before in ("", f"You arrive at {place}. ", f"You open the {place}. "):
        said = read(f"{before}{look} {spoken(things)}.")
        assert said.inside == ((place, tuple(sorted(things))),)
        assert not (said.closed or said.room or said.taken or said.placed or said.first or said.refused)


@given(st.lists(THINGS, unique=True, min_size=1), THINGS, THINGS, st.sampled_from(["clean", "heat", "cool"]))
def test_room_hand_doors_and_what_was_done_are_read_back(names: list[str], thing: str, place: str, verb: str) -> None:
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
def test_no_text_whatever_is_too_strange_to_be_read(text: str) -> None:
    read(text)
