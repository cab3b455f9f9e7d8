"""The figures of PythonMath-v0."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from benchmarks.envs.measure import Row, seconds
from envsuite.core.tools import Action, ToolCall
from envsuite.interpreter import open_interpreter
from envsuite.mathematics.answers import is_right
from envsuite.mathematics.env import PythonMathEnv
from envsuite.mathematics.expert import MathExpert
from envsuite.mathematics.generate import BY_STRATUM, generate_problem

_EXPRESSIONS = 200
_CALLS = 200


def mathematics(threads: int) -> list[Row]:
    """The figures of PythonMath-v0 on the built-in source.

    Where the interpreter takes part they are of wall-clock time, since most of it passes in other processes.

    Args:
        threads: Environments that are played at once, each by a thread.
    """
    env = PythonMathEnv(split="test")
    ids = env.tasks.ids("test")
    print_one: Action = (ToolCall("python", {"code": "print(17*23+5)"}),)

    def resets() -> None:
        for task_id in ids:
            env.reset(options={"task_id": task_id})

    def first_calls() -> None:
        for task_id in ids[:_CALLS]:
            env.reset(options={"task_id": task_id})
            env.step(print_one)

    def calls() -> None:
        for _ in range(_CALLS):
            env.step(print_one)

    resets()
    rows = [
        ("interpreter", open_interpreter("auto").name),
        ("reset, problem seen before", f"{len(ids) / seconds(resets):,.0f} resets/s"),
        ("first call of an episode: opens a session", f"{_wall(first_calls) / _CALLS * 1e3:.2f} ms"),
        ("further calls", f"{_wall(calls) / _CALLS * 1e3:.2f} ms"),
        ("expert's episodes, one after the other", f"{len(ids[::4]) / _wall(lambda: _play(ids[::4])):,.0f} a second"),
    ]
    parts = [ids[start :: 4 * threads] for start in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        spent = _wall(lambda: list(pool.map(_play, parts)))
    rows.append((f"expert's episodes, {threads} at once", f"{sum(map(len, parts)) / spent:,.0f} a second"))
    began = time.perf_counter()
    is_right(r"\sqrt{2}", r"\frac{2}{\sqrt{2}}")
    rows.append(("first expression that is compared: starts a process", f"{time.perf_counter() - began:.2f} s"))
    pairs = [(rf"{n}\sqrt{{3}}", rf"\sqrt{{{3 * n * n}}}") for n in range(2, _EXPRESSIONS + 2)]
    spent = _wall(lambda: [is_right(*pair) for pair in pairs], 1)
    rows.append(("expressions", f"{_EXPRESSIONS / spent:,.0f} a second"))
    numbers = [(str(n), rf"\boxed{{{n}}}") for n in range(10**6, 10**6 + 5000)]
    rows.append(("numbers", f"{len(numbers) / _wall(lambda: [is_right(*pair) for pair in numbers], 1):,.0f} a second"))
    draws = [(f"benchmark {n}", task_type) for n in range(20) for task_type in BY_STRATUM]
    spent = _wall(lambda: [generate_problem(key, task_type, "train") for key, task_type in draws], 1)
    rows.append(("generating a problem, mean of all types", f"{spent / len(draws) * 1e3:.2f} ms"))
    tracemalloc.start()
    envs = [PythonMathEnv() for _ in range(128)]
    for other, task_id in zip(envs, ids, strict=False):
        other.reset(options={"task_id": task_id})
    rows.append(("memory of 128 episodes more, without sessions", f"{tracemalloc.get_traced_memory()[0] / 1e6:.2f} MB"))
    tracemalloc.stop()
    return rows


def _play(ids: tuple[str, ...]) -> None:
    env, expert = PythonMathEnv(), MathExpert()
    for task_id in ids:
        env.reset(options={"task_id": task_id})
        while not env.step(expert.act(env))[2]:
            pass
    env.close()


def _wall(work: Callable[[], object], rounds: int = 3) -> float:
    """Wall-clock seconds that ``work`` takes, at best."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)
