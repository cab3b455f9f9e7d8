"""Milestones of WebShop: the target among the results shown, its page, all of its options, and its purchase."""

from __future__ import annotations

from typing import ClassVar

from envsuite.core.env import StepInfo, ToolEnv
from envsuite.core.players import unwrap_local_env
from envsuite.core.tools import Action
from envsuite.webshop.catalogue import ENV_ID
from envsuite.webshop.env import WebShop
from envsuite.webshop.expert import plan, reachable


class WebShopMilestones:
    """They are reached in this order, each by any action that leads there. Without options to choose there are three.

    The target is the product that the goal was made from; another one that fits, too, is no milestone.
    """

    from_observations: ClassVar[bool] = False

    def __init__(self, env: ToolEnv) -> None:
        self._session = unwrap_local_env(env, ENV_ID, WebShop).session
        self._target = self._session.catalogue.product(self._session.goal.asin)
        choices = plan(self._target, self._session.goal).items()
        self._options = {name: value for name, value in choices if reachable(self._target, name, value)}
        self._next = ["results", "item", *(["options"] if self._options else []), "bought"]
        self.count = len(self._next)

    def count_reached(self, action: Action, info: StepInfo) -> int:
        """Returns 1 if the session has come to the next milestone, else 0."""
        if not self._next or not self._holds(self._next[0]):
            return 0
        del self._next[0]
        return 1

    def _holds(self, milestone: str) -> bool:
        state, asin = self._session.state, self._target.asin
        if milestone == "results":
            return state.page == "results" and asin in (card.asin for card in self._session.cards)
        if milestone == "bought":
            return self._session.done and state.asin == asin
        picks = dict(state.options)
        is_set = milestone == "item" or all(picks.get(name) == value for name, value in self._options.items())
        return state.page not in ("search", "results", "done") and state.asin == asin and is_set
