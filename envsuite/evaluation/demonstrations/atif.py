"""Demonstrations as trajectories of ATIF, the Agent Trajectory Interchange Format (v1.7).

Of the specification: ``rfcs/0001-trajectory-format.md`` of Harbor.
"""

from __future__ import annotations

from typing import Any

from envsuite import __version__
from envsuite.core.tools import UnparsedAction
from envsuite.evaluation.demonstrations.demonstration import Demonstration

VERSION = "ATIF-v1.7"


def trajectory_of(demonstration: Demonstration) -> dict[str, Any]:
    """Returns the document of one demonstration, as JSON has it; a thought is the message of its step."""
    first = "\n\n".join(part for part in (demonstration.first["task"], demonstration.first["text"]) if part)
    steps: list[dict[str, Any]] = [{"step_id": 1, "source": "user", "message": first}]
    for number, step in enumerate(demonstration.steps, 2):
        results: list[dict[str, Any]] = [{"content": step.observation["text"]}]
        body: dict[str, Any] = {
            "step_id": number,
            "source": "agent",
            "message": step.thought,
            "extra": {"reward": step.reward, "valid": step.valid},
        }
        if isinstance(step.action, UnparsedAction):
            body["extra"]["problem"] = step.action.problem
        else:
            ids = [f"call_{number}_{place}" for place in range(len(step.action))]
            body["tool_calls"] = [
                {"tool_call_id": call_id, "function_name": call.name, "arguments": dict(call.arguments)}
                for call_id, call in zip(ids, step.action, strict=True)
            ]
            if ids:
                results[0]["source_call_id"] = ids[-1]  # a step has one observation
        steps.append({**body, "observation": {"results": results}})
    return {
        "schema_version": VERSION,
        "trajectory_id": f"{demonstration.env_id}/{demonstration.source}/{demonstration.split}/{demonstration.task_id}",
        "agent": {
            "name": demonstration.player,
            "version": demonstration.versions.get("envsuite", __version__),
            "tool_definitions": [tool.as_openai() for tool in demonstration.tools],
        },
        "steps": steps,
        "final_metrics": {"total_steps": len(steps)},
        "extra": {
            name: getattr(demonstration, name)
            for name in ("env_id", "source", "split", "task_id", "task_type", "manifest", "env_options", "versions",
                         "seed", "success", "score", "reward")
        },
    }  # fmt: skip
