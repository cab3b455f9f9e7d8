"""The settings of a bridge."""

from __future__ import annotations

from dataclasses import dataclass, field

from envsuite.core.addresses import is_private
from envsuite.core.errors import UsageError
from envsuite.remote.tokens import check_token


@dataclass(frozen=True)
class BridgeSettings:
    """The settings of one bridge."""

    environments: tuple[str, ...]
    """Ids of the offered environments, as ``gymnasium.make`` takes them."""
    urls: tuple[str, ...] = ()
    """Addresses of the ``envsuite serve http`` that play the environments; empty to play them in this process."""
    host: str = "127.0.0.1"
    """Address to listen at; by default only this machine can connect."""
    port: int = 8000
    """Port; 0 for any free one."""
    token: str | None = field(default=None, repr=False)
    """Token required from clients; ``None`` for none."""
    max_sessions: int = 256
    """Maximum number of concurrent environments, of all protocols together."""
    idle_seconds: float = 900.0
    """Seconds after which an idle environment is closed."""
    max_body: int = 1024 * 1024
    """Size limit of a request or message in bytes."""

    def __post_init__(self) -> None:
        if self.max_sessions < 1:
            raise UsageError(f"max_sessions is {self.max_sessions}; it must be at least 1")
        if not self.idle_seconds > 0:
            raise UsageError(f"idle_seconds is {self.idle_seconds}; it must be above 0")
        if not self.environments:
            raise UsageError("a bridge offers at least one environment")
        check_token(self.token)

    @property
    def private(self) -> bool:
        """Whether only this machine can connect."""
        return is_private(self.host)
