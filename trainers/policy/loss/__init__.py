"""Policy losses, their aggregation, divergence from a reference.

Importing the package does not import torch; the losses are in :mod:`trainers.policy.loss.policy_loss`.
"""

from trainers.policy.loss.aggregation import BatchTotals, token_weights
from trainers.policy.loss.config import Objective, ObjectiveConfig

__all__ = ["BatchTotals", "Objective", "ObjectiveConfig", "token_weights"]
