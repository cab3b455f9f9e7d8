"""vLLM servers that join and leave, with the stand-in for vLLM's server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from policies import change
from protocol_server import ProtocolServer
from tiny_runs import BOTH, save_model, train, weights, without_times, write_settings
from transformers import AutoModelForCausalLM
from waiting import until

from envsuite.playing.engine import Completion, EngineFailed, Request, Sampling
from envsuite.remote import places
from envsuite.remote.places import News, listening
from trainers.report.events import read_events
from trainers.rollout.engine import Engine
from trainers.rollout.vllm import fleet

Made = Callable[..., Engine]
PROMPTS = [[5, 6 + n] for n in range(8)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked at again at once."""
    monkeypatch.setattr(places, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(fleet, "RETRY_SECONDS", 0.0)


@pytest.fixture
def news() -> Iterator[list[News]]:
    """All news of servers."""
    found: list[News] = []
    with listening(found.append):
        yield found


def named(path: Path, *servers: ProtocolServer | str) -> str:
    """Writes the file that names servers; returns its address, once whoever reads it has had time to."""
    path.write_text("".join(f"{server if isinstance(server, str) else server.url}\n" for server in servers))
    return path.as_uri()


def looked(engine: Engine, *servers: ProtocolServer) -> None:
    """Waits until the engine knows what the file names."""
    wanted = {server.url for server in servers}
    until(lambda: {*engine._update.fleet._places.now()} == wanted)  # type: ignore[attr-defined]


def ask(engine: Engine, first: int) -> list[Completion]:
    """The answers to all prompts, each of a new session from ``first`` on; their tokens depend on seeds alone."""
    requests = [Request(n, p, Sampling(max_tokens=6), first + n, n) for n, p in enumerate(PROMPTS)]
    engine.submit(requests)
    found: list[Completion] = []
    while engine.pending:
        found += engine.poll(1.0)
    return sorted(found, key=lambda completion: completion.request_id)


def tokens(answers: list[Completion]) -> list[list[int]]:
    return [answer.token_ids.tolist() for answer in answers]


def test_a_server_that_joins_has_the_present_weights_before_its_first_request(policy, make, tmp_path, news):
    with ProtocolServer(policy) as one, ProtocolServer(policy) as two:
        change(two.model)  # it has other weights, as vLLM has after --load-format dummy
        file = tmp_path / "servers"
        engine = make(urls=named(file, one))
        ask(engine, 0)
        named(file, one, two)
        looked(engine, one, two)
        ask(engine, 10)
        assert not two.asked, "it joins with the next update"
        change(policy)
        engine.sync(policy.named_parameters(), 1)
        assert two.about["version"] == "1" and [(n.url, n.joined) for n in news] == [(two.url, True)]
        both = ask(engine, 20)
        assert len(two.asked) == len(PROMPTS), "it has the fewest sessions"
        named(file, two)
        looked(engine, two)
        engine.sync(policy.named_parameters(), 2)
        one.asked.clear()
        assert tokens(ask(engine, 20)) == tokens(both) and not one.asked, "sessions of one that left go on elsewhere"
        assert [(n.url, n.joined) for n in news[1:]] == [(one.url, False)] and not one._paused


def test_requests_of_a_server_that_dies_go_on_at_the_others(policy, make, news):
    with ProtocolServer(policy) as one, ProtocolServer(policy) as two:
        engine = make(one, two, patience=0.3)
        expected = tokens(ask(engine, 0))
        one.completions_left = 2
        assert tokens(ask(engine, 0)) == tokens(ask(engine, 0)) == expected
        assert [(n.url, n.joined) for n in news] == [(one.url, False)] and "Is it running?" in news[0].why
        two.completions_left = 0
        with pytest.raises(EngineFailed, match=rf"{two.url}: POST /v1/completions"):
            ask(engine, 0)


def test_a_server_that_was_restarted_gets_no_request_before_it_has_the_weights_again(policy, make, news):
    with ProtocolServer(policy) as one, ProtocolServer(policy) as two:
        engine = make(one, two, patience=5.0)
        expected = tokens(ask(engine, 0))

        def restarted() -> tuple[int, None]:
            one.about["version"] = None
            one.asked.clear()
            change(one.model)
            return 0, None

        # What was under way ends with the server.
        one.faults["/v1/completions"] = [restarted, *[lambda: (0, None)] * 50]
        assert tokens(ask(engine, 0)) == expected
        assert "restarted and has lost the weights of version 0" in news[0].why and not news[0].joined
        one.asked.clear()
        one.faults.clear()
        assert tokens(ask(engine, 0)) == expected and not one.asked
        engine.sync(policy.named_parameters(), 1)
        assert [n.joined for n in news] == [False, True] and tokens(ask(engine, 50)) == expected and one.asked


@pytest.mark.parametrize("path", ["/pause", "/collective_rpc", "/v1/completions"])
def test_a_server_that_dies_amid_an_update_is_left_out(path, policy, make, news):
    with ProtocolServer(policy) as one, ProtocolServer(policy) as two:
        engine = make(one, two, patience=0.3)
        expected = tokens(ask(engine, 0))
        one.faults[path] = [lambda: (503, {})] * 100
        engine.sync(policy.named_parameters(), 1)
        assert [(n.url, n.joined) for n in news] == [(one.url, False)]
        assert tokens(ask(engine, 0)) == expected


def test_a_server_that_joins_with_other_settings_or_does_not_answer_gets_no_request(
    policy, make, tmp_path, caplog, news
):
    with ProtocolServer(policy) as one, ProtocolServer(policy, dtype="bfloat16") as two:
        file = tmp_path / "servers"
        engine = make(urls=named(file, one))
        named(file, one, two, "http://127.0.0.1:9")
        until(lambda: len(engine._update.fleet._places.now()) == 3)  # type: ignore[attr-defined]
        began = time.monotonic()
        engine.sync(policy.named_parameters(), 1)
        assert time.monotonic() - began < 30 and not news
        assert "computes in bfloat16" in caplog.text and "127.0.0.1:9 gets no requests" in caplog.text
        ask(engine, 0)
        assert not two.asked


def test_a_server_that_joins_and_cannot_read_the_weights_is_left_out_and_asked_again_later(
    policy, make, tmp_path, news, monkeypatch
):
    with ProtocolServer(policy) as one, ProtocolServer(policy) as two:
        file = tmp_path / "servers"
        engine = make(urls=named(file, one))
        named(file, one, two)
        looked(engine, one, two)
        monkeypatch.setattr(two, "_envsuite_load", lambda *_: {"error": "no files that it sees"}, raising=True)
        monkeypatch.setattr(fleet, "RETRY_SECONDS", 60.0)
        for version in (1, 2):
            engine.sync(policy.named_parameters(), version)
        assert [(n.url, n.joined) for n in news] == [(two.url, True), (two.url, False)]
        assert "no files that it sees" in news[1].why
        monkeypatch.setattr(one, "_envsuite_load", lambda *_: {"error": "no files that it sees"})
        with pytest.raises(EngineFailed, match=f"{one.url}: envsuite_load: no files"):
            engine.sync(policy.named_parameters(), 3)


def test_a_list_that_is_empty_for_a_while_takes_no_server_away(policy, make, tmp_path):
    with ProtocolServer(policy) as one:
        file = tmp_path / "servers"
        engine = make(urls=named(file, one))
        named(file)
        looked(engine)
        engine.sync(policy.named_parameters(), 1)
        assert len(ask(engine, 0)) == len(PROMPTS)


def test_a_request_on_its_way_at_a_server_that_leaves_goes_on_elsewhere_from_its_tokens(policy, make, tmp_path):
    with ProtocolServer(policy) as one, ProtocolServer(policy) as two:
        file = tmp_path / "servers"
        engine = make(urls=named(file, one, two))
        one.halt_at = two.halt_at = 3
        engine.submit([Request(n, p, Sampling(max_tokens=6, ignore_eos=True), n, n) for n, p in enumerate(PROMPTS[:2])])
        until(lambda: one.halted and two.halted)
        named(file, two)
        looked(engine, two)
        one.halt_at = two.halt_at = None
        one.asked.clear()
        engine.sync(policy.named_parameters(), 1)
        found = [*engine.poll(30.0)]
        while engine.pending:
            found += engine.poll(1.0)
        assert [answer.policy_version.tolist() for answer in found] == [[0, 0, 0, 1, 1, 1]] * 2 and not one.asked


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_is_the_same_whatever_servers_come_and_go_and_tells_of_them(tmp_path, processes):
    policy = AutoModelForCausalLM.from_pretrained(save_model(tmp_path / "model", "llama"))
    program = {} if processes == 1 else {"program": (*BOTH, "-m", "trainers.train")}
    runs = []
    for name in ("steady", "changing"):
        with ProtocolServer(policy) as one, ProtocolServer(policy) as two, ProtocolServer(policy) as three:
            urls = named(tmp_path / name, one, two)
            options = {"urls": urls, "weights_folder": str(tmp_path), "patience": 1.0}
            changes = {"rollout.engine": "vllm", "rollout.engine_options": options, "iterations": 3}
            config = write_settings(tmp_path, name=name, **changes)
            if name == "changing":
                one.completions_left = 40

                def joins() -> tuple[int, None]:
                    named(tmp_path / "changing", two, three)
                    time.sleep(3 * 2.0)
                    return 503, None

                two.faults["/v1/completions"] = [joins]
            run = train("--config", str(config), timeout=500, **program)  # type: ignore[arg-type]
            assert run.returncode == 0, run.stderr
            runs.append(tmp_path / "runs" / name)
            if name == "changing":
                assert three.asked
                told = {(e.facts["url"], e.facts["joined"]) for e in read_events(runs[-1]) if e.kind == "server"}
                assert told == {(one.url, False), (three.url, True)}
    assert without_times(runs[0])[-1] == without_times(runs[1])[-1]
    finals = [run / "checkpoints" / "iteration-00003" for run in runs]
    assert weights(finals[0]) == weights(finals[1])
