"""Python interpreters in a sandbox, for code that a model wrote."""

from envsuite.interpreter.base import CodeResult, Interpreter, InterpreterLimits, InterpreterSession
from envsuite.interpreter.registry import open_interpreter

__all__ = ["CodeResult", "Interpreter", "InterpreterLimits", "InterpreterSession", "open_interpreter"]
