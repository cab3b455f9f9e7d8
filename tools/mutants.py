"""Mutation tests: a sample of the mutants of each folder, tried by the tests of that folder.

mutmut makes and tries the mutants. Those that change nothing but the text of a string are left out: messages are
compared by a few of their words. ``pyproject.toml`` says what else is left alone (``tool.mutmut``) and which tests each
folder has (``tool.mutants``). Every folder is tried in a copy of the repository in ``build/mutants``, without the
recordings beside it. The table is printed, and the survivors are written to ``build/mutants/survivors.md``. Those that
are equivalent to the original are listed with the reason in ``tests/mutants.md``, and do not count.

    python tools/mutants.py --sample 20 envsuite/core trainers/steps
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "mutants"
ACCEPTED = ROOT / "tests" / "mutants.md"
PACKAGES = ("envsuite", "trainers")
SURVIVED, UNREACHED, TYPE_ERROR = 0, (5, 33), 37
TIMEOUTS = (24, 36, 152, 255, -9, -24)
"""Exit codes of mutmut, as ``mutmut/stats.py`` has them."""


@dataclass
class Folder:
    """One folder's mutants and what became of them."""

    name: str
    mutants: int
    killed: list[str] = field(default_factory=list)
    timeout: list[str] = field(default_factory=list)
    survived: dict[str, str] = field(default_factory=dict)
    """Mutant -> its difference from the original."""
    accepted: list[str] = field(default_factory=list)

    @property
    def score(self) -> float:
        """Percent of the mutants that were found out, of those that can be."""
        found = len(self.killed) + len(self.timeout)
        return 100 * found / max(found + len(self.survived), 1)

    @property
    def row(self) -> str:
        """A row of the table."""
        counts = [len(x) for x in (self.killed, self.timeout, self.survived, self.accepted)]
        numbers = " | ".join(map(str, [sum(counts), *counts]))
        return f"| {self.name} | {self.mutants:,} | {numbers} | {self.score:.0f} % |"


# Only this process counts which tests reach which function: in those that tests start, counting fails. mutmut does not
# say which test has failed before anything was changed.
CONFTEST = """import os
from pathlib import Path

COUNTING = os.environ.get("MUTANT_UNDER_TEST") == "stats"
if COUNTING:
    del os.environ["MUTANT_UNDER_TEST"]


def pytest_runtest_logreport(report):
    if COUNTING and report.failed:
        Path(__file__).with_name("failed.txt").write_text(f"{report.nodeid}\\n{report.longreprtext}\\n")
"""
# The tests have just passed, counting, and need not be run again without a mutant. Of a mutant's tests the fastest come
# first: mutmut sorts them only where it does not fork from a server.
TRY = """import sys
from mutmut import __main__ as mutmut
from mutmut.state import state
from mutmut.workers.isolation import ForkServerRunner

submit = ForkServerRunner.submit


def fastest_first(runner, mutant, tests, *limits):
    submit(runner, mutant, sorted(tests, key=state().duration_by_test.__getitem__), *limits)


ForkServerRunner.submit = fastest_first
ForkServerRunner.run_clean_tests = lambda runner, tests: 0
mutmut._run(sys.argv[2:], int(sys.argv[1]))
"""
COLUMNS = ("folder", "mutants", "sampled", "killed", "timeout", "survived", "equivalent", "score")
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


def function_of(mutant: str) -> str:
    """``trainers.steps.table.StepTable.take`` for its mutants' names."""
    module, _, name = mutant.partition("__mutmut_")[0].rpartition(".")
    return f"{module}.{name.removeprefix('x_').removeprefix('xǁ').replace('ǁ', '.')}"


def entry(mutant: str, difference: str) -> str:
    """A mutant as ``tests/mutants.md`` lists it: by its function and the lines that differ, since numbers shift."""
    lines = [line for line in difference.splitlines() if re.match(r"[-+](?![-+])", line)]
    return f"### {function_of(mutant)}\n\n```diff\n" + "\n".join(re.sub(r"^(.)\s*", r"\1 ", x) for x in lines) + "\n```"


def accepted_entries() -> set[str]:
    """The entries of ``tests/mutants.md``."""
    return set(re.findall(r"^### .*?^```$", ACCEPTED.read_text(encoding="utf-8"), flags=re.M | re.S))


