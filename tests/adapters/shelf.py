"""A Gymnasium environment with actions and observations of several parts: a book is put onto a shelf."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple


class Shelf(gymnasium.Env[dict[str, Any], Any]):
    """Puts a book onto the board that it has seen; a lamp and a force do nothing."""

    def __init__(self, kind: str = "dict") -> None:
        parts = {"place": MultiDiscrete([3, 4]), "lamp": MultiBinary(2), "force": Box(0.0, 1.0, (2,))}
        self.action_space = {
            "dict": Dict({**parts, "book": Discrete(5, start=1)}),
            "tuple": Tuple([parts["place"], Discrete(2)]),
            "vector": parts["place"],
        }[kind]
        self.observation_space = Dict(
            place=MultiDiscrete([3, 4]), light=Box(0.0, 1.0, (1,)), pair=Tuple([Discrete(3)] * 2)
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.np_random.integers([3, 4])
        return self._observe(), {}

    def expert(self) -> Any:
        parts = {"place": self.place, "lamp": [0, 1], "force": [0.0, 1.0], "book": 1}
        space = self.action_space
        return parts if isinstance(space, Dict) else (self.place, 1) if isinstance(space, Tuple) else self.place

    def _observe(self) -> dict[str, Any]:
        return {"place": self.place, "light": np.array([0.1], np.float32), "pair": (1, np.int64(2))}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        place = action if isinstance(action, np.ndarray) else action["place"] if isinstance(action, dict) else action[0]
        solved = bool((place == self.place).all())
        return self._observe(), float(solved), solved, False, {}


for kind in ("dict", "tuple", "vector"):
    gymnasium.register(f"Shelf-{kind}-v0", "shelf:Shelf", max_episode_steps=10, kwargs={"kind": kind})
