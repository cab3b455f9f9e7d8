"""Processes that are started again meet each other, and nobody whom an earlier attempt left in the store."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from trainers.processes.meeting import meet, own_part


def _come(store: HashStore, ranks: list[int], size: int, names: dict[int, str]) -> list[threading.Thread]:
    def come(rank: int) -> None:
        names[rank] = meet(store, rank, size, timedelta(seconds=20))

    threads = [threading.Thread(target=come, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    return threads


def _all(store: HashStore, size: int, first: list[int]) -> dict[int, str]:
    names: dict[int, str] = {}
    threads = _come(store, first, size, names)
    time.sleep(0.2)
    assert not names, "nobody goes on before all are there"
    threads += _come(store, [rank for rank in range(size) if rank not in first], size, names)
    for thread in threads:
        thread.join(20)
    return names


@pytest.mark.parametrize("first", [[0], [1], [2, 1]])
def test_all_get_one_name_and_those_of_the_next_attempt_another(first: list[int]) -> None:
    store = HashStore()
    found = [_all(store, 3, first) for _ in range(3)]
    assert [sorted(names) for names in found] == [[0, 1, 2]] * 3
    assert [len({*names.values()}) for names in found] == [1, 1, 1]
    assert len({names[0] for names in found}) == 3


def test_who_was_killed_before_all_were_there_is_not_waited_for() -> None:
    store = HashStore()
    store.set("trainers/meeting/here/1", "of a process that was killed")
    assert len({*_all(store, 2, [0]).values()}) == 1


def test_what_one_meeting_wrote_no_other_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    for name in ("one", "two"):
        monkeypatch.setattr("trainers.processes.meeting._MET", name)
        assert not own_part(store, "peers").check(["sign"])
        own_part(store, "peers").set("sign", "of life")


def test_who_does_not_come_is_named() -> None:
    with pytest.raises(TimeoutError, match=r"ranks \[1\]"):
        meet(HashStore(), 0, 2, timedelta(seconds=0.2))
