"""The names of all metrics, and ``metrics.jsonl``: one JSON object per line, one line per iteration or evaluation.

``python -m trainers.report.metrics`` prints ``docs/metrics.md``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from envsuite.core.errors import DataError, UsageError, unknown
from envsuite.data.files import file_errors, write_atomically

_LOG = logging.getLogger(__name__)
METRICS: dict[str, str] = {
    "train/success": "Share of the training episodes that solved their task, 0 to 1.",
    "train/task_success": "Mean success rate that the iteration's tasks had before it (curriculum success), 0 to 1.",
    "train/score": "Mean graded result of the training episodes, 0 to 1.",
    "train/return": "Mean undiscounted sum of the environment's rewards of an episode.",
    "train/shaped_return": "Mean undiscounted sum of an episode's rewards after shaping.",
    "train/valid_actions": "Share of the steps whose action was well-formed and executable, 0 to 1.",
    "train/parsed": "Share of the completions that parsed to an action, 0 to 1.",
    "train/episode_length": "Mean number of steps of an episode.",
    "train/prompt_length": "Mean number of tokens of a step's prompt.",
    "train/response_length": "Mean number of tokens of a step's response.",
    "train/response_cut": "Share of the responses that reached the token limit, 0 to 1.",
    "train/horizon": "Share of the episodes that were cut at the step limit or at their token limit, 0 to 1.",
    "train/step_limit": "Most steps of an episode that begins in the iteration (curriculum horizon).",
    "train/context_truncated": "Share of the episodes cut because the next prompt had no room in the context, 0 to 1.",
    "train/token_limit": "Share of the episodes that were cut at their token limit (rollout.episode_tokens), 0 to 1.",
    "train/prompt_cut": "Share of the prompts that lost their first tokens (prompt.truncate: left), 0 to 1.",
    "train/tool_calls": "Mean number of tool calls of a step; 0 where the completion does not parse.",
    "train/repeated_actions": "Share of the steps that take the action of the step before, or one that their episode "
    "took in the same state before, 0 to 1.",
    "train/top_action": "Share of the parsed actions that are the most frequent one, 0 to 1.",
    "train/top_token": "Share of the response tokens that are the most frequent one, 0 to 1.",
    "train/version_min": "Optimiser steps that the oldest weights had seen which sampled a token of the iteration.",
    "train/version_max": "The same of the newest.",
    "train/mixed_versions": "Share of the episodes whose tokens were sampled by more than one version, 0 to 1.",
    "train/episodes": "Number of episodes of the iteration, failed ones included.",
    "train/failed": "Number of episodes that failed each time (crash, deadline, no answer) and were left out.",
    "train/repeated": "Number of times that an episode was started again because environment or engine had failed.",
    "train/dropped_tokens": "Response tokens sampled for episodes that failed or were started again, or too late.",
    "train/live_tokens": "Share of the sampled response tokens that belong to episodes that are trained on, 0 to 1.",
    "train/groups": "Number of groups (tasks) of the iteration.",
    "train/zero_variance_groups": "Share of the groups whose episodes all have the same return, 0 to 1: no signal.",
    "train/steps": "Number of steps trained on, after the filters.",
    "train/filtered": "Share of the steps that the filters left out, 0 to 1.",
    "train/tokens": "Number of response tokens trained on.",
    "train/computed_tokens": "Tokens that the update's passes computed, prompts included, each once a micro-batch.",
    "train/row_cost": "Of a model computed row by row: the same, without padding, over the tokens of trees.",
    "train/idle_rows": "Share of the steps that no pass computed, as nothing in the loss depends on them, 0 to 1.",
    "train/sampled_tokens": "Response tokens sampled in this iteration; those that episodes share count once.",
    "train/tokens_total": "Number of response tokens sampled since the run began.",
    "train/loss": "Mean value of the whole objective over the optimiser steps.",
    "train/policy_loss": "The objective's policy term alone.",
    "train/value_loss": "The objective's critic term alone.",
    "train/value_clip_fraction": "Share of the critic's values where the clip of its loss was active, 0 to 1.",
    "train/value_grad_norm": "Mean L2 norm of the critic's gradient before clipping.",
    "train/grad_norm": "Mean L2 norm of the gradient before clipping.",
    "train/skipped_steps": "Optimiser steps of the iteration that were skipped: loss or gradient was not finite.",
    "train/kl": "Estimated KL divergence from the reference policy, nats per token.",
    "train/approx_kl": "Estimated KL divergence of the updated policy from the sampling policy, nats per token.",
    "train/clip_fraction": "Share of the response tokens where the clip was active, 0 to 1.",
    "train/ratio_mean": "Mean importance ratio of updated to sampling policy.",
    "train/ratio_max": "Greatest importance ratio of updated to sampling policy.",
    "train/entropy": "Mean entropy of the policy at the response tokens, nats; of rows that teach nothing estimated by "
    "the engine's log-probabilities of what it sampled.",
    "train/selected_fraction": "Share of the response tokens that clip_cov left out or kl_cov penalised, 0 to 1.",
    "train/logprob_gap": "Mean absolute difference of log-probability, engine to trainer, before the update, nats.",
    "train/balance_loss": "Balance loss of a mixture, with its coefficient (model.balance_coef).",
    "train/rerouted_tokens": "Of a mixture: share of the tokens that the trainer's routers send to other experts than "
    "the engine's did, in any layer, before the update.",
    "train/rerouted_choices": "The same of tokens in single layers.",
    "train/engine_weight_mean": "Mean of trainer's over engine's probability, before truncation (optim.correction).",
    "train/engine_weight_max": "Greatest of these weights, before truncation.",
    "train/engine_weight_cut": "Share of the response tokens whose weight was truncated or masked, 0 to 1.",
    "train/lr": "Learning rate of the last optimiser step.",
    "train/optimizer_steps": "Optimiser steps since the run began; equals the policy version.",
    "train/staleness": "Mean number of optimiser steps that the policy had taken since it sampled a response token.",
    "train/advantage_mean": "Mean advantage of a step.",
    "train/advantage_std": "Standard deviation of the steps' advantages.",
    "tokens/rows": "Tokens of all prompts and responses of the iteration: to compute if rows share nothing.",
    "tokens/distinct": "Nodes of the trie of these rows: to compute if rows share what they begin with alike. "
    "The trie is that of the rows of one process; the counts of all are added.",
    "tokens/least": "The same if each prompt began with all that it has in common with the step before it.",
    "tokens/prefill": "Share of the prompts' tokens that the first process's engine hf computed; it had the others.",
    "tokens/shared": "Share of the tokens that need not be computed again, 1 - distinct / rows, 0 to 1.",
    "tokens/shareable": "The same of the best order of the prompts' parts, 1 - least / rows.",
    "invalid/cut": "Share of the steps whose completion does not parse, and reached the token limit, 0 to 1.",
    "invalid/unparsed": "Share of the steps whose completion does not parse, though it ended by itself, 0 to 1.",
    "invalid/tool": "Share of the steps that call a tool that does not exist, 0 to 1.",
    "invalid/arguments": "Share of the steps whose arguments do not fit the tool, 0 to 1.",
    "invalid/world": "Share of the steps whose well-formed action the world refuses, 0 to 1.",
    "time/rollout": "Seconds spent on sampling; has engine, env, codec, longest_episode, its sync and other_processes.",
    "time/engine": "Seconds in which the engine generated; the training device waited for its tokens.",
    "time/env": "Seconds in which the engine had nothing to do: all running episodes waited for their environments.",
    "time/codec": "Seconds in which the engine had nothing to do while prompts were written and completions parsed.",
    "time/longest_episode": "Seconds of the rollout times the share of its slots that no episode was left to start in.",
    "time/oracle": "Seconds of `time/rollout` in which episodes were continued (`oracle_mc`).",
    "time/sync": "Seconds in which the engine took the policy's weights.",
    "time/other_processes": "Seconds of waiting for the other processes of the run.",
    "time/estimator": "Seconds on step tables, shaping, values and hidden states, advantages and filters.",
    "time/update": "Seconds on forward and backward passes and optimiser steps, of policy and critic.",
    "time/eval": "Seconds spent on evaluation.",
    "time/log": "Seconds spent on metrics, episode files and the display.",
    "time/rest": "Seconds of the iteration in none of the other parts; with them, without time/rollout, time/total.",
    "time/total": "Seconds of the whole iteration.",
    "idle/engine": "Share of the iteration in which the engine generated nothing, empty slots included, 0 to 1; "
    "with staleness, of the time since the last update's groups.",
    "idle/device": "Share of the iteration in which the training device neither credited nor updated, 0 to 1.",
    "cpu/rollout": "CPU seconds of the first process, all its threads together, in what `time/rollout` covers.",
    "cpu/estimator": "The same in what `time/estimator` covers.",
    "cpu/update": "The same in what `time/update` covers.",
    "rate/tokens": "Response tokens sampled per second of rollout; with staleness, per second of the iteration.",
    "rate/steps": "Environment steps per second of rollout.",
    "rate/tool_calls": "Tool calls per second of rollout.",
    "memory/rss": "Peak resident memory of the first process, GiB.",
    "memory/gpu": "Peak GPU memory allocated by the first process, GiB.",
    "eval/success": "Share of the evaluation episodes that solved their task, 0 to 1.",
    "eval/low": "Lower bound of its 95 % interval, clustered by task where tasks are repeated.",
    "eval/high": "Upper bound of its 95 % interval.",
    "eval/success/<type>": "The same for one task type, e.g. `eval/success/depth-2`.",
    "eval/score": "Mean graded result of the evaluation episodes, 0 to 1.",
    "eval/score/<type>": "The same for one task type.",
    "eval/episode_length": "Mean number of steps of an evaluation episode.",
    "eval/episodes": "Number of evaluation episodes.",
    "eval/tasks": "Number of different tasks that they played.",
    "eval/context_truncated": "Number of evaluation episodes cut because the next prompt had no room in the context.",
    "eval/failed": "Number of evaluation episodes that failed (crash, deadline); they are in no rate.",
    "eval/unanswered": "Number of evaluation episodes that the engine gave no answer for; they are not counted.",
    "env/<name>": 'Mean of what the environment reports in `info["metrics"]` at the end of an episode.',
    "diag/<name>": "Diagnostics of the estimator; each method's page says what its names mean.",
    "term/<name>/touched": "Share of the steps where this term of the advantage is not 0, 0 to 1. "
    "An advantage that is not a sum has the one term `advantage`.",
    "term/<name>/abs": "Mean magnitude of this term, weighted as it enters the advantage.",
    "term/<name>/group_size": "Mean size of the groups within which it compares: of steps, or of episodes.",
    "term/<name>/singletons": "Share of these steps or episodes that are alone in their group, 0 to 1.",
    "shape/<name>": "What the reward shapers tell, as means over the steps; each one's page says what its names mean.",
    "filter/<name>": "Share of the steps that this filter leaves out, 0 to 1.",
    "filter/<name>_groups": "Number of groups that it leaves out whole.",
    "filter/refill_rounds": "Number of further rounds of rollout that replaced groups without variance.",
    "filter/refill_groups": "Number of groups played in these rounds.",
    "filter/refill_lacking": "Number of groups by which the batch is still too small.",
    "oracle/states": "Number of states whose value continuations measured.",
    "oracle/episodes": "Number of continuations.",
    "oracle/failed": "Number of them that failed (crash, deadline); they are in no value.",
    "oracle/tokens": "Response tokens sampled in continuations; they are in no other count.",
    "async/staleness": "Mean over the groups: updates that changed the weights since the group's oldest token.",
    "async/staleness_max": "Greatest of these numbers; at most rollout.staleness.",
    "async/dropped_groups": "Number of groups that were older than rollout.staleness, dropped and replaced.",
    "async/whole_groups": "Number of groups that have ended and wait for a later update.",
    "async/open_groups": "Number of groups that are played, or wait to be.",
    "async/update_idle": "Share of the time between two updates' groups in which the update waited for them, 0 to 1.",
    "alarms/standing": "Number of alarms that were raised and whose signs last (docs/alarms.md).",
    "replay/<name>": "Self-imitation: the buffer, what it gives to the update, the schedules; see the page of SPEAR.",
}
"""Every metric name and its one-line description with its unit; ``<…>`` stands for any further text."""

_FAMILIES = tuple(name.partition("<")[0] for name in METRICS if "<" in name)


def is_metric(name: str) -> bool:
    """Whether ``name`` is one of :data:`METRICS` or belongs to one of its families."""
    in_family = any(name.startswith(family) and len(name) > len(family) for family in _FAMILIES)
    return in_family or (name in METRICS and "<" not in name)


def is_share(name: str) -> bool:
    """Whether a metric lies between 0 and 1."""
    return "0 to 1" in METRICS.get(name, "") or name.startswith(("eval/success/", "eval/score/"))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a metrics file, each with ``iteration`` and metric values (``None`` for non-finite ones).

    Drops an incomplete last line.

    Raises:
        DataError: The file is missing, or another line is damaged.
    """
    with file_errors(path):
        lines = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines[:-1], start=1):  # text after the last newline is an incomplete line
        try:
            records.append(_record(line))
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}") from error
    return records


