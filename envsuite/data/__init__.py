"""Where data lives, how it is fetched, checked and built."""

from envsuite.data.files import write_atomically
from envsuite.data.places import cache_root, data_root

__all__ = ["cache_root", "data_root", "write_atomically"]
