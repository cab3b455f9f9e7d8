import json
import tomllib

from tools.budget import Size, over, size
from tools.mutants import HEAD, Folder, accepted_entries, entry, function_of, limit

CODE = '''"""A module."""

# A comment.
import os  # another


class Point:
    """A point."""

    x: int = 0
    """Its abscissa."""

    def text(self):
        """Returns
        a text.
        """
        return """two
lines""" + os.sep
'''


def test_blank_lines_comments_and_docstrings_are_free():
    assert size(CODE) == Size(lines=6, tokens=22)
    assert size('"""Only a docstring."""\n') == Size()


def test_a_folder_is_over_by_lines_or_by_tokens_or_without_a_budget():
    found = {"a": Size(10, 100), "b": Size(11, 100), "c": Size(10, 101), "d": Size()}
    said = over(found, {"a": [10, 100], "b": [10, 100], "c": [10, 100], "e": [1, 1]})
    assert [line.split()[0].rstrip(":") for line in said] == ["b", "c", "d", "e"]


SHOWN = """# trainers.steps.table.xǁStepTableǁtake__mutmut_3: survived
--- trainers/steps/table.py
+++ trainers/steps/table.py
@@ -1,3 +1,3 @@
     def take(self, rows):
-        if not rows:
+        if rows:
"""


def test_every_folder_of_mutants_and_its_tests_are_there(root):
    folders = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["mutants"]["folders"]
    assert folders
    assert all((root / path).exists() for folder, tests in folders.items() for path in (folder, *tests))


def test_a_mutant_is_listed_by_its_function_and_what_differs():
    mutant = "trainers.steps.table.xǁStepTableǁtake__mutmut_3"
    assert function_of(mutant) == "trainers.steps.table.StepTable.take"
    assert entry(mutant, SHOWN) == (
        "### trainers.steps.table.StepTable.take\n\n```diff\n- if not rows:\n+ if rows:\n```"
    )


def test_equivalent_mutants_do_not_count_and_those_that_never_end_are_found():
    folder = Folder("envsuite/core", 1587, ["a", "b"], ["c"], {"d": "…"}, ["e", "f"])
    assert folder.row == "| envsuite/core | 1,587 | 6 | 2 | 1 | 1 | 2 | 75 % |"
    assert folder.row.count("|") == HEAD.splitlines()[0].count("|") == HEAD.splitlines()[1].count("|")


def test_every_accepted_mutant_names_a_function_that_is_there(root):
    for accepted in accepted_entries():
        names = accepted.splitlines()[0].removeprefix("### ").split(".")
        at = next(n for n in range(len(names), 0, -1) if root.joinpath(*names[:n]).with_suffix(".py").is_file())
        text = root.joinpath(*names[:at]).with_suffix(".py").read_text()
        assert f"def {names[-1]}(" in text, names
        assert all(line[2:] in text for line in accepted.splitlines() if line.startswith("- ")), accepted


def test_all_tests_of_a_folder_have_five_times_as_long_as_they_took(tmp_path):
    (tmp_path / "mutants").mkdir()
    stats = {"duration_by_test": {"tests/a.py::test_a": 30.0, "tests/a.py::test_b": 50.0}}
    (tmp_path / "mutants" / "mutmut-stats.json").write_text(json.dumps(stats))
    assert limit(tmp_path, 300.0) == 400.0 and limit(tmp_path, 500.0) == 500.0
