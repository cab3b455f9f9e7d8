"""Credit-assignment methods, one file each.

Importing the package enters every method in :data:`ESTIMATORS`.
"""

from trainers.credit.estimators import (
    bipace,
    dapo,
    dr_grpo,
    g2po,
    gagpo,
    gigpo,
    gpg,
    graphgpo,
    grpo,
    gspo,
    hgpo,
    opo,
    oracle_mc,
    pgpo,
    ppo,
    reinforce_pp,
    reinforce_pp_baseline,
    remax,
    rewardflow,
    rloo,
    steppo,
)
from trainers.credit.estimators.base import ESTIMATORS, Advantage, Calibrating, Estimator, ValueBased, register

__all__ = [
    "ESTIMATORS",
    "Advantage",
    "Calibrating",
    "Estimator",
    "ValueBased",
    "bipace",
    "dapo",
    "dr_grpo",
    "g2po",
    "gagpo",
    "gigpo",
    "gpg",
    "graphgpo",
    "grpo",
    "gspo",
    "hgpo",
    "opo",
    "oracle_mc",
    "pgpo",
    "ppo",
    "register",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "remax",
    "rewardflow",
    "rloo",
    "steppo",
]
