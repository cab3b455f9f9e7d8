"""Demonstrations: episodes of a player, with all that a trainer of language models needs to imitate them."""

from envsuite.evaluation.demonstrations.demonstration import Demonstration, DemonstrationStep
from envsuite.evaluation.demonstrations.file import read_demonstrations, write_demonstrations
from envsuite.evaluation.demonstrations.messages import FORMS, Form
from envsuite.evaluation.demonstrations.playing import demonstrate, replay

__all__ = [
    "FORMS",
    "Demonstration",
    "DemonstrationStep",
    "Form",
    "demonstrate",
    "read_demonstrations",
    "replay",
    "write_demonstrations",
]
