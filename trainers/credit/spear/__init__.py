"""SPEAR (Qin et al. 2025): a curriculum of rewards, and self-imitation of good episodes.

Algorithm 1 of the paper, and where each part stands:

1. Play groups of episodes. Each episode earns outcome + μ(t) · tool calls + format, Eq. 17-21 (``reward``), where μ
   falls along a cosine, Eq. 21 (``schedules``).
2. Any estimator gives the advantages. The policy gradient's loss is that estimator's.
3. Store episodes above the mean of their group, Eq. 6, and the mean of every group, in the buffer (``replay``).
4. While the buffer is not full, go on with 1. A full buffer is replayed (``self_imitation``):
   recalibrate Ã = R - P50 of the latest group means, Eq. 7, and keep the rows with Ã > 0, Eq. 8 (``replay``);
   mask a few tokens of high covariance of log-probability and Ã, Eq. 14-16 (``covariance``);
   add the rows to the update, with a weight that rises along a cosine, Eq. 12 (``schedules``); clear the buffer.
"""

from trainers.credit.spear.reward import Spear

__all__ = ["Spear"]
