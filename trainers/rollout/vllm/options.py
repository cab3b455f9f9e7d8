"""Settings of the engine vllm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainers.rollout.vllm.child import check_interpreter
from trainers.settings import ConfigError

_WHERE = "rollout.engine_options"


@dataclass(frozen=True)
class Options:
    """The settings ``rollout.engine_options`` of the engine vllm.

    Raises:
        ConfigError: They contradict each other, or this machine.
    """

    urls: str | Sequence[str] | None = None
    """Addresses of running servers, shared by all processes of the run. By default each process starts one for itself,
    and ends it."""
    python: str | None = None
    """Interpreter that the server is started with; by default this one."""
    arguments: Mapping[str, Any] | None = None
    """Further arguments of the started server, e.g. ``{max-model-len: 4096}``."""
    sleep: bool = False
    """While the model trains, the started server gives back the memory of its weights, keys and values."""
    weights_folder: str = "/dev/shm"
    """Folder that the servers see, too, for weights on their way; by default in memory."""
    patience: float = 60.0
    """Seconds for which a server that fails is tried again, before the run stops."""
    timeout: float = 600.0
    """Seconds that a server may take for one completion."""

    def __post_init__(self) -> None:
        if self.urls is not None:
            self._check_urls()
        elif self.arguments is not None and not isinstance(self.arguments, Mapping):
            raise ConfigError(f"{_WHERE}.arguments must be like {{max-model-len: 4096}}, got {self.arguments!r}")
        else:
            check_interpreter(self.python)
        if not isinstance(self.sleep, bool):
            raise ConfigError(f"{_WHERE}.sleep is {self.sleep!r}; it must be true or false")
        if not Path(self.weights_folder).is_dir():
            raise ConfigError(f"{_WHERE}.weights_folder: there is no folder {self.weights_folder}")
        for name, seconds in (("patience", self.patience), ("timeout", self.timeout)):
            if not isinstance(seconds, int | float) or not seconds > 0:
                raise ConfigError(f"{_WHERE}.{name} is {seconds!r}; it must be seconds, above 0")

    def _check_urls(self) -> None:
        for name, value in (("python", self.python), ("arguments", self.arguments), ("sleep", self.sleep or None)):
            if value is not None:
                raise ConfigError(
                    f"{_WHERE}: urls names servers that run, and {name} is for one that is started; leave one out"
                )
        if not self.addresses or not all(isinstance(url, str) and url.startswith("http") for url in self.addresses):
            raise ConfigError(f"{_WHERE}.urls is {self.urls!r}; it must be like http://127.0.0.1:8000, or several such")

    @property
    def addresses(self) -> list[str]:
        """The addresses; none where a server is to be started."""
        return [self.urls] if isinstance(self.urls, str) else [*(self.urls or ())]
