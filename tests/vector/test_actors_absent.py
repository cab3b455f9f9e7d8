"""Settings of actors, and what is said where there is no Ray."""

from __future__ import annotations

import importlib.util

import pytest

from envsuite.core.errors import MissingExtra
from envsuite.vector import EnvFactory, make_vector
from trainers.rollout.config import RolloutConfig
from trainers.settings import ConfigError


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed here")
def test_actors_without_ray_are_refused_with_what_to_install() -> None:
    with pytest.raises(MissingExtra, match=r"pip install 'envsuite\[ray\]'"):
        make_vector([EnvFactory("TextCraft-v0")], 2, 1, ray={})


def test_actors_need_a_number_of_workers() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.workers is 0; set their number"):
        RolloutConfig(ray={})
