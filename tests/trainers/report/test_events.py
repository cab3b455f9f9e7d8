"""The file of a run's events."""

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from trainers.report.events import FILE, Kind, RunEvent, read_events, write_event

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
def test_what_a_killed_write_left_is_passed_over_and_no_other_event_is_lost(
    tmp_path_factory, events: list[RunEvent], data: st.DataObject
) -> None:
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
