"""Python interpreters in a sandbox, for code that a model wrote."""

from envsuite.interpreter.base import CodeResult, Interpreter, InterpreterSession, Limits
from envsuite.interpreter.registry import open_interpreter

__all__ = ["CodeResult", "Interpreter", "InterpreterSession", "Limits", "open_interpreter"]
