"""Every registered environment passes the checker, in each of its sources and forms; one that does not fails it."""

from __future__ import annotations

from typing import Any

import pytest

from envsuite.core.registration import ENVIRONMENTS
from envsuite.testing import Check, check_environment, checks, contract, rendering, splits
from envsuite.textcraft.env import TextCraft

FORMS: list[tuple[str, dict[str, Any]]] = [
    *((env_id, {}) for env_id in ("TextCraft-v0", "Sokoban-v0", "PythonMath-v0", "SearchQA-v0")),
    ("ALFWorld-v0", {"games": 18}),
    ("TextCraft-v0", {"source": "generated", "book_seed": 1, "goals": 200}),
    ("WebShop-v0", {"products": 100, "mode": "text"}),
    ("WebShop-v0", {"products": 100, "mode": "structured"}),
    ("Sokoban-v0", {"source": "generated", "level_seed": 1, "levels": 50}),
    ("Sokoban-v0", {"observation": "image"}),
    ("Sokoban-v0", {"observation": "both"}),
    ("PythonMath-v0", {"source": "generated", "problem_seed": 1, "problems": 60}),
    ("PaperSearch-v0", {"papers": 2_000}),
    ("PaperSearchTeam-v0", {"papers": 2_000}),
]
"""Id and arguments, which make few tasks where the default makes many."""
CHECKS = [check for env_id, arguments in FORMS for check in checks(env_id, **arguments)]
CHECKS += [Check("PaperSearch-v0", contract, {"papers": 2_000, "selector": "lexical"})]  # whose expert finds less


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_every_environment_passes(check: Check) -> None:
    check()


def test_no_registered_environment_is_left_out() -> None:
    assert {env_id for env_id, _ in FORMS} == set(ENVIRONMENTS)


def test_a_failed_check_names_itself_and_what_came(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(self: Any) -> str:
        return ""

    monkeypatch.setattr(TextCraft, "render", silent)
    with pytest.raises(AssertionError, match="TextCraft-v0-rendering, seed 0: expected text, got ''"):
        Check("TextCraft-v0", rendering)()
    Check("TextCraft-v0", splits)()


def test_an_environment_whose_episodes_differ_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = TextCraft._begin
    begun: list[str] = []

    def other(self: Any, task_id: str) -> Any:
        begun.append(task_id)
        first = begin(self, task_id)
        return first if len(begun) % 2 else (first[0] + " ", first[1])

    monkeypatch.setattr(TextCraft, "_begin", other)
    with pytest.raises(AssertionError, match="TextCraft-v0-contract: Deterministic step observations"):
        check_environment("TextCraft-v0")
