"""``envsuite data build papers`` and ``questions``."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from envsuite.papersearch.tasks import load as papers
from envsuite.searchqa.tasks import load as questions


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path))


@pytest.mark.parametrize(("what", "size"), [("papers", 211), ("questions", 307)])
def test_what_is_generated_beforehand_is_what_the_environment_opens(what, size, console, caplog):
    out, _ = console(f"data build {what} --builtin {size} --seed 91")
    told = dict(line.split(": ", 1) for line in out.splitlines())
    with caplog.at_level(logging.WARNING):
        found = papers("builtin", size, 91) if what == "papers" else questions("builtin", size, None, 91)
    assert not caplog.messages and str(found.corpus.path) == told["corpus"]
    assert int(told["documents"]) == len(found.corpus) and int(told["tasks"]) == len(found.task_set.types)


def test_queries_of_every_file_are_tasks_however_the_option_is_given(tmp_path, console):
    (tmp_path / "papers.jsonl").write_text('{"paper_id": "a", "title": "On Graphs", "abstract": "A", "year": 2019}\n')
    one, two = tmp_path / "a_dev.jsonl", tmp_path / "b_dev.jsonl"
    for path in (one, two):
        path.write_text(f'{{"qid": "{path.name}", "question": "Which?", "answer": ["On Graphs"]}}\n')
    for words in (f"--queries {one} --queries {two}", f"--queries {one} {two}"):
        out, _ = console(f"data build papers {tmp_path}/papers.jsonl {words} --out {tmp_path}/out.corpus")
        assert "\ntasks: 2\n" in out


@pytest.mark.parametrize("what", ["papers", "questions"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--seed 3", "give --builtin N with it"),
        ("x.jsonl --builtin 300", "give it, or files"),
        ("--builtin 3", "give"),
        ("nowhere.jsonl", "nowhere.jsonl"),
        ("--builtin 300 --vectors model", "name it with --out"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(what, words, said, tmp_path, console):
    assert said in console(f"data build {what} {words}", 2)[1] and not [*tmp_path.rglob("*.corpus")]
