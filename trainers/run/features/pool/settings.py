"""Settings of a run's datapool."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.pool.query import SessionConditions
from trainers.settings import Text


@dataclass(frozen=True)
class PoolConfig:
    """The datapool of a run (docs/datapool.md)."""

    folder: Text = "pool"
    """Its folder, on a disk of this machine. With ``take`` and the estimator rft (recipe sft) also one of episodes that
    envsuite eval model --keep or a run wrote, or a file of demonstrations."""
    hook: Text | None = None
    """file.py:function, which sees each text before it is stored, and may change or drop it."""
    take: SessionConditions | None = None
    """Train on what this query finds there, in whole groups of rollout.group_size, and play nothing; the estimator rft
    takes single episodes, and each again after all others. null: play, and store every episode."""
