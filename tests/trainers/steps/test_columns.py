from __future__ import annotations

import pytest

from trainers.settings import ConfigError
from trainers.steps.columns import EMBEDDING, REFERENCE, ROLLOUT, SHAPED, VALUE, MissingColumn, check_supply

CRITIC = {"critic": (VALUE,)}


def test_a_column_needs_the_setting_that_supplies_it_or_comes_with_the_rollout_shapers_and_the_reference() -> None:
    check_supply("grpo", [*ROLLOUT, *SHAPED, REFERENCE], {})
    check_supply("ppo", [VALUE, "action"], CRITIC)


@pytest.mark.parametrize(
    ("kind", "method", "columns", "supplied", "said"),
    [
        (MissingColumn, "ppo", [VALUE], {}, r"^ppo needs the column 'value', which a critic \(method\.critic: .*\)"),
        (MissingColumn, "bipace", [EMBEDDING, VALUE], CRITIC, r"the column 'embedding', which a pass of the actor"),
        (MissingColumn, "bipace", ["moon"], {}, r"the column 'moon', which nothing supplies"),
        (ConfigError, "grpo", ["action"], CRITIC, r"method\.critic is set, but grpo with these options does not read"),
    ],
)
def test_what_nothing_supplies_and_what_nothing_reads_is_refused(kind, method, columns, supplied, said) -> None:
    with pytest.raises(kind, match=said):
        check_supply(method, columns, supplied)
