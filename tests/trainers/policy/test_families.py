"""Each decoder family of the installed transformers is trained as ``benchmarks/families.json`` says."""

from __future__ import annotations

import pytest

from benchmarks.families import families, known_states, measured

QUICK = ("llama", "gemma3_text", "lfm2", "qwen3_5_text", "bamba", "bloom", "stablelm")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in sorted(families())]
)
def test_a_family_keeps_its_state(name: str) -> None:
    known = known_states().get(name)
    found = measured(name)
    if known is None:
        pytest.skip(f"transformers has a new family: {found.row(name)}")
    lost = set(known.split()) - set(found.state.split())
    assert not lost, f"python -m benchmarks.families {name}: {' '.join(lost)} fails now: {found.row(name)}"
