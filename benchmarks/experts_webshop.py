"""How well the players of WebShop-v0 buy: the expert, which knows the product, and the lexical baseline."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import track

from envsuite.evaluation.statistics import wilson
from envsuite.webshop.env import WebShop
from envsuite.webshop.expert import WebShopExpert, WebShopLexical
from envsuite.webshop.tasks import HORIZON


@dataclass(frozen=True)
class Purchase:
    """What one player earned for one goal."""

    reward: float
    steps: int


@dataclass(frozen=True)
class Trial:
    """One goal as both played it."""

    department: str
    expert: Purchase
    lexical: Purchase


def trials(source: str | None, goals: str, split: str | None, products: int) -> list[Trial]:
    """Let both play all goals of a kind (``split``: of one split)."""
    chosen = {"source": source, "goals": goals, "products": products}
    env = WebShop(split=None, **chosen)  # type: ignore[arg-type]
    splits = [split] if split else list(env.tasks.splits)
    ids = [task_id for name in splits for task_id in env.tasks.ids(name)]
    return [
        Trial(env.tasks.types[task_id], play(env, WebShopExpert(), task_id), play(env, WebShopLexical(), task_id))
        for task_id in track(ids, "shopping", console=Console(stderr=True))
    ]


def play(env: WebShop, player: WebShopExpert | WebShopLexical, task_id: str) -> Purchase:
    """What ``player`` earns for a goal within the horizon."""
    env.reset(options={"task_id": task_id})
    for number in range(1, HORIZON + 1):
        _, reward, done, _, _ = env.step(player.act(env))
        if done:
            return Purchase(float(reward), number)
    return Purchase(0.0, HORIZON)


def table(played: Iterable[Trial]) -> str:
    """A row per department, and one for all, in Markdown."""
    ordered = sorted(played, key=lambda trial: trial.department)
    strata = [(name, list(group)) for name, group in itertools.groupby(ordered, key=lambda trial: trial.department)]
    head = (
        "",
        "goals",
        *(f"{who}: {what}" for who in ("expert", "lexical") for what in ("success", "reward", "steps")),
    )
    rows = [head, ("---", *["---:"] * (len(head) - 1))]
    for name, group in [*strata, ("all", ordered)]:
        players = ([trial.expert for trial in group], [trial.lexical for trial in group])
        rows.append((name, f"{len(group):,}", *(cell for purchases in players for cell in _cells(purchases))))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _cells(purchases: Sequence[Purchase]) -> tuple[str, str, str]:
    number = max(len(purchases), 1)
    won = sum(purchase.reward == 1.0 for purchase in purchases)
    low, high = wilson(won, number)
    return (
        f"{100 * won / number:.1f} % ({100 * low:.1f}–{100 * high:.1f})",  # noqa: RUF001
        f"{sum(purchase.reward for purchase in purchases) / number:.3f}",
        f"{sum(purchase.steps for purchase in purchases) / number:.1f}",
    )
