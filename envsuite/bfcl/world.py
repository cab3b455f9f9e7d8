"""The services of a conversation, and the judgement of its turns, by the code of the package.

Nothing that an agent writes is evaluated: a call names one of the functions that are offered, and its arguments are
JSON. Each conversation has services of its own; the numbers of digits that some functions set for the whole process
are set back.
"""

from __future__ import annotations

import decimal
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from hashlib import blake2b
from typing import Any

from envsuite.bfcl.package import ScriptedTalk, checker, is_stateless, service_class, service_tools
from envsuite.core.tools import ToolCall

_FILES = "GorillaFileSystem"
_HIDDEN = ("_api_description", "_random", "_current_dir")
"""Attributes of services that are no part of the state that functions tell."""
STEPS = 20
"""Steps with calls in one turn that the original allows; one more ends the conversation, which has then failed."""
LARGEST = {"exponent": 10_000, "precision": 10_000, "decimal_places": 10_000}
"""Largest absolute value of arguments by which a function of mathematics could use all of the memory, or hours."""
LONGEST = 8_000
"""Characters of a call's arguments, which results may repeat; the longest of an answer sequence has 6,826."""
_LOCK = threading.RLock()
"""Some functions set the digits of the whole process."""


class Services:
    """The simulated services of one conversation.

    Args:
        conversation: The conversation.
    """

    def __init__(self, conversation: ScriptedTalk) -> None:
        self.instances: dict[str, Any] = {}
        """The package's objects, by the names of their classes."""
        for name in conversation.services:
            service = self.instances[name] = service_class(name)()
            if not is_stateless(name):
                service._load_scenario(deepcopy(conversation.config.get(name, {})), long_context=conversation.long)
        self._owners = {tool.name: name for name in self.instances for tool in service_tools()[name]}

    def call(self, call: ToolCall) -> str:
        """Executes a call of one of the functions; returns its result, as the original writes it.

        Raises:
            KeyError: No service of the conversation has the function.
        """
        if len(json.dumps(dict(call.arguments))) > LONGEST:
            return f"Error during execution: arguments of more than {LONGEST} characters"
        function = getattr(self.instances[self._owners[call.name]], call.name)
        for name, limit in LARGEST.items():
            value = call.arguments.get(name)
            if isinstance(value, int | float) and abs(value) > limit:
                return f"Error during execution: {name} is larger than {limit}"
        with _LOCK, _own_digits():
            try:
                return _as_text(function(**deepcopy(dict(call.arguments))))
            except Exception as error:  # the original tells the model whatever a service raises
                return f"Error during execution: {error}"

    def key(self) -> str:
        """Returns a hash of the state that functions can tell."""
        state: list[Any] = []
        for name, service in self.instances.items():
            values = sorted((key, value) for key, value in vars(service).items() if key not in _HIDDEN)
            values = [(key, sorted(value) if isinstance(value, set) else value) for key, value in values]
            state.append((name, values, service.pwd() if name == _FILES else None))
        return blake2b(repr(state).encode("utf-8", "replace"), digest_size=16).hexdigest()


@contextmanager
def _own_digits() -> Iterator[None]:
    """Sets back the precision of numbers at the end of the block."""
    from mpmath import mp  # there where the package is

    digits = mp.dps
    try:
        with decimal.localcontext():
            yield
    finally:
        mp.dps = digits


def _as_text(result: Any) -> str:
    """Returns a result as the original gives it to the model."""
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError, RecursionError):  # numbers of other kinds
            pass
    return str(result)


class Dialogue:
    """A conversation while it is played.

    Args:
        conversation: The conversation.
    """

    def __init__(self, conversation: ScriptedTalk) -> None:
        self.conversation = conversation
        self.services = Services(conversation)
        self._reference = Services(conversation)
        self.turns: list[list[ToolCall]] = [[]]
        """The calls that were executed, by turn; the last one is under way."""
        self.steps = 0
        """Steps with calls in the present turn."""
        self.passed = 0
        """Turns that the original's checker passes, up to the first that it does not."""
        self.failed = False
        """Whether there is one that it does not pass."""
        self._results: list[str] = []

    @property
    def over(self) -> bool:
        """Whether the user has no further request, or a turn has had too many steps."""
        return len(self.turns) > len(self.conversation.requests) or self.steps > STEPS

    @property
    def solved(self) -> bool:
        """Whether all turns are passed."""
        return self.passed == len(self.conversation.requests)

    def offer(self) -> tuple[str, ...]:
        """Returns the functions that can be called: those of the beginning, then those that came, as they came."""
        comes, turn = self.conversation.comes, len(self.turns) - 1
        names = [tool.name for service in self.conversation.services for tool in service_tools()[service]]
        late = sorted((name for name in comes if comes[name] <= turn), key=lambda name: comes[name])
        return (*(name for name in names if name not in comes), *late)

    def call(self, call: ToolCall) -> str:
        """Executes a call; returns its result."""
        self.turns[-1].append(call)
        self._results.append(self.services.call(call))
        return self._results[-1]

    def reply(self) -> None:
        """Ends the agent's turn, which is judged as the original's checker does."""
        turn, calls = len(self.turns) - 1, self.turns[-1]
        answers = self.conversation.answers[turn]
        results = [self._reference.call(call) for call in answers]
        self.failed = self.failed or not (not answers or (bool(calls) and self._agrees(results, turn)))
        self.passed += not self.failed
        self.turns.append([])
        self.steps = 0

    def _agrees(self, results: list[str], turn: int) -> bool:
        check = checker()
        try:
            state = check.state_checker(self.services.instances, self._reference.instances)
            return bool(state["valid"] and check.response_checker(self._results, results, turn)["valid"])
        except RecursionError:  # an agent may copy a folder into itself
            return False
