"""Environments on other machines: the client of ``envsuite serve``."""

from envsuite.remote.env import RemoteEnv

__all__ = ["RemoteEnv"]
