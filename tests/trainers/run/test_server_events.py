"""News of servers become events of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsuite.remote.places import News, listening, tell
from trainers.report.events import read_events
from trainers.run.event_log import EventLog

JOINS = News("http://a:1", "TextCraft-v0", True, "it is named")
LEAVES = News("http://a:1", "TextCraft-v0", False, "it is named no more")


def test_each_join_and_leave_is_one_event_however_many_parts_of_the_run_tell_of_it(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "run", None, writes=True)
    other = News("http://a:1", "Sokoban-v0", True, "it is named")
    with listening(lambda news: log.note(news, 3)):
        for news in (JOINS, JOINS, other, LEAVES, LEAVES, JOINS):
            tell(news)
    tell(LEAVES)
    found = read_events(tmp_path)
    assert [event.message for event in found] == list(map(str, (JOINS, other, LEAVES, JOINS)))
    assert {(event.kind, event.iteration) for event in found} == {("server", 3)}
    facts = {"url": "http://a:1", "serves": "TextCraft-v0", "joined": False, "why": "it is named no more"}
    assert found[2].facts == facts


def test_only_the_first_process_writes_events_and_a_full_disk_ends_no_thread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    EventLog(tmp_path, "run", None, writes=False).note(JOINS, 3)
    assert not [*tmp_path.iterdir()]
    (tmp_path / "file").touch()
    EventLog(tmp_path / "file", "run", None, writes=True).note(JOINS, 3)
    assert "cannot be written" in caplog.text
