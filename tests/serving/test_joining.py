"""Servers that join and leave while episodes are played."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from driving import answers, reset_all, step_all
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from envsuite.core import ToolCall, UsageError
from envsuite.remote import RemoteEnv, transport
from envsuite.remote import places as place
from envsuite.remote.places import News, Places, listening, parse_addresses
from envsuite.remote.session import describe_again
from envsuite.serving.server import EnvServer
from envsuite.vector import EnvFactory, Vector, VectorEvent, make_vector, members

COMMANDS = ["inventory", "get 2 oak logs", "nonsense", "get 1 bamboo", "craft 1 stick using 2 bamboo", "inventory"]
SLOTS = 6
getaddrinfo = socket.getaddrinfo


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes seconds takes tenths of them."""
    monkeypatch.setattr(place, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(place, "EMPTY_SECONDS", 1.0)
    monkeypatch.setattr(transport, "UNREACHABLE_SECONDS", 0.4)


@pytest.fixture
def news() -> Iterator[list[News]]:
    """All news of servers."""
    found: list[News] = []
    with listening(found.append):
        yield found


class File:
    """A file that names servers."""

    def __init__(self, path: Path, *servers: EnvServer) -> None:
        self.path, self.url = path, path.as_uri()
        self.name(*servers)

    def name(self, *servers: EnvServer | str) -> None:
        urls = [server if isinstance(server, str) else server.url for server in servers]
        self.path.write_text("# servers\n" + "".join(f"{url}  # one\n" for url in urls))


def noticed(vector: Vector, urls: list[str]) -> None:
    """Waits until a vector knows that these are its servers."""
    until(lambda: sorted(vector._parts[0].places.now()) == sorted(urls))  # type: ignore[attr-defined]


def playing(vector: Vector, between: Callable[[int], object] = lambda episode: None) -> list[list[VectorEvent]]:
    """Every event of three episodes in each slot; ``between`` is called in the middle of each."""
    history = []
    for episode in range(3):
        history.append([*dict(sorted(reset_all(vector, seed=episode).items())).values()])
        for number, command in enumerate(COMMANDS):
            if number == 2:
                between(episode)
            events = step_all(vector, (ToolCall("env_step", {"command": command}),))
            history.append([*dict(sorted(events.items())).values()])
    return history


@pytest.fixture(scope="module")
def expected() -> list[list[VectorEvent]]:
    """What the same episodes are in this process."""
    with make_vector([EnvFactory("TextCraft-v0")], SLOTS) as vector:
        return playing(vector)


def test_a_server_that_joins_gets_new_episodes_and_one_that_leaves_ends_its_own(start, tmp_path, news, expected):
    first, second = start(), start()
    file = File(tmp_path / "servers.txt", first)
    sessions: list[tuple[int, int]] = []
    with make_vector([EnvFactory("TextCraft-v0", {"url": file.url})], SLOTS) as vector:

        def change(episode: int) -> None:
            sessions.append((first.front.sessions, second.front.sessions))
            if episode < 2:
                named = [first, second] if episode == 0 else [second]
                file.name(*named)
                noticed(vector, [server.url for server in named])

        assert playing(vector, change) == expected
    assert sessions == [(6, 0), (6, 3), (6, 6)], "idle sessions are left to their server"
    assert [(one.url, one.joined) for one in news] == [(second.url, True), (first.url, False)]
    assert f"{first.url} (TextCraft-v0) left: {file.url} names it no more" == str(news[1])


def test_episodes_of_a_server_that_has_left_and_dies_go_on_at_another(start, tmp_path, news, expected):
    first, second = start(), start()
    file = File(tmp_path / "servers.txt", first)
    with make_vector([EnvFactory("TextCraft-v0", {"url": file.url})], SLOTS) as vector:

        def die(episode: int) -> None:
            if episode == 0:
                file.name(second)
                noticed(vector, [second.url])
                first.stop()
                until(lambda: first._http.ended)

        assert playing(vector, die) == expected
    assert second.front.sessions == 0 and [(one.url, one.joined) for one in news if one.joined] == [(second.url, True)]


def test_a_named_server_that_dies_leaves_and_joins_when_it_answers_again(start, news, monkeypatch, expected):
    monkeypatch.setattr(members, "DOWN_SECONDS", 0.0)
    first, second = start(), start()
    port = int(first.url.rpartition(":")[2])
    with make_vector([EnvFactory("TextCraft-v0", {"url": [first.url, second.url]})], SLOTS) as vector:

        def die(episode: int) -> None:
            if episode == 0:
                first.stop()
                until(lambda: first._http.ended)
            if episode == 1:
                start(port=port)
                time.sleep(2 * transport.JUST_NOW)

        assert playing(vector, die) == expected
    assert [(one.url, one.joined) for one in news] == [(first.url, False), (first.url, True)]
    assert "does not answer" in news[0].why


def test_episodes_wait_while_no_server_answers_and_go_on_at_the_first_that_does(start, monkeypatch, expected):
    monkeypatch.setattr(members, "DOWN_SECONDS", 0.0)
    servers = [start(), start()]
    port = int(servers[0].url.rpartition(":")[2])
    back: list[threading.Timer] = []
    with make_vector([EnvFactory("TextCraft-v0", {"url": [server.url for server in servers]})], SLOTS) as vector:

        def die(episode: int) -> None:
            if episode == 0:
                for server in servers:
                    server.stop()
                    until(lambda server=server: server._http.ended)
                monkeypatch.setattr(transport, "UNREACHABLE_SECONDS", 20.0)
                for server in servers:  # they have been silent for long: each call alone would fail at once
                    transport.server(server.url)._silent = time.monotonic() - 60.0, time.monotonic()
                back.append(threading.Timer(1.0, start, kwargs={"port": port}))
                back[0].start()

        assert playing(vector, die) == expected


def test_where_no_server_is_named_a_vector_waits_for_one_and_then_says_so(start, tmp_path, caplog):
    running = start()
    file = File(tmp_path / "servers.txt", running)
    with make_vector([EnvFactory("TextCraft-v0", {"url": file.url})], 2) as vector:
        reset_all(vector, seed=0)
        file.name()
        noticed(vector, [])
        vector.step(0, (ToolCall("env_step", {"command": "inventory"}),))
        assert answers(vector, 1)[0].error is None, "its server lives"
        vector.reset(1, 0, seed=0)
        threading.Timer(0.3, file.name, (running,)).start()
        assert answers(vector, 1)[1].error is None
        assert f"{file.url} has no server; waiting for one, 1 s at most" in caplog.text
        file.name()
        noticed(vector, [])
        for _ in range(2):
            began = time.monotonic()
            errors = {event.error for event in reset_all(vector, seed=0).values()}
            assert errors == {f"ServerUnreachable: {file.url} has had no server for 1 s; start one, or name one there"}
        assert time.monotonic() - began < 0.5, "the second time nobody waits"


def test_each_address_of_a_name_is_a_server(start, monkeypatch, news, expected):
    first = start()
    port = int(first.url.rpartition(":")[2])
    second = start(host="127.0.0.2", port=port)
    hosts: list[str] = ["127.0.0.1"]

    def resolved(host: Any, *others: Any, **named: Any) -> Any:
        if host != "servers.test":
            return getaddrinfo(host, *others, **named)
        if not hosts:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [entry for one in hosts for entry in getaddrinfo(one, *others, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with make_vector([EnvFactory("TextCraft-v0", {"url": f"dns://servers.test:{port}"})], SLOTS) as vector:

        def change(episode: int) -> None:
            hosts[:] = [["127.0.0.1", "127.0.0.2"], ["127.0.0.2"], []][episode]
            noticed(vector, [f"http://{host}:{port}" for host in hosts])

        assert playing(vector, change) == expected
    assert [(one.url, one.joined) for one in news] == [(second.url, True), (first.url, False)]


def test_a_name_that_cannot_be_looked_up_now_leaves_the_servers_as_they_are(monkeypatch, caplog):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", ("fd00::1", 80, 0, 0))])
    found = Places("dns://servers.test:80")
    assert found.now() == ("http://[fd00::1]:80",)
    late = threading.Event()

    def fails(*_: Any, **__: Any) -> Any:
        late.wait(30.0)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", fails)
    time.sleep(2 * place.LOOK_SECONDS)
    began = time.monotonic()
    assert found.now() == ("http://[fd00::1]:80",) and time.monotonic() - began < 1.0, "nobody waits for DNS"
    late.set()
    until(lambda: "its servers stay as they were" in caplog.text)
    assert found.now() == ("http://[fd00::1]:80",)


def test_a_server_that_has_another_environment_gets_no_episodes(start, tmp_path, news, monkeypatch, expected):
    first, second = start(), start()
    file = File(tmp_path / "servers.txt", first)

    def other(url: str, *arguments: Any) -> Any:
        return dataclasses.replace(vector._members[0].described, versions={"source": "another"})  # type: ignore[attr-defined]

    monkeypatch.setattr(members, "describe_again", other)
    with make_vector([EnvFactory("TextCraft-v0", {"url": file.url})], SLOTS) as vector:

        def join(episode: int) -> None:
            file.name(first, second)
            noticed(vector, [first.url, second.url])

        assert playing(vector, join) == expected
    assert second.front.sessions == 0
    assert [(one.url, one.joined) for one in news] == [(second.url, False)] and "not the same" in news[0].why


def test_a_server_that_a_proxy_does_not_find_yet_joins_later(start, tmp_path, news, monkeypatch, expected):
    monkeypatch.setattr(members, "DOWN_SECONDS", 0.0)
    first, second = start(), start()
    file = File(tmp_path / "servers.txt", first)
    refusals = [transport.RequestRefused(second.url, 502, {}).local_error() for _ in range(2)]

    def refused(url: str, *arguments: Any) -> Any:
        if url == second.url and refusals:
            raise refusals.pop()
        return describe_again(url, *arguments)

    monkeypatch.setattr(members, "describe_again", refused)
    with make_vector([EnvFactory("TextCraft-v0", {"url": file.url})], SLOTS) as vector:

        def join(episode: int) -> None:
            file.name(first, second)
            noticed(vector, [first.url, second.url])

        assert playing(vector, join) == expected
        assert not [event for event in reset_all(vector, seed=0).values() if event.error]
        assert not refusals and second.front.sessions == SLOTS / 2
    told = [(one.url, one.joined) for one in news]
    assert told == [(second.url, False), (second.url, True)] and "502" in news[0].why


def test_threads_for_a_server_that_is_named_no_more_end(start, tmp_path):
    first, second, third = start(), start(), start()
    file = File(tmp_path / "servers.txt", first)
    with make_vector([EnvFactory("TextCraft-v0", {"url": file.url})], 2) as vector:
        for server in (first, second, third):
            file.name(server)
            noticed(vector, [server.url])
            assert not [event for event in reset_all(vector, seed=0).values() if event.error]
        assert [*vector._lines] == [third.url]  # type: ignore[attr-defined]


def test_an_environment_begins_its_next_episode_at_a_server_that_is_named(start, tmp_path):
    first, second = start(), start()
    file = File(tmp_path / "servers.txt", first)
    env = RemoteEnv(file.url, "TextCraft-v0")
    env.reset(seed=0)
    file.name(second)
    until(lambda: env._session.places.now() == (second.url,))
    env.step((ToolCall("env_step", {"command": "inventory"}),))
    assert (first.front.sessions, second.front.sessions) == (1, 0)
    env.reset(seed=0)
    assert second.front.sessions == 1
    first.stop()
    file.name("http://127.0.0.1:9")
    until(lambda: second.url not in env._session.places.now())
    env.step((ToolCall("env_step", {"command": "inventory"}),))
    env.close()


# -- what is named -----------------------------------------------------------------------------------------------------

URLS = st.from_regex(r"https?://[a-z]{1,8}(\.[a-z]{1,5})?:[1-9][0-9]{0,3}(/[a-z]{1,4})?", fullmatch=True)
BLANK = st.sampled_from(["", " ", "\t"])
COMMENT = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"])).map(lambda text: f"#{text}")


@given(st.lists(st.tuples(BLANK, st.one_of(URLS, st.just("")), BLANK, st.one_of(COMMENT, st.just("")))))
def test_the_addresses_in_a_file_are_those_before_comments(lines):
    assert parse_addresses("\n".join(map("".join, lines)), "file") == [url for _, url, _, _ in lines if url]


@given(st.text())
def test_whatever_else_is_in_a_file_is_an_error_of_one_line_that_names_the_line(text):
    try:
        found = parse_addresses(text, "servers.txt")
    except UsageError as error:
        assert str(error).startswith("line ") and " of servers.txt " in str(error)
    else:
        assert all(url.startswith("http") for url in map(str.lower, found))


def test_a_file_that_becomes_wrong_leaves_the_servers_as_they_are(tmp_path, caplog):
    file = File(tmp_path / "servers.txt")
    file.name("http://a:1/", "http://b:2", "http://a:1")
    found = Places(file.url)
    assert found.now() == ("http://a:1", "http://b:2")
    file.name("htp://a:1")
    until(lambda: found.now() and "line 2 of " in caplog.text)
    file.path.unlink()
    until(lambda: found.now() and "cannot be read" in caplog.text)
    assert found.now() == ("http://a:1", "http://b:2")
    file.name("http://c:3")
    until(lambda: found.now() == ("http://c:3",))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("dns://servers", "url must name host and port like dns://name:8000"),
        ("dns://servers:80/path", "url must name host and port"),
        ("dns://me:hush@servers:80", "has a password"),
        ("file://servers.txt", "url must name a file like file:///folder/servers.txt"),
        ("file:///no/such/file", "the list of servers cannot be read"),
        ([], "url is ''; it must be like http://127.0.0.1:8000, several such, dns://name:8000 or file:///"),
        (["dns://servers:80", "http://a:1"], "url is 'dns://servers:80'; it must be like"),
    ],
    ids=str,
)
def test_what_names_no_servers_is_refused_with_the_remedy(url, said):
    with pytest.raises(UsageError) as raised:
        Places(url)
    assert said in str(raised.value) and "\n" not in str(raised.value) and "hush" not in str(raised.value)
