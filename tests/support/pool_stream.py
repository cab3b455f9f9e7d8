"""A process that writes sessions into a pool for ever, and notes what was acknowledged; a test kills it."""

from __future__ import annotations

import os
from pathlib import Path

from episodes import step

from envsuite.playing.step import Step
from trainers.pool import PoolWriter

STEPS = 5
"""Steps of a session that has ended."""


def made(session: str, t: int) -> Step:
    """The step of that number of a session: each prompt has the one before and its response at its beginning."""
    seed = int.from_bytes(session.encode()[-4:], "big") % 1000
    tokens = [seed, *range(40 + 12 * t)]
    return step(
        t, prompt_ids=tokens, response_ids=[seed, t, 7], response_logprobs=[-0.5, -0.25, -t], policy_version=t,
        observation=f"{session} at {t}", info={"t": t}, reward=float(t),
    )  # fmt: skip


def write(folder: Path, notes: Path, generation: int) -> None:
    """Writes sessions; every line of ``notes`` is what a call that has returned did."""
    with PoolWriter(folder) as pool, notes.open("ab", buffering=0) as file:

        def note(*words: object) -> None:
            os.write(file.fileno(), f"{' '.join(map(str, words))}\n".encode())

        number = 0
        while True:
            session = f"{generation:02}-{number:05}"
            pool.open_session(session, task_id=f"task-{number % 7}")
            note("open", session)
            if number % 3:
                for t in range(STEPS):
                    pool.add(session, t, made(session, t))
                    note("add", session, t)
            else:
                pool.add_all((session, t, made(session, t)) for t in range(STEPS))
                for t in range(STEPS):
                    note("add", session, t)
            pool.end(session, success=number % 2 == 0, score=0.5)
            note("end", session)
            if number % 11 == 5:
                note("deleting", session)
                pool.delete([session])
                note("delete", session)
            number += 1
