"""Alarms: which metrics raise them, what is done then, and what is left of it."""

from __future__ import annotations

import http.server
import math
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from tiny_runs import BOTH, ROOT, summary, train, trained, weights, without_times, write_settings

from envsuite.core.errors import UnknownName
from envsuite.exits import PAUSED
from trainers.report.events import RunEvent, read_events
from trainers.report.metrics import is_metric
from trainers.run.event_log import EventLog
from trainers.run.features.alarms.rules import RULES, AlarmRule
from trainers.run.features.alarms.settings import AlarmConfig, AlarmRuleConfig
from trainers.run.features.alarms.watch import START, Alarms, best_iteration
from trainers.settings import ConfigError
from trainers.train import main

NORMAL = 0.5
"""Value of every metric at the start."""


def normal(rule: AlarmRule) -> dict[str, float]:
    """Metrics of an iteration without the sign of ``rule``."""
    names = [rule.metric, rule.minus, rule.against, rule.rising]
    values = {name: NORMAL for name in names if name} | ({rule.per: 10.0} if rule.per else {})
    if not rule.reference and not rule.per:  # absolute bounds
        values[rule.metric] = rule.bound / 2 if rule.beyond == "above" else 2 * rule.bound
    return values


def signed(rule: AlarmRule) -> dict[str, float]:
    """Metrics of an iteration with it."""
    limit = rule.limit(NORMAL if rule.reference else None)
    assert limit is not None
    value = limit + 0.01 if rule.beyond == "above" else limit - 0.01
    values = (
        normal(rule) | ({rule.rising: 2 * NORMAL} if rule.rising else {}) | ({rule.minus: 0.0} if rule.minus else {})
    )
    return values | {rule.metric: value * values.get(rule.per, 1.0)}


def alone(name: str) -> Alarms:
    """Alarms that watch one rule."""
    return Alarms(AlarmConfig(action="ignore", rules={name: AlarmRuleConfig(action="warn")}))


def raised(alarms: Alarms, lines: Sequence[Mapping[str, float | None]], first: int = 1) -> list[tuple[int, str]]:
    return [
        (event.iteration, event.facts["alarm"])
        for number, values in enumerate(lines, start=first)
        for event in alarms(number, values)
    ]


@pytest.mark.parametrize("name", RULES)
def test_an_alarm_is_raised_once_its_sign_has_lasted_and_not_before(name):
    rule = RULES[name]
    lines = [normal(rule)] * START + [signed(rule)] * (rule.patience - 1) + [normal(rule)]
    alarms = alone(name)
    assert raised(alarms, lines) == []
    (event,) = [event for number in range(rule.patience) for event in alarms(20 + number, signed(rule))]
    assert (event.kind, event.iteration) == ("alarm", 20 + rule.patience - 1)
    assert event.facts["since"] == 20 and alarms.unanswered == {name: 20} and alarms.standing == [name]
    assert rule.means in event.message and rule.do in event.message and rule.metric in event.message


@pytest.mark.parametrize("name", ["low_entropy", "no_valid_actions"])
def test_it_is_raised_again_only_after_its_sign_was_absent_as_long_as_it_has_to_last(name):
    rule, alarms = RULES[name], alone(name)
    ill, well = [signed(rule)] * rule.patience, [normal(rule)]
    assert len(raised(alarms, [normal(rule)] * START + 4 * ill)) == 1
    assert raised(alarms, well * (rule.patience - 1) + ill) == [] and alarms.standing == [name]
    assert raised(alarms, well * rule.patience) == [] and alarms.standing == []
    assert len(raised(alarms, ill)) == 1


def test_a_warning_that_stands_keeps_no_checkpoint_from_being_the_best_to_go_back_to():
    warns, back = RULES["low_entropy"], RULES["gradient"]
    alarms = Alarms(AlarmConfig(rules={"gradient": AlarmRuleConfig(action="return")}))
    raised(alarms, [normal(warns) | normal(back)] * START + [signed(warns) | normal(back)] * warns.patience)
    assert "low_entropy" in alarms.standing and alarms.since == math.inf
    alarms(50, signed(warns) | signed(back))
    assert alarms.since == 50


@pytest.mark.parametrize("name", RULES)
def test_what_is_missing_or_not_finite_is_no_sign_and_ends_none(name):
    rule, alarms = RULES[name], alone(name)
    assert raised(alarms, [normal(rule)] * START + [signed(rule)] * (rule.patience - 1)) == []
    assert raised(alarms, [{}, {rule.metric: None}, {rule.metric: math.nan}, {rule.metric: math.inf}]) == []
    assert len(raised(alarms, [signed(rule)])) == 1


