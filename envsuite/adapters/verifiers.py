"""Environments of verifiers (package verifiers, before 0.4), by the rollouts that verifiers itself plays.

A rollout asks its client for each answer of the model. Here the client hands the question out as an observation, and
waits for the action: so whatever the environment does, with tools, users or states, is done by its own code. A name is
that of an installed environment, else of a file ``NAME.py`` of the present folder with ``load_environment``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from envsuite.adapters.base import AdaptedWorld, ConfinedEnv, ConfinedOptions, classes, import_extra
from envsuite.core import Outcome, Tool
from envsuite.core.boundary import reason
from envsuite.core.errors import UsageError, WorkerLost
from envsuite.core.functions import function_in
from envsuite.core.options import option

HORIZON = 100
ANSWER = Tool.of_string("answer", "Answers with a text.", "text", "The answer, in the form that was asked for.")
_EXTRA = "'verifiers<0.4'"


@dataclass(frozen=True, kw_only=True)
class VerifiersOptions(ConfinedOptions):
    """Options of an environment of verifiers; ``train`` and ``test`` are the most tasks of the splits."""

    settings: Mapping[str, Any] | None = option(None, "arguments of load_environment", offered=False)
    deadline: float = option(60.0, "seconds that a turn of the environment may take", exclusiveMinimum=0)


class VerifiersRollouts(AdaptedWorld):
    """An environment of verifiers, whose rollouts run in the event loop of this process."""

    def prepare(self) -> None:
        """Loads the environment."""
        package, self._types = import_extra("verifiers", _EXTRA), import_extra("verifiers.types", _EXTRA)
        settings, file = self.options.settings or {}, Path(f"{self.name}.py")
        try:
            load = function_in(f"{file}:load_environment") if file.is_file() else None
            self._env = load(**settings) if load else package.load_environment(self.name, **settings)
            sets = {"train": self._env.build_dataset(), "test": self._env.build_eval_dataset()}
        except Exception as error:
            raise UsageError(f"verifiers/{self.name} cannot be loaded: {reason(error)}") from error
        if self.options.confined and any(isinstance(r, package.JudgeRubric) for r in _rubrics(self._env.rubric)):
            raise UsageError(
                f"verifiers/{self.name} asks a judge, which a confined process may not; who accepts that its code may "
                f'do whatever this user may, writes "confined": false into {self.name}.json'
            )
        limits = {"train": self.options.train, "test": self.options.test}
        self._inputs = {
            f"{split}-{place}": dict(rows[place])
            for split, rows in sets.items()
            for place in range(0 if rows is None else min(len(rows), limits[split]))
        }

    def about(self) -> dict[str, Any]:
        """Returns the names of the tasks, and the tools."""
        tools = [(tool.name, tool.description, tool.parameters) for tool in self._env.tool_defs or ()]
        return {"tasks": [*self._inputs], "tools": tools}

    def begin(self, task_id: str) -> tuple[str, str]:
        """Starts a rollout."""
        self._loop, self._asked = asyncio.new_event_loop(), asyncio.Queue[Any]()
        client = _client(import_extra("verifiers.clients", _EXTRA).Client, self._asked)
        self._rollout = self._loop.create_task(self._env.run_rollout(self._inputs[task_id], client, "policy", {}))
        self._rollout.add_done_callback(lambda _: self._asked.put_nowait(None))
        prompt = self._turn()
        if prompt is None:
            self._final_state()  # says why, if it failed
            raise WorkerLost(f"verifiers/{self.name} ended {task_id} before it asked for an answer")
        return _texts(prompt), ""

    def _turn(self) -> list[dict[str, Any]] | None:
        """Waits until the rollout asks for an answer; returns the messages so far, ``None`` where it has ended."""
        question = self._loop.run_until_complete(self._asked.get())
        if question is None:
            return None
        prompt, self._answer = question
        return [*map(dict, prompt)]

    def call(self, name: str, arguments: dict[str, Any]) -> tuple[Outcome, bool]:
        """Gives the rollout an answer."""
        request = {"id": "call", "name": name, "arguments": orjson.dumps(arguments).decode()}
        turn = {"content": arguments["text"]} if name == ANSWER.name else {"tool_calls": [request]}
        message = {"role": "assistant", "finish_reason": "stop", "is_truncated": False, **turn}
        self._answer.set_result(self._types.Response(id="", created=0, model="policy", message=message))
        prompt = self._turn()
        if prompt is not None:
            return Outcome(_texts(_since_answer(prompt))), False
        state = self._final_state()
        reward = float(state["reward"] or 0.0)
        metrics = {name: float(value) for name, value in state["metrics"].items()}
        text = _texts(_since_answer([*map(dict, state["completion"] or ())]))
        return Outcome(text, reward, done=True, success=reward >= 1, score=reward, metrics=metrics), False

    def _final_state(self) -> Any:
        """Returns what the rollout came to.

        Raises:
            RuntimeError: It failed.
        """
        state = self._rollout.result()
        if state["error"] is not None:
            raise RuntimeError(state["error"])
        return state


class Verifiers(ConfinedEnv):
    """An environment of single or several turns. Tasks are the rows of its data sets, ``train-0`` and ``test-0``.

    ``answer`` says a text, as a model would; the other tools are the environment's. The reward is its rubric's, at the
    end, and 1 or more a success. A rubric that compares the rollouts of a group cannot be taken.
    """

    package = "verifiers"
    takes = VerifiersOptions
    world = VerifiersRollouts
    in_file = True

    def _tools(self, about: Any) -> tuple[Tool, ...]:
        self.seconds = self.patience = self.options.deadline
        self._rows = {task: {"split": task.partition("-")[0]} for task in about["tasks"]}
        own = [Tool(*description) for description in about["tools"]]
        if ANSWER.name in {tool.name for tool in own}:
            raise UsageError(f"verifiers/{self.name} has a tool answer of its own, which is how texts are said here")
        return (ANSWER, *own)


def _client(base: Any, prompts: asyncio.Queue[Any]) -> Any:
    """Returns a client of verifiers that puts each question into a queue, with the future of its answer."""

    class Turns(base):  # type: ignore[misc]
        async def get_response(self, prompt: Any, *_: object, **__: object) -> Any:
            reply = asyncio.get_running_loop().create_future()
            prompts.put_nowait((prompt, reply))
            return await reply

    Turns.__abstractmethods__ = frozenset()  # only get_response calls them
    return Turns(None)


def _rubrics(rubric: Any) -> Iterator[Any]:
    """Yields a rubric and those of which it is made."""
    yield rubric
    for part in vars(rubric).get("rubrics", ()):
        yield from _rubrics(part)


def _since_answer(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the messages after the last one of the model."""
    last = max((place for place, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    return messages[last + 1 :]


def _texts(messages: list[dict[str, Any]]) -> str:
    """Returns the texts of messages."""
    return "\n\n".join(str(message["content"]) for message in messages if message["content"])


__getattr__ = classes(Verifiers, list, lambda name: True)
