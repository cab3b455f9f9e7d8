"""Exact credit on Bifurcation: the policy's probability of each door, and Q - V by dynamic programming."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from transformers import PreTrainedTokenizerBase

from envsuite.bifurcation.env import Bifurcation
from envsuite.bifurcation.world import DoorState, Floats, Walk
from envsuite.core.tools import ToolCall
from envsuite.playing.step import Episode
from trainers.credit.estimators import ESTIMATORS, Advantage, Estimator, register
from trainers.credit.estimators.returns import row_score
from trainers.credit.providers import Provider
from trainers.policy.accumulation import log_probabilities
from trainers.policy.config import OptimConfig
from trainers.policy.model import Policy
from trainers.rollout.config import PromptConfig
from trainers.rollout.environments import make_conversation
from trainers.run.rollouts import IterationRollout, RolloutSource
from trainers.settings import checked
from trainers.steps import Ragged, StepTable
from trainers.steps.columns import ITERATION, ROW_SCORE


class Walks:
    """The policy's chances and values on walks of one environment.

    The prompt shows the last observation alone, so that it is a function of the state. An answer chooses a door if it
    is the one that the codec writes; whatever else the policy may say counts as no door.

    Args:
        env: Has the dials.
        task_ids: The walks.
        steps: Most steps of an episode.
        prompt: The run's.
        tokenizer: The policy's.
    """

    def __init__(
        self,
        env: Bifurcation,
        task_ids: Sequence[str],
        steps: int,
        prompt: PromptConfig,
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        self.kind, self.commands, self.steps = env.kind, env.commands, steps
        self.walks = {task_id: Walk(env.kind, task_id) for task_id in task_ids}
        conversation = make_conversation(prompt, tokenizer, env.tools, env.max_calls)
        end = conversation.codec.stop_ids or (int(tokenizer.eos_token_id),)
        answers = []
        for command in env.commands:
            written = conversation.codec.write((ToolCall("take", {"command": command}),), "", tools=env.tools)
            answers.append([*tokenizer.encode(written, add_special_tokens=False), *end])
        kind = env.kind
        states = [DoorState(place, astray) for place in range(kind.horizon) for astray in range(2)]
        texts = [walk.text(s, name) for walk in self.walks.values() for s in states for name in range(kind.names)]
        unique = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        self._index = np.array([unique[text] for text in texts])
        prompts = []
        for text in unique:
            conversation.start({"task": env.goal(next(iter(self.walks))), "text": text, "commands": env.commands})
            prompts.append(list(conversation.prompt()[0]))
        rows = len(unique) * len(answers)
        self._table = StepTable(
            group_id=np.zeros(rows, np.int64),
            episode_id=np.arange(rows),
            t=np.zeros(rows, np.int64),
            reward=np.zeros(rows),
            state_key=np.array([""] * rows, object),
            valid=np.ones(rows, np.bool_),
            prompt=Ragged.of((ids for ids in prompts for _ in answers), np.int32),
            response=Ragged.of((ids for _ in prompts for ids in answers), np.int32),
            logprob=Ragged.of((np.zeros(len(ids)) for _ in prompts for ids in answers), np.float32),
        )

    def chances(self, policy: Policy, optim: OptimConfig) -> Floats:
        """Returns the probability of each door, of shape (walks, places, 2, names, doors)."""
        scored = log_probabilities(policy, self._table, optim)
        each = np.add.reduceat(scored, self._table.response.offsets[:-1]).reshape(-1, len(self.commands))
        kind = self.kind
        shape = (len(self.walks), kind.horizon, 2, kind.names, len(self.commands))
        return np.asarray(np.exp(each)[self._index].reshape(shape))

    def values(self, policy: Policy, optim: OptimConfig) -> dict[str, tuple[Floats, Floats]]:
        """Returns Q and V of each walk, as :meth:`~envsuite.bifurcation.world.Walk.values`."""
        chances = self.chances(policy, optim)
        return {
            task_id: walk.values(own, self.steps)
            for (task_id, walk), own in zip(self.walks.items(), chances, strict=True)
        }

    def expected(self, values: dict[str, tuple[Floats, Floats]]) -> float:
        """Returns the expected return of an episode, mean over the walks."""
        return float(np.mean([v[0, 0, 0].mean() for _, v in values.values()]))


class ExactCredit(Provider):
    """Q - V of each step, from the values of the policy that sampled it.

    Args:
        walks: The tasks of the run.
        policy: The policy.
        optim: Bounds the size of a forward pass.
        credits: Whether the steps get it, as their row's score, which :class:`Exact` reads; else it watches alone.
    """

    supplies: ClassVar[tuple[str, ...]] = (ROW_SCORE,)

    def __init__(self, walks: Walks, policy: Policy, optim: OptimConfig, credits: bool) -> None:
        self.walks, self.policy, self.optim, self.credits = walks, policy, optim, credits
        self.episodes: Sequence[Episode] = ()
        """The steps' episodes."""
        self.success: list[float] = []
        """Expected return of the policy that sampled, by iteration."""

    def columns(self, steps: StepTable) -> StepTable:
        """``steps`` with Q - V as their rows' scores."""
        values = self.walks.values(self.policy, self.optim)
        self.success.append(self.walks.expected(values))
        if not self.credits:
            return steps
        known = {
            (episode.episode_id, t): credit
            for episode in self.episodes
            for t, credit in enumerate(self._credits(episode, *values[episode.task_id]))
        }
        keys = zip(steps.episode_id.tolist(), steps.t.tolist(), strict=True)
        return steps.with_columns(**{ROW_SCORE: np.array([known[key] for key in keys])})

    def _credits(self, episode: Episode, q: Floats, v: Floats) -> list[float]:
        walk, state, found = self.walks.walks[episode.task_id], DoorState(0), []
        names = range(self.walks.kind.names)
        for step in episode.steps:
            text = step.observation.split("\n")[-1]
            name = next(name for name in names if walk.text(state, name) == text)
            door = self.walks.commands.index(step.action[0].arguments["command"]) if step.valid and step.action else -1
            found.append(float(q[step.t, *state, name, door] - v[step.t, *state, name]))
            metrics = step.info["metrics"]
            if metrics:
                state = DoorState(int(metrics["place"]), int(metrics["astray"]))
        return found


