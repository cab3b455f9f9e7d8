"""Names say what they are: no bare participle names a function, and no pronoun or participle a variable."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("envsuite", "trainers")
IRREGULAR = frozenset(
    "found told said taught kept written chosen known given taken made done seen drawn shown met lost sent gone born "
    "meant left begun thrown held built led fed paid laid grown worn torn bound wound dealt felt heard spoken broken "
    "stolen woken forgotten".split()
)
NOUNS = frozenset("speed seed need feed embed shed greed".split())
PRONOUNS = frozenset("one other others it those these some each both rest thing things".split())
MOST_FUNCTIONS, MOST_VARIABLES = 30, 400
"""Limits of the two packages: what is left are terms of the field and of other libraries' interfaces."""
SHARED = {"Limits": "of code in a sandbox, and of an agent's session; users write both"}
"""Classes of one name, each with the reason."""


def _is_participle(name: str) -> bool:
    word = name.strip("_")
    return word in IRREGULAR or ("_" not in word and word.endswith("ed") and len(word) > 4 and word not in NOUNS)


def _nodes() -> Iterator[tuple[str, ast.AST]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", node


def test_functions_are_verbs_or_nouns():
    functions = [
        f"{place} {node.name}"
        for place, node in _nodes()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and _is_participle(node.name)
        and not any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    assert len(functions) <= MOST_FUNCTIONS, "\n".join(functions)


def test_variables_are_nouns():
    variables = [
        f"{place} {node.id}"
        for place, node in _nodes()
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and (node.id.strip("_") in PRONOUNS or _is_participle(node.id))
    ]
    assert len(variables) <= MOST_VARIABLES, "\n".join(variables)


def test_a_class_has_its_name_alone():
    classes = [node.name for place, node in _nodes() if isinstance(node, ast.ClassDef) and "scaffold/" not in place]
    names = Counter(classes)  # what `envsuite new` writes has the name that it is given
    assert {name for name, count in names.items() if count > 1} == {*SHARED}
