"""Measures by which layer, pooling and radius BiPACE should see states (appendices F, H of its paper).

From the episodes that a run has saved, one forward pass reads the hidden states of all layers before each step. A layer
is as good as a linear probe on it tells the tasks apart, as long as clusters of its states are neither all one nor
all alone. The radius is then that of a median cluster size of 4 to 8 within the groups, as training clusters them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

from envsuite.core.errors import DataError
from envsuite.playing.step import Episode
from trainers.credit.estimators.bipace import BiPACE
from trainers.credit.estimators.clustering import greedy_clusters, unit_vectors
from trainers.credit.estimators.groups import Ints, group_codes
from trainers.policy.config import ModelConfig, Pooling
from trainers.policy.hidden import Fingerprint, at_prompt_ends
from trainers.policy.loading import load_model
from trainers.settings import ConfigError, checked
from trainers.steps import StepTable
from trainers.steps.columns import EMBEDDING
from trainers.steps.parquet import episode_files, read_episodes

RADII = (0.05, 0.10, 0.15, 0.20)
"""Radii that the paper's scan tries."""
LEAST_CLUSTERS = 5
"""Fewest clusters over all tasks; with more kinds of tasks, one less than there are (paper: 5, for six families)."""
BUDGET = 16384
"""Most tokens of one forward pass."""
States = dict[Fingerprint, NDArray[np.float32]]


@dataclass(frozen=True)
class Candidate:
    """One candidate: a fingerprint and a radius, with the measures of its clusters."""

    fingerprint: Fingerprint
    radius: float
    clusters: int
    """Number of clusters over all steps, whatever their task."""
    singletons: float
    """Share of the steps alone in their cluster."""
    accuracy: float
    """Share of the steps of held-out episodes whose task the linear probe names."""

    def resolves(self, least: int) -> bool:
        """Whether the partition is neither too coarse nor all singletons."""
        return self.clusters >= least and self.singletons < 1.0


def scan(table: StepTable, states: States, task: Ints, radii: Sequence[float]) -> list[Candidate]:
    """Measures every fingerprint with every radius.

    Args:
        table: Steps.
        states: Hidden state of each step, (N, D), by fingerprint.
        task: Code of each step's task, (N,).
        radii: Cosine distances.

    Raises:
        DataError: No task was played twice, so that nothing can be held out.
    """
    held_out = _held_out(table, task)
    everywhere = np.zeros(len(table), np.int64)
    candidates = []
    for fingerprint, values in states.items():
        accuracy = probe_accuracy(values, task, held_out)
        vectors = unit_vectors(table.with_columns(**{EMBEDDING: values}))
        for radius in radii:
            sizes = np.bincount(greedy_clusters(vectors, everywhere, radius))
            alone = float((sizes == 1).sum() / len(table))
            candidates.append(Candidate(fingerprint, radius, len(sizes), alone, accuracy))
    return candidates


def choose(candidates: Sequence[Candidate], least: int) -> Candidate:
    """Returns the candidate with the most accurate probe among those whose partition resolves something.

    Ties go to the pooling ``last``, then to the layer nearest the output.

    Raises:
        DataError: No partition resolves anything.
    """
    fit = [candidate for candidate in candidates if candidate.resolves(least)]
    if not fit:
        raise DataError(
            f"no layer has a partition of at least {least} clusters that are not all singletons; try other --radii "
            f"(clusters found: {sorted({candidate.clusters for candidate in candidates})})"
        )
    return max(fit, key=lambda c: (c.accuracy, c.fingerprint.pooling == "last", c.fingerprint.layer))


def probe_accuracy(states: NDArray[np.float32], task: Ints, held_out: NDArray[np.bool_]) -> float:
    """Accuracy of a linear classifier (ridge regression on one-hot tasks) on the rows that it has not seen.

    Args:
        states: (N, D).
        task: Codes, (N,).
        held_out: Rows that are tested on, (N,).
    """
    train_states = states[~held_out].astype(np.float64)
    scale = np.maximum(train_states.std(0), 1e-6)
    columns = np.hstack([(states - train_states.mean(0)) / scale, np.ones((len(states), 1))])
    train, test = columns[~held_out], columns[held_out]
    target = np.eye(int(task.max()) + 1)[task[~held_out]]
    # In as many unknowns as there are rows: often fewer than columns.
    gram = train @ train.T + 0.01 * len(train) * np.eye(len(train))
    weights = train.T @ np.linalg.solve(gram, target)
    return float(((test @ weights).argmax(1) == task[held_out]).mean())


