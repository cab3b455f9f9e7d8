"""The datapool: what agents did, stored once, between who plays and who learns."""

from trainers.pool.pool import Pool
from trainers.pool.query import Query, Wanted
from trainers.pool.records import PooledSession
from trainers.pool.writer import PoolWriter

__all__ = ["Pool", "PoolWriter", "PooledSession", "Query", "Wanted"]
