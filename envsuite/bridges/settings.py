"""What whoever starts a bridge may choose."""

from __future__ import annotations

from dataclasses import dataclass, field

from envsuite.core.errors import UsageError
from envsuite.remote.tokens import check_token

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Settings:
    """Of one bridge."""

    environments: tuple[str, ...]
    """Ids that it offers, as ``gymnasium.make`` takes them."""
    urls: tuple[str, ...] = ()
    """Of the ``envsuite serve`` that play the environments; without any, they are played in this process."""
    host: str = "127.0.0.1"
    """Address to listen at; by default only this machine can connect."""
    port: int = 8000
    """0: any free one."""
    token: str | None = field(default=None, repr=False)
    """What clients have to show; ``None``: nothing."""
    max_sessions: int = 256
    """The most environments at a time, of all protocols together."""
    idle_seconds: float = 900.0
    """An environment that nobody calls for so long is closed."""
    max_body: int = 1024 * 1024
    """Bytes of the longest request or message."""

    def __post_init__(self) -> None:
        for name, value, least in (("port", self.port, 0), ("max_sessions", self.max_sessions, 1)):
            if value < least:
                raise UsageError(f"{name} is {value}; it must be at least {least}")
        if not self.idle_seconds > 0:
            raise UsageError(f"idle_seconds is {self.idle_seconds}; it must be above 0")
        if not self.environments:
            raise UsageError("a bridge offers at least one environment")
        check_token(self.token)

    @property
    def private(self) -> bool:
        """Only this machine can connect."""
        return self.host in LOOPBACK
