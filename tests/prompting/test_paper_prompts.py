"""The papers' prompts, written down as docs/prompts.md says, from texts that are not part of the repository."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import envsuite  # noqa: F401
from docs.build import ROOT
from envsuite.alfworld.expert import ALFWorldExpert as ALFWorldExpert
from envsuite.core import Observation, Tool, ToolEnv
from envsuite.prompting import Codec, Conversation, PromptFile, PromptSpec, Window, make_codec
from envsuite.textcraft.expert import TextCraftExpert as TextCraftExpert
from envsuite.webshop.expert import WebShopExpert as WebShopExpert

ROW = re.compile(r"^\| `\{(\w+)\}` \| `(.+)` \|$", re.MULTILINE)
PLACEHOLDERS = {
    name: text.replace(r"\|", "|") for name, text in ROW.findall((ROOT / "docs/prompts.md").read_text("utf-8"))
}
EXPERTS: dict[str, Callable[[], Any]] = {
    "ALFWorld-v0": ALFWorldExpert,
    "TextCraft-v0": TextCraftExpert,
    "WebShop-v0": WebShopExpert,
}
MOST_STEPS = 30


def between(text: str, start: str, end: str) -> str:
    """The part between two lines, without the marks that the text's makers put before signs."""
    found = re.search(rf"^{re.escape(start)}(.*?){end}", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"the text has no {start!r} any more"
    return re.sub(r"\\(.)", r"\1", found[1]).strip()


def bipace(text: str, env: str) -> str:
    return between(text, f"{env}Prompt Template", r"\n")


def hgpo(text: str, env: str) -> str:
    return between(text, f"Prompt Template for {env}\n", r"^Figure ")


def steppo(text: str, env: str) -> str:
    return between(text, f"{env} Prompt\n", r"^Tool Definition")


def without_inventory(text: str) -> str:
    return text.replace("Current inventory: {inventory}", "", 1)


def with_task(text: str) -> str:
    return text.replace("{observation}", "{instruction}\n\n{observation}")


def with_two_tools(text: str) -> str:
    return text.replace("env_step", "search or click")


VERL = {"lowercase": True, "require_thought": True}
CASES: dict[str, tuple[str, Callable[[str, str], str], str, str, dict[str, Any], Callable[[str], str]]] = {
    "bipace-ALFWorld": ("bipace", bipace, "ALFWorld-v0", "tags", {}, str),
    "bipace-WebShop": ("bipace", bipace, "WebShop-v0", "brackets", {}, str),
    "bipace-TextCraft": ("bipace", bipace, "TextCraft-v0", "tags", {}, without_inventory),
    "hgpo-ALFWorld": ("hgpo", hgpo, "ALFWorld-v0", "tags", VERL, str),
    "hgpo-WebShop": ("hgpo", hgpo, "WebShop-v0", "brackets", VERL, str),
    "steppo-ALFWorld": ("steppo", steppo, "ALFWorld-v0", "tools", {}, with_task),
    "steppo-WebShop": ("steppo", steppo, "WebShop-v0", "tools", {}, with_two_tools),
}


def paper(shared: Path, name: str) -> str:
    path = shared / "papers" / f"{name}.txt"
    if not path.is_file():
        pytest.skip(f"needs the paper's text in {path}")
    return path.read_text("utf-8")


def written_down(text: str) -> str:
    """The prompt file of a paper's text: steps 2 and 3 of docs/prompts.md."""
    doubled = "{{" in text
    text = text.replace("Prior to", "{% if history %}Prior to").replace(
        "{action_history}", "{action_history}{% endif %}"
    )
    if doubled:
        text = text.replace("{{", "{").replace("}}", "}")
    return re.sub(r"\{(\w+)\}", lambda found: PLACEHOLDERS[found[1]], text)


def filled_in(text: str, observation: Observation, history: list[tuple[str, str]]) -> str:
    """The same by Python's format, which HGPO uses (C.5)."""
    recent = list(enumerate(history, 1))[-2:]
    pairs = "".join(f"[Observation {n}: '{said}', Action {n}: '{did}'] " for n, (said, did) in recent)
    commands = ", ".join(observation["commands"])
    if not history:
        text = re.sub(r"Prior to.*?\{action_history\}", "", text, flags=re.DOTALL)
    return text.format(
        task_description=observation["task"],
        task_context=observation["task"],
        instruction=observation["task"],
        current_observation=observation["text"],
        observation=observation["text"],
        admissible_actions=commands,
        admissible_commands=commands,
        available_actions=", ".join(f"click[{c}]" for c in observation["commands"]) or "search[<your query>]",
        action_history=pairs,
        recent_history=pairs,
        history_actions=", ".join(did for _, (_, did) in recent),
        history_length=len(recent),
        step_count=len(history),
        current_step=len(history) + 1,
    )


@pytest.mark.seconds
@pytest.mark.parametrize("case", CASES)
def test_a_papers_prompt_renders_as_format_does_and_its_episode_is_played_to_success(case, shared, smol):
    name, part, env_id, codec_name, rules, adapted = CASES[case]
    text = adapted(part(paper(shared, name), case.partition("-")[2]))
    file = PromptFile(written_down(text), f"{case}.jinja")
    codec, expert = make_codec(codec_name, **rules), EXPERTS[env_id]()
    arguments = {"show_inventory": True} if env_id == "TextCraft-v0" else {}
    env = gymnasium.make(env_id, max_episode_steps=MOST_STEPS, disable_env_checker=True, **arguments)
    world = env.unwrapped
    assert isinstance(world, ToolEnv)
    observation, info = env.reset(seed=3)
    conversation = Conversation(smol, PromptSpec(codec, Window(2), prompt_file=file), world.tools)
    conversation.start(observation)
    history: list[tuple[str, str]] = []
    ended = False
    while not ended:
        (message,) = conversation.messages()
        assert message == {"role": "user", "content": filled_in(text, observation, history)}
        assert message["content"] in smol.decode(conversation.prompt_ids())
        answer = codec.write(expert.act(env), "I think so.", world.tools)
        parsed = codec.parse(answer, world.tools, world.max_calls)
        assert parsed.action is not None, parsed.error
        history.append((observation["text"], codec.show(parsed.action)))
        observation, _, terminated, truncated, info = env.step(parsed.action)
        assert info["valid"], info["error"]
        conversation.add(smol.encode(answer), answer, observation)
        ended = terminated or truncated
    assert info["success"] and len(history) > 2
    assert env_id != "TextCraft-v0" or all("\nInventory: [" in text for text, _ in history[1:])


COMMAND = Tool.of_string("env_step", "", "command", "")


def test_the_example_of_bipaces_textcraft_prompt_is_read_as_its_command(shared):
    example = re.search(r"<think>I need.*?</action>", bipace(paper(shared, "bipace"), "TextCraft"))
    assert example is not None
    for rules in ({}, VERL):
        (call,) = make_codec("tags", **rules).parse(example[0], (COMMAND,), 1).action or ()
        assert call.arguments["command"].startswith("craft 1 fletching table using 4 oak")


def test_the_calls_of_stepos_trajectory_are_read(shared):
    tools = (Tool.of_string("search", "", "query", ""), Tool.of_string("expand", "", "paper_id", ""))
    trajectory = paper(shared, "steppo").partition("Paper Search Trajectory")[2]
    steps = re.split(r"=+ Step \d =+", trajectory)[1:]
    codec: Codec = make_codec("tools")
    calls = [codec.parse(step, tools, 5).action for step in steps]
    assert [[call.name for call in action or ()] for action in calls] == [["search"] * 2] + [["expand"] * 2] * 4
    for step, action in zip(steps, calls, strict=True):
        assert all(str(next(iter(call.arguments.values()))) in step for call in action or ())


def test_stepos_form_of_an_answer_is_that_of_the_codec(shared):
    form = (
        between(paper(shared, "steppo"), "Output Format\n", r"^Tool Definition").replace("{{", "{").replace("}}", "}")
    )
    (call,) = make_codec("tools").parse(form, (COMMAND,), 1).action or ()
    assert (call.name, dict(call.arguments)) == ("env_step", {"command": "[one admissible command]"})
