"""Servers of other kinds, to compare ``envsuite serve http`` with: ``python -m benchmarks.serving_peers KIND PORT``.

``fastapi``: what AgentGym's environment servers look like, over our TextCraft world: FastAPI under uvicorn, an endpoint
for each of create, reset and step, sessions as numbers in a dictionary. ``openenv``: the echo environment that
openenv-core makes for a new project, under its own server, which does nothing but give back what it gets.
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn

from envsuite.core import ToolCall
from envsuite.textcraft.env import TextCraft


def fastapi_app() -> Any:
    """The server of AgentGym's kind."""
    from fastapi import FastAPI
    from pydantic import BaseModel

    class Reset(BaseModel):
        id: int
        seed: int

    class Step(BaseModel):
        id: int
        action: str

    app = FastAPI()
    envs: dict[int, TextCraft] = {}

    def create() -> dict[str, Any]:
        envs[len(envs)] = TextCraft()
        return {"id": len(envs) - 1}

    def reset(body: Reset) -> dict[str, Any]:
        observation, info = envs[body.id].reset(seed=body.seed)
        return {"observation": observation, "info": info}

    def step(body: Step) -> dict[str, Any]:
        action = (ToolCall("env_step", {"command": body.action}),)
        observation, reward, terminated, truncated, info = envs[body.id].step(action)
        return {
            "observation": {"text": observation["text"], "commands": observation["commands"]},
            "reward": reward,
            "done": terminated or truncated,
            "info": info,
        }

    # Not as decorators: with postponed annotations FastAPI finds classes of a function only this way.
    reset.__annotations__["body"], step.__annotations__["body"] = Reset, Step
    for path, endpoint in (("/create", create), ("/reset", reset), ("/step", step)):
        app.post(path)(endpoint)
    return app


def openenv_app() -> Any:
    """openenv-core's server with an echo environment."""
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Said(Action):
        message: str

    class Echoed(Observation):
        message: str = ""

    class Echo(Environment):  # type: ignore[misc, type-arg]
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._state = State(episode_id="echo", step_count=0)

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Echoed:
            return Echoed(message="ready", done=False, reward=0.0)

        def step(self, action: Said, timeout_s: float | None = None, **_: Any) -> Echoed:  # type: ignore[override]
            self._state.step_count += 1
            return Echoed(message=action.message, done=False, reward=0.0)

        @property
        def state(self) -> State:
            return self._state

    return create_app(Echo, Said, Echoed, env_name="echo", max_concurrent_envs=64)


if __name__ == "__main__":
    made = {"fastapi": fastapi_app, "openenv": openenv_app}[sys.argv[1]]()
    uvicorn.run(made, host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
