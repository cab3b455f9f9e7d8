"""The interface of estimators: pure functions from step rows to advantages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from trainers.credit.estimators.returns import finite_column
from trainers.credit.estimators.tokens import finite_tokens
from trainers.policy.config import Pooling
from trainers.settings import check_fields
from trainers.settings.registry import Registry
from trainers.steps import Ragged, StepTable
from trainers.steps.columns import SUPPLIERS, TRUNCATED, VALUE, target_of

Per = Literal["step", "token"]
Milestones = Literal["world", "expert"]
States = Literal["exact", "key"]


@dataclass(frozen=True)
class Advantage:
    """Advantages of a step table: one number per step, or one per response token."""

    per_step: NDArray[np.float64] | None = None
    """Shape (N,); broadcast to the response tokens of the step."""
    per_token: NDArray[np.float64] | None = None
    """Shape (number of response tokens,), in the order of ``table.response.values``."""
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    terms: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """Terms of which the advantages are the sum, weighted as they enter it, by name; of the same shape. Empty where the
    advantages are not a sum."""
    groups: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """Codes of the groups of steps within which a term compares, by its name, shape (N,). A term that is not there
    compares the episodes of a task, or nothing."""

    @property
    def whole(self) -> NDArray[np.float64]:
        """The advantages, one per step or one per response token."""
        whole = self.per_step if self.per_token is None else self.per_token
        assert whole is not None
        return whole

    @property
    def summands(self) -> Mapping[str, NDArray[np.float64]]:
        """The terms; of an advantage that is not a sum, itself as ``advantage``."""
        return self.terms or {"advantage": self.whole}

    def tokens(self, table: StepTable) -> NDArray[np.float64]:
        """One advantage per response token of ``table``."""
        if self.per_token is not None:
            return self.per_token
        assert self.per_step is not None
        return np.repeat(self.per_step, table.response.lengths)

    def take(self, table: StepTable, rows: NDArray[np.int64]) -> Advantage:
        """The advantages of some rows of ``table``, in their order, with the diagnostics of all."""
        groups = {name: group[rows] for name, group in self.groups.items()}
        if self.per_token is not None:
            offsets = table.response.offsets
            tokens = Ragged(self.per_token, offsets).take(rows).values
            terms = {name: Ragged(term, offsets).take(rows).values for name, term in self.terms.items()}
            return Advantage(per_token=tokens, diagnostics=self.diagnostics, terms=terms, groups=groups)
        assert self.per_step is not None
        terms = {name: term[rows] for name, term in self.terms.items()}
        return Advantage(per_step=self.per_step[rows], diagnostics=self.diagnostics, terms=terms, groups=groups)


class Estimator(ABC):
    """A credit-assignment method: its settings are its fields, and calling it gives the advantages."""

    own_terms: ClassVar[tuple[str, ...]] = ()
    """Names of the terms that set the method apart; the advantage if empty."""
    own_weight: ClassVar[str] = ""
    """The setting that weighs them, if there is one: where it is 0, they are left out."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns that the method reads besides the table's own (:mod:`trainers.steps.columns`)."""
        return ()

    @property
    def gamma(self) -> float:
        """Discount of returns, per step: the setting of that name, where the method has one."""
        return 1.0

    @property
    def per(self) -> Per:
        """Whether advantages are per step or per response token."""
        return "step"

    @property
    def credits_lone_episodes(self) -> bool:
        """Whether an episode alone in its group can have an advantage other than 0."""
        return True

    @property
    def distinguishing(self) -> tuple[str, ...]:
        """The terms that set the method apart as it is set: a run warns where they do nothing.

        A term whose weight is 0 is not among them: the settings leave it out.
        """
        return self.own_terms if not self.own_weight or getattr(self, self.own_weight) else ()

    @property
    def hidden_state(self) -> tuple[int | None, Pooling]:
        """Layer, from the end (``None``: a late one), and pooling of the column ``embedding``, where it is read."""
        return None, "last"

    @property
    def continued(self) -> tuple[int, States]:
        """Episodes for each state whose value is read, and which steps share one."""
        return 8, "exact"

    @property
    def milestone_kind(self) -> Milestones:
        """What the column ``milestone`` marks, where it is read."""
        return "world"

    @property
    def teacher(self) -> str | None:
        """Model whose log-probabilities are read: the setting of that name, where the method has one."""
        return None

    @abstractmethod
    def __call__(self, steps: StepTable) -> Advantage:
        """The advantages of ``steps``; rows may come in any order.

        ``steps`` are those of all processes of a run, so that no statistic depends on their number.
        """


@dataclass(frozen=True)
class CriticValue:
    """A value that a method reads from the critic, which has an output of its own for it."""

    name: str = VALUE
    """Column, or token column, that the critic supplies."""
    per: Per = "step"
    """``step``: a value of each step; ``token``: of the text before each response token."""
    at: str | None = None
    """Column of the places where a step's value is read: it is that of the text before so many tokens of its response,
    at most all but the last. ``None``: before the response."""
    learns: str | None = None
    """Column that says which steps have a target; the others teach nothing, whatever stands there. ``None``: all."""

    @property
    def target(self) -> str:
        """Column, or token column, of what this output is trained towards."""
        return target_of(self.name)

    def column(self, steps: StepTable, method: str) -> NDArray[np.float64]:
        """Returns the values as float64, shape (N,), or (number of response tokens,).

        Args:
            steps: Step rows with the column.
            method: Name of the estimator, for messages.

        Raises:
            MissingColumn: It is not there.
            UsageError: A value is not finite.
        """
        if self.per == "step":
            return finite_column(steps, self.name, method, SUPPLIERS[VALUE])
        return finite_tokens(steps, steps.token_column(self.name, method, SUPPLIERS[VALUE]), self.name)


class ValueBased(Estimator):
    """A method that reads values of a critic, and says what the critic is trained towards."""

    bootstrap: bool = False
    """Whether an episode that was cut off goes on with its last value; methods that can have a setting of this name."""

    @property
    def values(self) -> tuple[CriticValue, ...]:
        """The values that it reads: by default the column or (where it is ``per`` token) token column ``value``."""
        return (CriticValue(per=self.per),)

    @property
    def needs(self) -> tuple[str, ...]:
        """The critic's values, what says where they are read and learnt, and which episodes were cut off."""
        names = [name for value in self.values for name in (value.name, value.at, value.learns) if name is not None]
        return (*dict.fromkeys(names), *((TRUNCATED,) if self.bootstrap else ()))

    @abstractmethod
    def returns(self, steps: StepTable) -> tuple[NDArray[np.float64], ...]:
        """Returns the critic's targets: for each of :attr:`values` one number per step, or per response token."""

    def with_value_targets(self, steps: StepTable) -> StepTable:
        """Returns ``steps`` with the columns of the critic's targets."""
        for value, target in zip(self.values, self.returns(steps), strict=True):
            columns = {value.target: target}
            steps = steps.with_columns(**columns) if value.per == "step" else steps.with_token_columns(**columns)
        return steps


class Calibrating(Estimator):
    """A method with a setting that may be left open, for the first iteration's steps to decide."""

    @property
    @abstractmethod
    def open(self) -> bool:
        """Whether a setting is left open."""

    @abstractmethod
    def calibrate(self, steps: StepTable) -> Self:
        """Returns the method with every open setting decided by ``steps``."""


ESTIMATORS: Registry[Estimator] = Registry("estimator", group="trainers.estimators")


def register(name: str) -> Callable[[type[Estimator]], type[Estimator]]:
    """Class decorator: enter an estimator under ``name``."""
    return ESTIMATORS.register(name)
