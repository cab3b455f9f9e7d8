"""A writer that is killed at any moment loses nothing that it acknowledged, and nothing is taken twice."""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from pool_stream import STEPS, made, write

from trainers.pool import Pool, PoolWriter, Query

KILLS = 20


def _killed(folder: Path, notes: Path, generation: int, moments: random.Random) -> None:
    """Has a process write until it is killed, some acknowledgements and some milliseconds later."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pool_stream"])
    enough = notes.read_bytes().count(b"\n") + moments.randint(1, 40)
    process = context.Process(target=write, args=(folder, notes, generation))
    process.start()
    while notes.read_bytes().count(b"\n") < enough:
        assert process.is_alive()
        time.sleep(0.001)
    time.sleep(moments.uniform(0.0, 0.02))
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def _acknowledged(notes: Path) -> dict[str, Any]:
    """Requests of each session that was not deleted, and which have ended."""
    found: dict[str, Any] = {}
    for line in notes.read_text().splitlines():
        word, session, *rest = line.split()
        if word == "open":
            found[session] = {"steps": [], "ended": False, "deleting": False}
        elif word == "delete":
            del found[session]
        elif word == "add":
            found[session]["steps"].append(int(rest[0]))
        else:
            found[session]["ended" if word == "end" else "deleting"] = True
    return found


@pytest.mark.seconds
def test_a_writer_killed_at_twenty_moments_loses_nothing_and_nothing_is_taken_twice(tmp_path):
    folder, notes, moments = tmp_path / "pool", tmp_path / "notes", random.Random(7)
    notes.touch()
    query, state, takes, seen = Query(), None, [], set[int]()
    for generation in range(KILLS):
        _killed(folder, notes, generation, moments)
        with Pool(folder) as pool:  # a reader comes first, and recovers what the killed process left
            before = {one.session: one.steps for one in pool.sessions()}
        with PoolWriter(folder) as pool:
            sessions = {one.session: one for one in pool.sessions()}
            assert {name: one.steps for name, one in sessions.items()} == before
            known = _acknowledged(notes)
            for name, one in known.items():
                if one["deleting"] and name not in sessions:
                    continue
                steps = pool.episode(name).steps
                assert {*one["steps"]} <= {step.t for step in steps} and len(steps) <= STEPS
                assert list(steps) == [made(name, t) for t in range(len(steps))]
                assert sessions[name].ended is not None or not one["ended"]
            more = {name for name in sessions if name not in known and name.startswith(f"{generation:02}-")}
            assert len(more) <= 1, "only the call under way is stored without an acknowledgement"
            for count in (3, 10):
                mark = pool.mark
                episodes, after = pool.take(query, count, 5, state, mark)
                numbers = [one.episode_id for one in episodes]
                assert not seen & {*numbers} and len({*numbers}) == len(numbers)
                seen |= {*numbers}
                takes.append((state, mark, episodes))
                state = json.loads(json.dumps(after))
    with Pool(folder) as pool:
        assert len(seen) >= 2 * KILLS
        for state, mark, episodes in takes:
            assert pool.take(query, len(episodes), 5, state, mark)[0] == episodes, "going back takes the same again"
