"""The shape of a model: its configuration, without weights."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig

from envsuite.core.errors import DataError, UnknownName
from trainers.planning.hardware import Machines
from trainers.policy.adapter import check_adapter
from trainers.policy.loading import settings_of
from trainers.policy.source import find
from trainers.rollout.limits import check_limits
from trainers.run.config import TrainConfig
from trainers.settings import ConfigError

_FOLDER = Path(__file__).with_name("shapes")
NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))
"""Shapes that are shipped."""


def shape_of(path: str, given: str | None, images: bool = False) -> PreTrainedConfig:
    """The configuration of ``model.path``, or the shape that is given in its place.

    Args:
        path: ``model.path``; of a name on the hub only the configuration is downloaded.
        given: The option ``--model-shape``: a file of a configuration as ``config.json`` is one, or one of
            :data:`NAMES`.
        images: ``model.images``.

    Raises:
        DataError: It is missing or cannot be read.
        UnknownName: There is no such file or shape.
    """
    if given is None:
        return settings_of(find(path, "model.path", tokenizer=False, weights=False), "model.path", path, images)
    file = Path(given) if given.lower() not in NAMES else _FOLDER / f"{given.lower()}.json"
    if not file.is_file():
        raise UnknownName(f"--model-shape {given}: no such file, and no shape of that name; known: {', '.join(NAMES)}")
    try:
        fields = json.loads(file.read_bytes())
        return AutoConfig.for_model(**fields)
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"--model-shape {given}: not a model's configuration ({error})") from error


def check(config: TrainConfig, shape: PreTrainedConfig, where: Machines, name: str) -> None:
    """Checks the settings against the model's shape and the hardware.

    Raises:
        ConfigError: Two of them contradict each other; the message names both.
    """
    check_limits(name, shape, config.prompt, config.rollout, config.optim.tokens_per_microbatch)
    if config.rollout.tasks % where.ranks:
        raise ConfigError(
            f"rollout.tasks is {config.rollout.tasks}, which the {where.ranks} processes of --gpus {where} cannot "
            f"share evenly; make it a multiple of {where.ranks}"
        )
    if config.model.adapter is not None and config.model.adapter.base != "nf4":
        check_adapter(config.model.adapter, shape, name, config.model.shard)
