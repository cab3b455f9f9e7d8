import argparse
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from envsuite import __version__, cli
from envsuite.core.registration import builtin
from envsuite.remote.protocol import TOKEN_VARIABLE
from envsuite.serving.server import DRAIN_SECONDS

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
INSTRUCTIONS = [line.strip() for line in DOCKERFILE.replace("\\\n", " ").splitlines() if line[:1].isupper()]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))
SERVERS = {name: service for name, service in COMPOSE["services"].items() if name not in ("trainer", "interpreter")}


def serve(arguments: list[str]) -> argparse.Namespace:
    """What `envsuite serve http` makes of ``arguments`` after those of the image; a refusal ends the test."""
    entry = next(line for line in INSTRUCTIONS if line.startswith('ENTRYPOINT ["envsuite"'))
    words = yaml.safe_load(entry.removeprefix("ENTRYPOINT "))
    return read(words + arguments, "serve http")


def read(words: list[str], command: str) -> argparse.Namespace:
    """The arguments of a command line of ``envsuite``, which must be that of ``command``."""
    assert words[0] == "envsuite"
    name, found, rest = cli.find(words[1:], cli.available())
    assert name == command
    return cli.parse_words(name, found, rest)


def test_compose_has_a_service_for_each_environment_and_no_other():
    played = {name: serve(service["command"]).environments for name, service in SERVERS.items()}
    expected: dict[str, list[str]] = {}
    for spec in builtin():
        shared = spec.entry_point.startswith("envsuite.classics.")
        expected.setdefault("classics" if shared else spec.id.partition("-")[0].lower(), []).append(spec.id)
    assert played == expected


def test_the_page_names_the_ports_of_compose():
    page = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
    ports = {name: int(service["ports"][0].split(":")[-2]) for name, service in SERVERS.items()}
    (said,) = re.findall(r"ports (\d+) to (\d+)", page)
    assert tuple(map(int, said)) == (min(ports.values()), max(ports.values()))
    assert sorted(ports.values()) == list(range(min(ports.values()), max(ports.values()) + 1))
    for words in re.findall(r"[^\n]*https?://[\w.]+:808[1-9][^\n]*", page):
        (served,) = set(re.findall(r"(\w+)-v0", words))
        assert {int(port) for port in re.findall(r":(808[1-9])", words)} == {ports[served.lower()]}, words


def test_the_interpreter_reaches_no_other_network_and_nobody_outside_reaches_it():
    interpreter = COMPOSE["services"]["interpreter"]
    assert COMPOSE["networks"] == {"interpreter": {"internal": True}}
    assert interpreter["networks"] == ["interpreter"]
    assert "ports" not in interpreter and interpreter["volumes"] == []
    words = interpreter["entrypoint"] + interpreter["command"]
    settings = read(words, "serve interpreter")
    assert (settings.interpreter, settings.host, settings.port) == ("auto", "0.0.0.0", serve([]).port)


def test_no_two_services_take_the_same_port_and_none_is_open_to_others_by_default():
    ports = [port for service in SERVERS.values() for port in service["ports"]]
    assert len(set(ports)) == len(ports) == len(SERVERS)
    listening = serve([])
    assert all(re.fullmatch(rf"\$\{{ENVSUITE_BIND:-127\.0\.0\.1}}:\d+:{listening.port}", port) for port in ports)
    assert f"EXPOSE {listening.port}" in INSTRUCTIONS


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_every_service_is_bounded_and_has_no_rights(name):
    service = COMPOSE["services"][name]
    assert {"mem_limit", "cpus", "pids_limit", "tmpfs"} <= set(service)
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_every_service_has_a_token_that_whoever_starts_it_chose(name):
    assert COMPOSE["services"][name]["environment"][TOKEN_VARIABLE].startswith(f"${{{TOKEN_VARIABLE}:?")


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_images_carry_the_version_of_the_package(name):
    _image, _, tag = COMPOSE["services"][name]["image"].partition(":")
    assert tag == __version__
    target = COMPOSE["services"][name]["build"]["target"]
    assert re.search(rf"^FROM \S+ AS {target}$", DOCKERFILE, re.MULTILINE)


def test_only_the_trainer_needs_a_gpu_and_only_its_profile_starts_it():
    assert COMPOSE["services"]["trainer"]["profiles"] == ["trainer"]
    assert [name for name, service in COMPOSE["services"].items() if "deploy" in service] == ["trainer"]
    assert not any("profiles" in service for service in SERVERS.values())


def test_shared_memory_of_the_trainer_is_set_by_the_model_and_the_page_has_sizes():
    page = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
    default = COMPOSE["services"]["trainer"]["shm_size"]
    assert re.fullmatch(r"\$\{ENVSUITE_SHM_SIZE:-8g\}", default)
    rows = re.findall(r"^\| [\d.B, ]+B \| (?:\d+ to )?(\d+) GB \| `(\d+)g`", page, re.MULTILINE)
    assert len(rows) == 5 and all(int(weights) < int(size) for weights, size in rows)


def test_the_trainer_waits_for_a_server_that_exists():
    trainer = COMPOSE["services"]["trainer"]
    hosts = set(re.findall(r"http://(\w+):8080", " ".join(trainer["command"])))
    assert hosts == set(trainer["depends_on"]) <= set(SERVERS)


def test_the_base_image_is_pinned_by_version_and_digest_and_no_other_is_pulled():
    assert re.search(r"^ARG BASE=\S+:\d+\.\d+\.\d+-\S+@sha256:[0-9a-f]{64}$", DOCKERFILE, re.MULTILINE)
    sources = [line.split()[1] for line in INSTRUCTIONS if line.startswith("FROM")]
    stages = [line.split()[-1] for line in INSTRUCTIONS if line.startswith("FROM")]
    assert all(source == "${BASE}" or source in stages[:number] for number, source in enumerate(sources))


def test_the_image_of_the_servers_has_what_every_environment_needs_and_no_more():
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert set(extras.split(",")) == {"serve", "images", *(spec.extra for spec in builtin() if spec.extra)}


def test_everything_that_is_installed_is_pinned_by_the_lock():
    assert "PIP_CONSTRAINT=/build/requirements.lock" in DOCKERFILE
    installed = [line for line in INSTRUCTIONS if "install" in line and "pip" in line]
    assert installed and not any("--ignore" in line or "--upgrade" in line for line in installed)
    here = [line for line in installed if "python -m pip install" in line]  # hadolint's DL3013 reads no PIP_CONSTRAINT
    assert here and all("pip install --constraint requirements.lock " in line for line in here)


def test_the_last_stage_serves_as_a_user_without_rights_and_checks_its_own_health():
    last = INSTRUCTIONS[max(number for number, line in enumerate(INSTRUCTIONS) if line.startswith("FROM")) :]
    assert last[0].endswith("AS serve")
    assert any(line.startswith("HEALTHCHECK") and "/healthz" in line for line in last)
    assert "USER 10001:10001" in INSTRUCTIONS
    assert not any(line.startswith("USER") for line in last)


def test_what_is_copied_into_images_is_let_through_by_dockerignore():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copied = {
        word.partition("/")[0]
        for line in INSTRUCTIONS
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    }
    assert copied == {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert "*" in ignored and all((ROOT / name).exists() for name in copied)


def test_containers_are_given_the_time_that_a_server_takes_to_end():
    for service in SERVERS.values():
        assert int(service["stop_grace_period"].removesuffix("s")) >= DRAIN_SECONDS + 15
