"""Logs of inspect_ai, read by inspect_ai itself."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from test_results import BROKEN, CONDITIONS, result

from envsuite.core.errors import DataError
from envsuite.evaluation.inspect_logs import write_inspect_logs

log = pytest.importorskip("inspect_ai.log", reason="inspect_ai is not installed: pip install 'envsuite[inspect]'")
NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


def test_inspect_reads_every_episode_and_counts_as_we_do(tmp_path):
    model = replace(
        CONDITIONS, kind="endpoint", policy="a model, react", model="lab/a-model", sampling={"temperature": 0.4}
    )
    results = [
        result("boat"),
        result("bed", success=False, score=0.25, ending="budget"),
        result("bed", 1, **BROKEN),
        result("boat", conditions=model, prompt_tokens=40, answer_tokens=2, cost=0.5),
    ]
    files = write_inspect_logs(results, tmp_path, NOW)
    by_policy = {one.eval.metadata["policy"]: one for one in (log.read_eval_log(str(file)) for file in files)}
    assert set(by_policy) == {"expert", "a model, react"}

    expert = by_policy["expert"]
    assert (expert.eval.task, expert.eval.task_version) == ("TextCraft-v0-test", "ab" * 6)
    assert (expert.results.total_samples, expert.results.completed_samples) == (3, 2)
    assert {one.name: one.metrics["mean"].value for one in expert.results.scores} == {"success": 0.5, "score": 0.625}
    samples = {(one.id, one.epoch): one for one in expert.samples}
    assert samples["boat", 1].scores["success"].value == "C" and samples["bed", 1].scores["success"].value == "I"
    assert samples["bed", 2].error.message == "HTTP 500" and samples["bed", 2].scores is None
    assert samples["boat", 1].metadata["metrics"] == {"calls": 2.0}

    (sample,) = by_policy["a model, react"].samples
    assert sample.model_usage["lab/a-model"].total_tokens == 42
    assert by_policy["a model, react"].eval.model_generate_config.temperature == 0.4


def test_the_same_results_are_the_same_logs(tmp_path):
    first = write_inspect_logs([result(), result("bed")], tmp_path, NOW)
    assert write_inspect_logs([result("bed"), result()], tmp_path, NOW) == first
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file"):
        write_inspect_logs([result()], tmp_path / "file", NOW)
