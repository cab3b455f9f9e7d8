"""Texts of the tools of PythonMath-v0, and how results are shown."""

from __future__ import annotations

from envsuite.interpreter import CodeResult

PYTHON = (
    "Run Python code. You get what it prints and its errors. Variables, functions and imports stay for the next calls; "
    "numpy and sympy are there."
)
"""Description of the tool ``python``."""

CODE = "The code, e.g. `print(17 * 23)`."
"""Description of its argument."""

ANSWER = (
    "Give the final answer to the problem; this ends the episode. Write the value alone: an integer, a fraction such "
    "as `3/7`, a decimal, or LaTeX."
)
"""Description of the tool ``answer``."""

TEXT = "The answer, e.g. `391`."
"""Description of its argument."""

START = "No code has been run."
RIGHT = "The answer is right."
WRONG = "The answer is wrong."
NO_ANSWER = "The answer is empty; nothing was submitted."
NOTHING_PRINTED = "(The code printed nothing. Use print() for what you want to see.)"
CHECK = "(There is something on stderr. Check the code.)"


def too_long(what: str, characters: int, most: int) -> str:
    """Returns why a code or an answer was refused."""
    return f"The {what} has {characters:,} characters; at most {most:,} are read. Nothing was done."


def format_run(result: CodeResult) -> str:
    """Returns what an agent sees of a run: what was printed, what went wrong, and a hint if either asks for one."""
    output, errors = result.stdout.rstrip(), result.stderr.strip()
    parts = [output] if output else []
    if errors:
        parts.append(f"stderr:\n{errors}\n{CHECK}")
    return "\n".join(parts) or NOTHING_PRINTED
