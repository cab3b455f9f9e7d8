"""``envsuite eval run``: what is written, what bad luck does to it, and that it goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evaluating import answers, command, endpoint, installed, said
from scripted_endpoint import NAME, ScriptedEndpoint, completion
from waiting import until

from envsuite.cli import main
from envsuite.core.errors import DataError, UsageError
from envsuite.evaluation.groups import load_groups
from envsuite.evaluation.protocol import ProtocolSetting
from envsuite.evaluation.results import EpisodeResult, read_results
from envsuite.evaluation.tables import make_rows


@pytest.fixture(scope="module", autouse=True)
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Frail-v0, in this process and in those that it starts."""
    from envsuite.core.registration import register_envs

    folder = installed(tmp_path_factory.mktemp("packages"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", ""))))
        register_envs()
        yield folder


def played(folder: Path) -> dict[tuple[str, int], EpisodeResult]:
    """The results of the only file in a folder, by task and seed, without durations."""
    return {result.key: replace(result, seconds=0.0) for result in read_results(folder)}


def run(*words: object, status: int = 0) -> None:
    assert main(["eval", "run", *map(str, words)]) == status


def asked(
    script: Any, folder: Path, *words: object, status: int = 0
) -> tuple[list[dict[str, Any]], list[EpisodeResult]]:
    """Runs a command that asks a scripted endpoint; returns the requests and the results."""
    with ScriptedEndpoint(script) as server:
        run(*endpoint(server, *words, "--out", folder), status=status)
    return server.asked, list(played(folder).values())


def wait_for(process: subprocess.Popen[str], folder: Path, lines: int) -> None:
    """Waits until a command has written so many results."""

    def written() -> bool:
        assert process.poll() is None
        return sum(file.read_bytes().count(b"\n") for file in folder.glob("*.jsonl")) >= lines

    until(written, 60)


def test_an_expert_and_random_are_measured_with_five_seeds_where_something_is_drawn(tmp_path, console):
    out, err = console(f"eval run Frail-v0 --policy expert --policy random --out {tmp_path}")
    results = read_results(tmp_path)
    assert len([r for r in results if r.conditions.policy == "expert"]) == 6
    assert {r.seed for r in results if r.conditions.policy == "random"} == set(range(5)) and len(results) == 36
    assert {(r.conditions.policy, r.seeds) for r in results} == {("expert", 1), ("random", 5)}
    assert all(
        r.metrics == ({"gave_up": 1.0} if (r.task_id, r.conditions.policy) == ("fox", "expert") else {})
        for r in results
    )
    gave_up = next(r for r in results if r.metrics)
    assert (gave_up.success, gave_up.steps, gave_up.broken, gave_up.ending) == (False, 0, None, "done")
    assert "83.3 %" in out and "envsuite eval table" in out and "6 of 6 episodes" in err


def test_the_name_of_a_model_goes_with_players_and_what_is_named_twice_is_played_once(tmp_path, capsys):
    with ScriptedEndpoint(lambda body: completion("x")) as server:
        words = endpoint(server, "--policy", "expert", "--name", "mine", "--split", "test", "--split", "test")
        run(*words, "--workers", 0, "--steps", 2, "--seeds", 1, "--out", tmp_path)
    assert {result.conditions.policy for result in read_results(tmp_path)} == {"expert", "mine, direct, tags"}
    assert capsys.readouterr().out.count("mine, direct, tags") == 1


def test_a_second_run_plays_nothing_and_more_seeds_play_only_those(tmp_path, console):
    line = f"eval run Frail-v0 --workers 0 --policy random --out {tmp_path}"
    console(f"{line} --seeds 2")
    (file,) = tmp_path.glob("*.jsonl")
    before = file.read_bytes()
    console(f"{line} --seeds 2 --sample 6")
    assert file.read_bytes() == before, "a sample of all tasks is no other evaluation"
    console(f"{line} --seeds 3")
    assert file.read_bytes().startswith(before) and len(read_results(file)) == 18


def test_types_make_a_panel_of_their_own_which_is_complete_with_its_tasks(tmp_path, console):
    for types, folder in (("ant bee", "some"), ("word", "all")):
        console(f"eval run Frail-v0 --workers 0 --policy random --types {types} --out {tmp_path / folder}")
    rows = {folder: make_rows(load_groups([tmp_path / folder]))[0] for folder in ("some", "all")}
    assert [(row.tasks, row.seeds, row.episodes, row.complete) for row in rows.values()] == [
        (2, 5, 10, True), (6, 5, 30, True),
    ]  # fmt: skip
    some, whole = (read_results(tmp_path / folder)[0].conditions for folder in ("some", "all"))
    assert (some.panel_size, some.sample, whole.panel_size) == (2, None, 6) and some.panel != whole.panel
    (file,) = (tmp_path / "some").glob("*.jsonl")
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:4]))  # ended after the second seed
    (row,) = make_rows(load_groups([tmp_path / "some"]))
    assert (row.missing, row.complete) == (6, False)


