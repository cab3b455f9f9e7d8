"""``PythonMath-v0``: problems with one right answer, and a Python interpreter, as an environment of tool calls."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from envsuite.core.env import Observation, Outcome, StepInfo, ToolEnv
from envsuite.core.errors import WorkerLost
from envsuite.core.options import SEED, EnvOptions, option, source
from envsuite.core.players import require_episode
from envsuite.core.tools import Tool, ToolCall
from envsuite.interpreter import Interpreter, InterpreterSession, Limits, open_interpreter
from envsuite.interpreter.registry import ISOLATED
from envsuite.mathematics import answers, dapo, judge, prompts
from envsuite.mathematics.answers import MOST_CHARACTERS
from envsuite.mathematics.generate import KINDS, LEVELS
from envsuite.mathematics.problem import MathProblem
from envsuite.mathematics.tasks import load

MOST_CODE = 20_000
"""Longest code of a call, in characters."""
MOST_CALLS = 8
MOST_PROBLEMS = 100_000
REWARDS = {"exact": (1.0, 0.0), "signed": (1.0, -1.0), "format": (1.0, 0.0)}
"""Rewards of a right and of a wrong answer, by the names of ``reward=``."""
SCORERS = {"value": answers.is_right, "math-verify": judge.is_right, "dapo": dapo.is_right}
"""Whether an answer is right, by the names of ``scorer=``."""
_KEEPS_STATE = ("ok", "error")  # ways in which a run can end without the loss of the session's state
WELL_FORMED = 0.1
"""Added by ``reward="format"`` if no action of the episode was invalid."""


@dataclass(frozen=True, kw_only=True)
class PythonMathOptions(EnvOptions):
    """The options of ``PythonMath-v0``."""

    env_id: ClassVar[str] = "PythonMath-v0"
    source: str | Path = source(
        about='"builtin", "generated" (drawn from problem_seed), "official" (the files in the folder mathematics in '
        "$ENVSUITE_DATA), or the path of a file of problems or of a folder of such"
    )
    problem_seed: int = option(0, "seed of the generated problems", **SEED)
    problems: int = option(1000, "number of generated problems", minimum=1, maximum=MOST_PROBLEMS)
    kinds: Collection[str] = option(
        KINDS, "kinds of generated problems", items={"enum": KINDS}, minItems=1, clients={"maxItems": 5}
    )
    difficulty: Collection[int] = option(
        LEVELS, "levels of generated problems", items={"enum": LEVELS}, minItems=1, clients={"maxItems": 3}
    )
    reward: str = option(
        "exact",
        '"exact": 1 for a right answer, else 0; "signed": 1 or -1; "format": as "exact", and 0.1 more if no action of '
        "the episode was invalid",
        enum=tuple(REWARDS),
    )
    scorer: str = option(
        "value",
        'an answer is right: "value": if it states the value of the right one, in whatever form; "math-verify": if '
        'math-verify says so, which evaluates sums and products; "dapo": if it has its text, as DAPO\'s trainer '
        "compares it",
        enum=tuple(SCORERS),
    )
    interpreter: str = option(
        "auto",
        "name or address of the interpreter that runs the code; clients of a server choose among the sandboxes of its "
        "machine",
        clients={"enum": ("auto", *ISOLATED)},
    )
    seconds: float = option(5.0, "wall-clock time of a call of python, in seconds", exclusiveMinimum=0, maximum=60)
    max_calls: int = option(1, "most calls in one step", minimum=1, maximum=MOST_CALLS)


class PythonMathEnv(ToolEnv):
    """Mathematical problems, to be answered with the help of Python code.

    Args:
        given: Values of :class:`PythonMathOptions`; for ``interpreter`` see
            :func:`envsuite.interpreter.open_interpreter`.

    Raises:
        DataError: The file or folder is missing, or a line of it is no problem.
        UsageError: An option is out of range, or the interpreter cannot be isolated on this machine.
        MissingExtra: math-verify, which every scorer but ``"dapo"`` needs, is not installed.
    """

    tools = (
        Tool.of_string("python", prompts.PYTHON, "code", prompts.CODE),
        Tool.of_string("answer", prompts.ANSWER, "text", prompts.TEXT),
    )
    takes = PythonMathOptions

    def __init__(self, **given: Any) -> None:
        options = PythonMathOptions.of(given)
        self.problems, task_set = load(
            str(options.source), options.problem_seed, options.problems, options.kinds, options.difficulty
        )
        self.reward, self.scorer, self.max_calls = options.reward, options.scorer, options.max_calls
        library = {} if self.scorer == "dapo" else {"math-verify": judge.version()}
        versions = library | ({} if self.scorer == "value" else {"scorer": self.scorer})
        self._interpreter: Interpreter = open_interpreter(options.interpreter, Limits(seconds=float(options.seconds)))
        super().__init__(task_set.select(options.tasks), options.split, options.render_mode, versions)
        self._session: InterpreterSession | None = None
        self._problem: MathProblem | None = None
        self._forget()

    def _forget(self) -> None:
        """Ends the session, if there is one, and begins to count anew."""
        self._ran: list[str] = []
        self.close()
        self._key = ""
        self._calls = self._errors = self._invalid = 0

    @property
    def problem(self) -> MathProblem:
        """The problem of the current episode, with its answer.

        Raises:
            UsageError: No episode has been started.
        """
        return require_episode(self._problem, "PythonMath-v0")

    @property
    def ran(self) -> tuple[str, ...]:
        """The codes of the episode whose effects the session still has, in their order."""
        return tuple(self._ran)

    def close(self) -> None:
        """Ends the session of the episode; may be called twice."""
        if self._session is not None:
            self._session.close()
        self._session = None
        self._to_run = self._ran.copy()

    def _goal(self, task_id: str) -> str:
        return self.problems.problem(task_id).text

    def _identity(self, task_id: str) -> dict[str, Any]:
        """Returns the file and the line of a problem, and a SHA-256 of problem and answer.

        The SHA-256 is that of the problem's text, a line feed, and the answer. A generated problem has the arguments of
        the generator and a number in place of file and line.
        """
        problem = self.problems.problem(task_id)
        payload = f"{problem.text}\n{problem.answer}".encode("utf-8", "replace")
        return {**self.problems.place(task_id), "sha256": hashlib.sha256(payload).hexdigest()}

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        self._forget()
        self._problem = self.problems.problem(task_id)
        return self._problem.text, Outcome(prompts.START)

    def _call(self, call: ToolCall) -> Outcome:
        is_code = call.name == "python"
        outcome = self._run(call.arguments["code"]) if is_code else self._answer(call.arguments["text"])
        if outcome.error is None:
            record = "\0".join((self._key, call.name, *map(str, call.arguments.values()), outcome.text))
            self._key = hashlib.sha256(record.encode("utf-8", "replace")).hexdigest()[:32]
        return outcome

    def _run(self, code: str) -> Outcome:
        if len(code) > MOST_CODE:
            return self._invalid_outcome(prompts.too_long("code", len(code), MOST_CODE))
        if self._session is None:
            self._session = self._open_session()
        result = self._session.run(code)
        self._calls += 1
        self._errors += result.status != "ok"
        if result.status in _KEEPS_STATE:
            self._ran.append(code)
        else:  # the session lost its state
            self._ran = []
        return Outcome(prompts.format_run(result))

    def _open_session(self) -> InterpreterSession:
        """Opens a session, and brings it to the state of the episode."""
        session = self._interpreter.open()
        for code in self._to_run:
            if session.run(code).status not in _KEEPS_STATE:
                session.close()
                raise WorkerLost("code of a restored episode no longer ends within the limits; is the machine busy?")
        self._to_run = []
        return session

    def _answer(self, text: str) -> Outcome:
        if not text.strip():
            return self._invalid_outcome(prompts.NO_ANSWER)
        if len(text) > MOST_CHARACTERS:
            return self._invalid_outcome(prompts.too_long("answer", len(text), MOST_CHARACTERS))
        right = SCORERS[self.scorer](self.problem.answer, text)
        reward = REWARDS[self.reward][0 if right else 1]
        if self.reward == "format" and not self._invalid:
            reward += WELL_FORMED
        feedback = prompts.RIGHT if right else prompts.WRONG
        return Outcome(feedback, reward, done=True, success=right, score=float(right))

    def _invalid_outcome(self, why: str) -> Outcome:
        self._invalid += 1
        return Outcome(why, error=why)

    def _refuse(self, problem: str, commands: tuple[str, ...]) -> tuple[Observation, float, bool, bool, StepInfo]:
        self._invalid += 1
        return super()._refuse(problem, commands)

    def _info(self, outcome: Outcome) -> StepInfo:
        info = super()._info(outcome)
        info["metrics"] = {"tool_calls": float(self._calls), "tool_errors": float(self._errors)}
        return info

    def _state_key(self) -> str:
        return self._key

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        """Proposes code only: an answer ends the episode."""
        a, b = (int(number) for number in rng.integers(1, 100, 2))
        return ToolCall("python", {"code": f"print({a} * {b})"})

    def _save(self) -> dict[str, Any]:
        return {
            "ran": self._ran.copy(),
            "key": self._key,
            "calls": self._calls,
            "errors": self._errors,
            "invalid": self._invalid,
        }

    def _resume(self, task_id: str, world: dict[str, Any]) -> None:
        """Goes on; the next call of ``python`` runs the episode's code anew before, for the interpreter's state."""
        self._begin(task_id)
        self._ran, self._to_run = list(world["ran"]), list(world["ran"])
        self._key, self._calls = world["key"], world["calls"]
        self._errors, self._invalid = world["errors"], world["invalid"]
