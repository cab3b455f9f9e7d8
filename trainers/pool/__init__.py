"""The datapool: what agents did, stored once, between who plays and who learns."""

from trainers.pool.pool import Pool
from trainers.pool.query import Query
from trainers.pool.records import Session
from trainers.pool.writer import Writer

__all__ = ["Pool", "Query", "Session", "Writer"]
