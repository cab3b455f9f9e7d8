from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import envsuite
from envsuite.registration import ENVIRONMENTS

IDS = [spec.id for spec in ENVIRONMENTS]
SMALL = {"ALFWorld-v0": {"games": 18}, "WebShop-v0": {"products": 100}}
"""Arguments of environments whose defaults make a lot on first use."""

WHAT_IMPORTING_LOADS = """
import json, sys
import gymnasium
before = set(sys.modules)
import envsuite
print(json.dumps([sorted(set(sys.modules) - before), sorted(set(gymnasium.registry))]))
"""


def test_importing_envsuite_registers_the_ids_and_loads_nothing_more() -> None:
    run = subprocess.run([sys.executable, "-c", WHAT_IMPORTING_LOADS], capture_output=True, text=True, check=True)
    loaded, registered = json.loads(run.stdout)
    assert loaded == ["envsuite", "envsuite.registration"]
    assert set(IDS) <= set(registered)


@pytest.mark.parametrize("env_id", IDS)
def test_gymnasium_finds_an_id_by_the_name_of_the_package_alone(env_id: str) -> None:
    made = f"gymnasium.make('envsuite:{env_id}', **{SMALL.get(env_id, {})})"
    code = f"import gymnasium; print({made}.reset(seed=0)[1]['task_id'])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == gymnasium.make(env_id, **SMALL.get(env_id, {})).reset(seed=0)[1]["task_id"]


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.filterwarnings("error")
def test_every_registered_environment_passes_gymnasiums_checker(env_id: str, where: dict[str, Any]) -> None:
    check_env(gymnasium.make(env_id, **SMALL.get(env_id, {}), **where).unwrapped)


def test_registering_twice_changes_nothing() -> None:
    before = {env_id: gymnasium.registry[env_id] for env_id in IDS}
    envsuite.register_envs()
    assert all(gymnasium.registry[env_id] is spec for env_id, spec in before.items())
