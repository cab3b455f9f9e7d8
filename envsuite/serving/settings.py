"""The settings of a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from envsuite.core.errors import UsageError
from envsuite.remote.tokens import check_token


@dataclass(frozen=True)
class ServerSettings:
    """The settings of one server."""

    environments: tuple[str, ...]
    """Ids of the offered environments, as ``gymnasium.make`` takes them."""
    host: str = "127.0.0.1"
    """Address to listen at; by default only this machine can connect."""
    port: int = 8080
    """Port; 0 for any free one."""
    workers: int = 1
    """Number of processes for environments whose steps need CPU; 0 plays all in the process that answers HTTP, where a
    call that hangs cannot be ended."""
    token: str | None = field(default=None, repr=False)
    """Token required from clients; ``None`` for none."""
    max_sessions: int = 4096
    """Maximum number of concurrent sessions."""
    idle_seconds: float = 900.0
    """Seconds after which an idle session is ended."""
    deadline: float = 60.0
    """Limit in seconds of one call, or of the calls of one batch, in a worker process."""
    max_body: int = 8 * 1024 * 1024
    """Size limit of a request in bytes."""
    source_folders: tuple[Path, ...] = ()
    """Folders below which clients may choose a path as ``source``, or as a file that a search reads."""
    search_servers: tuple[str, ...] = ()
    """Addresses of servers of search that clients may name in a search."""

    def __post_init__(self) -> None:
        for name, value, least in (
            ("workers", self.workers, 0),
            ("max_sessions", self.max_sessions, 1),
            ("max_body", self.max_body, 1024),
        ):
            if value < least:
                raise UsageError(f"{name} is {value}; it must be at least {least}")
        for name, seconds in (("idle_seconds", self.idle_seconds), ("deadline", self.deadline)):
            if not seconds > 0:
                raise UsageError(f"{name} is {seconds}; it must be above 0")
        if not self.environments:
            raise UsageError("a server offers at least one environment")
        check_token(self.token)
