"""The datapool: what agents did, stored once, between who plays and who learns."""

from trainers.pool.pool import DataPool
from trainers.pool.query import PoolQuery
from trainers.pool.records import PooledSession
from trainers.pool.writer import PoolWriter

__all__ = ["DataPool", "PoolQuery", "PoolWriter", "PooledSession"]
