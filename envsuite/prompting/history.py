"""The part of an episode that its prompts show, as text: for prompts of tokens and for chat messages alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envsuite.core.env import Observation
from envsuite.core.errors import UsageError
from envsuite.core.tools import Action, Tool
from envsuite.prompting.codecs import Codec
from envsuite.prompting.images import Gallery
from envsuite.prompting.memory import Memory, Summary, Window
from envsuite.prompting.prompt_file import Past, PromptFile, Situation


class History:
    """The observations and actions of one episode, and the texts that the memory makes of them.

    Args:
        codec: The format of actions.
        memory: The part of the history in a prompt.
        tools: The tools of the environment.
        max_calls: Maximum number of calls in one step.
        instructions: Begin with the codec's instructions.
        commands: Show the admissible commands with each observation that is not history.
        prompt_file: Renders the user message of each step.
        examples: Text of demonstrations, below the instructions.

    Raises:
        UsageError: The memory does not go with a prompt file.
    """

    def __init__(
        self,
        codec: Codec,
        memory: Memory,
        tools: Sequence[Tool],
        max_calls: int,
        *,
        instructions: bool,
        commands: bool,
        prompt_file: PromptFile | None,
        examples: str,
    ) -> None:
        if prompt_file is not None and not isinstance(memory, Window):
            raise UsageError(
                f"prompt file {prompt_file.name}: it is rendered anew at each step, but the memory is {memory}, whose "
                "prompts are continued; take window(K) or summary(K)"
            )
        self.codec = codec
        self.memory = memory
        self.tools = tools
        self.max_calls = max_calls
        self.commands = commands
        self.prompt_file = prompt_file
        self.examples = examples
        told = codec.system(tools, max_calls) if instructions else ""
        request = memory.request if isinstance(memory, Summary) and instructions else ""
        first = isinstance(memory, Window) and memory.shares
        parts = () if prompt_file is not None else (told, request if first else "", examples)
        self._request = "" if first else request
        self.system = "\n\n".join(part for part in parts if part)
        """Content of the system message; empty for none."""
        self._told = f"{told}\n{request}" if request else told
        self.gallery = Gallery()
        """Images of the episode, for which texts have marks."""
        self._observations: list[Observation] = []
        self._actions: list[str] = []
        self._summary = ""

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
        self._observations.append(self.gallery.marked(observation))
        self._actions.append(plain(self.codec.recalled(response, action)))
        if isinstance(self.memory, Summary):
            self._summary = self.memory.updated(self._summary, plain(response))

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

    def said(self, observation: Observation) -> str:
        """Returns an :meth:`observation` as the world's answer in a conversation."""
        if not observation["commands"] or not self.commands:
            return observation["text"]
        return f"{observation['text']}\nCommands: {' | '.join(observation['commands'])}"

    def opening(self, left_out: int = 0) -> tuple[str, str]:
        """Returns the first user text, in two parts: the task; then the history kept as text, and an observation.

        Args:
            left_out: Number of a conversation's first steps that the prompt does not show.
        """
        if self.prompt_file is not None:
            return "", self.prompt_file.render(self._situation())
        task = f"{self.observation(0)['task']}\n\n"
        if not isinstance(self.memory, Window):
            note = f"[{left_out} earlier steps left out]\n\n" if left_out else ""
            return task, note + self.said(self.observation(left_out))
        past = "".join(f"Observation: {past.observation}\nAction: {past.action}\n" for past in self._past(self.memory))
        now = f"Observation: {self.said(self.observation(self.steps))}"
        if isinstance(self.memory, Summary):
            summary = f"Summary so far: {self._summary or 'none'}\n"
            past = past + summary if self.memory.shares else summary + past
            now += f"\n\n{self._request}" if self._request else ""
        return task, past + now

    def _past(self, memory: Window) -> list[Past]:
        """Returns the steps that ``memory`` shows."""
        shown = range(memory.first(self.steps), self.steps)
        return [Past(t + 1, self.observation(t)["text"], self._actions[t]) for t in shown]

    def _situation(self) -> Situation:
        """Returns the values of a prompt file's variables at this step."""
        now = self.observation(self.steps)
        return Situation(
            task=self.observation(0)["task"],
            observation=now["text"],
            commands=now["commands"] if self.commands else (),
            history=self._past(self.memory) if isinstance(self.memory, Window) else (),
            current_step=self.steps + 1,
            tools=self.tools,
            max_calls=self.max_calls,
            instructions=self._told,
            summary=self._summary,
            examples=self.examples,
        )
