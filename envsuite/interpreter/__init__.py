"""Python interpreters in a sandbox, for code that a model wrote."""

from envsuite.interpreter.base import Interpreter, Limits, Result, Session

__all__ = ["Interpreter", "Limits", "Result", "Session"]
