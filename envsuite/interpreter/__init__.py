"""Python interpreters in a sandbox, for code that a model wrote."""

from envsuite.interpreter.base import Interpreter, Limits, Result, Session
from envsuite.interpreter.registry import open_interpreter

__all__ = ["Interpreter", "Limits", "Result", "Session", "open_interpreter"]