@pytest.mark.parametrize("after", range(1, 9))
def test_alarms_that_go_on_from_their_state_are_those_that_were_not_stopped(after):
    rule = RULES["repeated_actions"]
    lines = [normal(rule)] * 3 + [signed(rule)] * 3 + [normal(rule)] * 3 + [signed(rule)] * 3
    whole, first, second = Alarms(AlarmConfig()), Alarms(AlarmConfig()), Alarms(AlarmConfig())
    expected = raised(whole, lines)
    early = raised(first, lines[:after])
    second.load(orjson.loads(orjson.dumps(first.state())))
    assert early + raised(second, lines[after:], after + 1) == expected and len(expected) == 2
    assert second.state() == whole.state()


def test_settings_change_a_rule_or_ignore_it_and_unknown_names_are_refused():
    lines = [{"train/valid_actions": 0.4}] * 9
    assert raised(Alarms(AlarmConfig()), lines) == []
    changed = AlarmConfig(rules={"no_valid_actions": AlarmRuleConfig(bound=0.5, patience=4, action="pause")})
    assert raised(Alarms(changed), lines) == [(4, "no_valid_actions")]
    assert changed.action_of("no_valid_actions") == "pause" and changed.action_of("ratio") == "warn"
    assert not changed.goes_back and AlarmConfig(action="return").goes_back
    ignored = AlarmConfig(rules={"no_valid_actions": AlarmRuleConfig(bound=0.5, action="ignore")})
    assert raised(Alarms(ignored), lines) == []
    with pytest.raises(UnknownName, match="no_valid_actions"):
        AlarmConfig(rules={"valid_action": AlarmRuleConfig()})


def test_an_engine_that_is_behind_is_found_by_the_least_gap_and_a_rollout_that_is_meant_to_be_is_not():
    gaps = [1e-6, 4e-3, 5e-3, 5e-3]
    assert raised(alone("engine"), [{"train/logprob_gap": gap, "train/staleness": 0.0} for gap in gaps]) == [
        (3, "engine")
    ]
    assert raised(alone("engine"), [{"train/logprob_gap": gap, "train/staleness": 1.0} for gap in gaps]) == []


def test_the_best_checkpoint_is_by_held_out_success_and_else_by_that_in_training():
    training = [
        {"iteration": i, "train/success": value} for i, value in enumerate([0.1, 0.2, 0.9, 0.2, 0.0, 0.0], start=1)
    ]
    assert best_iteration([2, 4, 6], training, math.inf) == 4, "the mean of iterations 2 to 4 is the greatest"
    assert best_iteration([2, 4, 6], training, before=4) == 2
    held_out = [{"iteration": 2, "eval/success": 0.6}, {"iteration": 6, "eval/success": 0.5}]
    assert best_iteration([2, 4, 6], training + held_out, math.inf) == 2, "what was not evaluated is passed over"
    assert best_iteration([], training, math.inf) is None


def test_the_page_has_the_table_of_the_rules_and_each_reads_metrics_that_exist():
    rows = [f"| `{name}` | {rule.sign} | {rule.patience} | {rule.means} | {rule.do} |" for name, rule in RULES.items()]
    assert "\n".join(rows) in (ROOT / "docs" / "alarms.md").read_text(encoding="utf-8")
    for rule in RULES.values():
        names = [rule.metric, rule.against, rule.minus, rule.per, rule.rising, rule.unless]
        assert all(is_metric(name) for name in names if name)


@pytest.fixture
def server() -> Iterator[tuple[str, list[bytes]]]:
    """An address, and the bodies that were sent to it."""
    bodies: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}/", bodies
        listening.shutdown()
        thread.join()


def _sent() -> None:
    for thread in threading.enumerate():
        if thread.name == "webhook":
            thread.join()


def test_a_webhook_gets_each_event_once_and_its_secret_address_may_be_a_variable(tmp_path, server, monkeypatch):
    address, bodies = server
    monkeypatch.setenv("ALARM_ADDRESS", address)
    event = RunEvent("alarm", 3, "alarm ratio: …", {"value": 2.0})
    for webhook in (address, "ALARM_ADDRESS"):
        tell = EventLog(tmp_path / str(len(bodies)), "craft", webhook, writes=True)
        tell(event)
        tell(event)
        _sent()
    assert len(bodies) == 2
    body = orjson.loads(bodies[0])
    assert body["text"] == "craft: alarm ratio: …" and body["run"] == "craft" and body["facts"] == {"value": 2.0}
    with pytest.raises(ConfigError, match="neither an address"):
        EventLog(tmp_path, "craft", "NOT_SET", writes=True)


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/secret", "http://127.0.0.1:x/secret", "http://a b/secret"])
def test_a_webhook_that_does_not_answer_or_is_none_is_logged_without_its_address(address, tmp_path, caplog):
    EventLog(tmp_path, "craft", address, writes=True)(RunEvent("alarm", 1, "alarm"))
    _sent()
    (warning,) = [one.getMessage() for one in caplog.records if "webhook" in one.getMessage()]
    assert "secret" not in warning and len(read_events(tmp_path)) == 1


