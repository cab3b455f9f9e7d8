"""The customers: one environment for each browser; when the shop is full, the longest idle one is dropped."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence

from envsuite.core.tools import ToolCall
from envsuite.remote.pages.visitors import Visitors
from envsuite.webshop.env import WebShop
from envsuite.webshop.world import ShopVisit

CAPACITY = 256
"""Maximum number of customers."""


class Customer:
    """One browser in the shop. Hold :attr:`lock` to read or change it.

    Args:
        env: An environment of its own.
        ids: The tasks to draw from.
        task_id: The first task; by default a drawn one.

    Raises:
        UnknownTask: The task does not exist.
    """

    def __init__(self, env: WebShop, ids: Sequence[str], task_id: str | None) -> None:
        self.key = secrets.token_urlsafe(32)
        """Value of the browser's cookie."""
        self.token = secrets.token_urlsafe(16)
        """Token in every form of a page, so that no other site can send one."""
        self.lock = threading.Lock()
        self.env = env
        self.ids = ids
        """The tasks to draw from."""
        self.task_id = ""
        self.actions = 0
        """Number of actions since the task began: the steps of an agent."""
        self.visits = 0
        """Changes with each action and task; identifies forms of older pages."""
        self.message = ""
        """Result of the last action in a sentence, where the page itself does not show it."""
        self.refused = False
        """Whether the last action was refused."""
        self.begin(task_id)

    def begin(self, task_id: str | None) -> None:
        """Starts a task; without an id, draws another one than the last."""
        if task_id is None:
            task_id = secrets.choice([task for task in self.ids if task != self.task_id] or self.ids)
        self.env.reset(options={"task_id": task_id})
        self.task_id = task_id
        self.actions = 0
        self.visits += 1
        self._say("")

    def act(self, tool: str, argument: str, value: str) -> None:
        """Executes one step of the environment.

        Raises:
            UsageError: The task is over: something was bought.
        """
        session = self.env.session
        before = session.state.page
        _, _, _, _, info = self.env.step([ToolCall(tool, {argument: value})])
        self.actions += 1
        self.visits += 1
        if info["error"] is not None:
            self.refuse(info["error"])
        elif before == session.state.page == "item":
            self._say("Chosen: {} = {}.".format(*option_of(session, value)))
        else:
            self._say("")

    def refuse(self, why: str) -> None:
        """Records that an action was refused, and why."""
        self._say(f"Nothing happened: {why}.", refused=True)

    def _say(self, message: str, refused: bool = False) -> None:
        self.message, self.refused = message, refused


def option_of(session: ShopVisit, value: str) -> tuple[str, str]:
    """Returns name and value of the option that a click on the element ``value`` has just chosen."""
    return session.choices()[value.lower()]


class Customers(Visitors[Customer]):
    """The customers by the key in their cookie. Thread-safe.

    Args:
        make: Makes an environment for a customer.
        ids: The tasks to draw from.
        first: The first task of each customer; by default a drawn one.
        capacity: Maximum number of customers.
    """

    def __init__(
        self, make: Callable[[], WebShop], ids: Sequence[str], first: str | None = None, capacity: int = CAPACITY
    ) -> None:
        super().__init__(capacity)
        self._make, self._ids, self._first = make, ids, first

    def admit(self) -> Customer:
        """Returns a new customer; a full shop drops the one that has been idle for longest."""
        return self.add(Customer(self._make(), self._ids, self._first))
