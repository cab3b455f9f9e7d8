"""Environments on other machines: the client of ``envsuite serve http``."""

from envsuite.remote.env import RemoteEnv

__all__ = ["RemoteEnv"]
