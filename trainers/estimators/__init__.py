"""Credit-assignment methods, one file each.

Importing the package enters every method in :data:`ESTIMATORS`.
"""

from trainers.estimators import dr_grpo, gigpo, grpo, reinforce_pp, reinforce_pp_baseline, rloo
from trainers.estimators.base import ESTIMATORS, Advantage, Estimator, register

__all__ = [
    "ESTIMATORS",
    "Advantage",
    "Estimator",
    "dr_grpo",
    "gigpo",
    "grpo",
    "register",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "rloo",
]
