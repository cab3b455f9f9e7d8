from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.parity import main
from benchmarks.parity_textcraft import compare
from envsuite.textcraft.env import TextCraft


@pytest.fixture
def recordings(shared: Path) -> tuple[Path, Path]:
    return shared / "data" / "textcraft" / "recipes", shared / "golden" / "textcraft"


def test_the_world_equals_the_original_on_every_recorded_step(recordings: tuple[Path, Path]) -> None:
    recipes, golden = recordings
    report = compare(recipes, [golden / "episodes_a.json"], golden / "tree.json", TextCraft)
    assert not report.differences, report.text()
    assert report.counts["craftable items with their recipes"] == 544
    assert report.counts["steps of the world"] == report.counts["steps of the environment"] == 1755


def test_a_difference_is_found_listed_and_told_by_the_exit_status(
    recordings: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipes, golden = recordings
    episodes = json.loads((golden / "episodes_a.json").read_text())[:2]
    episodes[0]["steps"][1]["obs"] = "something else"
    episodes[1]["reset"] = episodes[1]["reset"].replace(
        "Crafting commands:\n", "Crafting commands:\ncraft 1 moon using 1 egg\n"
    )
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(episodes))
    assert main(["textcraft", "--recipes", str(recipes), "--episodes", str(changed)]) == 1
    printed = capsys.readouterr().out
    assert "4 differences" in printed
    assert "episode 0 (minecraft:cyan_banner), step 1" in printed and "craft 1 moon using 1 egg" in printed
    assert "recipe book: not compared" in printed
