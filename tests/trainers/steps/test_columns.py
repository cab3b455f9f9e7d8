from __future__ import annotations

from types import MappingProxyType

import pytest

from envsuite.core import ToolCall
from trainers.settings import ConfigError
from trainers.steps.columns import EMBEDDING, REFERENCE, ROLLOUT, SHAPED, VALUE, MissingColumn, check_supply
from trainers.steps.table import _action_text


def test_what_the_rollout_shapers_and_the_reference_supply_needs_no_setting() -> None:
    check_supply("grpo", [], {})
    check_supply("grpo", [*ROLLOUT, *SHAPED, REFERENCE], {})


def test_every_other_column_needs_the_setting_that_supplies_it() -> None:
    check_supply("ppo", [VALUE, "action"], {"critic": (VALUE,)})
    with pytest.raises(MissingColumn, match=r"^ppo needs the column 'value', which a critic \(method\.critic: .*\)"):
        check_supply("ppo", [VALUE], {})
    with pytest.raises(MissingColumn, match=r"the column 'embedding', which a pass of the actor"):
        check_supply("bipace", [EMBEDDING, VALUE], {"critic": (VALUE,)})
    with pytest.raises(MissingColumn, match=r"the column 'moon', which nothing supplies"):
        check_supply("bipace", ["moon"], {})


def test_a_setting_that_supplies_what_nothing_reads_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"method\.critic is set, but grpo with these options does not read"):
        check_supply("grpo", ["action"], {"critic": (VALUE,)})


def test_equal_calls_have_one_text_whatever_kind_of_mapping_their_arguments_are() -> None:
    plain = (ToolCall("go", {"to": "hall", "by": {"foot": True}}),)
    frozen = (ToolCall("go", MappingProxyType({"by": MappingProxyType({"foot": True}), "to": "hall"})),)
    assert _action_text(plain) == _action_text(frozen) == '[["go", {"by": {"foot": true}, "to": "hall"}]]'
    assert _action_text((ToolCall("go", {"to": "attic"}),)) != _action_text(plain) and _action_text(None) is None
