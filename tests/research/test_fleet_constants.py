import json
import shlex
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsuite.core.errors import DataError, UnknownName
from research.fleet.__main__ import main
from research.fleet.constants import SHIPPED, Constants, EngineConstants, EnvironmentConstants, Fit, ServingConstants
from research.fleet.model import Lognormal, counts_distance, kolmogorov_distance, mean_steps
from trainers.planning.plan import EngineSpeed

FIVE = ("ALFWorld-v0", "PythonMath-v0", "Sokoban-v0", "TextCraft-v0", "WebShop-v0")


@given(st.floats(1e-6, 1e3), st.floats(0.01, 1.5), st.integers(0, 2**16))
def test_a_fit_has_the_mean_and_the_variance_of_what_was_measured(median, sigma, seed):
    values = Lognormal(median, sigma).at(np.random.default_rng(seed).standard_normal(500))
    fitted = Lognormal.fit(values)
    assert fitted.mean == pytest.approx(values.mean(), rel=1e-6)
    assert fitted.mean**2 * (np.exp(fitted.sigma**2) - 1) == pytest.approx(values.var(), rel=1e-6)
    assert 0 <= kolmogorov_distance(values, fitted) <= 1


def test_the_distance_of_a_fit_is_small_for_what_it_fits_and_large_for_what_it_does_not():
    rng = np.random.default_rng(0)
    values = Lognormal(3.0, 0.4).at(rng.standard_normal(5000))
    two = np.concatenate([np.full(500, 1.0), np.full(500, 100.0)])
    assert kolmogorov_distance(values, Lognormal.fit(values)) < 0.03
    assert kolmogorov_distance(two, Lognormal.fit(two)) > 0.3


@settings(max_examples=8, deadline=None)
@given(st.floats(1.5, 40), st.floats(0.1, 1.0), st.integers(5, 60))
def test_lengths_that_a_horizon_cuts_are_fitted_with_their_mean(median, sigma, horizon):
    drawn = Lognormal(median, sigma).at(np.random.default_rng(1).standard_normal(3000))
    values = np.clip(np.rint(drawn), 1, horizon)
    fitted = Lognormal.fit_counts(values, horizon)
    assert mean_steps(fitted, horizon) == pytest.approx(values.mean(), rel=0.02)
    assert counts_distance(values, fitted, horizon) < 0.12


@given(st.floats(0, 1), st.floats(0, 3), st.integers(1, 100), st.floats(0, 1e9, allow_nan=False), st.text(min_size=1))
@settings(max_examples=20, deadline=None)
def test_a_file_of_constants_is_read_as_it_was_written(tmp_path_factory, median, sigma, horizon, memory, source):
    fit = Fit(median, sigma, 0.5, 3)
    env = EnvironmentConstants(fit, fit, fit, horizon, memory, memory, median, source)
    engine = EngineConstants("m", EngineSpeed(0.0, median, sigma, 0.0, 0.0, 1e-5))
    made = Constants("m", "d", "c", ServingConstants(median, median, sigma), {"A-v0": env}, engine)
    path = tmp_path_factory.mktemp("constants") / "c.json"
    made.write(path)
    assert Constants.read(path) == made


def test_the_shipped_constants_have_the_five_environments():
    constants = Constants.read(SHIPPED)
    assert tuple(constants.environments) == FIVE
    for name, env in constants.environments.items():
        assert 1e-6 < env.step.lognormal.mean < 0.1, name
        assert env.step.count > 500 and env.memory < 2**20 < env.base, name
    assert constants.date and "research.fleet.measure" in constants.command
    with pytest.raises(UnknownName, match=r"TextCraft-v0.*research.fleet.measure"):
        constants.environment("Textcraft")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"serving": {"request": -1.0, "client": 0.0, "network": 0.0}}, "serving.request"),
        ({"servings": {}}, "servings"),
        ({"machine": ""}, "machine"),
    ],
)
def test_an_error_in_a_file_of_constants_names_the_key(tmp_path, change, said):
    path = tmp_path / "c.json"
    path.write_text(json.dumps({**asdict(Constants.read()), **change}))
    with pytest.raises(DataError, match=said):
        Constants.read(path)
    path.write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        Constants.read(path)


FLEET = (
    "--gpus 2xH100 --model-shape qwen2.5-1.5b --model.compute_dtype bfloat16 --rollout.engine vllm "
    "--rollout.tasks 4 --rollout.group_size 4 --prompt.max_tokens 1024 --rollout.sampling.max_tokens 256 "
    "--response-tokens 64 --envs '[{id: ALFWorld-v0}]' --updates 2"
)


@pytest.mark.slow
def test_the_command_prints_tables_that_name_estimates_and_measurements(console, tmp_path):
    line = f"{FLEET} --staleness 0,1 --failures '{{hung: 0.001}}' --figure {tmp_path}/f.png"
    out = " ".join(console(line, main=main)[0].split())
    for words in (
        "2xH100, which also generate; ALFWorld-v0", "By staleness", "off-policy", "enough", "feeds 2 engines",
        "ROOFLINE ESTIMATES", "python -m research.fleet.measure", "What failures cost",
    ):  # fmt: skip
        assert words in out, words
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_json_is_a_function_of_settings_and_seed(console):
    line = f"{FLEET} --json yes --staleness 0 --env-cores 4 --seed 3"
    found = [json.loads(console(line, main=main)[0]) for _ in range(2)]
    assert found[0] == found[1]
    outcome = found[0]["staleness"]["0"]
    assert sum(outcome["engines"].values()) == pytest.approx(1.0, abs=1e-6)
    assert found[0]["cores"] == 4 and outcome["off_policy"] == 0 and outcome["iteration"] > 1


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--staleness", "one", "--staleness one"),
        ("--failures", "{hangs: 1}", "hung"),
        ("--failures", "[1", "--failures"),
        ("--network", "-1", "--network -1"),
        ("--steps", "90", "--steps 90"),
        ("--constants", "missing.json", "missing.json"),
        ("--generation", "8xH1000", "H1000"),
        ("--check", "nowhere", "nowhere"),
    ],
)
def test_an_option_that_cannot_be_is_named(capsys, option, value, said):
    assert main([*shlex.split(FLEET), option, value]) in (1, 2)  # what is typed, what a file holds
    told = capsys.readouterr().err
    assert said in told and "Traceback" not in told


def test_an_engine_s_fit_finds_the_speed_that_made_the_times():
    from research.fleet.measure_engine import _fitted

    speed = EngineSpeed(0.0, 0.004, 0.0002, 3e-7, 0.0, 0.0)
    rows = [(1.0, n, n * c, speed.iteration(n, n * c)) for n in (1, 8, 64) for c in (32, 400)]
    assert _fitted(np.array(rows)) == pytest.approx([0.004, 0.0002, 3e-7])
    none = [(1.0, n, n * c, replace(speed, each=0.0).iteration(n, n * c)) for n in (1, 8, 64) for c in (32, 400)]
    assert _fitted(np.array(none)) == pytest.approx([0.004, 0.0, 3e-7], abs=1e-9)
