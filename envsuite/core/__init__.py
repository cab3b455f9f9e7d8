"""The contract of all environments."""

from envsuite.core import sharing  # noqa: F401  (lets Gymnasium's AsyncVectorEnv and wrappers take our spaces)
from envsuite.core.env import Observation, Outcome, StepInfo, ToolEnv
from envsuite.core.errors import (
    DataError,
    EnvsuiteError,
    MissingExtra,
    UnknownName,
    UnknownTask,
    UsageError,
    WorkerLost,
)
from envsuite.core.images import Pixels
from envsuite.core.players import Player, unwrap_episode
from envsuite.core.tasks import TaskSet
from envsuite.core.tools import Action, Move, Tool, ToolCall, UnparsedAction

__all__ = [
    "Action",
    "DataError",
    "EnvsuiteError",
    "MissingExtra",
    "Move",
    "Observation",
    "Outcome",
    "Pixels",
    "Player",
    "StepInfo",
    "TaskSet",
    "Tool",
    "ToolCall",
    "ToolEnv",
    "UnknownName",
    "UnknownTask",
    "UnparsedAction",
    "UsageError",
    "WorkerLost",
    "unwrap_episode",
]
