"""``envsuite eval run`` as a command, and an installed environment whose tasks crash or hang while a file is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from scripted_endpoint import NAME, ScriptedEndpoint, completion
from third_party import install

ROOT = Path(__file__).resolve().parents[2]
WORLD = '''"""A task is to say a word; some tasks misbehave while the file that FRAIL names is there."""
import os
import time

from envsuite.core import Outcome, TaskSet, Tool, ToolCall, ToolEnv, UsageError

SAY = Tool("say", "Say a word.", {"type": "object", "properties": {"command": {"type": "string"}},
                                  "required": ["command"], "additionalProperties": False})
WORDS = ("ant", "bee", "cat", "dog", "elk", "fox")
IDS = {"train": tuple(f"{word}-0" for word in WORDS), "test": WORDS}
TASKS = TaskSet("Frail-v0", "builtin", "1", IDS, {task: "word" for ids in IDS.values() for task in ids})


class Frail(ToolEnv):
    tools = (SAY,)

    def __init__(self, split="train", render_mode=None, tasks=None):
        super().__init__(TASKS.select(tasks), split, render_mode)
        self.word = ""

    def _begin(self, task_id):
        self.word = task_id.removesuffix("-0")
        return f"Say {self.word}.", Outcome("It is quiet.")

    def _call(self, call):
        if os.path.exists(os.environ.get("FRAIL", "")):
            if self.word == "bee":
                os._exit(7)
            if self.word == "cat":
                time.sleep(600)
        right = call.arguments["command"] == self.word
        return Outcome("Yes." if right else "No.", float(right), right, success=right, score=float(right))

    def _state_key(self):
        return self.word

    def _propose(self, rng):
        return ToolCall("say", {"command": WORDS[int(rng.integers(len(WORDS)))]})


class Teller:
    def act(self, env):
        word = env.unwrapped.word
        if word == "fox":
            raise UsageError("foxes are not said")
        return (ToolCall("say", {"command": word}),)
'''
FILES = {
    "frail/__init__.py": "",
    "frail/world.py": WORLD,
    "frail/spec.py": "from envsuite.core.registration import EnvSpec\n\n"
    "FRAIL = EnvSpec('Frail-v0', 'frail.world:Frail', max_episode_steps=3, players={'expert': 'frail.world:Teller'})\n",
    "pyproject.toml": '[project]\nname = "frail"\nversion = "1.0"\n'
    '[project.entry-points."envsuite.environments"]\nfrail = "frail.spec:FRAIL"\n',
}


def installed(folder: Path) -> Path:
    """Installs the environment into a folder; returns it."""
    install(folder, FILES)
    return folder


def command(*words: object, packages: Path | None = None, **variables: str) -> subprocess.Popen[str]:
    """Starts ``envsuite eval run``."""
    path = os.pathsep.join(str(one) for one in (ROOT, packages) if one is not None)
    return subprocess.Popen(
        [sys.executable, "-m", "envsuite.cli", "eval", "run", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
        env={**os.environ, "PYTHONPATH": path, **variables},
    )  # fmt: skip


def said(process: subprocess.Popen[str], status: int) -> tuple[str, str]:
    """Returns what a command wrote, once it has ended with ``status``."""
    out, err = process.communicate(timeout=600)
    assert process.returncode == status, f"{process.returncode}: {out}{err}"
    return out, err


def endpoint(server: ScriptedEndpoint, *words: object) -> list[object]:
    """Returns the words of a command that asks an endpoint about Frail-v0."""
    asked = f"Frail-v0 --policy endpoint --url {server.url} --model {NAME} --temperature 0 --workers 0"
    return [*asked.split(), *words]


def answers(body: dict[str, Any]) -> Any:
    """Says the word that the task asks for, as a call or in tags."""
    text = " ".join(str(message["content"]) for message in body["messages"])
    word = text.rsplit("Say ", 1)[1].split(".")[0]
    if "tools" in body:
        return completion(None, calls=[("say", json.dumps({"command": word}))])
    return completion(f"<action>{word}</action>")
