"""Every environment is played in a real terminal, through the command."""

import shutil

import pytest
from terminal import playing
from test_play_session import FEW, IDS

from envsuite.evaluation.demonstrations.file import read_demonstrations
from envsuite.evaluation.demonstrations.playing import replay
from envsuite.remote.making import make

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux: apt-get install tmux"),
]


@pytest.mark.parametrize("env_id", IDS)
def test_an_environment_is_solved_with_hints_saved_and_left(env_id, tmp_path, data_folder):
    path = tmp_path / "mine.jsonl"
    options = [f"--option={name}={value}" for name, value in FEW.get(env_id, {}).items()]
    with playing(env_id.partition("-")[0].lower(), "--save", str(path), *options) as terminal:
        terminal.until(lambda screen: "step 0 of" in screen and "F1 Help" in screen)
        for number in range(1, 51):
            terminal.hint()
            terminal.press("Enter")
            if "SOLVED" in terminal.see(f"step {number} of"):
                break
        terminal.see("Saved to")
        terminal.press("C-q")
        assert "1 of 1 tasks solved, 1 saved" in terminal.see("ended with 0")
    (shown,) = read_demonstrations(path)
    env = make(env_id, **shown.env_options, split=shown.split)
    assert shown.success and replay(env, shown) == shown
    env.close()


def test_the_terminal_may_change_its_size():
    with playing("sokoban", size=(160, 50)) as terminal:
        wide = terminal.see("F1 Help")
        assert max(map(len, wide.split("\n"))) > 120
        terminal._tmux("resize-window", "-t", "play", "-x", "80", "-y", "24")
        terminal.until(lambda screen: "F1 Help" in screen and max(map(len, screen.split("\n"))) <= 80)
        terminal.press("C-q")
        terminal.see("0 of 1 tasks solved")


def test_what_is_wrong_is_said_before_the_terminal_is_taken(tmp_path):
    with playing("sokoban", "--task", "boxes-9/test#0") as terminal:
        screen = terminal.see("ended with")
        assert "envsuite: " in screen and "boxes-9" in screen and "ended with 2" in screen
