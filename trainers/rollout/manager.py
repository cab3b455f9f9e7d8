"""Runs episodes asynchronously: no episode waits for another's step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from envsuite.core import Tool
from envsuite.core.errors import UsageError
from envsuite.prompting import Chat, PromptSpec
from envsuite.prompting.conversation import ChatTokenizer
from envsuite.vector import Vector, Wait
from trainers.rollout.dialog import ChatExchange, Dialog, TokenExchange, conversation_of
from trainers.rollout.engine import BaseEngine, ChatEngine, Sampling
from trainers.rollout.episode import Branches, EpisodePlan
from trainers.rollout.rollout import Keeper, Rollout
from trainers.rollout.timing import Timing
from trainers.steps import Episode

_LOOK = 0.1  # seconds between two looks at progress


Watcher = Callable[[int, Wait | None], None]
"""Called with the number of finished episodes, and the oldest question to environments or engine without an answer."""


class RolloutManager:
    """Plays episodes with an engine and a vector of environments.

    Args:
        engine: Generates tokens, or answers messages.
        vector: Runs environments; its slots bound how many episodes run at a time.
        env_ids: Gymnasium id of each environment of the vector, for the records.
        tokenizer: Renders prompts and decodes completions; ``None`` with an engine for messages.
        prompt: How prompts are written; its ``examples`` are those of every environment without its own.
        episode_tokens: An episode that has written so many response tokens is cut; ``None`` for no limit.
        examples: Text of demonstrations for the prompts of each environment; by default those of ``prompt``.
        attempts: Times that an episode is started whose environment or engine fails, or does not answer in time.
        engine_deadline: Seconds that the engine may take for one answer.
        clock: Seconds, monotonic; those of :class:`~envsuite.vector.Wait`.

    Raises:
        UsageError: An engine for tokens has no tokenizer, or there are examples of several agents.
    """

    def __init__(
        self,
        engine: BaseEngine[Any, Any],
        vector: Vector,
        env_ids: Sequence[str],
        tokenizer: ChatTokenizer | None,
        prompt: PromptSpec,
        *,
        episode_tokens: int | None = None,
        examples: Sequence[str] = (),
        attempts: int = 2,
        engine_deadline: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if tokenizer is None and not isinstance(engine, ChatEngine):
            raise UsageError(f"{type(engine).__name__} takes prompts of tokens, which need a tokenizer")
        self.engine = engine
        self.vector = vector
        self.env_ids = tuple(env_ids)
        self.tokenizer = tokenizer
        self.prompt = prompt
        self.episode_tokens = episode_tokens
        self.examples = tuple(examples) or (prompt.examples,) * len(self.env_ids)
        if any(example and vector.agents(env) for env, example in enumerate(self.examples)):
            raise UsageError("prompt.examples are for environments of one agent: they show the tools of all")
        self.attempts = attempts
        self.engine_deadline = engine_deadline
        self.clock = clock
        self.timing = Timing()
        """Wall time of the last rollout by cause, and what it gave up."""

    def close(self) -> None:
        """Ends the environments."""
        self.vector.close()

    def exchanges(self, env: int) -> dict[str, Dialog]:
        """Returns what each agent of a new episode in environment number ``env`` speaks to the engine by.

        The only agent of an environment is "".
        """
        tools, agents = self.vector.tools(env), self.vector.agents(env)
        if not agents:
            return {"": self._exchange(env, tools)}
        return {
            agent: self._exchange(env, tuple(tool for tool in tools if tool.name in names))
            for agent, names in agents.items()
        }

    def _exchange(self, env: int, tools: tuple[Tool, ...]) -> Dialog:
        spec, max_calls = replace(self.prompt, examples=self.examples[env]), self.vector.max_calls(env)
        if self.tokenizer is None:
            return ChatExchange(Chat(spec, tools, max_calls))
        return TokenExchange(conversation_of(self.tokenizer, spec, tools, max_calls), self.tokenizer)

    def open(
        self, sampling: Sampling, seed: int, keep: Keeper | None = None, branches: Branches | None = None
    ) -> Rollout:
        """Returns a rollout without plans, to which they can be added at any time; at most one may have some at a time.

        Args:
            sampling: How tokens are drawn.
            seed: As for :meth:`stream`.
            keep: Called with each episode when it has ended.
            branches: Takes the steps of each episode that has ended, as points where others can start; those of a
                branch begin where it started. The vector must take snapshots.
        """
        if branches is not None and not self.vector.snapshots:
            raise UsageError("branches are kept of a vector that takes snapshots; make_vector(…, snapshots=True)")
        if branches is not None and any(self.vector.agents(env) for env in range(len(self.env_ids))):
            raise UsageError("episodes of several agents cannot branch")
        rollout = Rollout(self, sampling, seed, keep, branches)
        self.timing = rollout.timing
        return rollout

    def stream(
        self,
        plans: Sequence[EpisodePlan],
        sampling: Sampling,
        seed: int,
        watch: Watcher | None = None,
        keep: Keeper | None = None,
        branches: Branches | None = None,
    ) -> Iterator[list[Episode]]:
        """Play every plan once; yield each group as soon as its last episode has ended, in the order of ``plans``.

        An episode whose environment or engine fails, or does not answer within its deadline, is started again in a
        fresh environment, with the same task and seeds, ``attempts`` times in all. What it had sampled is dropped, and
        counted in :attr:`timing`. One that fails each time has ``error`` set and the steps made last. An episode that
        was lost with the worker process of another one is started again in any case. One that outgrows the context is
        truncated there and counts like any other. Between two groups the caller may
        :meth:`~trainers.rollout.engine.Engine.sync` the engine: episodes on their way go on under the new weights.

        Args:
            plans: The episodes to play.
            sampling: How tokens are drawn.
            seed: Each response is a function of weights, prompt, this seed, episode id and step.
            watch: Called with progress.
            keep: Called with each episode when it has ended.
            branches: As for :meth:`open`.
        """
        rollout = self.open(sampling, seed, keep, branches)
        rollout.add(plans)
        last_count, due = -1, 0.0
        while rollout.busy:
            rollout.advance()
            if watch is not None and (rollout.ledger.ended != last_count or self.clock() >= due):
                last_count, due = rollout.ledger.ended, self.clock() + _LOOK
                watch(rollout.ledger.ended, rollout.oldest())
            while rollout.ledger.groups:
                yield rollout.ledger.groups.popleft()

    def run(
        self,
        plans: Sequence[EpisodePlan],
        sampling: Sampling,
        seed: int,
        watch: Watcher | None = None,
        keep: Keeper | None = None,
        branches: Branches | None = None,
    ) -> list[Episode]:
        """Play every plan once, as :meth:`stream` does; episodes come back in the order of ``plans``."""
        episodes = {
            e.episode_id: e for group in self.stream(plans, sampling, seed, watch, keep, branches) for e in group
        }
        return [episodes[plan.episode_id] for plan in plans]
