"""Environments of verifiers (package verifiers, before 0.4), by the rollouts that verifiers itself plays.

A rollout asks its client for each answer of the model. Here the client hands the question out as an observation, and
waits for the action: so whatever the environment does, with tools, users or states, is done by its own code. A name is
that of an installed environment, else of a file ``NAME.py`` of the present folder with ``load_environment``.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import orjson

from envsuite.adapters.base import Adapted, OwnRandom, SeedOptions, classes, imported, reason
from envsuite.core import Outcome, Tool, ToolCall
from envsuite.core.errors import UsageError, WorkerLost
from envsuite.core.functions import function_in
from envsuite.core.options import option

HORIZON = 100
ANSWER = Tool.of_string("answer", "Answers with a text.", "text", "The answer, in the form that was asked for.")
_EXTRA = "'verifiers<0.4'"


@dataclass(frozen=True, kw_only=True)
class VerifiersOptions(SeedOptions):
    """Options of an environment of verifiers; ``train`` and ``test`` are the most tasks of the splits."""

    settings: Mapping[str, Any] | None = option(None, "arguments of load_environment", offered=False)
    deadline: float = option(60.0, "seconds that a turn of the environment may take", exclusiveMinimum=0)


class Verifiers(Adapted):
    """An environment of single or several turns. Tasks are the rows of its data sets, ``train-0`` and ``test-0``.

    ``answer`` says a text, as a model would; the other tools are the environment's. The reward is its rubric's, at the
    end, and 1 or more a success. A rubric that compares the rollouts of a group cannot be taken.
    """

    package = "verifiers"
    takes = VerifiersOptions
    in_file = True

    def _prepare(self) -> tuple[Tool, ...]:
        package, self._types = imported("verifiers", _EXTRA), imported("verifiers.types", _EXTRA)
        settings, file, handle = self.options.settings or {}, Path(f"{self.name}.py"), signal.signal
        signal.signal = lambda *_: None  # else it takes Ctrl-C and SIGTERM, which are the program's
        try:
            load = function_in(f"{file}:load_environment") if file.is_file() else None
            self._env = load(**settings) if load else package.load_environment(self.name, **settings)
            sets = {"train": self._env.build_dataset(), "test": self._env.build_eval_dataset()}
        except Exception as error:
            raise UsageError(f"verifiers/{self.name} cannot be loaded: {reason(error)}") from error
        finally:
            signal.signal = handle
        limits = {"train": self.options.train, "test": self.options.test}
        self._inputs = {
            f"{split}-{place}": dict(rows[place])
            for split, rows in sets.items()
            for place in range(0 if rows is None else min(len(rows), limits[split]))
        }
        self._rows = {task: {"split": task.partition("-")[0]} for task in self._inputs}
        own = [Tool(one.name, one.description, one.parameters) for one in self._env.tool_defs or ()]
        if ANSWER.name in {tool.name for tool in own}:
            raise UsageError(f"verifiers/{self.name} has a tool answer of its own, which is how texts are said here")
        return (ANSWER, *own)

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        self.close()
        asked, self._random = SimpleQueue[Any](), OwnRandom(int(task_id.partition("-")[2]))
        self._asked, client = asked, _client(imported("verifiers.clients", _EXTRA).Client, asked)
        portal = self._session.enter_context(imported("anyio.from_thread", "anyio").start_blocking_portal())
        with self._random.drawing():
            self._rollout: Future[Any] = portal.start_task_soon(
                self._env.run_rollout, self._inputs[task_id], client, "policy", {}
            )
            self._session.callback(self._rollout.cancel)
            self._rollout.add_done_callback(lambda _: asked.put(None))
            prompt = self._turn()
        if prompt is None:
            self._ended()  # says why, if it failed
            raise WorkerLost(f"verifiers/{self.name} ended {task_id} before it asked for an answer")
        return _texts(prompt), Outcome("")

    def _turn(self) -> list[dict[str, Any]] | None:
        """Waits until the rollout asks for an answer; returns the messages so far, ``None`` where it has ended."""
        try:
            question = self._asked.get(timeout=self.options.deadline)
        except Empty:
            self.close()
            raise WorkerLost(f"verifiers/{self.name} took more than {self.options.deadline:g} s") from None
        if question is None:
            return None
        prompt, self._answer = question
        return [*map(dict, prompt)]

    def _call(self, call: ToolCall) -> Outcome:
        made = {"id": "call", "name": call.name, "arguments": orjson.dumps(dict(call.arguments)).decode()}
        said = {"content": call.arguments["text"]} if call.name == ANSWER.name else {"tool_calls": [made]}
        message = {"role": "assistant", "finish_reason": "stop", "is_truncated": False, **said}
        with self._random.drawing():
            self._answer.set_result(self._types.Response(id="", created=0, model="policy", message=message))
            prompt = self._turn()
        if prompt is not None:
            return Outcome(_texts(_since_answer(prompt)))
        told = self._ended()
        reward, metrics = float(told["reward"] or 0.0), {name: float(one) for name, one in told["metrics"].items()}
        text, score = _texts(_since_answer([*map(dict, told["completion"] or ())])), min(max(reward, 0.0), 1.0)
        return Outcome(text, reward, done=True, success=reward >= 1, score=score, metrics=metrics)

    def _ended(self) -> Any:
        """Returns what the rollout came to.

        Raises:
            WorkerLost: It failed.
        """
        try:
            told = self._rollout.result()
        except (Exception, CancelledError) as error:
            raise WorkerLost(f"verifiers/{self.name}: {reason(error)}") from error
        if told["error"] is not None:
            raise WorkerLost(f"verifiers/{self.name}: {told['error']}")
        return told


def _client(base: Any, asked: SimpleQueue[Any]) -> Any:
    """Returns a client of verifiers that puts each question into a queue, with the future of its answer."""

    class Turns(base):  # type: ignore[misc]
        async def get_response(self, prompt: Any, *_: object, **__: object) -> Any:
            answered: Future[Any] = Future()
            asked.put((prompt, answered))
            return await asyncio.wrap_future(answered)

    Turns.__abstractmethods__ = frozenset()  # only get_response calls them
    return Turns(None)


def _since_answer(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the messages after the last one of the model."""
    last = max((place for place, one in enumerate(messages) if one["role"] == "assistant"), default=-1)
    return messages[last + 1 :]


def _texts(messages: list[dict[str, Any]]) -> str:
    """Returns the texts of messages."""
    return "\n\n".join(str(one["content"]) for one in messages if one["content"])


__getattr__ = classes(Verifiers, list, lambda name: True)
