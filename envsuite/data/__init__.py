"""Where data lives, how it is fetched, checked and built."""

from envsuite.data.catalog import CATALOG, DataSet, data_set
from envsuite.data.files import atomic_file, write_atomically
from envsuite.data.manager import State, Verified, fetch, state, verify
from envsuite.data.places import cache_root, data_root

__all__ = [
    "CATALOG",
    "DataSet",
    "State",
    "Verified",
    "atomic_file",
    "cache_root",
    "data_root",
    "data_set",
    "fetch",
    "state",
    "verify",
    "write_atomically",
]
