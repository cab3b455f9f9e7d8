"""Results as logs of inspect_ai, for its viewer and its data frames."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from envsuite.core.errors import require_extra
from envsuite.data.files import file_errors
from envsuite.evaluation.results import Conditions, EpisodeResult


def write_inspect_logs(results: Sequence[EpisodeResult], folder: Path, time: datetime | None = None) -> list[Path]:
    """Writes a log of inspect_ai for each evaluation, i.e. for all results of the same conditions.

    A task is a sample, a seed an epoch, success and score are the scores. An episode that the infrastructure broke is a
    sample with an error and without scores, so that inspect_ai's own statistics leave it out, too.

    Args:
        results: The results of any number of evaluations.
        folder: Where the logs go, one file each; made if need be. Files of the same evaluations are replaced.
        time: Time to enter in the logs; by default now.

    Returns:
        The files.

    Raises:
        MissingExtra: inspect_ai is not installed.
        DataError: The folder cannot be written.
    """
    with require_extra("logs of inspect_ai need it", "inspect"):
        from inspect_ai.log import write_eval_log
    when = (datetime.now(UTC) if time is None else time).isoformat(timespec="seconds")
    files = []
    for key, group in groupby(sorted(results, key=_file_stem), key=_file_stem):
        file = folder / f"{key}.eval"
        with file_errors(file, "written"):
            folder.mkdir(parents=True, exist_ok=True)
            write_eval_log(_log(list(group), when), str(file))
        files.append(file)
    return files


def _file_stem(result: EpisodeResult) -> str:
    """Returns a file name for the evaluation of a result: what people look for, and a hash of all conditions."""
    conditions = result.conditions
    name = "-".join((conditions.env_id, conditions.split, conditions.policy))
    plain = "".join(character if character.isalnum() or character in "-._" else "_" for character in name)
    return f"{plain[:100]}-{_digest(conditions)}"


def _digest(conditions: Conditions) -> str:
    return hashlib.sha256(conditions.canonical).hexdigest()[:12]


def _log(results: Sequence[EpisodeResult], time: str) -> Any:
    """Returns the log of one evaluation."""
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalResults, EvalSpec, EvalStats
    from inspect_ai.model import GenerateConfig

    conditions = results[0].conditions
    epochs = len({result.seed for result in results})
    sound = [result for result in results if result.broken is None]
    names = ("temperature", "top_p", "max_tokens")
    options = {name: conditions.sampling[name] for name in names if name in conditions.sampling}
    spec = EvalSpec(
        eval_id=_digest(conditions),
        run_id=_digest(conditions),
        created=time,
        task=f"{conditions.env_id}-{conditions.split}",
        task_id=_digest(conditions),
        task_version=conditions.panel[:12],
        task_args={"source": conditions.source, "split": conditions.split, **conditions.env_options},
        solver=str(conditions.prompt.get("baseline", conditions.policy)),
        dataset=EvalDataset(
            name=f"{conditions.env_id} {conditions.split} ({conditions.source})",
            samples=conditions.panel_size if conditions.sample is None else conditions.sample,
            sample_ids=sorted({result.task_id for result in results}),
            shuffled=False,
        ),
        model=conditions.model or f"none/{conditions.policy}",
        model_generate_config=GenerateConfig(**options),
        config=EvalConfig(epochs=epochs, message_limit=None),
        packages={name: str(version) for name, version in conditions.versions.items()},
        metadata=asdict(conditions),
    )
    return EvalLog(
        status="success",
        eval=spec,
        results=EvalResults(total_samples=len(results), completed_samples=len(sound), scores=_scores(sound)),
        stats=EvalStats(started_at=time, completed_at=time),
        samples=[_sample(result) for result in results],
    )


def _scores(sound: Sequence[EpisodeResult]) -> list[Any]:
    """Returns the means over all episodes that ended, each of which counts once."""
    from inspect_ai.log import EvalMetric, EvalScore

    if not sound:
        return []
    means = {
        "success": sum(result.success for result in sound) / len(sound),
        "score": sum(result.score for result in sound) / len(sound),
    }
    return [
        EvalScore(name=name, scorer=name, scored_samples=len(sound), metrics={"mean": EvalMetric(name="mean", value=x)})
        for name, x in means.items()
    ]


def _sample(result: EpisodeResult) -> Any:
    """Returns the sample of an episode."""
    from inspect_ai.log import EvalError, EvalSample
    from inspect_ai.model import ModelUsage
    from inspect_ai.scorer import Score

    metadata = asdict(result)
    del metadata["conditions"]
    conditions = result.conditions
    usage = ModelUsage(
        input_tokens=result.prompt_tokens,
        output_tokens=result.answer_tokens,
        total_tokens=result.prompt_tokens + result.answer_tokens,
        total_cost=result.cost,
    )
    error, scores = None, None
    if result.broken is None:
        scores = {"success": Score(value="C" if result.success else "I"), "score": Score(value=result.score)}
    else:
        error = EvalError(message=result.broken, traceback="", traceback_ansi="")
    return EvalSample(
        id=result.task_id,
        epoch=result.seed + 1,
        input=result.task_id,
        target="",
        scores=scores,
        metadata=metadata,
        model_usage={conditions.model: usage} if conditions.model is not None else {},
        total_time=result.seconds,
        error=error,
    )