@pytest.mark.slow
def test_a_crash_and_a_hang_break_their_episodes_alone_and_retry_plays_these_alone(tmp_path, monkeypatch, console):
    frail = tmp_path / "frail"
    frail.touch()
    monkeypatch.setenv("FRAIL", str(frail))
    folder = tmp_path / "results"
    out, err = console(f"eval run Frail-v0 --policy expert --workers 2 --deadline 2 --out {folder}", 3)
    broken = {r.task_id: r.broken for r in played(folder).values() if r.broken}
    assert set(broken) == {"bee", "cat"}
    assert str(broken["bee"]).startswith("WorkerCrashed") and str(broken["cat"]).startswith("DeadlineExceeded")
    assert "75.0 %" in out
    assert "2 episodes broke and are in no rate; play them again with envsuite eval run retry" in err

    frail.unlink()
    (file,) = folder.glob("*.jsonl")
    lines = file.read_bytes().count(b"\n")
    assert "83.3 %" in console(f"eval run retry {folder}")[0]
    assert file.read_bytes().count(b"\n") == lines + 2
    assert [r.success for r in played(folder).values()].count(True) == 5 and not any(
        r.broken for r in played(folder).values()
    )


@pytest.mark.parametrize("tools", ["native", "tags"])
def test_a_model_is_asked_by_calls_and_by_text_and_counted_with_its_tokens_and_cost(tools, tmp_path):
    prices = json.dumps({"input": 1.0, "output": 2.0})
    bodies, results = asked(answers, tmp_path, "--tools", tools, "--prices", prices)
    assert len(results) == 6 and all(r.success and (r.steps, r.parsed, r.valid, r.cut) == (1, 1, 1, 0) for r in results)
    assert {(r.prompt_tokens, r.answer_tokens, r.cost) for r in results} == {(10, 5, 20e-6)}
    assert all(("tools" in body) == (tools == "native") and body["max_tokens"] == 512 for body in bodies)
    conditions = results[0].conditions
    assert (conditions.kind, conditions.model, conditions.policy) == ("endpoint", NAME, f"scripted, direct, {tools}")
    assert conditions.sampling["temperature"] == 0 and len(conditions.prompt["system_sha256"]) == 64


def test_react_asks_for_a_thought_and_shows_it_later(tmp_path):
    answer = "<think>Hm.</think><action>yak</action>"
    (first, _, last), (result,) = asked(lambda _: completion(answer), tmp_path, "--baseline", "react", "--sample", 1)
    assert "<think>" in first["messages"][0]["content"]
    assert [message["role"] for message in last["messages"]] == ["system", *["user", "assistant"] * 2, "user"]
    assert "<think>Hm.</think>" in last["messages"][2]["content"]
    assert (result.success, result.steps, result.ending) == (False, 3, "budget")


@pytest.mark.parametrize("tools", ["native", "tags"])
def test_reflexion_shows_its_notes_in_the_next_trial_and_ends_with_the_first_success(tools, tmp_path):
    """The model fails until its own note tells it the word."""

    def script(body: dict[str, Any]) -> Any:
        system, last = body["messages"][0]["content"], body["messages"][-1]["content"]
        if "This attempt is over" in last:
            assert "tools" not in body
            return completion("Next time: Say elk.")
        return answers(body) if "1. Next time" in system else completion("<action>yak</action>")

    words = ("--baseline", "reflexion", "--types", "elk", "--tools", tools)
    bodies, (result,) = asked(script, tmp_path, *words)
    assert (result.success, result.trials, result.conditions.trials, result.steps) == (True, 2, 3, 4)
    within = {f"success_within_{k}": float(k > 1) for k in (1, 2, 3)}
    assert result.metrics == within and result.prompt_tokens == 10 * len(bodies) == 50
    assert result.valid == result.parsed == (1 if tools == "native" else 4)


def test_few_shot_shows_the_experts_episodes_of_training_tasks_alone(tmp_path):
    (first, *_), results = asked(answers, tmp_path, "--baseline", "few-shot:3", "--steps", 1)
    system = first["messages"][0]["content"]
    assert system.count("Example ") == 3 and "<action>" in system.split("Example 1")[1]
    assert results[0].conditions.prompt["examples"] == 3


@pytest.mark.seconds
@pytest.mark.parametrize(
    "fault",
    [
        (429, {"error": {"message": "slow down"}}, {"Retry-After": "0"}),
        (500, {"error": "oops"}, {}),
        None,
        b'{"choices": [{"message": {"content": "<act',
    ],
    ids=["429", "500", "cut connection", "cut answer"],
)
def test_a_fault_that_passes_changes_no_result(fault, tmp_path):
    faults = [fault]
    bodies, results = asked(lambda body: faults.pop() if faults else answers(body), tmp_path, "--concurrency", 1)
    assert len(bodies) == 7 and all(result.success for result in results)