@pytest.fixture
def ill(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule whose sign every run of two optimiser steps an iteration has from its third iteration on."""
    monkeypatch.setitem(
        RULES, "ill", AlarmRule("train/optimizer_steps", "above", 5.0, "Steps.", "Nothing.", patience=1)
    )


def _told(run: Path) -> list[tuple[str, int]]:
    assert [event["kind"] for event in summary(run)["events"]] == [event.kind for event in read_events(run)]
    return [(event.kind, event.iteration) for event in read_events(run)]


OTHERS = {"alarms.rules": {name: {"action": "ignore"} for name in RULES}}
"""Leaves the alarms of an untrained model out."""


@pytest.mark.slow
def test_a_run_that_an_alarm_paused_and_that_goes_on_equals_one_that_was_only_warned(place, ill, capsys):
    expected = trained(place, **OTHERS)
    warned = place / "runs" / "tiny"
    assert _told(warned) == [("alarm", 3)]
    assert [line["alarms/standing"] for line in expected if "train/success" in line] == [0.0, 0.0, 1.0, 1.0]
    kept = weights(warned / "checkpoints" / "iteration-00004")
    config = str(write_settings(place, output=str(place / "other"), **OTHERS, **{"alarms.action": "pause"}))
    run = place / "other" / "tiny"
    assert main(["--config", config]) == PAUSED
    assert re.search(r"paused after iteration 3 by the alarm ill.*--resume", capsys.readouterr().out.replace("\n", " "))
    assert _told(run) == [("alarm", 3), ("pause", 3)] and (run / "checkpoints" / "iteration-00003").is_dir()
    assert orjson.loads((run / "activity.json").read_bytes())["state"] == "interrupted"
    assert main(["--config", config, "--resume"]) == 0, "its sign lasts, and it is silent"
    assert _told(run) == [("alarm", 3), ("pause", 3)]
    assert without_times(run) == expected and weights(run / "checkpoints" / "iteration-00004") == kept


@pytest.mark.slow
def test_a_run_goes_back_to_its_best_checkpoint_and_is_said_to_have(place, ill):
    more = {**OTHERS, "alarms.action": "return", "checkpoint_every": 1, "keep_checkpoints": 1, "iterations": 3}
    later = {"iterations": 5, "checkpoint_every": 9, "keep_checkpoints": 2}
    trained(place, **more)
    run = place / "runs" / "tiny"
    assert _told(run) == [("alarm", 3)], "at its end it does not go back"
    best = run / "checkpoints" / "iteration-00002"
    assert best.is_dir(), "the only one with an evaluation is kept besides the newest"
    before, fallen = weights(best), weights(run / "checkpoints" / "iteration-00003")
    gone_on = trained(place, "--resume", **{**more, **later})
    assert _told(run) == [("alarm", 3), ("return", 3), ("alarm", 4)], "the second time it has gone back already"
    assert [line["iteration"] for line in gone_on if "train/success" in line] == [1, 2, 3, 4, 5]
    assert weights(run / "checkpoints" / "iteration-00003") == before != fallen
    event = read_events(run)[1]
    assert event.facts["checkpoint"] == "iteration-00002" and "intervention" in event.message


@pytest.mark.slow
def test_without_a_checkpoint_of_before_the_sign_a_run_goes_on_as_it_is(place, ill, capsys):
    trained(place, **OTHERS, **{"alarms.action": "return", "checkpoint_every": 9})
    assert "no checkpoint of before iteration 3" in capsys.readouterr().out.replace("\n", " ")
    assert _told(place / "runs" / "tiny") == [("alarm", 3)]


@pytest.mark.slow
def test_all_processes_pause_together(place):
    rules = {"no_valid_actions": {"bound": 2.0, "action": "pause"}}
    config = write_settings(place, **{"alarms.rules": rules, "rollout.tasks": 2})
    ended = train("--config", str(config), program=(*BOTH, "-m", "trainers.train"))
    assert ended.returncode != 0 and "paused after iteration 2" in ended.stdout, ended.stderr
    assert _told(place / "runs" / "tiny") == [("alarm", 2), ("pause", 2)]
