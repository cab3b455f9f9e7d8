"""Somebody who plays on the page of PaperSearch, without a browser."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from flask import Flask
from flask.testing import FlaskClient
from hundred_papers import HUB
from werkzeug.test import TestResponse

from envsuite.core.tools import ToolCall
from envsuite.papersearch.env import PaperSearchEnv
from envsuite.papersearch.page.app import create_app
from envsuite.papersearch.page.visits import PageTasks

Calls = list[tuple[str, str]]
WAY: tuple[Calls, ...] = (
    [("search", "the survey"), ("search", "  THE   survey "), ("expand", HUB), ("search", "")],
    [("expand", HUB), ("expand", HUB), ("expand", "late"), ("search", "x" * 1_001)],
    [("search", "apart")],
)
"""To all papers that the task ``all`` asks for, with every kind of refusal."""


class Tab:
    """Somebody who plays in a tab of a browser."""

    def __init__(self, client: FlaskClient) -> None:
        self.client = client
        begun = client.post("/api/visit", json={})
        assert begun.status_code == 200
        self.headers = {"X-Visit": begun.json["visit"]}
        self.state: dict[str, Any] = begun.json["state"]

    def get(self, path: str) -> TestResponse:
        return self.client.get(path, headers=self.headers)

    def post(self, path: str, status: int = 200, **body: object) -> dict[str, Any]:
        response = self.client.post(path, json=body, headers=self.headers)
        assert response.status_code == status, response.text
        answer: dict[str, Any] = response.json
        self.state = answer.get("state", self.state)
        return answer

    def alter(self, path: str, status: int = 200, **body: object) -> dict[str, Any]:
        """Posts a request for the episode as this tab knows it."""
        return self.post(path, status, change=self.state["change"], **body)

    def step(self, calls: Calls, status: int = 200) -> dict[str, Any]:
        return self.alter("/api/step", status, calls=[{"tool": tool, "argument": argument} for tool, argument in calls])


@lru_cache
def app_of(path: Path, split: str = "train", horizon: int | None = 5, hosts: tuple[str, ...] | None = None) -> Flask:
    env = PaperSearchEnv(source=str(path), split=split)
    return create_app(env, PageTasks(split, env.tasks.ids(split), None, None, horizon), hosts)


def action(calls: Calls) -> list[ToolCall]:
    return [ToolCall(tool, {"query" if tool == "search" else "paper_id": argument}) for tool, argument in calls]


def played(path: Path, *steps: Calls) -> PaperSearchEnv:
    """The environment after steps in the task ``all``."""
    env = PaperSearchEnv(source=str(path), split="train")
    env.reset(options={"task_id": "all"})
    for calls in steps:
        env.step(action(calls))
    return env
