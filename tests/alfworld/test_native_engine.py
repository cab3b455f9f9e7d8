"""The native engine on a small house of our own; what it should say was taken from ``textworld``.

Files that are no games: an error that names the file, what is wrong and the remedy; nothing else, and in time.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
import toy_house
from hypothesis import given, settings
from hypothesis import strategies as st

from envsuite.alfworld.engine import GameTurn
from envsuite.alfworld.world import MAX_BYTES, NativeEngine, NativeGame
from envsuite.core.errors import DataError, UsageError


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_house.write(tmp_path_factory.mktemp("house"))


@pytest.fixture(scope="module")
def engine() -> NativeEngine:
    return NativeEngine()


@pytest.fixture
def game(path: Path, engine: NativeEngine) -> Iterator[NativeGame]:
    game = engine.open(path)
    yield game
    game.close()


def played(game: NativeGame, *commands: str) -> GameTurn:
    turn = game.reset()
    for command in commands:
        turn = game.step(command)
        assert turn.valid, f"{command!r} is not among {turn.commands}"
    return turn


def test_a_reset_says_the_intro_and_the_sorted_commands(game):
    assert game.reset() == GameTurn(
        "Hello.\n\nIn hall 1: a chest 2/shut.\n\nYour task is to: light a lamp.",
        ("count", "go to kitchen 1", "look", "open chest 2"),
        False,
        True,
    )


def test_a_list_follows_the_internal_names_and_not_the_spoken_ones(tmp_path, engine):
    init = toy_house.INIT.replace("_1 shelf_bar_1)", "_1 chest_bar_1)").replace("_2 shelf_bar_1)", "_2 chest_bar_1)")
    game = engine.open(toy_house.write(tmp_path, pddl_problem=toy_house.problem(init=init)))
    assert played(game, "open chest 2").feedback == "Open: a cup 1, a lamp 2, and a lamp 1"
    assert played(game, "go to kitchen 1", "open chest 1").feedback == "Open: nothing"


def test_a_placeholder_that_is_known_stays_what_it_is_in_a_query(game):
    turn = played(game, "go to kitchen 1", "take cup 1 from shelf 1")
    assert turn.feedback == "Taken. Left: nothingOnce: cup 1."  # the blank at the beginning of a text is lost
    assert game.step("put cup 1 into shelf 1").feedback == "Put. Now: a cup 1"
    assert game.step("look").feedback == "In kitchen 1: a chest 1/shut, and a shelf 1."


def test_what_is_typed_wrongly_changes_nothing(game):
    first = game.reset()
    for command in ("", "xyzzy", "LOOK", "look.", "go to", "go to  kitchen 1", "open chest 1", "stay", "{x}", "#look#"):
        assert game.step(command) == GameTurn("Nothing happens.", first.commands, False, False)
    assert game.step("  look\n").feedback == "In hall 1: a chest 2/shut.", "blanks around a command do not count"


def test_the_grammar_hears_of_both_effects_of_a_switch_and_the_goal_of_the_one_that_happened(game):
    turn = played(game, "open chest 2", "take lamp 2 from chest 2", "press lamp 2")
    assert turn.feedback == "It said dark."
    assert game.step("put lamp 2 into chest 2").won
    assert not game.step("take lamp 2 from chest 2").won
    assert game.step("press lamp 2").feedback == "It said dark."
    assert not game.step("put lamp 2 into chest 2").won


def test_a_game_that_is_won_goes_on(game):
    turn = played(game, "open chest 2", "take lamp 2 from chest 2", "press lamp 2", "put lamp 2 into chest 2")
    assert turn.won
    assert game.step("dance") == GameTurn("Nothing happens.", turn.commands, True, False)
    assert game.step("go to kitchen 1").won


def test_a_game_asks_to_be_reset_first_and_not_to_be_closed(path, engine):
    game = engine.open(path)
    for call in (lambda: game.step("look"), game.snapshot):
        with pytest.raises(UsageError, match="reset"):
            call()
    game.close()
    with pytest.raises(UsageError, match="closed"):
        game.reset()


def walk(game: NativeGame, choices: list[int]) -> list[GameTurn]:
    """Turns of a walk on which each choice takes one of the commands, or nonsense."""
    turns = []
    commands = game.restore(game.snapshot()).commands
    for choice in choices:
        turn = game.step((*commands, "nonsense")[choice % (len(commands) + 1)])
        commands = turn.commands
        turns.append(turn)
    return turns


def test_a_snapshot_of_another_game_is_refused(game, tmp_path, engine):
    game.reset()
    other = engine.open(toy_house.write(tmp_path, pddl_problem=toy_house.problem(goal="(busy Rex)")))
    other.reset()
    for token in (other.snapshot(), None, {}, ()):
        with pytest.raises(UsageError, match="snapshot of this game"):
            game.restore(token)


def test_a_game_without_one_place_for_the_player_is_played_as_well(tmp_path, engine):
    problem = toy_house.problem(toy_house.OBJECTS + " Tom - cat", toy_house.INIT + " (in Tom attic_bar_1)")
    grammar = toy_house.GRAMMAR.replace('template :: "', 'template :: "{x}: ')
    game = engine.open(toy_house.write(tmp_path, pddl_problem=problem, grammar=grammar))
    turn = played(game, "tom : go to kitchen 1", "rex : go to kitchen 1", "tom : take cup 1 from shelf 1")
    assert turn.feedback == "Taken. Left: nothingOnce: cup 1."
    own = ("count", "go to attic 1", "go to hall 1", "open chest 1", "put cup 1 into shelf 1")
    assert [one for one in turn.commands if one.startswith("tom")] == [f"tom : {command}" for command in own]


def test_a_file_that_changes_is_read_anew_and_old_games_are_dropped(tmp_path):
    engine = NativeEngine(kept=1)
    with pytest.raises(DataError):
        engine.open(toy_house.write(tmp_path, grammar="action"))
    path = toy_house.write(tmp_path)
    first = engine.open(path)
    assert first.reset().feedback.startswith("Hello.")
    toy_house.write(tmp_path, grammar=toy_house.GRAMMAR.replace("Hello.", "Good morning."))
    assert engine.open(path).reset().feedback.startswith("Good morning.")
    assert first.reset().feedback.startswith("Hello.")


GOOD = toy_house.game()


def changed(key: str, old: str, new: str) -> dict:
    text = GOOD[key]
    assert old in text
    return {key: text.replace(old, new, 1)}


DOMAIN, PROBLEM, GRAMMAR = "pddl_domain", "pddl_problem", "grammar"
FAULTS = {
    "a domain that ends early": ({DOMAIN: toy_house.DOMAIN[:900]}, "parentheses open"),
    "a parenthesis too many": ({DOMAIN: toy_house.DOMAIN + ")"}, "not open"),
    "no domain": ({DOMAIN: "(define (problem x))"}, r"\(define \(domain"),
    "an empty domain": ({DOMAIN: ""}, "not one list"),
    "a letter that PDDL has not": (changed(DOMAIN, "kept", "képt"), "ASCII"),
    "deep nesting": ({DOMAIN: "(" * 100_000}, "deep"),
    "deep nesting, closed": (changed(PROBLEM, "(lit ?t)", "(and " * 100 + "(lit ?t)" + ")" * 100), "deep"),
    "forall": (changed(DOMAIN, "(exists (?r - room)", "(forall (?r - room)"), "action unlock has forall"),
    "not exists": (changed(DOMAIN, "(exists (?r", "(not (exists (?r").copy(), "action|parenthes"),
    "forall in an effect": (changed(DOMAIN, "(seen ?r)", "(forall (?q - room) (seen ?q))"), "action look has forall"),
    "derived": (changed(DOMAIN, "(:action go", "(:derived (kept ?t) (lit ?t)) (:action go"), ":derived"),
    "a predicate unknown to the domain": (changed(DOMAIN, "(open ?b)))", "(opened ?b)))"), "opened"),
    "a wrong number of arguments": (changed(DOMAIN, "(lamp ?t) (has", "(lamp ?t ?t) (has"), "gives lamp 2 arguments"),
    "a variable from nowhere": (changed(DOMAIN, "(lamp ?t) (has", "(lamp ?z) (has"), r"\?z"),
    "the same action twice": (changed(DOMAIN, "(:action stay", "(:action go"), "two actions go"),
    "another domain": (changed(PROBLEM, "(:domain house)", "(:domain alfred)"), "alfred"),
    "an object that is not there": (changed(PROBLEM, "(in Rex hall", "(in Max hall"), "max"),
    "an object twice": (changed(PROBLEM, "cup_bar_1 - thing", "cup_bar_1 cup_bar_1 - thing"), "twice"),
    "a type that is not there": (changed(PROBLEM, "- room", "- cellar"), "cellar"),
    "a predicate that is not there": (changed(PROBLEM, "(lamp lamp_bar_1)", "(torch lamp_bar_1)"), "torch"),
    "no goal": ({PROBLEM: toy_house.problem().partition("(:goal")[0] + ")"}, ":goal"),
    "a goal that can't be reached": ({PROBLEM: toy_house.problem(goal="(lit cup_bar_1)")}, "can't be reached"),
    "a goal that is reached anyway": ({PROBLEM: toy_house.problem(goal="(lamp lamp_bar_1)")}, "whatever happens"),
    "a constraint": (changed(PROBLEM, "(:goal", "(:constraints x) (:goal"), ":constraints"),
    "a grammar that ends early": ({GRAMMAR: toy_house.GRAMMAR[:300]}, "grammar, line"),
    "a grammar with broken rules": (changed(GRAMMAR, '"task": [', '"task": '), "not JSON"),
    "an action without words": (changed(GRAMMAR, "action press", "action squeeze"), "press"),
    "a symbol without a rule": (changed(GRAMMAR, "#boxed(b)#", "#boxes#"), "boxes"),
    **{
        f"a list without {name}": (
            changed(GRAMMAR, f'"list_{name}"', f'"list_of_{name}"'),
            f"no rule for #list_{name}#",
        )
        for name in ("empty", "separator", "last_separator")
    },
    "a symbol that needs itself": (changed(GRAMMAR, '"Your task is to: light', '"#task# light'), "expands to itself"),
    "a placeholder from nowhere": (changed(GRAMMAR, "{to.definite}", "{at.definite}"), "speaks of at"),
    "a program instead of a value": (changed(GRAMMAR, "{to.definite}", "{__import__('os').getcwd()}"), "not made of"),
    "an attribute that things lack": (changed(GRAMMAR, "{to.definite}", "{to.__class__}"), "not made of"),
    "a query that is none": (changed(GRAMMAR, "open(b:box) & lid", "open b & lid"), "not a query"),
    "a query about no type": (changed(GRAMMAR, "open(b:box) & lid", "open(b:crate) & lid"), "crate"),
    "a command that depends on the state": (
        changed(GRAMMAR, 'template :: "open {b}"', 'template :: "open {b} #state#"'),
        "template of unlock",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_game_with_a_fault_is_refused_by_name(fault, tmp_path):
    changes, said = FAULTS[fault]
    path = toy_house.write(tmp_path, **changes)
    with pytest.raises(DataError, match=f"(?s)^{re.escape(str(path))}: .*(?:{said}).*envsuite data fetch"):
        NativeEngine().open(path)


def test_a_file_that_is_missing_too_large_or_not_a_game_is_refused(tmp_path):
    path = tmp_path / "game.tw-pddl"
    contents = (None, b"", b"[]", b"{}", b"\xff\xfe", orjson.dumps(GOOD)[:-50], b" " * (MAX_BYTES + 1), b"[" * 100_000)
    for content in contents:
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(DataError, match=re.escape(str(path))):
            NativeEngine().open(path)


def test_a_game_marked_as_unsolvable_can_be_opened(tmp_path):
    assert NativeEngine().open(toy_house.write(tmp_path, solvable=False)).reset().commands


SNIPPETS = (
    *("not ", "and", "or", "exists", "object", "rex", ":action", "when", "(:goal", "é", '"""'),
    *"()\"{}[]#|&;\n ?-\\'+\0",
)
edits = st.lists(
    st.tuples(
        st.sampled_from(("cut", "drop", "double", "insert")),
        st.floats(0, 1, exclude_max=True),
        st.integers(1, 60),
        st.sampled_from(SNIPPETS),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=250)
@given(st.sampled_from((DOMAIN, PROBLEM, GRAMMAR)), edits)
def test_an_edited_game_is_refused_or_can_be_played(key, changes):
    text = GOOD[key]
    for kind, where, length, snippet in changes:
        at = int(where * len(text))
        end = min(at + length, len(text))
        text = {
            "cut": text[: max(at, 1)],
            "drop": text[:at] + text[end:],
            "double": text[:end] + text[at:],
            "insert": text[:at] + snippet + text[at:],
        }[kind]
    with tempfile.TemporaryDirectory() as folder:
        path = toy_house.write(Path(folder), **{key: text})
        try:
            game = NativeEngine().open(path)
            turn = game.reset()
            for number in range(6):
                assert isinstance(turn, GameTurn)
                turn = game.step(turn.commands[number * 5 % len(turn.commands)] if turn.commands else "look")
        except DataError as error:
            assert "envsuite data fetch" in str(error)


def test_a_game_that_cannot_be_played_on_says_so_and_stays_where_it_was(tmp_path):
    grammar = toy_house.GRAMMAR.replace('template :: "press {t}"', 'template :: "press {t} #light#"')
    game = NativeEngine().open(toy_house.write(tmp_path, grammar=grammar))
    game.reset()
    commands = ["open chest 1", "take lamp 1 from chest 1", "open chest 2", "take lamp 2 from chest 2"]
    for command in commands:
        before = game.snapshot()
        try:
            game.step(command)
        except DataError as error:
            assert "template of press depends" in str(error)
            assert game.snapshot() == before
            return
    pytest.fail("no command was refused")
