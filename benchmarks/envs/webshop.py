"""What WebShop-v0 costs: steps and searches a second, start-up, memory of sessions."""

from __future__ import annotations

import re
import tracemalloc
from collections import Counter
from random import Random

from benchmarks.envs.measure import Row, seconds
from envsuite.core.tools import Action, ToolCall
from envsuite.webshop.catalogue import Catalogue
from envsuite.webshop.env import WebShop
from envsuite.webshop.tasks import load

EPISODES = 60
SESSIONS = 128


def webshop(source: str = "official") -> list[Row]:
    """The figures of WebShop-v0 on the official files in $ENVSUITE_DATA, or on another source.

    Actions are drawn at random from what the page offers; on the official files about one step in four is a search,
    in the recorded episodes one in six.
    """
    env = WebShop(source=source, split="dev")
    played: list[tuple[str, list[Action]]] = []
    kinds: Counter[str] = Counter()
    for number, task_id in enumerate(env.tasks.ids("dev")[:EPISODES]):
        played.append((task_id, _play(env, task_id, Random(number), kinds)))
    steps = sum(len(actions) for _, actions in played)

    def replay(mode: WebShop) -> None:
        for task_id, actions in played:
            mode.reset(options={"task_id": task_id})
            for action in actions:
                mode.step(action)

    queries = [call.arguments["query"] for _, actions in played for (call,) in actions if call.name == "search"]
    searching = seconds(lambda: [env.catalogue.search(query, 50) for query in queries])
    structured = WebShop(source=source, split="dev", mode="structured")
    rows = [
        ("products", f"{len(env.catalogue):,}"),
        ("steps, as the original shows them", f"{steps / seconds(lambda: replay(env)):,.0f} steps/s"),
        ("steps, structured", f"{steps / seconds(lambda: replay(structured)):,.0f} steps/s"),
        ("searches alone", f"{len(queries) / searching:,.0f} queries/s"),
        ("mix of actions", ", ".join(f"{kind} {count / steps:.0%}" for kind, count in kinds.most_common())),
    ]
    path = load(source).path

    def start() -> None:
        catalogue = Catalogue(path)
        catalogue.tasks(catalogue.default_kind, "official")
        catalogue.search("shirt", 50)

    rows.append(("opening the catalogue, its tasks and a search", f"{seconds(start) * 1e3:.0f} ms"))
    tracemalloc.start()
    envs = [WebShop(source=source, split="dev") for _ in range(SESSIONS)]
    for env, (task_id, actions) in zip(envs, played * SESSIONS, strict=False):
        env.reset(options={"task_id": task_id})
        env.step(actions[0])
    rows.append((f"memory of {SESSIONS} sessions more", f"{tracemalloc.get_traced_memory()[0] / 1e6:.2f} MB"))
    tracemalloc.stop()
    return rows


def _play(env: WebShop, task_id: str, rng: Random, kinds: Counter[str]) -> list[Action]:
    """The actions of one episode of at most 15 steps, drawn from ``rng``."""
    observation, _ = env.reset(options={"task_id": task_id})
    words = re.findall(r"\w+", observation["task"])
    actions: list[Action] = []
    for _ in range(15):
        commands = observation["commands"]
        if not commands or rng.random() < 0.08:
            kinds["search"] += 1
            action: Action = (ToolCall("search", {"query": " ".join(rng.sample(words, 4))}),)
        else:
            kinds["click"] += 1
            calm = [name for name in commands if name != "buy now"]
            action = (ToolCall("click", {"element": rng.choice(calm if len(actions) < 8 else list(commands))}),)
        actions.append(action)
        observation, _, done, _, _ = env.step(action)
        if done:
            break
    return actions
