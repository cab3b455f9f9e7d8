"""How many tokens an iteration has: the settings' limits, and what is expected within them."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from transformers import PreTrainedConfig

from envsuite.prompting import CompactMemory, Window, make_memory
from trainers.planning.dry_run import DryRunRows
from trainers.planning.hardware import Machines
from trainers.rollout.engine import longest_sequence
from trainers.rollout.kv_cache import PAGE
from trainers.run.config import TrainConfig
from trainers.run.rollouts import training_slots
from trainers.settings import ConfigError

_ASSUMED_PROMPT, _ASSUMED_STEPS = 1024, 20


@dataclass(frozen=True)
class Workload:
    """Tokens of one process in one iteration."""

    episodes: int
    """Episodes that one process plays."""
    slots: int
    """Episodes that run at a time."""
    steps: float
    """Steps of an episode, in the mean."""
    prompt: float
    """Tokens of a step's prompt, in the mean."""
    response: float
    """Tokens of a step's response, in the mean."""
    merges: bool
    """Whether each prompt continues the last one, so that an episode is one sequence."""
    longest_prompt: int
    """Most tokens of a prompt."""
    longest_response: int
    """Most tokens of a response."""
    notes: tuple[str, ...]
    """Assumptions, for the output."""

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        shape: PreTrainedConfig,
        where: Machines,
        steps: int | None,
        prompt: int | None,
        response: int | None,
    ) -> Workload:
        """The workload of a run.

        Args:
            config: All settings.
            shape: The model's configuration, which bounds sequences.
            where: The hardware.
            steps: Steps of an episode, in the mean; by default the horizon.
            prompt: Tokens of a prompt, in the mean.
            response: Tokens of a response, in the mean; by default the most that the settings allow.

        Raises:
            ConfigError: A mean is above the limit that the settings have.
        """
        notes = []
        limit, most = config.prompt.max_tokens, config.rollout.sampling.max_tokens
        memory = make_memory(config.prompt.memory)
        if limit is None and isinstance(memory, CompactMemory):
            limit = memory.budget
        if prompt is not None and limit is not None and prompt > limit:
            raise ConfigError(f"--prompt-tokens is {prompt}, but prompt.max_tokens (or prompt.memory) allows {limit}")
        if response is not None and response > most:
            raise ConfigError(f"--response-tokens is {response}, but rollout.sampling.max_tokens is {most}")
        if prompt is None:
            prompt = limit or _ASSUMED_PROMPT
            notes.append(f"prompts of {prompt:,} tokens (say --prompt-tokens)")
        if response is None:
            response = most
            notes.append(f"responses of {most:,} tokens, the most that is allowed (say --response-tokens)")
        if steps is None:
            steps = config.envs[0].max_episode_steps
            where_from = "envs[0].max_episode_steps" if steps else "assumed"
            steps = steps or _ASSUMED_STEPS
            notes.append(f"{steps} steps an episode, {where_from} (say --steps)")
        episodes = config.rollout.tasks * config.rollout.episodes // where.ranks
        longest = limit or 2 * prompt
        if (model_limit := longest_sequence(shape)) is not None:
            longest = max(1, min(longest, model_limit - most))
        return cls(
            episodes, training_slots(config, where.ranks), steps, prompt, response,
            not isinstance(memory, Window), longest, most, tuple(notes),
        )  # fmt: skip

    @property
    def running(self) -> int:
        """Tokens that all running episodes have keys and values of, each as long as the longest."""
        return self.slots * (self.longest_prompt + self.longest_response + PAGE)

    @property
    def response_tokens(self) -> float:
        """Response tokens."""
        return self.episodes * self.steps * self.response

    @property
    def training_tokens(self) -> float:
        """Tokens that one pass over the episodes computes.

        Prompts that grow evenly to twice their mean are computed once where they continue each other.
        """
        tokens = 2 * self.prompt if self.merges else self.steps * (self.prompt + self.response)
        return self.episodes * max(tokens, self.prompt + self.response)

    @property
    def prefill_tokens(self) -> float:
        """Tokens of prompts that the engine computes."""
        tokens = 2 * self.prompt - self.steps * self.response if self.merges else self.steps * self.prompt
        return self.episodes * max(tokens, self.prompt)

    def rows(self, tokens: int) -> DryRunRows:
        """Rows of the greatest length that a micro-batch of ``tokens`` takes: one at least."""
        length = self.longest_prompt + self.longest_response
        if length > tokens:  # nothing bounds the length: rows that fill the budget
            share = tokens / length
            return DryRunRows(1, max(1, ceil(self.longest_prompt * share)), max(1, int(self.longest_response * share)))
        return DryRunRows(tokens // length, self.longest_prompt, self.longest_response)