def copy(folder: str, tests: Sequence[str]) -> Path:
    """A copy of the repository in which only ``folder`` is mutated, and only ``tests`` are run."""
    work = WORK / folder.replace("/", ".")
    shutil.rmtree(work, ignore_errors=True)
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    files = [name for name in listed.splitlines() if (ROOT / name).is_file()]
    for name in files:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, work / name)
    settings = {
        "source_paths": PACKAGES,
        "only_mutate": [f"{folder}/*" if (ROOT / folder).is_dir() else folder],
        "also_copy": sorted({"conftest.py", *(name.split("/")[0] for name in files)} - {*PACKAGES}),
        "pytest_add_cli_args_test_selection": ["-m", "not slow", *tests],
    }
    text = (work / "pyproject.toml").read_text(encoding="utf-8")
    (work / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (work / "mutants").mkdir()  # Python looks at the folders of its path when it starts
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    (work / "pyproject.toml").write_text(text.replace("[tool.mutmut]\n", "[tool.mutmut]\n" + lines), encoding="utf-8")
    return work


def names(work: Path, workers: int) -> list[str]:
    """Make the mutants in ``work``; their names, without those that differ in the text of a string alone."""
    code = (
        "from mutmut import __main__ as mutmut\n"
        "mutmut.copy_src_dir(); mutmut.copy_also_copy_files(); mutmut.setup_source_paths()\n"
        f"mutmut.create_mutants({workers})\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=work, check=True, stdout=subprocess.DEVNULL)
    found = []
    for meta in sorted((work / "mutants").rglob("*.py.meta")):
        every = json.loads(meta.read_text(encoding="utf-8"))["exit_code_by_key"]
        bodies = {
            node.name: "\n".join(map(ast.unparse, [node.args, *node.body])).replace("XX", "").casefold()
            for node in ast.walk(ast.parse(meta.with_suffix("").read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        for mutant in every:
            name = mutant.rpartition(".")[2]
            if bodies[name] != bodies[name.partition("__mutmut_")[0] + "__mutmut_orig"]:
                found.append(mutant)
    return found


def verdicts(work: Path) -> dict[str, int]:
    """Exit codes of the mutants that were tried."""
    found: dict[str, int] = {}
    for path in (work / "mutants").rglob("*.py.meta"):
        found |= json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
    return {name: code for name, code in found.items() if code is not None}


def limit(work: Path, least: float) -> float:
    """Seconds for all tests of the folder: five times what they took without a mutant, and ``least`` at least."""
    stats = json.loads((work / "mutants" / "mutmut-stats.json").read_text(encoding="utf-8"))
    return max(least, 5 * sum(stats["duration_by_test"].values()))


def finished(
    command: Sequence[str], place: Path, output: IO[str] | int, seconds: float | None = None, **variables: str
) -> int:
    """The exit code of a command; it and all that it has started are ended after a time, or with this process."""
    environment = {**os.environ, **variables}
    process = subprocess.Popen(
        command, cwd=place, env=environment, stdout=output, stderr=output, start_new_session=True
    )
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return TIMEOUTS[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def tried_again(work: Path, mutant: str, tests: Sequence[str], seconds: float) -> int:
    """The exit code of all tests of the folder in a process of their own.

    mutmut changes a function after its module was imported, and tries only the tests that it has seen reach it: it
    misses what is computed by an import, and what only processes that tests start reach.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", *tests]
    place = work / "mutants"
    return finished(command, place, subprocess.DEVNULL, seconds, PYTHONPATH=str(place), MUTANT_UNDER_TEST=mutant)


def tried(folder: str, tests: Sequence[str], sample: int, seed: int, workers: int, seconds: float) -> Folder:
    """Try a sample of the mutants of a folder."""
    work = copy(folder, tests)
    every = names(work, workers)
    chosen = random.Random(f"{seed} {folder}").sample(every, min(sample, len(every)))
    with (work / "mutmut.log").open("w") as log:
        command = [sys.executable, "-c", TRY, str(workers), *chosen]
        code = finished(command, work, log, PYTHONPATH=str(work / "mutants"))
    codes = verdicts(work)
    if code or not set(chosen) <= set(codes):
        failed = work / "mutants" / "failed.txt"
        raise SystemExit(
            f"{folder}: mutmut did not get through; see {work / 'mutmut.log'}"
            + (f". A test fails without a mutant: {failed.read_text(encoding='utf-8')}" if failed.is_file() else "")
        )
    result = Folder(folder, len(every))
    accepted = accepted_entries()
    for mutant in chosen:
        verdict, shown = codes[mutant], ""
        if verdict in (SURVIVED, *UNREACHED):
            show = [str(Path(sys.executable).with_name("mutmut")), "show", mutant]
            shown = subprocess.check_output(show, cwd=work, text=True)
            if entry(mutant, shown) in accepted:
                result.accepted.append(mutant)
                continue
            verdict = tried_again(work, mutant, tests, limit(work, seconds))
        if verdict in TIMEOUTS:
            result.timeout.append(mutant)
        elif verdict != SURVIVED:
            result.killed.append(mutant)
        else:
            result.survived[mutant] = shown
    return result


def main(arguments: Iterable[str] | None = None) -> int:
    """Print the table; 1 where a folder's score is below ``tool.mutants.least``."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutants"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", help="folders of tool.mutants.folders in pyproject.toml; default: all")
    parser.add_argument("--sample", type=int, default=20, help="mutants of each folder (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--workers", type=int, default=2, help="mutants that are tried at once")
    parser.add_argument(
        "--seconds", type=float, default=300, help="least limit for a mutant that mutmut's tests do not reach"
    )
    given = parser.parse_args(arguments if arguments is None else list(arguments))
    folders = settings["folders"]
    if unknown := [name for name in given.folders if name not in folders]:
        parser.error(f"no folder {unknown[0]}; known: {', '.join(folders)}")
    WORK.mkdir(parents=True, exist_ok=True)
    done = []
    print(HEAD, flush=True)
    for name in given.folders or folders:
        done.append(tried(name, folders[name], given.sample, given.seed, given.workers, given.seconds))
        print(done[-1].row, flush=True)
    total = Folder("all", sum(folder.mutants for folder in done))
    for folder in done:
        total.killed += folder.killed
        total.timeout += folder.timeout
        total.survived |= folder.survived
        total.accepted += folder.accepted
    print(total.row)
    (WORK / "survivors.md").write_text(
        "\n\n".join(entry(name, shown) for name, shown in total.survived.items()) + "\n", encoding="utf-8"
    )
    print(f"\n{len(total.survived)} survivors: {(WORK / 'survivors.md').relative_to(ROOT)}")
    return any(folder.score < settings["least"] for folder in done)


if __name__ == "__main__":
    sys.exit(main())
