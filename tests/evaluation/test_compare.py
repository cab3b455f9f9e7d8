"""Comparisons of policies, the figure, and the number of tasks that a difference needs."""

import csv
import io
import json
import struct
import sys

import numpy as np
import pytest
from scipy.stats import binomtest
from synthetic_results import draw, lost, write

from envsuite.core.errors import DataError, UnknownName, UsageError
from envsuite.evaluation.compare import compare, probability
from envsuite.evaluation.groups import groups_of
from envsuite.evaluation.statistics import (
    Correlations,
    detectable_difference,
    estimate_correlations,
    holm,
    tasks_needed,
)
from envsuite.evaluation.statistics.paired import paired_bootstrap_bounds


def test_single_episodes_are_compared_by_mcnemars_test():
    first, second = draw("a", 0.3, seeds=1, rng=1), draw("b", 0.7, seeds=1, rng=2)
    (found,) = compare(groups_of([first, second]))
    pairs = [(a.success, b.success) for a, b in zip(first, second, strict=True)]
    better, worse = pairs.count((False, True)), pairs.count((True, False))
    assert (found.better, found.worse) == (better, worse)
    assert found.p == found.adjusted_p == pytest.approx(binomtest(worse, worse + better).pvalue)
    assert found.difference == pytest.approx((better - worse) / 30)
    assert found.low < found.difference < found.high
    assert (found.first, found.second, found.tasks, found.alone, found.complete) == ("a", "b", 30, 0, True)


def test_repeated_episodes_are_compared_by_the_means_of_tasks():
    first, second = draw("a", 0.3, seeds=3, graded=True), draw("b", 0.7, seeds=5, graded=True, rng=1)
    (found,) = compare(groups_of([first, second]))
    means = [
        np.array([np.mean([r.score for r in side if r.task_id == f"task {t:03}"]) for t in range(30)])
        for side in (first, second)
    ]
    assert found.score_difference == pytest.approx((means[1] - means[0]).mean())
    assert (found.score_low, found.score_high) == pytest.approx(
        np.ravel(paired_bootstrap_bounds((means[1] - means[0])[None]))
    )


def test_p_values_are_corrected_for_all_comparisons_and_a_baseline_makes_fewer():
    groups = groups_of([draw(name, rate, rng=i) for i, (name, rate) in enumerate([("a", 0.3), ("b", 0.5), ("c", 0.8)])])
    every = compare(groups)
    assert [(one.first, one.second) for one in every] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [one.adjusted_p for one in every] == holm([one.p for one in every])
    few = compare(groups, "b")
    assert [(one.first, one.second) for one in few] == [("b", "a"), ("b", "c")]
    assert few[0].difference == -every[0].difference and few[0].p == every[0].p
    milder = compare(groups, None, "bh")
    assert all(one.adjusted_p <= strict.adjusted_p for one, strict in zip(milder, every, strict=True))
    with pytest.raises(UnknownName, match="unknown policy 'd'"):
        compare(groups, "d")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"panel": "cd" * 32}, r"panel \(abababababab… and cdcdcdcdcdcd…\)"),
        ({"budget": 15}, r"budget \(50 and 15\)"),
        ({"source": "official"}, r"source \(builtin and official\)"),
        ({"env_options": {"distractors": 3}}, r"env_options \(\{\} and \{'distractors': 3\}\)"),
        ({"sample": 20}, r"sample \(all tasks and 20\)"),
        ({"budget": 15, "panel": "cd" * 32}, r"panel .* and .*, budget"),
    ],
)
def test_results_of_different_protocols_are_refused_by_what_differs(change, words):
    with pytest.raises(UsageError, match=f"a and b cannot be compared on TextCraft-v0, test: they differ in {words}"):
        compare(groups_of([draw("a"), draw("b", **change)]))  # type: ignore[arg-type]


def test_where_nothing_finished_or_nothing_is_common_there_is_no_comparison():
    with pytest.raises(DataError, match=r"b finished no episode .* 90 of them by: HTTP 401. Play them again"):
        compare(groups_of([draw("a"), lost(draw("b"), "HTTP 401")]))
    with pytest.raises(DataError, match="no two policies played the same split; there are a on TextCraft-v0, test"):
        compare(groups_of([draw("a"), draw("b", split="validation")]))
    with pytest.raises(DataError, match="no finished task in common"):
        compare(groups_of([draw("a")[:10], draw("b")[10:20]]))


def test_tasks_that_one_policy_alone_finished_are_left_out_and_said():
    (found,) = compare(groups_of([draw("a", seeds=1), draw("b", seeds=1)[:20]]))
    assert (found.tasks, found.alone, found.complete) == (20, 10, False)


