"""Turns episodes into training data: shaped rewards, advantages, and the steps that take part."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from accelerate import Accelerator
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from envsuite.playing.step import Episode
from trainers.credit.blocks import Blocks
from trainers.credit.config import MethodConfig
from trainers.credit.critic import Critic
from trainers.credit.estimators import Advantage, Calibrating, Estimator, ValueBased
from trainers.credit.filters import ZeroVariance
from trainers.credit.hindsight import Hindsight, HindsightPrompts
from trainers.credit.inertness import IdleTermMonitor, term_metrics
from trainers.credit.method import Method
from trainers.credit.providers import Entropy, GreedyReturn, HiddenStates, OldLogprobs, Provider, Reference
from trainers.credit.rows import estimation_order, unshaped_steps
from trainers.policy.config import ModelConfig, OptimConfig
from trainers.policy.model import Policy
from trainers.policy.stateful import Stateful
from trainers.processes.distributed import all_gather_object
from trainers.settings import checked
from trainers.steps import Ragged, StepTable
from trainers.steps.columns import EMBEDDING, ENTROPY, GREEDY, GREEDY_RETURN, OLD, PLANNED, SHAPED

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Credit:
    """An iteration's steps with their advantages, and the filters' choice of rows."""

    table: StepTable
    """Every step of this process, rewards shaped."""
    advantage: Advantage
    """Advantages of these steps; the diagnostics are those of all processes."""
    keep: NDArray[np.bool_]
    """Rows that no filter left out."""
    filters: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    """Rows that each filter keeps, by its name."""
    terms: Mapping[str, float] = field(default_factory=dict)
    """Metrics of each term of the advantage over the steps of all processes, by the names of ``term/<name>``."""


class OracleEpisodes(Protocol):
    """Episodes that were continued from the states of sampled steps (``oracle_mc``)."""

    @property
    def episodes(self) -> Sequence[Episode]:
        """Episodes from the states on."""

    def with_oracle_values(self, steps: StepTable, continued: StepTable, gamma: float) -> StepTable:
        """Returns the steps with the columns ``mc_value`` and ``next_mc_value``.

        Args:
            steps: The sampled steps.
            continued: Steps of ``episodes``, rewards shaped.
            gamma: Discount of the return.
        """


def make_providers(
    config: MethodConfig,
    estimator: Estimator,
    *,
    accelerator: Accelerator,
    policy: Policy,
    model: ModelConfig,
    optim: OptimConfig,
    reference: Policy | None,
    teacher: Provider | None,
    hindsight: HindsightPrompts | None,
    seed: int,
    tokenizer: PreTrainedTokenizerBase,
    lowercase: bool = False,
    recompute: bool = False,
) -> list[Provider]:
    """The column providers that the method reads, in the order in which they supply.

    Args:
        config: Settings of the method.
        estimator: Says which columns it reads.
        accelerator: The run's accelerator.
        policy: The policy.
        model: Settings of its model.
        optim: Settings of the optimiser.
        reference: The reference policy, where the method needs one.
        teacher: Supplies the teacher's log-probabilities, where the method needs them.
        hindsight: Prompts that say how an episode ended, where the method needs them.
        seed: The run's seed.
        tokenizer: The policy's.
        lowercase: Whether answers are read in lower case.
        recompute: Whether the old log-probabilities are the trainer's (``OptimConfig.recomputes``).

    Raises:
        ConfigError: A setting does not fit the model.
        DataError: The critic's model cannot be loaded.
    """
    providers: list[Provider] = []
    if reference is not None:
        providers.append(Reference(reference, config.reference, accelerator.device, optim))
    needs = set(estimator.needs)
    if recompute and (OLD in needs or "kl_penalty" in config.shapers):
        providers.append(OldLogprobs(policy, optim))
    if teacher is not None:
        providers.append(teacher)
    if GREEDY_RETURN in needs:
        providers.append(GreedyReturn())
    if needs.intersection(PLANNED):
        providers.append(Blocks(tokenizer, lowercase))
    if config.critic is not None:
        assert isinstance(estimator, ValueBased)  # or check_supply had refused the critic
        providers.append(Critic(config.critic, accelerator, policy.model, model, optim, estimator.values, seed))
    if EMBEDDING in needs:
        providers.append(HiddenStates.of(*estimator.hidden_state, policy.model, optim, model.compute_dtype))
    if ENTROPY in needs:
        providers.append(Entropy(policy, optim))
    if hindsight is not None:
        providers.append(Hindsight(policy, hindsight, optim))
    return providers


class Crediting:
    """Applies a method to the steps of an iteration.

    Args:
        method: Estimator, shapers and filters.
        accelerator: The run's accelerator.
        providers: Supply the columns that the method needs besides the rollout's.
        environments: Names of the environments, for messages.
    """

    def __init__(
        self,
        method: Method,
        accelerator: Accelerator,
        providers: Sequence[Provider] = (),
        environments: Sequence[str] = (),
    ) -> None:
        self.accelerator = accelerator
        self.estimator = method.estimator
        """The method; calibrated by the first iteration where a setting was left open."""
        self.shapers = tuple(method.shapers.values())
        self.filters = method.filters
        self.providers = tuple(providers)
        self.inertness = IdleTermMonitor(method.name, method.estimator, method.shapers, environments)
        """Watches whether the method's own part does anything."""

    @property
    def parts(self) -> dict[str, Stateful]:
        """The models that its providers train, as parts of a checkpoint, by name."""
        return {part.name: part for provider in self.providers for part in provider.parts}

    def state(self) -> dict[str, Any]:
        """The options of the estimator, those that were calibrated among them, and what its terms did."""
        options: Any = self.estimator
        return {"estimator": asdict(options), "inertness": self.inertness.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue with the options that an earlier process had calibrated, and with its counts."""
        self.inertness.load(state["inertness"])
        if isinstance(self.estimator, Calibrating):
            self.estimator = checked(type(self.estimator), state["estimator"], "option")

    def shape_rewards(self, table: StepTable, *, rewards_only: bool = False) -> StepTable:
        """The steps of whole groups of this process with their rewards shaped.

        Args:
            table: Steps as :func:`~trainers.credit.rows.unshaped_steps` has them.
            rewards_only: Compute no column that the shapers do not read.
        """
        read = {name for shaper in self.shapers for name in shaper.needs}
        for provider in self.providers:
            if provider.before_shaping and (not rewards_only or read.intersection(provider.supplies)):
                table = provider.columns(table)
        for shaper in self.shapers:
            table = shaper(table)
        return table

    def informative(self, episodes: Sequence[Episode], iteration: int) -> int:
        """Number of groups of all processes whose episodes differ in their return: those that dynamic sampling counts.

        Args:
            episodes: Whole groups of this process.
            iteration: In which they were played, from 1.
        """
        steps = self.shape_rewards(unshaped_steps(episodes, iteration), rewards_only=True)
        samples = steps.take(np.flatnonzero(~steps.extra[GREEDY]))
        return sum(all_gather_object(self.accelerator, len(np.unique(samples.group_id[ZeroVariance()(samples)]))))

    def __call__(self, episodes: Sequence[Episode], iteration: int, continued: OracleEpisodes | None = None) -> Credit:
        """Shapes rewards, computes advantages, and selects the rows to train on; every process must call this.

        Failed episodes are left out. Statistics are those of the steps of all processes.

        Args:
            episodes: Whole groups of this process.
            iteration: In which they were played, from 1.
            continued: Episodes that went on from the states of their steps, where the method reads these values.
        """
        steps = self.shape_rewards(unshaped_steps(episodes, iteration))
        if continued is not None:
            shaped_steps = self.shape_rewards(unshaped_steps(continued.episodes, iteration), rewards_only=True)
            steps = continued.with_oracle_values(steps, shaped_steps, self.estimator.gamma)
        for provider in self.providers:
            if not provider.before_shaping:
                steps = provider.columns(steps)
        steps = steps.take(np.flatnonzero(~steps.extra[GREEDY]))
        if isinstance(self.estimator, ValueBased):
            steps = self.estimator.with_value_targets(steps)
        needs = {*self.estimator.needs, *(name for filter_ in self.filters.values() for name in filter_.needs)}
        whole, own = gather_steps(self.accelerator, steps, needs | SHAPED | self.inertness.columns)
        if isinstance(self.estimator, Calibrating) and self.estimator.open:
            self.estimator = self.estimator.calibrate(whole)
        advantage = self.estimator(whole)
        for level, message in self.inertness(whole, advantage):
            if self.accelerator.is_main_process:
                _LOG.log(level, "%s", message)
        masks = {name: filter_(whole)[own] for name, filter_ in self.filters.items()}
        keep = np.logical_and.reduce([np.ones(len(own), np.bool_), *masks.values()])
        return Credit(steps, advantage.take(whole, own), keep, masks, term_metrics(whole, advantage))

    def learn(self, credit: Credit, rng: np.random.Generator) -> dict[str, float]:
        """Trains the column providers; returns metrics by their names under ``train/``."""
        metrics: dict[str, float] = {}
        for provider in self.providers:
            metrics |= provider.learn(credit.table, rng)
        return metrics


def gather_steps(accelerator: Accelerator, steps: StepTable, needs: set[str]) -> tuple[StepTable, NDArray[np.int64]]:
    """The steps of all processes, the same in each, and where this process's rows are among them.

    Rows are ordered by group, episode and t, so that nothing computed from them depends on the number of processes.
    Prompts, experts, and columns that are not needed, stay where they are.

    Args:
        accelerator: The run's accelerator.
        steps: This process's rows.
        needs: Columns and token columns that are wanted besides the table's own.
    """
    rows = len(steps)
    slim = replace(
        steps.without_experts(),
        prompt=Ragged(steps.prompt.values[:0], np.zeros(rows + 1, np.int64)),
        extra={name: column for name, column in steps.extra.items() if name in needs},
        token_extra={name: column for name, column in steps.token_extra.items() if name in needs},
    )
    tables = all_gather_object(accelerator, slim)
    whole = StepTable.join(tables)
    order = estimation_order(whole)
    place = np.empty(len(whole), np.int64)
    place[order] = np.arange(len(whole))
    first = sum(len(table) for table in tables[: accelerator.process_index])
    return whole.take(order), place[first : first + rows]