def test_an_endpoint_that_is_gone_leaves_episodes_out_and_the_same_command_goes_on(tmp_path, capsys):
    there = [True]

    def script(body: dict[str, Any]) -> Any:
        return answers(body) if there[0] and "Say dog" not in str(body["messages"]) else (503, {}, {})

    with ScriptedEndpoint(script) as server:
        words = endpoint(server, "--concurrency", 1, "--patience", "0.3", "--out", tmp_path)
        run(*words, status=3)
        assert {task for task, _ in played(tmp_path)} == {"ant", "bee", "cat"}
        assert not any(result.broken for result in played(tmp_path).values())
        out, err = capsys.readouterr()
        assert "100.0 %" in out and "stopped: " in err and "HTTP 503" in err and "--patience is 0.3" in err
        server.script = answers
        run(*words)
    assert [result.success for result in played(tmp_path).values()] == [True] * 6


def test_a_spent_budget_stops_and_what_is_left_is_missing_not_failed(tmp_path, capsys):
    spent, results = asked(answers, tmp_path, "--concurrency", 1, "--budget", 30, status=3)
    assert len(results) == 2 and "the budget of 30 tokens is spent (30; --budget)" in capsys.readouterr().err
    more, results = asked(answers, tmp_path, "--concurrency", 1)
    assert len(results) == 6 and len(spent) + len(more) == 6


def test_a_request_that_is_refused_among_others_breaks_its_episode(tmp_path):
    def script(body: dict[str, Any]) -> Any:
        return (400, {"error": {"message": "unsafe"}}, {}) if "Say dog" in str(body["messages"]) else answers(body)

    with ScriptedEndpoint(script) as server:
        run(*endpoint(server, "--concurrency", 1, "--out", tmp_path), status=3)
        assert "unsafe" in str(played(tmp_path)["dog", 0].broken) and len(played(tmp_path)) == 6
        server.script = answers
        run("retry", tmp_path, "--url", server.url)
    assert all(result.success for result in played(tmp_path).values()) and len(server.asked) == 7


TOO_LONG = (400, {"error": {"message": "maximum context length is 8 tokens", "code": "context_length_exceeded"}}, {})
CUT = completion("<action>ant</action>", usage=None)
CUT["choices"][0]["finish_reason"] = "length"
CALLS = (("say", "{command: ant}"), ("shout", "{}"), ("say", '{"command": "ant"}'))


@pytest.mark.parametrize(
    ("replies", "words", "fields", "counted"),
    [
        ([completion(calls=[call]) for call in CALLS], "--tools native", "success steps parsed valid", (True, 3, 2, 1)),
        ([CUT], '--prices {"input":1,"output":1}', "success cut prompt_tokens cost", (True, 1, 0, None)),
        ([completion("<action>yak</action>"), TOO_LONG], "", "success ending steps", (False, "context", 1)),
    ],
    ids=["calls that are no JSON and unknown tools", "cut and without counts", "longer than the context"],
)
def test_what_a_model_answers_is_counted(replies, words, fields, counted, tmp_path):
    left = [*replies]
    _, (result,) = asked(lambda _: left.pop(0), tmp_path, "--types", "ant", *words.split())
    assert tuple(getattr(result, name) for name in fields.split()) == counted and result.broken is None


def test_no_episode_finished_is_said_with_the_reason(tmp_path, capsys):
    _, results = asked(lambda _: completion("x", model="another-7b"), tmp_path, status=3)
    err = capsys.readouterr().err
    assert "no episode finished: " in err and "'another-7b' answered, and 'scripted' was asked" in err
    assert "--served-as" in err and results == []


PLAYER = "Frail-v0 --policy random"
MODEL = "Frail-v0 --policy endpoint --model m --url"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("Frail-v0", "name who plays with --policy"),
        ("Frail-v1 --policy expert", "Nearest: 'Frail-v0'"),
        ("Frail-v0 --policy lexical", "unknown player of Frail-v0 'lexical'"),
        ("Frail-v0 --policy endpoint", "needs --url"),
        (f"{PLAYER} --split tst", "unknown split of Frail-v0"),
        (f"{PLAYER} --sample 7", "a sample of 7 was asked for, but there are 6"),
        (f"{PLAYER} --seeds 0", "--seeds is 0"),
        (f"{PLAYER} --option x", "--option 'x'; it must be like"),
        (f"{PLAYER} --option x=1", "unknown argument of Frail-v0"),
        (f"{PLAYER} --option split=train", "give --split"),
        (f"{PLAYER} --option max_episode_steps=2", "give --steps"),
        (f"{PLAYER} --name x", "--name is for the model"),
        (f"{PLAYER} --types zoo", "zoo"),
        ("retry", "takes one folder"),
        ("retry nowhere", "nowhere has no evaluation"),
        (f"{MODEL} x", "--url is 'x'; it must be like http://"),
        (f"{MODEL} http://h/v1 --prices x", "--prices 'x' is not JSON"),
        (f"{MODEL} http://h/v1 --baseline cot", "unknown baseline 'cot'"),
        (f"{MODEL} http://h/v1 --baseline few-shot --tools native", "take --tools tags or brackets"),
        (f"{MODEL} http://h/v1 --memory 'compact(9)'", "compact"),
    ],
)
def test_settings_that_cannot_work_are_refused(words, told, tmp_path, console):
    out = "" if words.startswith("retry") else f"--out {tmp_path}/out"
    assert told in console(f"eval run {words} {out}", 2)[1] and not (tmp_path / "out").exists()


