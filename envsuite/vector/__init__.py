"""Runs many episodes at once, in this process, in worker processes or on servers, behind one interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envsuite.core.errors import UsageError
from envsuite.vector.actors import ActorVector
from envsuite.vector.base import EnvFactory, Vector, VectorEvent, VectorSnapshot, Wait
from envsuite.vector.local import LocalVector
from envsuite.vector.remote import RemoteVector
from envsuite.vector.workers import WorkerVector

__all__ = [
    "ActorVector",
    "EnvFactory",
    "LocalVector",
    "RemoteVector",
    "Vector",
    "VectorEvent",
    "VectorSnapshot",
    "Wait",
    "WorkerVector",
    "make_vector",
]


def make_vector(
    factories: Sequence[EnvFactory],
    slots: int,
    workers: int = 0,
    deadline: float = 60.0,
    snapshots: bool = False,
    ray: Mapping[str, Any] | None = None,
) -> Vector:
    """Makes a vector of ``slots`` episodes.

    Args:
        factories: The environments; calls name them by their index. With the argument ``url``, those of a server.
        slots: Number of concurrent episodes.
        workers: Number of worker processes; 0 runs everything in this process.
        deadline: Limit in seconds of one call; without workers for Python code in the main thread only.
        snapshots: Answer each call with a :attr:`VectorEvent.snapshot`, from which :meth:`Vector.restore` goes on.
        ray: Makes the workers actors of Ray on the machines of its cluster, with these options of actors
            (:class:`~envsuite.vector.actors.ActorVector`); by default they are processes here.

    Raises:
        UsageError: An environment cannot be made, or a number is out of range.
        MissingExtra: Ray is not installed.
    """
    remote = [factory.env_id for factory in factories if "url" in factory.kwargs]
    if remote:
        if len(remote) < len(factories):
            here = next(factory.env_id for factory in factories if "url" not in factory.kwargs)
            raise UsageError(f"{remote[0]} has a url and {here} has none; give one to every environment of a vector")
        return RemoteVector(factories, slots, deadline, snapshots)
    if workers == 0:
        return LocalVector(factories, slots, deadline, snapshots)
    if ray is not None:
        return ActorVector(factories, slots, workers, deadline, snapshots, ray)
    return WorkerVector(factories, slots, workers, deadline, snapshots)
