"""SCPO: credits steps of failed episodes that match steps of a successful one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from trainers.credit.estimators.groups import Floats, Ints
from trainers.credit.estimators.returns import env_reward
from trainers.credit.scorers import SCORERS, Scorer
from trainers.credit.shapers import SHAPERS, Shaper
from trainers.settings import Decay, Fraction, NotNegative, checked
from trainers.steps import StepTable
from trainers.steps.columns import STEP_SCORE

Reference = Literal["longest", "shortest"]
Order = Literal["longest_first", "chronological"]
Score = Callable[[Sequence[tuple[str, str]]], Floats]


def failure_table(similarity: Floats, threshold: float) -> list[int]:
    """Returns, for each position of the reference, where matching resumes after a mismatch (Knuth, Morris, Pratt).

    Args:
        similarity: Similarity of the reference with itself, shape (m, m).
        threshold: Similarity from which on two steps count as equal.

    Returns:
        ``next[j]``: the last position of the longest proper beginning that steps … j end with; -1 where there is none.
    """
    alike = (similarity >= threshold).tolist()
    table, k = [-1] * len(alike), -1
    for j in range(1, len(alike)):
        while k >= 0 and not alike[k + 1][j]:
            k = table[k]
        if alike[k + 1][j]:
            k += 1
        table[j] = k
    return table


def match_credit(
    similarity: Sequence[Sequence[float]],
    table: Sequence[int],
    sequence: Sequence[int],
    *,
    threshold: float,
    base: float,
    monotonic: bool = True,
) -> list[float]:
    """Credit of each step of a failed episode, in the order in which they are taken (SCPO, Algorithm 2), in [0, 1].

    Args:
        similarity: Similarity of the m steps of the reference with u texts, m rows of u numbers.
        table: See :func:`failure_table`.
        sequence: Which of the u texts each step of the failed episode is, in the order in which they are taken.
        threshold: From which similarity on a step matches.
        base: Similarity that is worth nothing; the credit grows linearly from there to 1.
        monotonic: Credit a position of the reference only the first time it is reached.
    """
    credit, j, furthest, last = [0.0] * len(sequence), -1, -1, len(similarity) - 1
    for place, text in enumerate(sequence) if last >= 0 else ():
        while j >= 0 and similarity[j + 1][text] < threshold:
            j = table[j]
        if (alike := similarity[j + 1][text]) >= threshold:
            j += 1
            if j > furthest or not monotonic:
                credit[place] = max(0.0, (alike - base) / (1.0 - base))
            furthest = max(furthest, j)
        if j == last:
            break
    return credit


@SHAPERS.register("scpo")
@dataclass(frozen=True)
class SCPO(Shaper):
    """Semantic credit for failed episodes (SCPO, Algorithm 1), under any method that compares returns to go.

    In a group with a success, the steps of each failed episode are matched, forwards only, with those of a successful
    one, the reference; a match that gets further than any before adds ``alpha`` times its credit to the return to go
    of its step. Returns of episodes stay what they are.
    """

    scorer: str = "exact"
    """Scorer of the similarity of two steps: ``exact``, ``cross_encoder`` (the paper's), ``sentence_embedder``."""
    scorer_options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the scorer: ``path``, ``batch``, ``max_tokens``."""
    alpha: NotNegative = 0.5
    """Weight of the credit, in units of the scaled reward (paper: ALFWorld 0.5, WebShop 1.0, of 10 for a success)."""
    threshold: Fraction = 0.6
    """θ: similarity from which on two steps match."""
    base: Decay = 0.4
    """λ: similarity that is worth nothing."""
    success_above: float = 0.9
    """τ_succ: an episode with a higher return is a success. In units of the environment's own reward, before shaping,
    where a solved task earns 1 (paper: 9.0 of 10 where rewards are graded; any value below 1 where they are not)."""
    reference: Reference = "longest"
    """Successful episode that is the reference; its length counts all its steps."""
    order: Order = "longest_first"
    """Order in which the steps of a failed episode are taken: longest response first, as a batcher that balances
    lengths leaves them (paper), or as they were played."""
    monotonic: bool = True
    """Credit a position of the reference only once; without it every match (the paper's ablation)."""

    needs = ("step_text",)
    """The steps as text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._score  # noqa: B018  (its settings are checked now, its model is loaded when there is a pair to score)

    @property
    def effect(self) -> str | None:
        """The credit of steps, unless its weight is 0."""
        return STEP_SCORE if self.alpha else None

    def __call__(self, steps: StepTable) -> StepTable:
        """Returns the steps with a column ``step_score``, which is added to returns to go."""
        score = self.alpha * self.credit(steps, self._score)
        if STEP_SCORE in steps.extra:
            score = score + steps.extra[STEP_SCORE]
        return steps.with_columns(**{STEP_SCORE: score})

    @cached_property
    def _score(self) -> Scorer:
        """The scorer, kept with its loaded model and cached scores."""
        return checked(SCORERS[self.scorer], self.scorer_options, f"option of scorer {self.scorer}")

    def credit(self, steps: StepTable, score: Score) -> Floats:
        """Credit of each step, shape (N,); ``score`` is asked once for each pair of texts.

        Raises:
            MissingColumn: There is no column ``step_text``.
        """
        texts = steps.column("step_text", "scpo", "the rollout").tolist()
        number = {text: code for code, text in enumerate(dict.fromkeys(text for text in texts if text is not None))}
        code_of = np.array([-1 if text is None else number[text] for text in texts], np.int64)
        valid = code_of >= 0
        plan = [(own[valid[own]], [rows[valid[rows]] for rows in failures]) for own, failures in self.references(steps)]
        codes = [np.unique(code_of[np.concatenate([own, *failures])]) for own, failures in plan]
        queries = [(np.unique(code_of[own]), texts_met) for (own, _), texts_met in zip(plan, codes, strict=True)]
        scores = _Scores(list(number), queries, score)
        out, length = np.zeros(len(steps)), steps.response.lengths
        for (own, failures), texts_met in zip(plan, codes, strict=True):
            similarity = scores(code_of[own], texts_met)
            table = failure_table(similarity[:, np.searchsorted(texts_met, code_of[own])], self.threshold)
            alike = similarity.tolist()
            for rows in failures:
                sequence = rows[np.argsort(-length[rows], kind="stable")] if self.order == "longest_first" else rows
                out[sequence] = match_credit(
                    alike, table, np.searchsorted(texts_met, code_of[sequence]).tolist(),
                    threshold=self.threshold, base=self.base, monotonic=self.monotonic,
                )  # fmt: skip
        return out

    def references(self, steps: StepTable) -> list[tuple[Ints, list[Ints]]]:
        """For each group with a success, the rows of the reference and those of each failed episode, by ``t``."""
        references = []
        reward = env_reward(steps)
        order = np.lexsort((steps.t, steps.episode_id, steps.group_id))
        for group in _runs(steps.group_id[order]):
            episodes = [order[group][run] for run in _runs(steps.episode_id[order[group]])]
            successes = [rows for rows in episodes if reward[rows].sum() > self.success_above]
            failures = [rows for rows in episodes if not reward[rows].sum() > self.success_above]
            if successes:
                choose = max if self.reference == "longest" else min
                references.append((choose(successes, key=len), failures))
        return references


class _Scores:
    """Scores of the pairs of texts that are compared, each pair scored once.

    Args:
        texts: Step texts, by code.
        queries: Distinct codes of a reference, and of the texts that it is compared with.
        score: Scores pairs.
    """

    def __init__(self, texts: Sequence[str], queries: Sequence[tuple[Ints, Ints]], score: Score) -> None:
        self._count = len(texts)
        keys = np.sort(np.concatenate([np.zeros(0, np.int64), *(self._keys(*pair).ravel() for pair in queries)]))
        self._pairs = keys[np.diff(keys, prepend=-1) > 0]  # np.unique hashes, which takes ten times as long
        self._values = score([(texts[key // self._count], texts[key % self._count]) for key in self._pairs.tolist()])

    def __call__(self, reference: Ints, codes: Ints) -> Floats:
        """Returns the scores, shape (len(reference), len(codes))."""
        return self._values[np.searchsorted(self._pairs, self._keys(reference, codes))]

    def _keys(self, first: Ints, second: Ints) -> Ints:
        return first[:, None] * self._count + second


def _runs(keys: Ints) -> list[Ints]:
    """Places of each run of equal keys."""
    return [run for run in np.split(np.arange(len(keys)), np.flatnonzero(np.diff(keys)) + 1) if len(run)]
