"""Losses, their aggregation, divergence from a reference, reward shapers, filters, replay.

Importing the package does not import torch; the losses are in :mod:`trainers.objectives.policy_loss`.
"""

from trainers.objectives.aggregation import BatchTotals, token_weights
from trainers.objectives.config import ObjectiveConfig
from trainers.objectives.filters import FILTERS, Filter
from trainers.objectives.replay import ReplayConfig
from trainers.objectives.scpo import SCPO
from trainers.objectives.shapers import SHAPERS, Shaper
from trainers.objectives.spear import Spear

__all__ = [
    "FILTERS",
    "SCPO",
    "SHAPERS",
    "BatchTotals",
    "Filter",
    "ObjectiveConfig",
    "ReplayConfig",
    "Shaper",
    "Spear",
    "token_weights",
]
