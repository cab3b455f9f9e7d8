"""``run.log`` in the folder of a run: what both packages log while it goes on."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from envsuite.core.escaping import LogFormatter
from envsuite.data.files import file_errors

_LOG = logging.getLogger(__name__)


class _LogFile(logging.FileHandler):
    """A log that a full disk costs one warning, in place of a traceback for each of its lines."""

    _warned = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Warns once of an error of the system."""
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._warned:
            self._warned = True
            _LOG.warning("%s cannot be written (%s)", self.baseFilename, error)

    def close(self) -> None:
        """Closes the file; lines that it could not take are lost."""
        with suppress(OSError):
            super().close()


@contextmanager
def run_log(path: Path) -> Iterator[None]:
    """Write what both packages log, from level INFO, to ``path`` as well; appends.

    Raises:
        DataError: The file cannot be written.
    """
    with file_errors(path, "written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = [logging.getLogger("trainers"), logging.getLogger("envsuite")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
        handler.close()
