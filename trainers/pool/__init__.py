"""The datapool: what agents did, stored once, between who plays and who learns."""

from trainers.pool.pool import Pool
from trainers.pool.query import Query, SessionConditions
from trainers.pool.records import PooledSession
from trainers.pool.writer import PoolWriter

__all__ = ["Pool", "PoolWriter", "PooledSession", "Query", "SessionConditions"]
