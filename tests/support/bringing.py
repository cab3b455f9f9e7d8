"""One small agent that is brought in each way: as a function, as a command, as a service."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

WAYS = ("function", "command", "service")
PROTOCOLS = ("chat", "messages", "responses")
AGENT = '''
import json, os, sys, time, urllib.error, urllib.request

def post(url, key, sent):
    kinds = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    kinds["Accept"] = "application/json, text/event-stream"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(sent).encode(), kinds)) as answer:
        return json.load(answer)

def ask(base, key, messages, protocol="chat", **more):
    """The text of an answer."""
    if protocol == "chat":
        sent = {"model": "policy", "messages": messages, **more}
        return post(base + "/chat/completions", key, sent)["choices"][0]["message"]["content"]
    if protocol == "responses":
        output = post(base + "/responses", key, {"model": "policy", "input": messages, **more})["output"]
        return "".join(part["text"] for item in output if item["type"] == "message" for part in item["content"])
    system = {"system": one["content"] for one in messages if one["role"] == "system"}
    sent = {"model": "policy", "max_tokens": 64, "messages": [one for one in messages if one["role"] != "system"]}
    content = post(base + "/messages", key, {**sent, **system, **more})["content"]
    return "".join(block.get("text", "") for block in content)

def turns(say, act, text, count=3):
    """Plays so many turns; a judge looks at each answer before it acts."""
    messages = [{"role": "user", "content": text}]
    for _ in range(count):
        said = say(messages)
        say([{"role": "system", "content": "Judge."}, {"role": "user", "content": said}])
        if act is None or (answer := act(said)) is None:
            return
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": answer}]

def command_of(said):
    return said.partition("<action>")[2].partition("</action>")[0]

def play(task, client, protocol="chat"):
    def act(said):
        return None if client.env.done else client.env.type(command_of(said))
    say = lambda messages: ask(client.base_url, client.api_key, messages, protocol)
    turns(say, None if client.env is None else act, task.text)
    return 0.5 if client.env is None else None

def play_chat(task, client):
    return play(task, client, "chat")

def play_messages(task, client):
    return play(task, client, "messages")

def play_responses(task, client):
    return play(task, client, "responses")

def main():
    def act(said):
        called = {"name": TOOL, "arguments": {"command": command_of(said)}}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": called}
        answer = post(os.environ["ENVSUITE_ENV_URL"], os.environ["OPENAI_API_KEY"], call)["result"]
        return None if answer.get("isError") else answer["content"][0]["text"]
    say = lambda messages: ask(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], messages, sys.argv[1])
    turns(say, act if "ENVSUITE_ENV_URL" in os.environ else None, os.environ["ENVSUITE_TASK"])

if __name__ == "__main__":
    main()
'''


def agent_settings(way: str, folder: Path, protocol: str = "chat", tool: str = "do", **more: Any) -> dict[str, Any]:
    """The settings ``rollout.agent`` that bring the agent; its file is written to ``folder``."""
    file = folder / "brought_agent.py"
    file.write_text(AGENT.replace("TOOL", repr(tool)))
    (folder / "check.py").write_text("print('reward: 0.5')\n")
    if way == "function":
        return {"run": f"{file}:play_{protocol}", **more}
    if way == "command":
        test = {} if more.get("environment", True) else {"test": [sys.executable, str(folder / "check.py")]}
        return {"run": [sys.executable, str(file), protocol], "sandbox": False, **test, **more}
    with socket.create_server(("127.0.0.1", 0)) as free:
        return {"run": "service", "listen": f"127.0.0.1:{free.getsockname()[1]}", **more}


def serve_sessions(url: str, token: str, over: threading.Event, protocol: str = "chat") -> None:
    """Plays the sessions of a run as a service, and posts the reward of each."""
    own: dict[str, Any] = {"__name__": "service"}
    exec(AGENT, own)
    turns: Callable[..., None] = own["turns"]
    with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30) as http:
        while not over.wait(0.05):
            try:
                given = http.post("/sessions")
            except httpx2.HTTPError:  # the run has not begun, or is over
                continue
            if given.status_code != 200:
                continue
            session = given.json()
            turns(partial(_say, own["ask"], session, protocol), None, session["task"])
            http.post(f"/sessions/{session['id']}/reward", json={"reward": 0.5})
            http.post(f"/sessions/{session['id']}/end")


def _say(ask: Callable[..., str], session: dict[str, Any], protocol: str, messages: list[dict[str, str]]) -> str:
    return ask(session["base_url"], session["key"], messages, protocol)
