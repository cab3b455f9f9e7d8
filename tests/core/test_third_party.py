"""An environment in another package: the one that ``envsuite new`` writes, installed beside envsuite."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from console import Console
from driving import answers
from third_party import files_of_new, install

import envsuite
from envsuite.core import ToolCall, UsageError
from envsuite.core.registration import ENVIRONMENTS, EnvSpec
from envsuite.serving.bridges.settings import BridgeSettings as BridgeSettings
from envsuite.serving.server import serving
from envsuite.serving.settings import ServerSettings
from envsuite.testing import check_environment, checks
from envsuite.vector import EnvFactory, make_vector


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on Python's path, with the package."""
    folder = tmp_path_factory.mktemp("site")
    install(folder, files_of_new(tmp_path_factory.mktemp("new"), "errand", "--package"))
    return folder


@pytest.fixture(scope="module")
def errand(site: Path) -> Iterator[str]:
    """The id of the environment, registered in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        importlib.invalidate_caches()
        envsuite.register_envs()
        yield "Errand-v0"
        del ENVIRONMENTS["Errand-v0"], gymnasium.registry["Errand-v0"]


@pytest.fixture(scope="module")
def there(errand: str) -> Iterator[dict[str, Any]]:
    """Arguments of ``gymnasium.make`` that play it on a server with a worker, over real sockets."""
    with serving(ServerSettings((errand,), port=0, workers=1)) as running:
        yield {"url": running.url}


def go(place: Any) -> tuple[ToolCall, ...]:
    return (ToolCall("go", {"place": place}),)


@pytest.mark.parametrize("first", ["envsuite", "errand.env", "gymnasium"])
def test_an_installed_package_is_registered_by_importing_envsuite_whatever_was_imported_before(
    site: Path, first: str
) -> None:
    code = (
        f"import {first}, sys, envsuite; assert 'errand.env' not in sys.modules or {first!r} == 'errand.env'\n"
        "import gymnasium; print(gymnasium.make('Errand-v0').reset(options={'task_id': 'lamp-mill-castle'})[0]['task'])"
    )
    path = ":".join([str(site), *sys.path])
    command = [sys.executable, "-W", "error", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": path}, check=False)
    assert run.stdout == "Bring the lamp from the mill to the castle.\n", run.stderr


def test_it_passes_the_checker(errand: str) -> None:
    assert "server" in {check.run.__name__ for check in checks(errand)}
    check_environment(ENVIRONMENTS[errand])


@pytest.mark.parametrize(("workers", "remote"), [(1, False), (0, True)])
def test_it_is_played_by_a_vector(errand: str, there: dict[str, Any], workers: int, remote: bool) -> None:
    with make_vector([EnvFactory(errand, there if remote else {})], 3, workers) as vector:
        for slot in range(3):
            vector.reset(slot, 0, task_id="lamp-mill-castle")
        assert set(answers(vector, 3)) == {0, 1, 2}
        vector.step(0, go("mill"))
        vector.refuse(1, "no call")
        vector.step(2, (ToolCall("put", {}),))
        events = answers(vector, 3)
        assert [events[slot].observation["text"] for slot in range(3)] == [
            "You are at the mill.", "Invalid action: no call. Tools: go, take, put.", "You carry nothing.",
        ]  # fmt: skip


def test_the_command_line_lists_it_and_its_tasks(errand: str, console: Console) -> None:
    shown, _ = console("envs list")
    assert re.search(r"^Errand-v0 +6  errand$", shown, re.MULTILINE) and all(env_id in shown for env_id in ENVIRONMENTS)
    assert console(f"envs tasks {errand} --split test")[0].splitlines()[0] == "test\tparcel\tbread-bakery-castle"


def test_another_environment_of_the_same_id_is_refused_and_the_same_again_is_not(errand: str) -> None:
    envsuite.register(ENVIRONMENTS[errand])
    with pytest.raises(
        UsageError, match=r"other.env:Errand cannot be registered as Errand-v0, which is errand.env:Errand"
    ):
        envsuite.register(EnvSpec(errand, "other.env:Errand", 20))
    assert ENVIRONMENTS[errand].entry_point == "errand.env:Errand"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("import nothing_of_the_kind", "ModuleNotFoundError"),
        ("BROKEN = 1 / 0", "ZeroDivisionError"),
        ("OTHER = 1", "AttributeError"),
        ("BROKEN = 'Broken-v0'", "it is a str, not an envsuite.core.registration.EnvSpec"),
        ("from envsuite import EnvSpec\nBROKEN = EnvSpec('WebShop-v0', 'broken.env:Shop', 5)", "choose another id"),
    ],
)
def test_a_package_that_cannot_be_loaded_is_told_of_and_takes_no_other_along(
    tmp_path: Path, site: Path, spec: str, said: str
) -> None:
    pyproject = '[project]\nname = "aaa"\nversion = "1"\n[project.entry-points."envsuite.environments"]\n'
    install(tmp_path, {"broken.py": spec, "pyproject.toml": pyproject + 'broken = "broken:BROKEN"\n'})
    code = "import envsuite, gymnasium; print({'Errand-v0', 'WebShop-v0'} <= set(gymnasium.registry))"
    path = ":".join([str(tmp_path), str(site), *sys.path])
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": path})
    assert run.stdout == "True\n"
    assert "the entry point broken = 'broken:BROKEN' of envsuite.environments" in run.stderr and said in run.stderr
