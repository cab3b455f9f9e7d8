"""The method of a run: estimator, shapers and filters by their settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainers.credit.config import MethodConfig
from trainers.credit.estimators import Estimator, ValueBased
from trainers.credit.filters import FILTERS, Filter
from trainers.credit.shapers import SHAPERS, Shaper
from trainers.settings import checked
from trainers.steps.columns import MADE, check_supply


@dataclass(frozen=True)
class Method:
    """Estimator, shapers and filters of a run, made from their settings."""

    estimator: Estimator
    shapers: Mapping[str, Shaper]
    """Shapers by name, in the order in which they are applied."""
    filters: Mapping[str, Filter]
    name: str = "the method"
    """The estimator's, for messages."""

    @classmethod
    def of(cls, config: MethodConfig) -> Method:
        """The method that the settings describe.

        Raises:
            UnknownName: A name or an option does not exist.
            MissingColumn: The method needs a column that nothing supplies.
            ConfigError: A setting supplies what the method does not read.
        """
        name, filters = config.estimator, config.filter_settings.items()
        method = cls(
            config.make_estimator(),
            {key: checked(SHAPERS[key], options, f"option of shaper {key}") for key, options in config.shapers.items()},
            {key: checked(FILTERS[key], options, f"option of filter {key}") for key, options in filters},
            name,
        )
        for key, shaper in method.shapers.items():
            check_supply(f"shaper {key}", shaper.needs, {})
        for key, filter_ in method.filters.items():
            check_supply(f"filter {key}", filter_.needs, {})
        columns: dict[str, tuple[str, ...]] = {}
        if config.critic is not None:
            reads = method.estimator.values if isinstance(method.estimator, ValueBased) else ()
            columns["critic"] = tuple(value.name for value in reads)
        check_supply(name, set(method.estimator.needs) - MADE, columns)
        return method
