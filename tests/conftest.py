"""What every test may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# One thread here and in every process a test starts: sums round alike only with equal numbers of threads.
os.environ["OMP_NUM_THREADS"] = "1"

ROOT = Path(__file__).resolve().parents[1]

# No deadline: timings on shared machines are noise. In CI the examples are the same each time.
settings.register_profile("repository", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("repository")


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


@pytest.fixture(scope="session")
def shared() -> Path:
    """Recordings and vectors of the original implementations, which are not part of the repository."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"needs the recordings of the original implementations in {folder}")
    return folder


@pytest.fixture(scope="session")
def server(data_folder: Path) -> Iterator[str]:
    """The address of a server, in a thread of this process, that offers every environment and opens every folder."""
    from envsuite.registration import ENVIRONMENTS
    from envsuite.serving.server import serving
    from envsuite.serving.settings import Settings

    ids = tuple(spec.id for spec in ENVIRONMENTS)
    with serving(Settings(ids, port=0, workers=0, source_folders=(Path("/"),))) as running:
        yield running.url


@pytest.fixture(scope="session", params=["local", "remote"])
def where(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Arguments of ``gymnasium.make`` that play an environment here, and on a server."""
    return {} if request.param == "local" else {"url": request.getfixturevalue("server")}
