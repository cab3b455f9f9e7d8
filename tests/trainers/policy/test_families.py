"""Each decoder family of the installed transformers is trained as ``benchmarks/families.json`` says."""

from __future__ import annotations

import pytest

from benchmarks.families import families, known_states, measured, two_processes

QUICK = ("llama", "gemma3_text", "lfm2", "qwen3_5_text", "bamba", "bloom", "stablelm")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in sorted(families())]
)
def test_a_family_keeps_its_state(name):
    known = known_states().get(name)
    found = measured(name)
    if known is None:
        pytest.skip(f"transformers has a new family: {found.row(name)}")
    lost = set(known.split()) - {"processes"} - set(found.state.split())
    assert not lost, f"python -m benchmarks.families {name}: {' '.join(lost)} fails now: {found.row(name)}"


@pytest.mark.seconds
def test_two_processes_have_the_gradient_of_one_where_parts_of_the_model_take_no_part_in_it():
    names = ["llama", "bert", "deepseek_v32"]
    assert two_processes(names) == dict.fromkeys(names, "yes")


@pytest.mark.slow
def test_so_it_is_for_every_family():
    names = [name for name, state in known_states().items() if "processes" in state]
    assert len(names) > 150 and two_processes(names) == dict.fromkeys(names, "yes")
