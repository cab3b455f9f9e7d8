"""JSON Schemas of the bodies of requests and answers: the server's checks and ``/openapi.json``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson

from envsuite.core.schemas import make_validator, object_schema
from envsuite.remote.protocol import TITLES, HttpProblem

if TYPE_CHECKING:
    import jsonschema_rs

MAX_CALLS = 64
"""Maximum number of tool calls in the action of one step."""
MAX_IDENTIFIED = 1024
"""Maximum number of tasks whose goals and identities one call asks for."""
MAX_BATCH = 1024
"""Maximum number of calls in one batch."""
_WORD = {"type": "string", "minLength": 1, "maxLength": 200}
_NUMBER = {
    "type": "integer",
    "minimum": 1,
    "maximum": 2**53,
    "description": "Of this call among those of the session that change it: 1, 2, 3, … A call that is repeated with "
    "its number is answered again, and not executed again.",
}
_SEED = {"type": ["integer", "null"], "minimum": 0, "maximum": 2**53}
_TEXT = {"type": "string"}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


ToolCall = object_schema({"name": _TEXT, "arguments": {"type": "object"}})
_CREATE = {
    "environment": _WORD,
    "arguments": {"type": "object", "description": "Of the environment; those that it takes are in its listing."},
    "max_episode_steps": {
        "type": ["integer", "null"],
        "minimum": 1,
        "maximum": 2**31,
        "description": "Steps after which an episode is truncated: by default the environment's own, null for none.",
    },
    "key": {**_WORD, "description": "Of the client's own: the same key gives the same session, as long as it lives."},
}
_RESET = {
    "number": _NUMBER,
    "seed": _SEED,
    "options": {
        "type": ["object", "null"],
        "properties": {"task_id": {"type": ["string", "null"]}},
        "additionalProperties": False,
    },
}
_STEP = {
    "number": _NUMBER,
    "calls": {"type": "array", "items": ToolCall, "maxItems": MAX_CALLS, "description": "What the agent does."},
    "problem": {**_TEXT, "description": "Instead of calls: why the agent's output is no action."},
}
_RESTORE = {"number": _NUMBER, "snapshot": _WORD}
_GENERATOR = object_schema(
    {
        "state": {"type": "string", "pattern": "^[0-9]{1,39}$"},
        "inc": {"type": "string", "pattern": "^[0-9]{1,39}$"},
        "has_uint32": {"enum": [0, 1]},
        "uinteger": {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
    }
)
_STEP_SCHEMA = {
    **object_schema(_STEP, optional=("calls", "problem")),
    "oneOf": [{"required": ["calls"]}, {"required": ["problem"]}],
}

REQUESTS: Mapping[str, dict[str, Any]] = {
    "describe": object_schema({"arguments": _CREATE["arguments"]}, optional=("arguments",)),
    "create": object_schema(_CREATE, optional=("arguments", "max_episode_steps", "key")),
    "reset": object_schema(_RESET, optional=("seed", "options")),
    "step": _STEP_SCHEMA,
    "restore": object_schema(_RESTORE),
    "propose": object_schema({"generator": _GENERATOR}),
    "identify": object_schema(
        {"tasks": {"type": "array", "items": {"type": "string", "maxLength": 1000}, "maxItems": MAX_IDENTIFIED}}
    ),
    "batch": object_schema(
        {
            "calls": {
                "type": "array",
                "maxItems": MAX_BATCH,
                "items": {
                    "type": "object",
                    "properties": {"op": {"enum": ["create", "reset", "step", "close"]}, "session": _WORD},
                    "required": ["op"],
                    "description": "The body of the single request, and besides op and (but for create) session.",
                },
            }
        }
    ),
}
"""Body of each request; ``snapshot`` and ``close`` have none."""

Observation = object_schema(
    {
        "task": {**_TEXT, "description": "The instruction; only where an episode begins or goes on, not after a step."},
        "text": _TEXT,
        "commands": {"type": "array", "items": _TEXT},
        "images": {
            "type": "array",
            "items": {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"},
            "description": "Only of an environment that shows images.",
        },
    },
    optional=("task", "images"),
)
Info = {
    "type": "object",
    "properties": {
        "valid": {"type": "boolean"},
        "error": {"type": ["string", "null"]},
        "success": {"type": "boolean"},
        "score": {"type": "number"},
        "state_key": _TEXT,
        "metrics": {"type": "object"},
        "task_id": _TEXT,
        "task_type": _TEXT,
        "split": _TEXT,
        "versions": {"type": "object"},
        "agent": {**_TEXT, "description": "Whose turn is next; only of an environment of several agents."},
        "rewards": {"type": "object", "additionalProperties": {"type": "number"}},
    },
    "required": ["valid", "error", "success", "score", "state_key", "metrics"],
    "description": "The last four only where an episode begins: they hold for all its steps.",
}
Tool = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": object_schema({"name": _TEXT, "description": _TEXT, "parameters": {"type": "object"}}),
    },
    "required": ["type", "function"],
}
Description = object_schema(
    {
        "environment": _TEXT,
        "class": _TEXT,
        "tools": {"type": "array", "items": _ref("Tool")},
        "max_calls": {"type": "integer", "minimum": 1},
        "agents": {
            "type": "object",
            "additionalProperties": {"type": "array", "items": _TEXT},
            "description": "Only of an environment of several agents: the names of each agent's tools.",
        },
        "images": {"type": "boolean", "description": "Whether observations have images."},
        "restorable": {"type": "boolean", "description": "Whether it can be snapshot and restored."},
        "max_episode_steps": {"type": ["integer", "null"]},
        "split": {"type": ["string", "null"]},
        "versions": {"type": "object", "additionalProperties": _TEXT},
        "tasks": object_schema(
            {
                "env_id": _TEXT,
                "source": _TEXT,
                "version": _TEXT,
                "hash": _TEXT,
                "splits": {"type": "object", "additionalProperties": {"type": "array", "items": _TEXT}},
                "types": {"type": "object", "additionalProperties": _TEXT},
            }
        ),
    },
    optional=("agents",),
)
Listing = object_schema(
    {
        "environments": {
            "type": "array",
            "items": object_schema(
                {"id": _TEXT, "max_episode_steps": {"type": ["integer", "null"]}, "arguments": {"type": "object"}}
            ),
        }
    }
)
Tasks = object_schema(
    {
        "environment": _TEXT,
        "source": _TEXT,
        "version": _TEXT,
        "hash": _TEXT,
        "tasks": {"type": "array", "items": object_schema({"id": _TEXT, "split": _TEXT, "type": _TEXT})},
    }
)
Session = object_schema({"session": _TEXT, "environment": _TEXT, "next": _NUMBER, "idle_seconds": {"type": "number"}})
Begun = object_schema({"number": _NUMBER, "observation": Observation, "info": Info})
Stepped = object_schema(
    {
        "number": _NUMBER,
        "observation": Observation,
        "reward": {"type": "number"},
        "terminated": {"type": "boolean"},
        "truncated": {"type": "boolean"},
        "info": Info,
    }
)
Snapshot = object_schema({"snapshot": _TEXT})
Restored = object_schema(
    {"number": _NUMBER, "observation": Observation, "episode": {"type": "object"}, "done": {"type": "boolean"}}
)
Proposal = object_schema({"call": ToolCall, "generator": _GENERATOR})
IdentifiedTasks = object_schema(
    {
        "tasks": {
            "type": "array",
            "items": object_schema({"goal": _TEXT, "identity": {"type": "object"}}),
            "description": "In the order of the request: the instruction, and what identifies the task originally.",
        }
    }
)
Results = object_schema(
    {
        "results": {
            "type": "array",
            "items": object_schema({"status": {"type": "integer"}, "body": {"type": ["object", "null"]}}),
            "description": "In the order of the calls; each as the single request would have been answered.",
        }
    }
)
ProblemDocument = {
    "type": "object",
    "properties": {
        "type": {"enum": [f"urn:envsuite:problem:{kind}" for kind in TITLES]},
        "title": _TEXT,
        "status": {"type": "integer"},
        "detail": _TEXT,
        "error": {**_TEXT, "description": "Name of the exception that the Python client raises."},
        "field": {**_TEXT, "description": "The field of the request that is wrong, e.g. calls.0.name."},
        "retry_after": {"type": "integer", "description": "Seconds, as the header Retry-After."},
    },
    "required": ["type", "title", "status", "detail", "error"],
}
ANSWERS: Mapping[str, dict[str, Any]] = {
    "Tool": Tool,
    "Description": Description,
    "Listing": Listing,
    "Tasks": Tasks,
    "Session": Session,
    "Begun": Begun,
    "Stepped": Stepped,
    "Snapshot": Snapshot,
    "Restored": Restored,
    "Proposal": Proposal,
    "IdentifiedTasks": IdentifiedTasks,
    "Results": Results,
    "Problem": ProblemDocument,
}


@cache
def _validator(schema: bytes) -> jsonschema_rs.Validator:
    return make_validator(orjson.loads(schema))


class Checker:
    """Checks values against one JSON Schema.

    Args:
        schema: A schema without references.
        field: Prefix of the names of fields.
    """

    def __init__(self, schema: Mapping[str, Any], field: str = "") -> None:
        self._valid = _validator(orjson.dumps(schema))
        self._field = field

    def __call__(self, value: object) -> None:
        """Checks ``value``.

        Raises:
            HttpProblem: It does not fit the schema; ``field`` says where.
        """
        if self._valid.is_valid(value):
            return
        error = next(iter(self._valid.iter_errors(value)))
        where = ".".join([*filter(None, [self._field]), *(str(part) for part in error.instance_path)])
        message = error.message if len(error.message) <= 500 else error.message[:499] + "…"
        detail = f"{where or 'body'}: {message}"
        raise HttpProblem(422, "invalid", detail, field=where or "body")


REQUEST_CHECKS = {name: Checker(schema) for name, schema in REQUESTS.items()}


def parse_body(op: str, body: bytes) -> dict[str, Any]:
    """Parses and checks the body of a request ``op``.

    Raises:
        HttpProblem: The body is not JSON, or does not fit the schema.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise HttpProblem(400, "malformed", f"the body is not JSON: {error}", field="body") from error
    REQUEST_CHECKS[op](value)
    return value  # type: ignore[no-any-return]
