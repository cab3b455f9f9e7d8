"""An engine in another package: the one that ``envsuite new`` writes, installed and used by its name."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from third_party import install
from tiny_runs import BOOK, save_model, settings, tokenizer, write_settings

from envsuite.core.errors import UnknownName, UsageError
from envsuite.playing.engine import Request
from envsuite.textcraft.env import goal_of
from envsuite.textcraft.planning import plan
from envsuite.textcraft.tasks import load
from envsuite.textcraft.world import NAMESPACE
from trainers.processes.distributed import make_accelerator
from trainers.programs.evaluate import main as evaluate
from trainers.report.stats import EvalResult
from trainers.rollout.engine import ENGINES, Engine
from trainers.rollout.scripted import ScriptedEngine
from trainers.run.config import TrainConfig
from trainers.run.evaluation import Evaluator
from trainers.settings import checked
from trainers.settings.registry import Registry
from trainers.steps.parquet import write_episodes

NEW = ("engine", "encore")
CHANGES = {
    "evaluation.episodes": 8,
    "evaluation.repeats": 2,
    "evaluation.sampling": {"temperature": 0.3, "max_tokens": 64},
    "evaluation.envs": [{"id": "TextCraft-v0", "split": "test", "kwargs": dict(BOOK)}],
}


def _recorded(place: Path) -> EvalResult:
    """Plays the evaluation with an expert that solves every second episode, and saves the episodes."""
    book, _ = load("generated", BOOK["book_seed"], BOOK["goals"])
    asked: dict[int, int] = {}

    def answer(request: Request) -> Sequence[int]:
        assert request.session is not None
        number = asked[request.session] = asked.get(request.session, -1) + 1
        goal = NAMESPACE + goal_of(plans[request.session].task_id)
        commands = plan(book, goal) if request.session % 2 else ["inventory"] * 50
        return [*tokenizer().encode(f"<action>{commands[number]}</action>", add_special_tokens=False), 1]

    config = checked(TrainConfig, settings(place, **CHANGES))
    evaluator = Evaluator(config, make_accelerator(), ScriptedEngine(answer), tokenizer(), [1])
    plans = {plan.episode_id: plan for plan in evaluator.plans[0]}
    episodes = evaluator.play(0)
    write_episodes(place / "eval-00000.parquet", episodes)
    return evaluator.result("expert", 0, episodes, 1.0)


def test_the_engine_of_another_package_evaluates_by_its_name(site, tmp_path, capsys):
    expected = _recorded(tmp_path)
    assert 0 < expected.all.successes < expected.all.n == 8
    save_model(tmp_path / "model", "llama")
    config = write_settings(tmp_path, **CHANGES)
    capsys.readouterr()
    options = f"{{episodes: {tmp_path / 'eval-00000.parquet'}}}"
    arguments = ["--rollout.engine", "encore", "--rollout.engine_options", options]
    assert evaluate(["--config", str(config), *arguments]) == 0
    (body,) = json.loads(capsys.readouterr().out)
    result = EvalResult.from_json(body)
    assert result.strata == expected.strata and result.failed == 0


@pytest.mark.parametrize(
    ("options", "said"), [("{}", "missing a required argument: 'episodes'"), ("{episode: x}", "'episode")]
)
def test_its_options_are_checked_before_anything_is_loaded(site, tmp_path, capsys, options, said):
    config = write_settings(tmp_path, **CHANGES)  # there is no model
    arguments = ["--rollout.engine", "encore", "--rollout.engine_options", options]
    assert evaluate(["--config", str(config), *arguments]) == 2
    told = capsys.readouterr().err
    assert "rollout.engine_options: engine 'encore'" in told and said in told


def test_installed_engines_are_listed_and_imported_only_when_asked_for(site):
    assert {"hf", "encore"} <= set(ENGINES) and "encore" in ENGINES
    registry: Registry[Engine] = Registry("engine", group=ENGINES.group)
    sys.modules.pop("encore", None)
    assert list(registry) == ["encore"] and "encore" in registry and "hf" not in registry
    assert "encore" not in sys.modules
    assert issubclass(registry["encore"], Engine) and "encore" in sys.modules
    with pytest.raises(UnknownName, match="Nearest: 'encore'"):
        registry["encor"]


def test_an_engine_that_cannot_be_imported_is_told_by_name(tmp_path, monkeypatch):
    entry = '[project.entry-points."lost.group"]\nlost = "lost_module:Lost"\n'
    install(tmp_path, {"pyproject.toml": f'[project]\nname = "lost"\nversion = "1"\n{entry}'})
    monkeypatch.syspath_prepend(tmp_path)
    registry: Registry[Engine] = Registry("engine", group="lost.group")
    assert list(registry) == ["lost"]
    with pytest.raises(UsageError, match=r"engine 'lost' \(lost_module:Lost\) cannot be imported: No module named"):
        registry["lost"]
