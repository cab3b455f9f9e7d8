"""OPD: a teacher scores the tokens that the policy, its student, has sampled."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.credit.estimators.base import Advantage, Estimator, register
from trainers.credit.estimators.groups import mean_of
from trainers.credit.estimators.grpo import GRPO
from trainers.credit.estimators.tokens import finite_tokens
from trainers.settings import NotNegative, Text
from trainers.steps import StepTable
from trainers.steps.columns import OLD, SUPPLIERS, TEACHER


@register("opd")
@dataclass(frozen=True)
class OPD(Estimator):
    """On-policy distillation (Lu 2025): A = log π_teacher - log π_old + w A^E of each sampled token.

    Its first part is minus a sample of the reverse divergence KL(π_old, π_teacher) at the token. π_old is the policy of
    the importance ratio, as in the shaper ``kl_penalty``; A^E is GRPO's.
    """

    teacher: Text | None = None
    """A model of the policy's vocabulary, named as ``model.path`` is, or the address of a vLLM server
    (``http://host:8000``)."""
    task_weight: NotNegative = 0.0
    """w; at 0 no reward is read."""

    needs = (TEACHER, OLD)
    """The log-probabilities of the teacher, and of the policy where the engine's are others."""
    per = "token"
    """Each token has an advantage of its own."""

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per response token.

        Raises:
            MissingColumn: There is no token column ``teacher_logprob``.
            UsageError: One of its values is not finite.
        """
        teacher = finite_tokens(steps, steps.token_column(TEACHER, "opd", SUPPLIERS[TEACHER]), TEACHER)
        gap = teacher - steps.token_extra.get(OLD, steps.logprob).values
        task = self.task_weight * GRPO()(steps).tokens(steps)
        diagnostics = {"reverse_kl": -mean_of(gap)}
        return Advantage(per_token=gap + task, diagnostics=diagnostics, terms={"teacher": gap, "task": task})
