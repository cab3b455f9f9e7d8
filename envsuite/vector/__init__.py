"""Many episodes at once, in this process or in worker processes, behind one interface."""

from __future__ import annotations

from collections.abc import Sequence

from envsuite.vector.base import EnvFactory, Event, Vector
from envsuite.vector.local import LocalVector
from envsuite.vector.workers import WorkerVector

__all__ = ["EnvFactory", "Event", "LocalVector", "Vector", "WorkerVector", "make_vector"]


def make_vector(factories: Sequence[EnvFactory], slots: int, workers: int = 0, deadline: float = 60.0) -> Vector:
    """A vector of ``slots`` episodes.

    Args:
        factories: The environments; calls name them by their index.
        slots: How many episodes run at a time.
        workers: Number of worker processes; 0 runs everything in this process, where no deadline can be kept.
        deadline: Most seconds that one call may take in a worker process.

    Raises:
        UsageError: An environment cannot be made, or a number is out of range.
    """
    if workers == 0:
        return LocalVector(factories, slots)
    return WorkerVector(factories, slots, workers, deadline)
