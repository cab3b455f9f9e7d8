"""Where the processes of a run meet when a launcher may have started others before them.

torch's elastic agent keeps one store for all its attempts, and ``env://`` adds nothing to its keys: processes that are
started again read the addresses of those that were killed, and wait for them (seen with torch 2.13 and gloo). Numbers
of attempts would not tell them apart: on several machines each agent counts its own. So each process gives itself a
name that is used once, the first process publishes all of them, and only who finds its own there goes on.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import orjson
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import register_rendezvous_handler

URL = "trainers://"
"""As ``init_method`` of ``torch.distributed.init_process_group``."""
_POLL_SECONDS = 0.05
_KEY = "trainers/meeting"
_MET = ""
"""Name of the meeting that this process was at; empty where it met the others in a store that is new."""


def in_agent(environment: os._Environ[str] | dict[str, str]) -> bool:
    """Whether the processes meet in the store of their launcher, which may hold what earlier ones wrote."""
    return environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def own_part(store: Store, name: str) -> Store:
    """The part of a store that the processes that have met share with no earlier ones, and use for ``name``."""
    return PrefixStore(f"{_KEY}/{_MET}/{name}", store)


def meet(store: Store, rank: int, size: int, timeout: timedelta) -> str:
    """Waits until all processes are there; returns a name of this meeting, the same in all of them.

    Args:
        store: Shared by them.
        rank: Number of this process.
        size: How many there are.
        timeout: How long they wait for each other.

    Raises:
        TimeoutError: Some did not come.
    """
    own, until = secrets.token_hex(8), time.monotonic() + timeout.total_seconds()
    names, whole = f"{_KEY}/names", f"{_KEY}/whole"
    here, votes = ([f"{_KEY}/{what}/{process}" for process in range(size)] for what in ("here", "agreed"))
    store.set(here[rank], own)
    last = b""
    while time.monotonic() < until:
        if rank == 0 and store.check(here):
            store.set(names, orjson.dumps([*map(_text, store.multi_get(here))]).decode())
        if store.check([names]) and (roster := store.get(names)) != last and orjson.loads(roster)[rank:][:1] == [own]:
            store.set(votes[rank], _text(roster))
            last = roster
        if rank == 0 and last and store.check(votes) and {*map(bytes, store.multi_get(votes))} == {last}:
            store.set(whole, _text(last))
        if last and store.check([whole]) and store.get(whole) == last:
            return hashlib.sha256(last).hexdigest()[:16]
        time.sleep(_POLL_SECONDS)
    missing = [process for process, key in enumerate(here) if not store.check([key])]
    raise TimeoutError(f"waited for {timeout} for the other processes to start (ranks {missing or 'unknown'})")


def _text(value: bytes) -> str:
    return bytes(value).decode()


def _rendezvous(url: str, timeout: timedelta, **_: Any) -> Iterator[tuple[Store, int, int]]:
    """Yields store, rank and number of processes once, as torch asks of a way to meet."""
    global _MET
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timeout)
    _MET = meet(store, rank, size, timeout)
    yield own_part(store, "group"), rank, size
    raise RuntimeError(f"{url} is used once by a process")


register_rendezvous_handler(URL.removesuffix("://"), _rendezvous)  # type: ignore[no-untyped-call]
