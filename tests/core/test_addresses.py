"""What is wrong with an address is said, and no message says its password."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core.addresses import address, open_socket, redact_address
from envsuite.core.errors import UsageError
from envsuite.data.catalog import data_sets
from envsuite.data.manager import fetch
from envsuite.interpreter.base import Limits
from envsuite.interpreter.remote import ServerInterpreter
from envsuite.prompting.endpoints.options import EndpointOptions
from envsuite.remote import RemoteEnv
from envsuite.retrieval.servers import JsonServer

SECRET = "hush7"
WITH_A_SECRET = (
    f"http://me:{SECRET}@127.0.0.1:1",
    f"http://{SECRET}@127.0.0.1:1/v1",
    f"http://me:{SECRET}@127.0.0.1:port",
    f"http://me:{SECRET}/x@127.0.0.1:1",
    f"ftp://me:{SECRET}@127.0.0.1:1",
    f"me:{SECRET}@127.0.0.1:1",
    f"http://[::1/me:{SECRET}@127.0.0.1:1",
    f"http://127.0.0.1:1?key={SECRET}",
    f"https://127.0.0.1:1/v1#{SECRET}",
)


@pytest.mark.parametrize("url", WITH_A_SECRET)
@pytest.mark.parametrize(
    "use",
    [
        lambda url: RemoteEnv(url, "TextCraft-v0"),
        lambda url: ServerInterpreter(url, Limits()),
        JsonServer,
        lambda url: EndpointOptions(url=url, model="m"),
        lambda url: fetch(data_sets()[0], mirrors=[url]),
    ],
    ids=["server", "interpreter", "search", "endpoint", "mirror"],
)
def test_an_address_with_a_secret_is_refused_without_repeating_it(use, url):
    with pytest.raises(UsageError) as caught:
        use(url)
    assert SECRET not in str(caught.value)


@given(url=st.text() | st.from_regex(r"[a-z]*:?/?/?[^/]*:hush7@?[a-z0-9:./\[\]]*", fullmatch=True))
def test_any_text_is_an_address_or_refused(url):
    try:
        parts = address(url, "url", "http://127.0.0.1:1", "leave it out")
    except UsageError as error:
        assert "it must be like" in str(error) or "has a password or a query" in str(error)
    else:
        assert parts.scheme in ("http", "https") and parts.hostname and parts.username is parts.password is None


@pytest.mark.parametrize(
    "url", ["http://a..b:1", f"http://{'x' * 64}.net", "http://a b", "http://a/b c", "http://a/\0", "http://a/\xfc"]
)
def test_an_address_that_no_request_can_name_is_refused_before_there_is_one(url):
    with pytest.raises(UsageError, match="it must be like"):
        JsonServer(url)
    assert JsonServer("http://m\xfcnchen.example:1/a%20b").url == "http://m\xfcnchen.example:1/a%20b"


def test_what_is_shown_is_the_address_without_secrets():
    assert redact_address("http://me:hush@host:1/v1?key=hush") == "http://host:1/v1"
    assert redact_address("http://host:1/v1") == "http://host:1/v1"
    assert redact_address("localhost:8000") == "localhost:8000"


@pytest.mark.parametrize(
    ("host", "port", "advice"),
    [
        ("127.0.0.1", 65536, "ports are 0 to 65535"),
        ("127.0.0.1", -1, "ports are 0 to 65535"),
        ("203.0.113.1", 0, "give an address of this machine"),
        ("no host", 0, "give an address of this machine"),
        ("a" * 64, 0, "give an address of this machine"),
    ],
)
def test_where_nothing_can_listen_the_message_says_what_to_give(host, port, advice):
    with pytest.raises(UsageError, match=f"cannot listen at {host}:{port}: .*{advice}"):
        open_socket(host, port)


def test_a_taken_port_is_refused():
    with open_socket("127.0.0.1", 0) as taken, pytest.raises(UsageError, match="give another port"):
        open_socket("127.0.0.1", taken.getsockname()[1])
