"""The part of an episode that its prompts show, as text: for prompts of tokens and for chat messages alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envsuite.core.env import Observation
from envsuite.core.errors import UsageError
from envsuite.core.tools import Action, Tool, offered_tools
from envsuite.prompting.images import Gallery
from envsuite.prompting.memory import Summary, Window
from envsuite.prompting.prompt_file import PastStep, Situation
from envsuite.prompting.spec import PromptSpec
from envsuite.prompting.text import listing


class History:
    """The observations and actions of one episode, and the texts that the memory makes of them.

    Args:
        spec: How prompts are written.
        tools: The tools of the environment; where they change, observations name those of their time.
        max_calls: Maximum number of calls in one step.
    """

    def __init__(self, spec: PromptSpec, tools: Sequence[Tool], max_calls: int) -> None:
        self.spec = spec
        self.tools = tools
        self.max_calls = max_calls
        self.gallery = Gallery()
        """Images of the episode, for which texts have marks."""
        self._observations: list[Observation] = []
        self._actions: list[str] = []
        self._summary = ""
        self._list_tools(tools)

    def _list_tools(self, tools: Sequence[Tool]) -> None:
        """Writes the instructions that list ``tools``."""
        self.head_tools = tools
        """The tools that the instructions list."""
        spec, memory, instructions = self.spec, self.spec.memory, self.spec.instructions
        system = spec.codec.system(tools, self.max_calls) if instructions else ""
        request = memory.request if isinstance(memory, Summary) and instructions else ""
        first = isinstance(memory, Window) and memory.shares
        parts = () if spec.prompt_file is not None else (system, request if first else "", spec.examples)
        self._request = "" if first else request
        self.system = "\n\n".join(part for part in parts if part)
        """Content of the system message; empty for none."""
        end = len(system) if self.system.startswith(system) and system.endswith(spec.codec.example) else 0
        self.own = (max(0, end - len(spec.codec.example)), end)
        """Beginning and end of what the chat template itself has written of it."""
        self._instructions = f"{system}\n{request}" if request else system

    @property
    def offered(self) -> Sequence[Tool]:
        """The tools that can be called at the last observation."""
        return offered_tools(self.tools, self._observations[-1]) if self._observations else self.tools

    def list_tools_of(self, t: int) -> bool:
        """Lists in the instructions the tools of :meth:`observation` ``t``; returns whether these are others."""
        tools = offered_tools(self.tools, self.observation(t))
        if tools == tuple(self.head_tools):
            return False
        self._list_tools(tools)
        return True

    def start(self, observation: Observation) -> None:
        """Starts an episode with its first observation."""
        self._observations, self._actions, self._summary = [self.gallery.start(observation)], [], ""

    def add(self, response: str, action: Action | None, observation: Observation) -> None:
        """Records a step: the response as text, the action in it if it has one, and the environment's answer.

        Raises:
            UsageError: Before :meth:`start`.
        """
        self.observation(0)
        plain = self.gallery.plain
        self._observations.append(self.gallery.mark_images(observation))
        self._actions.append(plain(self.spec.codec.format_past_step(response, action)))
        if isinstance(self.spec.memory, Summary):
            self._summary = self.spec.memory.update(self._summary, plain(response))

    def snapshot(self) -> tuple[Any, ...]:
        """Returns what was recorded, for :meth:`restore` of a history made with the same arguments."""
        return tuple(self._observations), tuple(self._actions), self._summary, self.gallery.snapshot()

    def restore(self, token: tuple[Any, ...]) -> None:
        """Goes on where a :meth:`snapshot` was taken."""
        observations, actions, self._summary, images = token
        self._observations, self._actions = list(observations), list(actions)
        self.gallery.restore(images)

    @property
    def steps(self) -> int:
        """Number of steps made."""
        return len(self._actions)

    def observation(self, t: int) -> Observation:
        """Returns the observation before step ``t`` (from 0), with marks for its images.

        Raises:
            UsageError: Before :meth:`start`.
        """
        if not self._observations:
            raise UsageError("Conversation used before start(); call start(observation) first")
        return self._observations[t]

    def changed_tools(self) -> str:
        """Returns what the last observation changes in the tools, for prompts that list those of an earlier one."""
        before = offered_tools(self.tools, self.observation(self.steps - 1))
        news = [tool for tool in self.offered if tool not in before]
        leavers = [tool.name for tool in before if tool not in self.offered]
        text = f"{listing(news, 'New tools')}\n" if news else ""
        return f"{text}Tools that are gone: {', '.join(leavers)}.\n" if leavers else text

    def answer_text(self, observation: Observation) -> str:
        """Returns an :meth:`observation` as the environment's answer in a conversation."""
        if not observation["commands"] or not self.spec.commands:
            return observation["text"]
        return f"{observation['text']}\nCommands: {' | '.join(observation['commands'])}"

    def opening(self, left_out: int = 0) -> tuple[str, str]:
        """Returns the first user text, in two parts: the task; then the history kept as text, and an observation.

        Args:
            left_out: Number of a conversation's first steps that the prompt does not show.
        """
        if self.spec.prompt_file is not None:
            return "", self.spec.prompt_file.render(self._situation())
        task, memory = f"{self.observation(0)['task']}\n\n", self.spec.memory
        if not isinstance(memory, Window):
            note = f"[{left_out} earlier steps left out]\n\n" if left_out else ""
            return task, note + self.answer_text(self.observation(left_out))
        past = "".join(f"Observation: {step.observation}\nAction: {step.action}\n" for step in self._past(memory))
        now = f"Observation: {self.answer_text(self.observation(self.steps))}"
        if isinstance(memory, Summary):
            summary = f"Summary so far: {self._summary or 'none'}\n"
            past = past + summary if memory.shares else summary + past
            now += f"\n\n{self._request}" if self._request else ""
        return task, past + now

    def _past(self, memory: Window) -> list[PastStep]:
        """Returns the steps that ``memory`` shows."""
        steps = range(memory.first(self.steps), self.steps)
        return [PastStep(t + 1, self.observation(t)["text"], self._actions[t]) for t in steps]

    def _situation(self) -> Situation:
        """Returns the values of a prompt file's variables at this step."""
        now = self.observation(self.steps)
        return Situation(
            task=self.observation(0)["task"],
            observation=now["text"],
            commands=now["commands"] if self.spec.commands else (),
            history=self._past(self.spec.memory) if isinstance(self.spec.memory, Window) else (),
            current_step=self.steps + 1,
            tools=self.offered,
            max_calls=self.max_calls,
            instructions=self._instructions,
            summary=self._summary,
            examples=self.spec.examples,
        )
