from __future__ import annotations

from tools.budget import Size, over, size

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


def test_blank_lines_comments_and_docstrings_are_free() -> None:
    assert size(CODE) == Size(lines=6, tokens=22)
    assert size('"""Only a docstring."""\n') == Size()


def test_a_folder_is_over_by_lines_or_by_tokens_or_without_a_budget() -> None:
    found = {"a": Size(10, 100), "b": Size(11, 100), "c": Size(10, 101), "d": Size()}
    said = over(found, {"a": [10, 100], "b": [10, 100], "c": [10, 100], "e": [1, 1]})
    assert [line.split()[0].rstrip(":") for line in said] == ["b", "c", "d", "e"]
