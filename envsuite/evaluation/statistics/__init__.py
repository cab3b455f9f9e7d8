"""Statistics of evaluations: intervals, paired tests, corrections, power, repeated attempts.

Tasks are the independent units: episodes of one task are correlated, whichever the seed. All functions need NumPy only.
"""

from envsuite.evaluation.statistics.attempts import pass_at_k, pass_hat_k
from envsuite.evaluation.statistics.intervals import (
    cluster_bootstrap,
    cluster_bootstrap_bounds,
    clustered_wilson,
    clustered_wilson_bounds,
    over_seeds,
    score_interval,
    student_t95,
    wilson,
)
from envsuite.evaluation.statistics.paired import (
    benjamini_hochberg,
    holm,
    paired_permutation,
    paired_rates_interval,
    paired_scores_bounds,
)
from envsuite.evaluation.statistics.power import (
    Correlations,
    detectable_difference,
    estimate_correlations,
    tasks_needed,
)

__all__ = [
    "Correlations",
    "benjamini_hochberg",
    "cluster_bootstrap",
    "cluster_bootstrap_bounds",
    "clustered_wilson",
    "clustered_wilson_bounds",
    "detectable_difference",
    "estimate_correlations",
    "holm",
    "over_seeds",
    "paired_permutation",
    "paired_rates_interval",
    "paired_scores_bounds",
    "pass_at_k",
    "pass_hat_k",
    "score_interval",
    "student_t95",
    "tasks_needed",
    "wilson",
]
