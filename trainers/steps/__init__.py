"""The step records of an episode batch: objects, columns, files."""

from trainers.steps.columns import MissingColumn
from trainers.steps.table import Ragged, StepTable

__all__ = ["MissingColumn", "Ragged", "StepTable"]