def _held_out(table: StepTable, task: Ints) -> NDArray[np.bool_]:
    """Every second episode of each task."""
    out = np.zeros(len(table), np.bool_)
    for code in np.unique(task):
        out |= np.isin(table.episode_id, np.unique(table.episode_id[task == code])[1::2])
    if not out.any():
        raise DataError("every task was played once only; the probe needs groups of at least two episodes")
    return out


def layers_of(model: int) -> list[int]:
    """Returns the layers to try, from the end: all of a small model, else every fourth and the last (as the paper)."""
    if model <= 12:
        return list(range(-model, 0))
    return [*range(4 - model, -1, 4), -1]


def load_steps(run: Path, most: int) -> tuple[StepTable, Ints]:
    """Steps of whole groups from the first iterations of a run, about ``most``, and the kind of each step's task.

    Kinds are task types (ALFWorld's families, as in the paper), or the tasks themselves where all are of one type.

    Raises:
        DataError: The run has saved no episode that did not fail.
    """
    episodes: list[Episode] = []
    for file in episode_files(run / "episodes", "iteration-*"):
        groups: dict[int, list[Episode]] = {}
        for episode in read_episodes(file):
            if episode.error is None and not episode.greedy:
                groups.setdefault(episode.group_id, []).append(episode)
        for group in groups.values():
            if sum(len(episode.steps) for episode in episodes) < most:
                episodes += group
    if not episodes:
        raise DataError(f"{run / 'episodes'}: no episodes of training there; train first, with episodes_every: 1")
    types = {episode.task_type for episode in episodes}
    names = [episode.task_type if len(types) > 1 else episode.task_id for episode in episodes for _ in episode.steps]
    return StepTable.from_episodes(episodes), group_codes(np.array(names, object))


def _model_of(run: Path, path: str | None) -> ModelConfig:
    file = run / "config.yaml"
    try:
        settings: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))["model"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise ConfigError(f"{file}: cannot be read ({error}); give the folder of a run") from error
    return checked(ModelConfig, {**settings, "path": path} if path is not None else settings)


def _markdown(candidates: Sequence[Candidate], choice: Candidate) -> str:
    lines = ["| layer | pooling | ε | clusters | singletons | probe accuracy | |", "|---|---|---|---|---|---|---|"]
    for c in candidates:
        mark = "chosen" if c.fingerprint == choice.fingerprint else ""
        lines.append(
            f"| {c.fingerprint.layer} | {c.fingerprint.pooling} | {c.radius:g} | {c.clusters} | {c.singletons:.3f} "
            f"| {c.accuracy:.3f} | {mark} |"
        )
    return "\n".join(lines) + "\n"


def calibrate(run: Path, path: str | None, steps: int, radii: Sequence[float], poolings: Sequence[Pooling]) -> str:
    """The table of candidates and the settings to take, as Markdown.

    Args:
        run: Folder of a run that saved its episodes.
        path: Folder of a model; by default the one that the run began with.
        steps: About how many steps are read.
        radii: Cosine distances to try.
        poolings: Poolings to try.

    Raises:
        ConfigError: The folder is not that of a run.
        DataError: The model or the episodes cannot be read, or no layer tells the tasks apart.
    """
    settings = _model_of(run, path)
    table, task = load_steps(run, steps)
    model = load_model(settings)
    torch.nn.Module.to(model, "cuda" if torch.cuda.is_available() else "cpu")
    model.train(False)
    layers, dtype = layers_of(int(model.config.num_hidden_layers)), settings.compute_dtype
    fingerprints = [Fingerprint(layer, pooling) for pooling in poolings for layer in layers]
    hidden_states = at_prompt_ends(model, table, fingerprints, budget=BUDGET, compute_dtype=dtype)
    states = dict(zip(fingerprints, hidden_states, strict=True))
    tasks = int(task.max()) + 1
    candidates = scan(table, states, task, radii)
    candidate = choose(candidates, max(LEAST_CLUSTERS, tasks - 1))
    best = candidate.fingerprint
    radius = BiPACE(radius=None).calibrate(table.with_columns(**{EMBEDDING: states[best]})).radius
    options = {"layer": best.layer, "pooling": best.pooling, "radius": radius}
    advice = yaml.safe_dump({"method": {"options": options}}, sort_keys=False)
    return (
        f"{len(table)} steps of {tasks} kinds of tasks; a probe that guesses is right for {1 / tasks:.3f} of them.\n\n"
        f"{_markdown(candidates, candidate)}\nSettings:\n\n{advice}"
    )
