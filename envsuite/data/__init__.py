"""Locates, fetches, checks and builds data."""

from envsuite.data.catalog import DataSet, data_set, data_sets
from envsuite.data.files import atomic_file, write_atomically
from envsuite.data.places import WRITABLE, cache_root, data_root, without_paths

__all__ = [
    "WRITABLE",
    "DataSet",
    "atomic_file",
    "cache_root",
    "data_root",
    "data_set",
    "data_sets",
    "without_paths",
    "write_atomically",
]
