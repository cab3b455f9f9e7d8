"""metrics.jsonl and its documentation.

The file of a run's events.
"""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docs.metrics import page
from envsuite.core.errors import DataError, UnknownName, UsageError
from trainers.report.events import FILE, Kind, RunEvent, read_events, write_event
from trainers.report.metrics import MetricsWriter, is_metric, read_metrics

DOCS = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"


def test_the_page_of_metrics_is_what_the_command_prints():
    assert DOCS.read_text(encoding="utf-8") == page(), "run: python -m docs.metrics > docs/metrics.md"


def test_what_is_no_metric_is_refused_and_what_is_not_finite_becomes_null(tmp_path):
    assert is_metric("eval/success/depth-2") and is_metric("diag/a/b") and not is_metric("diag/")
    with closing(MetricsWriter(tmp_path / "m.jsonl")) as writer:
        with pytest.raises(UnknownName, match="Nearest: 'train/loss'"):
            writer.write(1, {"train/los": 1.0})
        with pytest.raises(UsageError, match="iteration 4"):
            writer.write(4, {"train/loss": object()})  # type: ignore[dict-item]
        writer.write(1, {"train/loss": math.nan, "train/kl": math.inf, "train/success": 0.5})
    (line,) = read_metrics(tmp_path / "m.jsonl")
    assert line == {"iteration": 1, "train/loss": None, "train/kl": None, "train/success": 0.5}


@given(st.integers(1, 200))
@settings(deadline=None)
def test_a_file_cut_anywhere_reads_as_its_whole_lines_and_can_be_appended_to(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("metrics") / "m.jsonl"
    with closing(MetricsWriter(path)) as writer:
        for i in range(5):
            writer.write(i, {"train/loss": i / 7})
    content = path.read_bytes()[:-cut]
    path.write_bytes(content)
    whole = content.count(b"\n")
    assert [record["iteration"] for record in read_metrics(path)] == list(range(whole))
    with closing(MetricsWriter(path)) as writer:
        writer.write(9, {"train/loss": 1.0})
    assert [record["iteration"] for record in read_metrics(path)] == [*range(whole), 9]


def test_a_resume_drops_what_came_after_the_checkpoint_and_keeps_the_rest_to_the_byte(tmp_path):
    path = tmp_path / "m.jsonl"
    with closing(MetricsWriter(path)) as writer:
        for i in (0, 1, 2):
            writer.write(i, {"train/loss": i / 3})
        kept = path.read_bytes()
        for i in (2, 3, 4):
            writer.write(i, {"eval/success": 0.1})
        writer.truncate(2)
        assert kept.startswith(path.read_bytes())
        writer.write(2, {"train/loss": 2 / 3})
    assert path.read_bytes() == kept
    assert [file.name for file in tmp_path.iterdir()] == ["m.jsonl"]


@pytest.mark.parametrize("line", [b"{half", b"[1]", b'{"train/loss": 1}', b"\x00\xff"])
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"iteration":1}\n' + line + b"\n" + b'{"iteration":2}\n')
    with pytest.raises(DataError, match=r"m\.jsonl, line 2"):
        read_metrics(path)
    with pytest.raises(DataError, match=r"none\.jsonl"):
        read_metrics(tmp_path / "none.jsonl")


EVENTS = st.builds(
    RunEvent,
    kind=st.sampled_from(get_args(Kind)),
    iteration=st.integers(0, 10**6),
    message=st.text(max_size=40),
    facts=st.dictionaries(st.text(max_size=5), st.integers(0, 9) | st.text(max_size=5), max_size=3),
)


def _told(event: RunEvent) -> tuple[object, ...]:
    return event.kind, event.iteration, event.message, dict(event.facts)


@given(st.lists(EVENTS, min_size=1, max_size=4), st.data())
def test_what_a_killed_write_left_is_passed_over_and_no_other_event_is_lost(tmp_path_factory, events, data):
    folder = tmp_path_factory.mktemp("run") / "run"
    assert read_events(folder) == []
    for event in events:
        write_event(folder, event)
    whole = (folder / FILE).read_bytes()
    assert [_told(event) for event in read_events(folder)] == [_told(event) for event in events]
    last = len(whole.splitlines()[-1]) + 1
    (folder / FILE).write_bytes(whole[: -data.draw(st.integers(2, last))])
    write_event(folder, events[0])
    assert [_told(event) for event in read_events(folder)] == [_told(event) for event in [*events[:-1], events[0]]]
