"""``WebShop-v0``: the shop as an environment of tool calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from envsuite.core.env import Outcome, ToolEnv
from envsuite.core.options import SEED, EnvOptions, option, source
from envsuite.core.players import require_episode
from envsuite.core.settings import settings_of
from envsuite.core.tools import Tool, ToolCall
from envsuite.webshop import pages, prompts
from envsuite.webshop.catalogue import KINDS
from envsuite.webshop.generate import ShopDifficulty
from envsuite.webshop.goals import ORDER_SEED
from envsuite.webshop.reward import Score
from envsuite.webshop.search import search_of
from envsuite.webshop.source import SETS
from envsuite.webshop.tasks import load, published_order, task_set
from envsuite.webshop.world import SEARCH, Search, ShopState, ShopVisit

MODES = {"text": pages.text, "structured": pages.structured_text}
"""Renderings of a page, by name."""
REWARDS: Mapping[str, Callable[[Score], float]] = {
    "graded": lambda score: score.total,
    "binary": lambda score: float(score.total == 1.0),
}
"""Reward of a purchase, by name."""


@dataclass(frozen=True, kw_only=True)
class WebShopOptions(EnvOptions):
    """The options of ``WebShop-v0``."""

    env_id: ClassVar[str] = "WebShop-v0"
    source: str | Path | None = source(
        None,
        '"official-1k" or "official-full" (1,000 or 1.18 million products, in the folder webshop in $ENVSUITE_DATA), '
        '"builtin" or "generated" (a shop made from a seed on first use), or the path of a folder with the official '
        "files, or of a catalogue; null: the official set that is there (with both, it must be named), else built-in",
        ("builtin", "generated", *SETS),
    )
    mode: str = option(
        "text",
        '"text": the original\'s observation; "structured": plain lines, chosen options marked',
        enum=tuple(MODES),
    )
    goals: str | None = option(
        None,
        '"human" (written by people) or "synthetic" (composed of a product\'s options); null: human where there are a '
        "thousand or more, and in a built-in shop, which imitates them",
        enum=(*KINDS, None),
    )
    search: str | Search = option(
        "bm25",
        '"bm25" (the index of the catalogue), "lucene" (Lucene itself, the same ranking; needs the extra '
        "webshop-lucene), or in Python a function",
        offered=False,
    )
    shop_seed: int = option(0, "seed of the built-in shop", **SEED)
    products: int = option(1000, "number of its products", clients={"maximum": 10_000})
    difficulty: Mapping[str, int] | None = option(
        None,
        'difficulty of its goals, e.g. {"near_misses": 7}; keys are the fields of '
        "envsuite.webshop.generate.ShopDifficulty",
    )
    reward: str = option(
        "graded",
        '"graded": the purchase\'s score, as in the original; "binary": 1 for a success, else 0; the score in info is '
        "the same for both",
        enum=tuple(REWARDS),
    )


class WebShop(ToolEnv):
    """Shopping tasks: buy the product and options that an instruction describes, within its price limit.

    Splits are ``"train"`` and ``"dev"``, of a built-in shop also ``"test"``.

    Args:
        given: Values of :class:`WebShopOptions`.

    The commands of an observation are the elements that ``click`` accepts. A task id is the ASIN of the target product
    and the number of the goal among the product's goals.
    """

    tools = (
        Tool.of_string("search", prompts.SEARCH, "query", prompts.QUERY),
        Tool.of_string("click", prompts.CLICK, "element", prompts.ELEMENT),
    )

    takes = WebShopOptions

    def __init__(self, **given: Any) -> None:
        options = WebShopOptions.of(given)
        difficulty = settings_of(ShopDifficulty, "difficulty of WebShop-v0", options.difficulty or {})
        self.catalogue = load(options.source, options.shop_seed, options.products, difficulty)
        self.mode, self.reward, search = options.mode, options.reward, options.search
        self._search = search_of(search, self.catalogue) if isinstance(search, str) else search
        self._kind = options.goals if options.goals is not None else self.catalogue.default_kind
        tasks = task_set(self.catalogue, self._kind).select(options.tasks)
        searched_by = search if isinstance(search, str) else "own"
        versions = {"nouns": self.catalogue.meta["tagger"], "search": searched_by, "reward": self.reward}
        super().__init__(tasks, options.split, options.render_mode, versions)
        self._session: ShopVisit | None = None

    @property
    def session(self) -> ShopVisit:
        """Returns the customer's session.

        Raises:
            UsageError: No episode has been started.
        """
        return require_episode(self._session, "WebShop-v0")

    def _goal(self, task_id: str) -> str:
        return self.catalogue.goal(task_id).instruction

    def _identity(self, task_id: str) -> dict[str, Any]:
        """Returns shop, target, options, attributes and price limit of a goal; of official goals also their index.

        ``shop`` is the version of the catalogue, since other products and nouns make other results and rewards.
        ``goal_index`` is the place of the goal in the original's list of all goals of this kind, from 0, after its
        shuffle with ``order_seed``: what ``WebAgentTextEnv.reset(session=…)`` takes.
        """
        goal = self.catalogue.goal(task_id)
        facts: dict[str, Any] = {
            "shop": self.catalogue.version,
            "goals": self._kind,
            "asin": goal.asin,
            "attributes": list(goal.attributes),
            "options": [option if isinstance(option, str) else list(option) for option in goal.options],
            "price_upper": int(goal.price_upper),  # limits are whole dollars
        }
        if not self.catalogue.family:
            index = published_order(self.catalogue, self._kind)[task_id]
            facts |= {"goal_index": index, "order_seed": ORDER_SEED, "products": len(self.catalogue)}
        return facts

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        self._session = ShopVisit(self.catalogue, self._search, self.catalogue.goal(task_id))
        return self._session.goal.instruction, self._outcome()

    def _call(self, call: ToolCall) -> Outcome:
        session = self.session
        if call.name == "search":
            query = call.arguments["query"]
            return self._outcome(None if session.search(query) else prompts.EMPTY_QUERY)
        element, page = call.arguments["element"], session.state.page
        return self._outcome(None if session.click(element) else prompts.refusal_text(element, page))

    def _outcome(self, error: str | None = None) -> Outcome:
        session = self.session
        text = MODES[self.mode](session)
        if error is not None and self.mode == "structured":
            text = f"Nothing happened: {error}.\n{text}"
        score = session.state.score
        if score is None:
            return Outcome(text, error=error, commands=self._commands())
        return Outcome(
            text,
            reward=REWARDS[self.reward](score),
            done=True,
            success=score.total == 1.0,
            score=score.total,
            metrics=_metrics(score),
        )

    def _commands(self) -> tuple[str, ...]:
        return tuple(element for element in self.session.elements() if element and element != SEARCH.lower())

    def _state_key(self) -> str:
        text = "" if self._last is None else self._last["text"]
        return f"{text}\n{self.session.state.options}"

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        commands = () if self._session is None else self._commands()
        if not commands or rng.random() < 0.1:
            words = "shirt" if self._session is None else self._session.goal.instruction
            sample = rng.permutation(words.split() or ["shirt"])[: int(rng.integers(1, 6))]
            return ToolCall("search", {"query": " ".join(str(word) for word in sample)})
        return ToolCall("click", {"element": commands[int(rng.integers(len(commands)))]})

    def _save(self) -> ShopState:
        return self.session.state

    def _resume(self, task_id: str, world: ShopState) -> None:
        self._begin(task_id)
        self.session.state = world


def _metrics(score: Score) -> dict[str, float]:
    """Returns the parts of the reward; the share of options only for goals with options."""
    parts = {
        "type": score.r_type,
        "attributes": score.r_att,
        "options": score.r_option,
        "price": score.r_price,
        "title": score.title_score,
        "query_match": score.query_match,
        "category_match": score.category_match,
    }
    return {name: float(value) for name, value in parts.items() if value is not None}
