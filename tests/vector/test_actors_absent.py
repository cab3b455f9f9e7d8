"""Settings of actors, and what is said where there is no Ray."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from envsuite.core.errors import MissingExtra
from envsuite.vector import EnvFactory, make_vector
from trainers.rollout.config import RolloutConfig
from trainers.settings import ConfigError


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed here")
def test_actors_without_ray_are_refused_with_what_to_install() -> None:
    with pytest.raises(MissingExtra, match=r"pip install 'envsuite\[ray\]'"):
        make_vector([EnvFactory("TextCraft-v0")], 2, 1, place="ray")


@pytest.mark.parametrize(
    "settings",
    [{"place": "ray"}, {"workers": 2, "place_options": {"num_cpus": 2}}],
    ids=["no workers", "options of none"],
)
def test_settings_of_actors_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="actors of Ray need place: ray and a number of workers"):
        RolloutConfig(**settings)
