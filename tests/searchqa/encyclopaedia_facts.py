"""Answers to the generated questions by a search over all facts, which shares no code with the generator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Facts:
    """Subject, relation, value; of any number, in any order."""

    def __init__(self, triples: Iterable[tuple[str, str, int | str]], kinds: Mapping[str, str]) -> None:
        self.triples = list(triples)
        self.kinds = kinds
        self.values: dict[tuple[str, str], set[int | str]] = {}
        for subject, relation, value in self.triples:
            self.values.setdefault((subject, relation), set()).add(value)

    def start(self, form: Mapping[str, Any]) -> set[int | str]:
        if "title" in form:
            return {form["title"]}
        found = {title for title, kind in self.kinds.items() if kind == form["kind"]}
        for relation, value in form["where"].items():
            found = {title for title in found if value in self.values.get((title, relation), ())}
        return set(found)

    def follow(self, starts: Iterable[int | str], path: Iterable[str]) -> set[int | str]:
        found = set(starts)
        for relation in path:
            found = {value for one in found for value in self.values.get((str(one), relation), ())}
        return found

    def answers(self, query: Mapping[str, Any]) -> set[int | str]:
        """Every answer: values, titles, or yes and no."""
        if "of" not in query:
            return self.follow(self.start(query["from"]), query["path"])
        sides = [self.follow(self.start(form["from"]), form["path"]) for form in query["of"]]
        assert all(len(side) == 1 for side in sides)
        relation = query.get("same", query.get("compare"))
        ends = [self.follow(side, relation.split()) for side in sides]
        assert all(len(end) == 1 for end in ends)
        (first,), (second,) = ends
        if "same" in query:
            return {"yes" if first == second else "no"}
        smaller_first = first < second  # type: ignore[operator]
        assert first != second
        return sides[0] if smaller_first == (query["pick"] == "first") else sides[1]
