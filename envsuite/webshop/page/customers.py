"""Who is in the shop: one environment for each browser, as many as fit, the longest idle ones leave first."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from envsuite.core.tools import ToolCall
from envsuite.webshop.env import WebShop
from envsuite.webshop.world import Session

CAPACITY = 256
"""Customers that the shop remembers."""


class Customer:
    """One browser in the shop. Whoever reads or changes it holds :attr:`lock`.

    Args:
        env: An environment of its own.
        ids: The tasks that are drawn from.
        task_id: What is to be bought first; by default one of them.

    Raises:
        UnknownTask: There is no such task.
    """

    def __init__(self, env: WebShop, ids: Sequence[str], task_id: str | None) -> None:
        self.key = secrets.token_urlsafe(32)
        """What the browser's cookie says."""
        self.token = secrets.token_urlsafe(16)
        """What every form of a page says, so that no other site can send one."""
        self.lock = threading.Lock()
        self.env = env
        self.ids = ids
        """The tasks that are drawn from."""
        self.task_id = ""
        self.actions = 0
        """Actions since the task began: an agent would have used as many steps."""
        self.visits = 0
        """Changes with each action and task; a form of an older page is known by it."""
        self.message = ""
        """What the last action brought about, in a sentence, where the page does not say it by itself."""
        self.refused = False
        """It brought about nothing."""
        self.begin(task_id)

    def begin(self, task_id: str | None) -> None:
        """Start a task; without id one is drawn, another than the last."""
        if task_id is None:
            task_id = secrets.choice(self.ids)
            while task_id == self.task_id and len(self.ids) > 1:
                task_id = secrets.choice(self.ids)
        self.env.reset(options={"task_id": task_id})
        self.task_id = task_id
        self.actions = 0
        self.visits += 1
        self._say("")

    def act(self, tool: str, argument: str, value: str) -> None:
        """One step of the environment.

        Raises:
            UsageError: Something was bought; the task is over.
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
        """Say that nothing happened, and why."""
        self._say(f"Nothing happened: {why}.", refused=True)

    def _say(self, message: str, refused: bool = False) -> None:
        self.message, self.refused = message, refused


def option_of(session: Session, value: str) -> tuple[str, str]:
    """Name and value of the option that a click on ``value`` has just chosen."""
    return next(pair for pair in reversed(session.state.options) if pair[1] == value.lower())


class Customers:
    """Those in the shop, by the key in their cookie. Threads may call it at once.

    Args:
        make: Makes an environment for a customer.
        ids: The tasks that are drawn from.
        first: The first task of each customer; by default one of them.
        capacity: How many customers are remembered.
    """

    def __init__(
        self, make: Callable[[], WebShop], ids: Sequence[str], first: str | None = None, capacity: int = CAPACITY
    ) -> None:
        self._make = make
        self._ids = ids
        self._first = first
        self._capacity = capacity
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Customer] = OrderedDict()

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._known)

    def admit(self) -> Customer:
        """A new customer; where the shop is full, the one that did nothing for longest is forgotten."""
        customer = Customer(self._make(), self._ids, self._first)
        with self._lock:
            self._known[customer.key] = customer
            while len(self._known) > self._capacity:
                self._known.popitem(last=False)
        return customer

    def find(self, key: str) -> Customer | None:
        """The customer with this key, unless it was never here or is forgotten."""
        with self._lock:
            customer = self._known.get(key)
            if customer is not None:
                self._known.move_to_end(key)
            return customer
