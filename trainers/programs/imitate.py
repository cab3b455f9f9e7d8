"""``envsuite imitate``: make a base model from the play of others.

A small causal transformer is trained from nothing, or one that others have trained goes on (``model``, all of it or a
LoRA adapter), on transcripts that a player writes in environments, tokens and chat template exactly as a rollout would
see them. What it has learnt is to read, to copy and roughly what to do; the rest is left to reinforcement learning.

With ``--from FOLDER`` the player is another model, whose episodes ``envsuite eval model --keep FOLDER`` has saved, or
whoever played what is in a pool (``envsuite pool``) of that folder; with ``--from FILE`` whoever played the
demonstrations that ``envsuite export demos`` or ``envsuite play --save`` wrote.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from envsuite.core.escaping import log_to_stderr
from envsuite.exits import status_of
from envsuite.remote.making import practice_of
from trainers.imitation.config import ImitateConfig
from trainers.imitation.demonstrations import demonstrations
from trainers.imitation.training import imitate, learner, save
from trainers.processes.cpu import keep_freed_memory, without_subnormals
from trainers.processes.distributed import make_accelerator
from trainers.run.cli import check_names
from trainers.run.config import TrainConfig
from trainers.run.evaluation import evaluate
from trainers.run.lock import hold_folder
from trainers.settings import ConfigError, checked
from trainers.settings.words import parse_settings

_LOG = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit status."""
    log_to_stderr(logging.INFO, "%(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line for each request
    return status_of(lambda: _main([re.sub(r"^--from(?==|$)", "--demonstrations", word) for word in arguments]))


def _main(words: Sequence[str]) -> None:
    config = parse_settings(ImitateConfig, words, "envsuite imitate", str(__doc__))
    if config.demonstrations is None:
        practice_of(config.env)  # whether it has a player is said before a model is loaded
    with hold_folder(Path(config.output), "envsuite imitate", "--output"):
        _play_teacher(config)
        model, tokenizer = learner(config)
        if not torch.cuda.is_available():
            keep_freed_memory()
        with without_subnormals():
            imitate(config, model, tokenizer)
        save(config, model, tokenizer)
    _LOG.info("model of %d parameters written to %s", sum(p.numel() for p in model.parameters()), config.output)


def _play_teacher(config: ImitateConfig) -> None:
    """Has the teacher play its episodes, if there is one, and checks that there are some to imitate."""
    if config.demonstrations is None:
        return
    folder = Path(config.demonstrations)
    if config.demonstrations.startswith(("http://", "https://")):
        raise ConfigError(
            f"demonstrations is {config.demonstrations}; it is the folder that episodes are kept in, or a file. "
            "Write the address into teacher: {rollout: {engine: openai, engine_options: {url: …, model: …}}, "
            "evaluation: {envs: […]}}"
        )
    if config.teacher is not None:
        settings = checked(TrainConfig, config.teacher)
        check_names(settings)
        for result in evaluate(settings, make_accelerator(settings.process_timeout), folder):
            _LOG.info(
                "the teacher %s solved %d of %d tasks of %s (%s); %d got no answer; %s", result.name,
                result.all.successes, result.all.n, result.env_id, result.split, result.unanswered, result.usage,
            )  # fmt: skip
    examples = demonstrations(folder, config.env)
    count = len(examples.players or examples.agent_episodes)
    _LOG.info("%d of %d episodes in %s solved their task and are imitated", count, examples.played, folder)