def test_a_folder_of_other_conditions_is_refused_by_what_differs(tmp_path, console):
    line = f"eval run Frail-v0 --policy expert --out {tmp_path}"
    console(line)
    assert "budget 3 where now it is 2; name another folder" in console(f"{line} --steps 2", 2)[1]


def test_the_key_is_in_no_file_and_no_message(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EVAL_KEY", "sk-secret-9")
    with ScriptedEndpoint(answers) as server:
        run(*endpoint(server, "--key-variable", "EVAL_KEY", "--out", tmp_path))
        assert server.headers[0]["Authorization"] == "Bearer sk-secret-9"
    written = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"EVAL_KEY" in written and b"sk-secret-9" not in written and "sk-secret" not in "".join(capsys.readouterr())


def test_settings_that_are_damaged_are_named(tmp_path):
    file = tmp_path / "x.json"
    for content in (b"{}", b"[]", b"{", b'{"env_id": 1}'):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"x\.json: not the settings of an evaluation"):
            ProtocolSetting.from_json(file)
    setting = ProtocolSetting("Frail-v0", "test", "random", env_options={"a": [1]}, seeds=5)
    file.write_bytes(setting.to_json())
    assert ProtocolSetting.from_json(file) == setting
    with pytest.raises(UsageError):
        ProtocolSetting("Frail-v0", "test", "endpoint")


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_where_it_stopped_and_ends_with_the_same_results(tmp_path, packages):
    def script(body: dict[str, Any]) -> Any:
        time.sleep(0.05)
        return answers(body)

    with ScriptedEndpoint(script) as server:
        whole, cut = tmp_path / "whole", tmp_path / "cut"
        words = endpoint(server, "--seeds", 3, "--concurrency", 2)
        run(*words, "--out", whole)
        process = command(*words, "--out", cut, packages=packages)
        wait_for(process, cut, 4)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        before = len(read_results(cut))
        assert 4 <= before < 18
        server.asked.clear()
        said(command(*words, "--out", cut, packages=packages), 0)
        assert len(server.asked) == 18 - before and played(cut) == played(whole)


@pytest.mark.slow
def test_ctrl_c_leaves_what_was_played(tmp_path, packages):
    def script(body: dict[str, Any]) -> Any:
        time.sleep(0.1)
        return answers(body)

    with ScriptedEndpoint(script) as server:
        process = command(*endpoint(server, "--seeds", 9, "--concurrency", 1, "--out", tmp_path), packages=packages)
        wait_for(process, tmp_path, 2)
        os.kill(process.pid, signal.SIGINT)
        _, err = said(process, 130)
    assert "interrupted; what was played is kept" in err and "Traceback" not in err and len(read_results(tmp_path)) >= 2


@pytest.mark.seconds
def test_each_agent_of_a_team_has_its_own_dialog_and_no_trials(tmp_path, console):
    turns: dict[str, list[int]] = {}

    def turn(body: dict[str, Any]) -> Any:
        turns.setdefault(name := body["tools"][0]["function"]["name"], []).append(len(body["messages"]))
        query = body["messages"][1]["content"].partition("Query: ")[2].partition("\n")[0]
        return completion(None, calls=[(name, json.dumps({"query": query} if name == "search" else {"paper_ids": []}))])

    with ScriptedEndpoint(turn) as server:
        line = f"eval run PaperSearchTeam-v0 --policy endpoint --url {server.url} --model {NAME} --out {tmp_path} "
        line += (
            "--tools native --split test --sample 1 --steps 4 --workers 0 --seeds 1 --option papers=2000 --baseline "
        )
        console(f"{line} direct")
        _, err = console(f"{line} reflexion", 2)
    assert "is for environments of one agent, and PaperSearchTeam-v0 has 2" in err
    assert len(turns) == 2 and sum(map(len, turns.values())) == 4
    assert all(lengths == [*range(2, 2 * len(lengths) + 1, 2)] for lengths in turns.values())
