"""Agents of five packages, as they are, that play an environment of envsuite while the model behind them is trained.

    pip install openai-agents   # or smolagents, langgraph langchain-openai, "pydantic-ai-slim[openai]", mini-swe-agent
    envsuite train --config configs/agent.yaml --rollout.agent.run examples/agents.py:openai_agents

Each function gets a task and a client: the model's address, a key for this episode, and the environment's tools.
"""

from __future__ import annotations

import json
from typing import Any


def _called(client: Any, name: str) -> Any:
    """A tool of the environment as a function of its arguments."""

    def call(**arguments: Any) -> str:
        return "The episode is over." if client.env.done else str(client.env.call(name, arguments))

    call.__name__ = name
    return call


def openai_agents(task: Any, client: Any) -> None:
    """OpenAI's Agents SDK."""
    import asyncio

    from agents import Agent, FunctionTool, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
    from agents.exceptions import MaxTurnsExceeded
    from openai import AsyncOpenAI

    set_tracing_disabled(True)

    def tool(function: dict[str, Any]) -> FunctionTool:
        call = _called(client, function["name"])

        async def invoke(_: Any, arguments: str) -> str:
            return str(call(**json.loads(arguments or "{}")))

        return FunctionTool(
            function["name"], function["description"], function["parameters"], invoke, strict_json_schema=False
        )

    async def play() -> None:
        async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as asks:
            model = OpenAIChatCompletionsModel(client.model, asks)
            agent = Agent("player", model=model, tools=[tool(one["function"]) for one in client.env.tools])
            await Runner.run(agent, task.text, max_turns=8)

    try:
        asyncio.run(play())
    except MaxTurnsExceeded:
        pass


def langgraph(task: Any, client: Any) -> None:
    """LangGraph's agent that reasons and acts."""
    from langchain_core.tools import StructuredTool
    from langchain_openai import ChatOpenAI
    from langgraph.errors import GraphRecursionError
    from langgraph.prebuilt import create_react_agent

    tools = [
        StructuredTool.from_function(
            _called(client, one["name"]), name=one["name"], description=one["description"],
            args_schema=one["parameters"],
        )
        for one in (each["function"] for each in client.env.tools)
    ]  # fmt: skip
    model = ChatOpenAI(model=client.model, base_url=client.base_url, api_key=client.api_key)
    try:
        create_react_agent(model, tools).invoke({"messages": [("user", task.text)]}, {"recursion_limit": 16})
    except GraphRecursionError:
        pass


def pydantic_ai(task: Any, client: Any) -> None:
    """Pydantic AI."""
    from pydantic_ai import Agent, Tool, UsageLimits
    from pydantic_ai.exceptions import AgentRunError
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=client.base_url, api_key=client.api_key)
    functions = [each["function"] for each in client.env.tools]
    tools = [
        Tool.from_schema(_called(client, one["name"]), one["name"], one["description"], one["parameters"])
        for one in functions
    ]
    try:
        agent = Agent(OpenAIChatModel(client.model, provider=provider), tools=tools)
        agent.run_sync(task.text, usage_limits=UsageLimits(request_limit=8))
    except AgentRunError:
        pass


def smolagents(task: Any, client: Any) -> None:
    """Hugging Face's smolagents; it forces a tool, so the run wants rollout.agent.masking: ignore."""
    from smolagents import OpenAIModel, Tool, ToolCallingAgent

    def tool(function: dict[str, Any]) -> Tool:
        made = Tool.__new__(type(function["name"], (Tool,), {"skip_forward_signature_validation": True}))
        made.name, made.description, made.output_type = function["name"], function["description"], "string"
        made.inputs = {
            name: {"type": form["type"], "description": form.get("description", name)}
            for name, form in function["parameters"]["properties"].items()
        }
        made.forward = _called(client, function["name"])
        made.is_initialized = True
        return made

    model = OpenAIModel(client.model, api_base=client.base_url, api_key=client.api_key)
    agent = ToolCallingAgent([tool(one["function"]) for one in client.env.tools], model, max_steps=8, verbosity_level=0)
    agent.run(task.text)


def mini_swe_agent(task: Any, client: Any) -> None:
    """mini-swe-agent, whose commands go to the environment in place of a shell."""
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.exceptions import Submitted
    from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

    class World:
        def execute(self, action: dict[str, str], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
            said = client.env.type(action["command"])
            if client.env.done:
                raise Submitted({"role": "exit", "content": said, "extra": {"exit_status": "done", "submission": said}})
            return {"output": said, "returncode": 0, "exception_info": ""}

        def get_template_vars(self, **_: Any) -> dict[str, Any]:
            return {}

        def serialize(self) -> dict[str, Any]:
            return {}

    model = LitellmTextbasedModel(
        model_name=f"openai/{client.model}", cost_tracking="ignore_errors",
        model_kwargs={"base_url": client.base_url, "api_key": client.api_key},
        action_regex="<action>(.*?)</action>", observation_template="{{ output.output }}",
        format_error_template="Invalid action.",
    )  # fmt: skip
    templates = {"system_template": "", "instance_template": "{{ task }}"}
    DefaultAgent(model, World(), **templates, step_limit=20, cost_limit=0.0).run(task.text)