def _record(line: bytes) -> dict[str, Any]:
    """Reads one line of a metrics file.

    Raises:
        ValueError: It is damaged; says how.
    """
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(record, dict) or not isinstance(record.get("iteration"), int):
        raise ValueError("not a metrics record (no integer 'iteration')")
    return record


def drop_damaged(path: Path, lines: int, iteration: int) -> int:
    """Removes the damaged lines of a metrics file, with one warning, so that a run can go on from a good checkpoint.

    Args:
        path: The file; a missing one counts as empty.
        lines: Number of its lines when the checkpoint was written.
        iteration: Iterations finished by then.

    Returns:
        The number of those lines that are left; they are the first ones.

    Raises:
        DataError: The file cannot be read or written.
    """
    with file_errors(path, "written"):
        file_lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        sound: list[bytes] = []
        count = 0
        for number, line in enumerate(file_lines):
            try:
                count += _record(line)["iteration"] <= iteration and number < lines
                sound.append(line)
            except ValueError:
                continue
        if len(sound) < len(file_lines) or not path.exists():
            write_atomically(path, b"".join(line + b"\n" for line in sound))
    if count < lines or len(sound) < len(file_lines):
        _LOG.warning(
            "%s: %d damaged line(s) dropped; %d of the %d lines that the checkpoint knows are left",
            path, len(file_lines) - len(sound), count, lines,
        )  # fmt: skip
    return count


