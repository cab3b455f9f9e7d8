from __future__ import annotations

import ast
import functools
import graphlib
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# From the bottom up; a part imports only what stands on an earlier line. docs/architecture.md says what each is.
LAYERS = {
    "envsuite": (
        {"core"},
        {"exits", "data", "prompting", "remote"},
        {"retrieval", "interpreter", "vector"},
        {"playing"},
        {
            *("textcraft", "alfworld", "webshop", "sokoban", "mathematics", "papersearch", "searchqa", "babyai"),
            *("bfcl", "textworld", "classics"),
            "bifurcation",
            *("adapters", "serving", "evaluation"),
        },
        {"play", "installation", "cli", "testing"},
        {"scaffold"},
    ),
    "trainers": (
        {"settings"},
        {"papers"},
        {"processes", "steps"},
        {"policy", "pool"},
        {"rollout", "credit"},
        {"report", "imitation", "gateway"},
        {"run"},
        {"planning"},
        {"programs", "commands", "train"},
    ),
    "research": ({"lab", "fleet", "credit", "screen"}, {"figures"}),
}
NEVER_IN_PRODUCT = {"research", "benchmarks"}
NEVER_IN_ENVSUITE = {
    "trainers",
    "torch",
    "transformers",
    "accelerate",
    "rich",
    "pyarrow",
    "matplotlib",
    "sentence_transformers",
    "faiss",
    "ray",
}
ONLY_WHERE_CALLED = {
    "envsuite.evaluation.plots": {"matplotlib"},
    "envsuite.papersearch.model_selector": {"torch", "transformers"},
    "envsuite.retrieval.approximate": {"faiss"},
    "envsuite.vector.actors": {"ray"},
    "envsuite.retrieval.sentence": {"sentence_transformers"},
    "envsuite.installation.tryout": {"faiss", "matplotlib"},
}
"""What a module imports in a function, with a message where it is not installed."""
NEVER_IN_ESTIMATORS = {"torch", "transformers", "gymnasium", "accelerate"}


def _modules(package: str) -> dict[str, Path]:
    """Every module of ``package`` by its dotted name; a package stands for its ``__init__``.

    What ``envsuite new`` writes is a text here, and a module only where it was written.
    """
    files = [f for f in (ROOT / package).rglob("*.py") if "scaffold" not in f.parent.parent.parts]
    return {".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f for f in files}


MODULES = {name: path for package in LAYERS for name, path in _modules(package).items()}


def _imports(path: Path) -> Iterator[str]:
    """What a file imports when it is imported or later; what only a type checker imports is left out."""
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            pending.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, f"{path}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module
        pending.extend(ast.iter_child_nodes(node))


@functools.cache
def _all_imports() -> dict[str, set[str]]:
    return {name: set(_imports(path)) for name, path in MODULES.items()}


def _part(module: str) -> str:
    return module.split(".")[1]


def _parts(package: str) -> list[str]:
    return sorted({_part(name) for name in MODULES if name.startswith(f"{package}.")})


@pytest.mark.parametrize("package", LAYERS)
def test_imports_point_downward_only(package):
    rank = {part: i for i, parts in enumerate(LAYERS[package]) for part in parts}
    missing = set(_parts(package)) - set(rank)
    assert not missing, f"enter {sorted(missing)} into LAYERS, and into docs/architecture.md"
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    assert all(f"`{part}`" in page for part in rank), "docs/architecture.md has the same layers"
    upward = [
        f"{name} imports {target}"
        for name, targets in sorted(_all_imports().items())
        for target in sorted(targets)
        if name.startswith(f"{package}.") and target.startswith(f"{package}.")
        if _part(name) != _part(target) and rank[_part(target)] >= rank[_part(name)]
    ]
    assert not upward, "\n".join(upward)


def test_no_module_imports_itself_by_a_detour():
    graph = {name: {target for target in targets if target in MODULES} for name, targets in _all_imports().items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"import circle: {' -> '.join(error.args[1])}")


def _roots(prefix: str, inside: bool = True) -> set[str]:
    return {
        target.split(".")[0]
        for name, targets in _all_imports().items()
        for target in targets
        if name == prefix or (inside and name.startswith(f"{prefix}."))
    }


def test_envsuite_never_imports_trainers_nor_what_only_trainers_need():
    found = {
        (name, root)
        for name in MODULES
        if name.split(".")[0] == "envsuite"
        for root in _roots(name, inside=False) & NEVER_IN_ENVSUITE
    }
    assert found <= {(name, root) for name, roots in ONLY_WHERE_CALLED.items() for root in roots}


@pytest.mark.parametrize("package", ["envsuite", "trainers"])
def test_the_product_imports_nothing_of_what_is_beside_it(package):
    assert not _roots(package) & NEVER_IN_PRODUCT


def test_what_is_imported_only_where_it_is_called_is_not_imported_before():
    code = f"import sys, {', '.join(ONLY_WHERE_CALLED)}; print(*(n for n in sys.argv[1:] if n in sys.modules))"
    roots = sorted({root for roots in ONLY_WHERE_CALLED.values() for root in roots})
    run = subprocess.run([sys.executable, "-c", code, *roots], capture_output=True, text=True, check=True)
    assert not run.stdout.split()


def test_only_the_play_of_people_imports_the_library_of_terminals():
    found = {name for name in MODULES if name.startswith("envsuite.") and "textual" in _roots(name, inside=False)}
    assert found == {
        "envsuite.play.app",
        "envsuite.play.prompt",
        "envsuite.installation.tryout",
    }  # doctor tries what play needs


def test_estimators_and_step_tables_know_no_model_and_no_environment():
    assert not _roots("trainers.credit.estimators") & NEVER_IN_ESTIMATORS
    assert not _roots("trainers.steps") & NEVER_IN_ESTIMATORS


_BLANKET = re.compile(r"( *)except(:| .*\b(Base)?Exception\b)")


def _swallowed(path: Path) -> Iterator[str]:
    """Yields handlers of every exception, also in scripts in strings, that neither raise nor have a comment."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if (found := _BLANKET.match(line)) is not None and "#" not in line:
            within = itertools.takewhile(lambda one: one.startswith(f"{found[1]} "), lines[number:])
            if not any(one.lstrip().startswith("raise") for one in within):
                yield f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


@pytest.mark.parametrize("package", LAYERS)
def test_who_catches_every_exception_raises_or_says_why_not(package):
    found = [place for path in sorted((ROOT / package).rglob("*.py")) for place in _swallowed(path)]
    assert not found, "\n".join(["narrow it, or give the reason in a comment on its line:", *found])
