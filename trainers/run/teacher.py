"""The teacher of a run: a model of the trainer's, or of a vLLM server, that scores what the policy has sampled."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar

import numpy as np
from transformers import PreTrainedTokenizerBase

from envsuite.playing.engine import EngineFailed
from envsuite.remote.transport import ServerUnreachable
from trainers.credit.providers import LocalTeacher, Provider
from trainers.policy.config import ModelConfig
from trainers.policy.loading import model_settings, read_tokenizer
from trainers.policy.source import find
from trainers.rollout.vllm.connection import VLLMConnection
from trainers.rollout.vllm.host import VLLMRefused
from trainers.rollout.vllm.proof import probe_prompts
from trainers.run.config import TrainConfig
from trainers.run.policy import RunPolicy
from trainers.settings import ConfigError
from trainers.steps import StepTable
from trainers.steps.columns import TEACHER

KEY = "method.options.teacher"
CALLS = 32
"""Most calls of a process to the teacher's server at a time."""
PATIENCE, TIMEOUT = 60.0, 600.0
"""Seconds for which a failed call is repeated, and that one may take (those of the engine vllm)."""


@dataclass(frozen=True)
class ServedTeacher(Provider):
    """Log-probabilities under the model of a vLLM server, asked for once an iteration."""

    supplies: ClassVar[tuple[str, ...]] = (TEACHER,)

    server: VLLMConnection

    @classmethod
    def connect(cls, url: str) -> ServedTeacher:
        """The teacher at an address.

        Raises:
            ServerUnreachable: Nothing answers there as vLLM does.
        """
        server = VLLMConnection(url, patience=PATIENCE, timeout=TIMEOUT)
        with _naming(server):
            server.learn_model()
        return cls(server)

    def columns(self, steps: StepTable) -> StepTable:
        """``steps`` with the token column ``teacher_logprob``.

        Raises:
            ServerUnreachable: The server fails, or refuses a sequence.
        """
        rows = [(steps.prompt[row].tolist(), steps.response[row].tolist()) for row in range(len(steps))]
        with _naming(self.server), ThreadPoolExecutor(CALLS) as pool:
            parts = [*pool.map(lambda row: self.server.score(*row), rows)]
        return steps.with_token_columns(**{TEACHER: np.concatenate([np.zeros(0), *parts])})


@contextmanager
def _naming(server: VLLMConnection) -> Iterator[None]:
    """Has errors of the teacher's server say whose it is."""
    try:
        yield
    except (EngineFailed, VLLMRefused) as error:
        raise ServerUnreachable(f"{KEY} {server.url}: {error}") from error


def make_teacher(config: TrainConfig, policy: RunPolicy) -> Provider | None:
    """What supplies the teacher's log-probabilities, where the method reads them.

    Raises:
        DataError: The model cannot be loaded.
        ServerUnreachable: The server does not answer.
    """
    method, teacher = config.method, config.method.make_estimator().teacher
    if method.local_teacher is not None:
        frozen = policy.load_frozen(_model(config, method.local_teacher), KEY)
        return LocalTeacher(frozen, method.reference, policy.accelerator.device, config.optim)
    return None if teacher is None else ServedTeacher.connect(teacher)


def check_teacher(config: TrainConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Checks that there is a teacher where the method reads one, and that it has the policy's vocabulary.

    Raises:
        ConfigError: There is none, or it has another vocabulary, or gives other log-probabilities.
        DataError: Its folder is missing or incomplete.
        ServerUnreachable: Its server does not answer.
    """
    estimator, local = config.method.make_estimator(), config.method.local_teacher
    if TEACHER not in estimator.needs:
        return
    if estimator.teacher is None:
        raise ConfigError(
            f"{config.method.estimator} learns from another model; set {KEY} to it: what model.path could be, or the "
            "address of a vLLM server (http://host:8000)"
        )
    size = model_settings(config.model).get_text_config(decoder=True).vocab_size
    if local is not None:
        vocabulary = read_tokenizer(find(local, KEY), KEY, local).get_vocab()
        rows = model_settings(_model(config, local), KEY).get_text_config(decoder=True).vocab_size
        is_same = rows >= size and tokenizer.get_vocab().items() <= vocabulary.items()
    else:
        if config.rollout.sampling.temperature != 1.0:
            raise ConfigError(
                f"rollout.sampling.temperature is {config.rollout.sampling.temperature}, but {KEY} is a server, which "
                "gives log-probabilities at temperature 1; set it to 1, or give the teacher as a folder"
            )
        server = ServedTeacher.connect(estimator.teacher).server
        ids = [*chain(*probe_prompts(tokenizer, size)), *tokenizer.added_tokens_decoder]
        with _naming(server):
            theirs, own = server.detokenize(ids), str(tokenizer.decode(ids))
        is_same = "".join(theirs.split()) == "".join(own.split())  # decoders differ in the spaces that they add
    if not is_same:
        raise ConfigError(
            f"{KEY} {estimator.teacher} has another vocabulary than model.path {config.model.path}, whose tokens it is "
            "to score; take models with the same tokenizer"
        )


def _model(config: TrainConfig, path: str) -> ModelConfig:
    """Settings of the teacher's model: the policy's, but for the adapter that is trained."""
    return replace(config.model, path=path, adapter=None)