@dataclass(frozen=True)
class Shown:
    """Rollouts whose episodes exact credit is told."""

    rollouts: RolloutSource
    credit: ExactCredit

    def __call__(self, iteration: int) -> IterationRollout:
        """Plays the episodes of an iteration."""
        rolled = self.rollouts(iteration)
        self.credit.episodes = rolled.episodes
        return rolled

    def progress(self) -> object:
        """Returns how far they are; part of a checkpoint."""
        return self.rollouts.progress()

    def close(self) -> None:
        """Ends what plays them."""
        self.rollouts.close()


@register("exact")
@dataclass(frozen=True)
class Exact(Estimator):
    """The step's Q - V, which no other method knows."""

    scale: Literal["none", "batch"] = "none"
    """``batch`` divides by the root mean square over the iteration's steps."""

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step."""
        advantage = row_score(steps)
        if self.scale == "batch":
            advantage = advantage / max(float(np.sqrt(np.mean(advantage**2))), 1e-8)
        return Advantage(advantage)


@register("permuted")
@dataclass(frozen=True)
class Permuted(Estimator):
    """Another method whose step terms are permuted within the groups of steps that they compare.

    What a step term is worth beyond noise of the same size is the method's lead over this.
    """

    of: str = "gigpo"
    """Name of the method."""
    options: Any = None
    """Its options."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The iteration, from which the permutation follows."""
        return (ITERATION,)

    def __call__(self, steps: StepTable) -> Advantage:
        """The advantages, with the terms of :attr:`Estimator.distinguishing` permuted."""
        inner = checked(ESTIMATORS[self.of], self.options or {}, f"option of estimator {self.of}")
        found = inner(steps)
        terms, rng = dict(found.summands), np.random.default_rng(int(steps.extra[ITERATION][0]))
        for name in inner.distinguishing:
            codes, term = found.groups[name], terms[name].copy()
            order, drawn = np.argsort(codes, kind="stable"), rng.random(len(codes))
            term[order] = terms[name][np.lexsort((drawn, codes))]
            terms[name] = term
        return replace(found, per_step=np.sum(list(terms.values()), axis=0), terms=terms)