def test_the_command_writes_every_format_and_a_plot(tmp_path, monkeypatch, console):
    folder = write(tmp_path / "r", {"a": draw("a|b", 0.3), "b": draw("b", 0.7, rng=1), "c": draw("c$\n", broken=0.2)})
    compare, image = f"eval compare {folder}", tmp_path / "figure.png"
    text, _ = console(f"{compare} --baseline b --plot {image}")
    assert "c$\\n" in text and "† c$\\n against b: an evaluation is incomplete" in text
    width, height = struct.unpack(">II", image.read_bytes()[16:24])
    assert width > 1000 and height > 300
    body = json.loads(console(f"{compare} --format json")[0])
    assert body["correction"] == "holm" and len(body["comparisons"]) == 3
    records = list(csv.DictReader(io.StringIO(console(f"{compare} --format csv")[0], newline="")))
    assert [float(r["p"]) for r in records] == [one["p"] for one in body["comparisons"]]
    assert r"| a\|b |" in console(f"{compare} --format markdown")[0]
    assert "ends with .png, .pdf, .svg" in console(f"{compare} --plot {tmp_path}/figure.gif", 2)[1]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'envsuite[plots]'" in console(f"{compare} --plot {tmp_path}/x.png", 2)[1]
    console(compare)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1.00"), (0.104, "0.10"), (0.0499, "0.050"), (0.0123, "0.012"), (0.00123, "0.0012"), (1e-9, "< 0.0001")],
)
def test_p_values_are_written_with_two_digits(value, text):
    assert probability(value) == text


def test_more_seeds_help_less_where_episodes_of_a_task_are_alike():
    alone = tasks_needed(0.6, 0.05)
    assert alone == tasks_needed(0.6, 0.05, 5, Correlations(1.0))
    assert tasks_needed(0.6, 0.05, 5) == pytest.approx(alone / 5, abs=1)
    some = tasks_needed(0.6, 0.05, 5, Correlations(0.5))
    assert some == pytest.approx(alone * 3 / 5, rel=0.01)
    assert tasks_needed(0.6, 0.05, 5, Correlations(0.5, 0.4), paired=True) < some / 2


def test_the_difference_that_tasks_show_needs_as_many_tasks():
    rng = np.random.default_rng(0)
    for _ in range(100):
        rate, tasks, seeds = rng.uniform(0.05, 0.7), int(rng.integers(50, 2000)), int(rng.integers(1, 6))
        correlations = Correlations(0.4, 0.2)
        paired = bool(rng.integers(2))
        least = detectable_difference(rate, tasks, seeds, correlations, paired=paired)
        assert least is not None
        assert tasks_needed(rate, least, seeds, correlations, paired=paired) <= tasks
        if least > 0.0002:
            assert tasks_needed(rate, least - 0.0001, seeds, correlations, paired=paired) > tasks
    assert detectable_difference(0.95, 5) is None


@pytest.mark.parametrize("within", [0.1, 0.5, 0.8])
def test_the_correlation_within_tasks_is_estimated_from_results(within):
    results = draw(tasks=3000, seeds=4, correlation=within)
    tasks: dict[str, list[bool]] = {}
    for one in results:
        tasks.setdefault(one.task_id, []).append(one.success)
    found = estimate_correlations([(sum(own), len(own)) for own in tasks.values()])
    assert found is not None and found.within == pytest.approx(within, abs=0.04) and found.between == 0
    same = estimate_correlations(*[[(sum(own), len(own)) for own in tasks.values()]] * 2)
    assert same is not None and same.between == same.within
    assert estimate_correlations([(1, 1), (0, 1)]) is None


def test_power_speaks_in_tasks_seeds_and_points(tmp_path, console):
    text, _ = console("eval power --difference 0.05 --rate 0.6")
    assert ["1", "seed", f"{tasks_needed(0.6, 0.05):,}", "tasks"] in [line.split()[:4] for line in text.split("\n")]
    assert "assumed; --from PATH estimates it" in text
    folder = write(tmp_path / "r", {"a": draw("a", 0.5, 300), "b": draw("b", 0.6, 300, rng=1)})
    text, _ = console(f"eval power --tasks 134 --paired --from {folder} --seeds 3")
    assert "assumed" not in text and "least increase that 134 tasks show" in text and "points" in text
    write(tmp_path / "three", {name: draw(name) for name in "abc"})
    write(tmp_path / "none", {"a": lost(draw("a"))})
    for name, said in (("three", "one or two policies on one split"), ("none", "no episode finished")):
        assert said in console(f"eval power --tasks 100 --from {tmp_path}/{name}", 2)[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--rate 0.5", "give --difference"),
        ("--difference 0.1", "give --rate"),
        ("--difference 0.6 --rate 0.5", "rates must be between 0 and 1"),
        ("--difference 0.1 --rate 0.5 --seeds 0", "0 seeds"),
        ("--difference 0.1 --rate 0.5 --correlation 1.5", "from 0 to 1"),
        ("--difference 0.1 --rate 0.5 --correlation 0.2 --between 0.3", "cannot exceed"),
        ("--difference 0.1 --rate 0.5 --power 1", "power 1"),
        ("--tasks 1 --rate 0.5", "needs 2"),
    ],
)
def test_power_says_what_is_out_of_range(options, words, console):
    assert words in console(f"eval power {options}", 2)[1]
