import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import nullcontext

import pytest
from served_pages import opened

from envsuite.cli import main


def test_the_shop_opens_on_this_machine_alone_says_so_and_closes_with_ctrl_c(shop_path):
    with opened("webshop", "--source", str(shop_path), "--split", "dev") as (said, address, process):
        assert "for this machine alone" in said
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=20) as response:
            assert "What would you like to buy?" in response.read().decode()
            assert f"webshop-{address.split(':')[2].strip('/')}=" in response.headers["Set-Cookie"]
        big = urllib.request.Request(address + "search", data=b"x" * (5 << 20))
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(big, timeout=20)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=20)
        assert said == "The shop is closed.\n"
        assert process.returncode == 0


def test_a_port_in_use_is_named_with_what_to_type(shop_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        given = ["play", "webshop", "--browser", "--source", str(shop_path), "--split", "dev"]
        assert main([*given, "--port", port]) == 2
    said = capsys.readouterr().err
    assert f":{port}" in said and "or 0 for any that is free" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--split", "train"], "no task; give another: --split dev"),
        (["--split", "dev", "--task", "B000000001/synthetic-77"], "B000000001/synthetic-77"),
        (["--split", "dev", "--host", "192.0.2.1"], "an address of this machine: 127.0.0.1"),
        (["--split", "dev", "--host", "no.such.host.invalid"], "an address of this machine: 127.0.0.1"),
        (["--split", "dev", "--host", "\u00e9" * 70], "an address of this machine: 127.0.0.1"),
        (["--source", "nowhere.catalogue"], "nowhere.catalogue: no catalogue there"),
    ],
)
def test_what_a_user_can_mend_is_one_message(shop_path, capsys, arguments, said):
    assert main(["play", "webshop", "--browser", "--source", str(shop_path), "--port", "0", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--port", "65536"], ["--port", "-1"], ["--port", "http"]])
def test_what_cannot_be_meant_is_refused_before_anything_is_loaded(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["play", "webshop", "--browser", *arguments])
    assert ended.value.code == 2
    assert "usage: envsuite play" in capsys.readouterr().err


def test_other_commands_load_no_web_server():
    code = "import sys, envsuite.cli; sys.exit(bool({'flask', 'uvicorn', 'rapidfuzz'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize(("host", "alone"), [("localhost", True), ("127.0.0.2", True), ("0.0.0.0", False)])
def test_the_shop_says_who_can_reach_it_and_answers_to_its_names(shop_path, host, alone):
    given = ["webshop", "--source", str(shop_path), "--split", "dev", "--host", host]
    with opened(*given) as (said, address, _):
        assert ("for this machine alone" in said) is alone and ("WHOEVER" in said) is not alone
        asked = urllib.request.Request(
            address, headers={"Host": f"elsewhere.example:{address.split(':')[2].strip('/')}"}
        )
        with urllib.request.urlopen(address, timeout=20) as response:
            assert response.status == 200
        with nullcontext() if not alone else pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(asked, timeout=20).close()
