"""Gymnasium environments for language agents under one tool-call contract.

``import envsuite`` registers the ids with Gymnasium and does nothing more.
"""

from envsuite.registration import register_envs

__version__ = "0.1.0"
__all__ = ["__version__", "register_envs"]

register_envs()
