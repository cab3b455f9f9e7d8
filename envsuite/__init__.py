"""Gymnasium environments for language agents under one tool-call contract.

``import envsuite`` registers the ids with Gymnasium, those of installed packages too, and does nothing more; in a
process of one of its commands, Ctrl-C is answered with a line from then on.
"""

from envsuite.exits import end_at_once, open_streams

open_streams()
end_at_once()

from envsuite.core.naming import register, register_all  # noqa: E402  (it takes time)
from envsuite.core.registration import EnvSpec, register_envs  # noqa: E402

__version__ = "0.1.0"
__all__ = ["EnvSpec", "Environment", "__version__", "register", "register_envs"]


def __getattr__(name: str) -> type:
    """Imports :class:`~envsuite.core.functions.Environment` where a file asks for it."""
    if name != "Environment":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from envsuite.core.functions import Environment

    return Environment


register_all()
