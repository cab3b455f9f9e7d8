"""What is known of an environment whose difficulties are dials, as the measures have it."""

from research.credit.environments import main, measured
from tests.support.console import Console

WALK = "Bifurcation-v0"


def test_measures_are_what_the_dials_of_a_walk_say():
    played, found = measured(WALK, horizon=6, decisions=3)
    assert played["share"] == 0.3 and abs(found["success"].value - 0.7**3) < 0.12, "all three forks have to be right"
    assert found["late_reward"].value == 1.0 and found["median_length"].value == 6.0
    assert found["repeated_states"].value > 0.95 and found["cycles"].value == found["stays"].value == 0.0
    assert 1.0 < found["decisive_of_success"].value < 3.3 and 1.0 < found["effective_decisions"].value < 4.5
    _, each = measured(WALK, horizon=6, decisions=3, reward="each")
    assert 0.0 < each["late_reward"].value < 0.5, "a share for each fork, at once"


def test_the_command_writes_the_same_files_twice(capsys, tmp_path):
    for folder in ("one", "other"):
        Console(capsys)(f"--only {WALK} --out {tmp_path / folder}", main=main)
    one, other = ({file.name: file.read_text() for file in (tmp_path / name).iterdir()} for name in ("one", "other"))
    assert one == other and "| Bifurcation | 0.3 |" in one["environments.md"] and len(one) == 3


def test_an_unknown_environment_is_one_line(capsys):
    _, err = Console(capsys)("--only Bifurcatoin-v0", status=2, main=main)
    assert err.startswith("error: unknown environment 'Bifurcatoin-v0'. Nearest: 'Bifurcation-v0'")
    assert err.count("\n") == 1