class MetricsWriter:
    """Appends lines to a metrics file; each is on disk when :meth:`write` returns.

    Opening a file removes an incomplete last line.

    Args:
        path: The file; its folder is created if necessary.

    Raises:
        DataError: The file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        with file_errors(self.path, "written"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                self._replace(self.path.read_bytes())
            self._file = self.path.open("ab")

    def write(self, iteration: int, values: Mapping[str, float]) -> None:
        """Appends one line.

        Args:
            iteration: Number of the iteration, from 1; 0 for measurements before training.
            values: Metric values by name; non-finite ones become ``null``.

        Raises:
            UnknownName: A name is not in :data:`METRICS`.
            UsageError: A value is not a number.
            DataError: The line cannot be written (disk full).
        """
        for name in values:
            if not is_metric(name):
                raise unknown("metric", name, METRICS)
        try:
            line = orjson.dumps({"iteration": iteration, **values}, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"
        except TypeError as error:
            raise UsageError(f"metrics of iteration {iteration}: {error}") from error
        with file_errors(self.path, "written"):
            self._file.write(line)
            self._file.flush()

    def truncate(self, lines: int) -> None:
        """Keeps the first ``lines`` lines: those before the checkpoint from which a run resumes.

        The file is replaced atomically: a crash leaves the old one.

        Raises:
            DataError: The file has fewer lines, or cannot be written.
        """
        content = self.path.read_bytes().split(b"\n")[:-1]
        if len(content) < lines:
            raise DataError(f"{self.path}: has {len(content)} lines, the checkpoint was written after {lines}")
        self._file.close()
        with file_errors(self.path, "written"):
            self._replace(b"".join(line + b"\n" for line in content[:lines]))
            self._file = self.path.open("ab")

    def _replace(self, content: bytes) -> None:
        write_atomically(self.path, content[: content.rfind(b"\n") + 1])

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


_GROUPS = {
    "train": "Training, one value per iteration",
    "invalid": "Invalid actions, by the stage that refuses them; together with `train/valid_actions` they make 1",
    "tokens": "Tokens of the iteration, and what they share ([how](prompting.md#prompts-made-to-share))",
    "time": "Time, of the first process. All but `time/{rollout,oracle,eval}` are disjoint and sum to `time/total`",
    "idle": "Idle time, of the first process; `time/…` has the causes",
    "cpu": "Time of the processor",
    "rate": "Throughput",
    "memory": "Memory",
    "eval": "Evaluation",
    "env": "Of the environment",
    "diag": "Of the method",
    "term": "Terms of the advantage",
    "shape": "Of the reward shapers",
    "filter": "Of the filters",
    "oracle": "Of the continuations that measure values (`oracle_mc`)",
    "async": "Of asynchronous training (`rollout.staleness` above 0)",
    "alarms": "Alarms",
    "replay": "Of the replay buffer",
}


def documentation() -> str:
    """Returns the page ``docs/metrics.md``."""
    parts = [
        "# Metrics\n",
        "Every line of `metrics.jsonl` is a JSON object with `iteration` (0 is before training) and values under the",
        "names below; other names do not occur. `<…>` stands for any further text. A value that is not finite is",
        "`null`. Read the file with any JSON-lines reader, or with `trainers.report.metrics.read_metrics`.\n",
        "This page is made by `python -m trainers.report.metrics > docs/metrics.md`. TensorBoard, Weights & Biases and",
        "trackio show the same names: [watching a run](watching.md).",
    ]
    for group, title in _GROUPS.items():
        rows = [(name, text) for name, text in METRICS.items() if name.startswith(f"{group}/")]
        parts += [f"\n## {title}\n", "| name | meaning |", "|---|---|", *(f"| `{n}` | {text} |" for n, text in rows)]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(documentation())
