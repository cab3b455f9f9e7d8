"""``PaperSearch-v0``: the search for papers as an environment of tool calls."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from envsuite.core.env import Observation, Outcome, StepInfo, ToolEnv
from envsuite.core.errors import UsageError
from envsuite.core.tools import Action, Tool, ToolCall, check_action
from envsuite.papersearch import prompts
from envsuite.papersearch.question import Scorer
from envsuite.papersearch.selectors import NAMES, selector_of
from envsuite.papersearch.tasks import ENV_ID, load
from envsuite.papersearch.world import Rules, Saved, Session
from envsuite.retrieval.documents import Retriever
from envsuite.retrieval.retrievers import SCHEMA, Description

MOST_CALLS = 5
"""Calls in one step (StepPO, B.2)."""


class Token(TypedDict):
    """The state of an episode, as plain data."""

    task_id: str
    session: Saved
    text: str
    done: bool


def _tool(name: str, description: str, argument: str, meaning: str) -> Tool:
    return Tool(
        name,
        description,
        {
            "type": "object",
            "properties": {argument: {"type": "string", "description": meaning}},
            "required": [argument],
            "additionalProperties": False,
        },
    )


class PaperSearchEnv(ToolEnv):
    """Find the papers that a research query asks for, by searches and by following citations.

    Args:
        source: ``"builtin"`` (a literature from ``corpus_seed``, built on first use), ``"official"`` (papers and
            queries in the folder ``papersearch`` in ``$ENVSUITE_DATA``), or the path of a corpus.
        split: The split from which a reset draws: ``"train"``, ``"validation"`` or ``"test"``;
            with ``None``, each reset must name its task.
        tasks: Task ids, or kinds such as ``"method-problem"``, to keep; all of them by default.
        render_mode: ``"ansi"`` or ``None``.
        papers: Number of papers of the built-in literature.
        corpus_seed: Its seed.
        retriever: The search: ``"bm25"``, another by its description (:mod:`envsuite.retrieval.retrievers`), or a
            :class:`~envsuite.retrieval.documents.Retriever` of the same documents.
        selector: What scores papers, for the reward and the final list: ``"gold"`` (the annotations), ``"lexical"``
            (the query's words), the path of a language model, or a function
            (:data:`~envsuite.papersearch.question.Scorer`).
        results: Papers that a search returns.
        citing: Most papers citing an expanded one that are returned.
        cited: Most papers cited by an expanded one that are returned.
        best: Number of new papers whose scores are the reward of a step.
        penalty: Charged for a repeated search, and for an invalid or repeated expansion.
        cost: Charged for each other call.
        discard: Papers with a lower score are discarded, unless the selector is ``"gold"``.
        threshold: Papers with at least this score make the final list, of which recall and F1 are computed.
        shown: Number of papers that an observation shows.
        snippet: Characters of their abstracts that it shows.
        max_calls: Most calls in one step, up to 5.
        end_when_found: Whether an episode ends when all gold papers are in the final list.
    """

    tools: tuple[Tool, ...] = (
        _tool("search", prompts.SEARCH, "query", prompts.QUERY),
        _tool("expand", prompts.EXPAND, "paper_id", prompts.PAPER_ID),
    )
    arguments: Mapping[str, Any] = {
        **ToolEnv.arguments,
        "papers": {"type": "integer", "minimum": 200, "maximum": 20_000},
        "corpus_seed": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        "retriever": SCHEMA,
        "selector": {"type": "string", "enum": list(NAMES)},
        **{name: {"type": "integer", "minimum": 1, "maximum": 1000} for name in ("results", "citing", "cited", "best")},
        **{name: {"type": "number", "minimum": 0, "maximum": 100} for name in ("penalty", "cost")},
        **{name: {"type": "number", "minimum": 0, "maximum": 1} for name in ("discard", "threshold")},
        "shown": {"type": "integer", "minimum": 1, "maximum": 1000},
        "snippet": {"type": "integer", "minimum": 0, "maximum": 10_000},
        "max_calls": {"type": "integer", "minimum": 1, "maximum": MOST_CALLS},
        "end_when_found": {"type": "boolean"},
    }

    def __init__(
        self,
        source: str | Path = "builtin",
        split: str | None = "train",
        tasks: Iterable[str] | None = None,
        render_mode: str | None = None,
        papers: int = 10_000,
        corpus_seed: int = 0,
        retriever: Description | Retriever = "bm25",
        selector: str | Path | Scorer = "gold",
        results: int = Rules.results,
        citing: int = Rules.citing,
        cited: int = Rules.cited,
        best: int = Rules.best,
        penalty: float = Rules.penalty,
        cost: float = Rules.cost,
        discard: float = Rules.discard,
        threshold: float = Rules.threshold,
        shown: int = 20,
        snippet: int = 120,
        max_calls: int = MOST_CALLS,
        end_when_found: bool = True,
    ) -> None:
        given = {"results": results, "citing": citing, "cited": cited, "best": best, "penalty": penalty, "cost": cost}
        self.rules = Rules(**given, discard=discard, threshold=threshold)  # type: ignore[arg-type]
        _check(self.rules, shown, snippet, max_calls)
        self.collection = load(source, papers, corpus_seed)
        self.library = self.collection.searched_by(retriever)
        self.selector = selector_of(selector, self.collection.corpus, self.library.words)
        self.shown, self.snippet, self.max_calls = shown, snippet, max_calls
        self.end_when_found = end_when_found
        versions = {"search": self.library.retriever.name, "selector": self.selector.name}
        super().__init__(self.collection.task_set.select(tasks), split, render_mode, versions)
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """The session of the current episode.

        Raises:
            UsageError: No episode has been started.
        """
        if self._session is None:
            raise UsageError(f"{ENV_ID} has no episode; call reset() first")
        return self._session

    def goal(self, task_id: str) -> str:
        """Returns the instruction of a task.

        Raises:
            UnknownTask: The task does not exist.
        """
        self._describe(task_id)
        task = self.collection.task(task_id)
        return prompts.task(task["text"], task["date"])

    def identity(self, task_id: str) -> dict[str, Any]:
        """Returns the corpus, and query, date and a SHA-256 of the gold papers of a task.

        The SHA-256 is that of the papers' ids, sorted and joined by line feeds.

        Raises:
            UnknownTask: The task does not exist.
        """
        self._describe(task_id)
        task = self.collection.task(task_id)
        return {
            "corpus": self.collection.corpus.digest,
            "query": task["text"],
            "date": task["date"],
            "gold_sha256": hashlib.sha256("\n".join(sorted(task["gold"])).encode()).hexdigest(),
        }

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        question = self.collection.question(task_id)
        self._session = Session(self.library, self.selector, self.rules, question)
        return prompts.task(question.text, question.date), self._outcome(
            self._session.view(self.shown, self.snippet, 0)
        )

    def step(  # type: ignore[override]
        self, action: Action
    ) -> tuple[Observation, float, bool, bool, StepInfo]:
        """Executes the calls of ``action`` together; see :meth:`Session.step`.

        The step is valid if none of them was refused.

        Raises:
            UsageError: Before the first :meth:`reset`, or after the episode has ended.
        """
        if self._done or check_action(action, self.tools, self.max_calls) is not None:
            return super().step(action)
        outcome = self._execute(action)
        self._done = outcome.done
        return self._observe(outcome), outcome.reward, outcome.done, False, self._info(outcome)

    def _call(self, call: ToolCall) -> Outcome:
        return self._execute((call,))

    def _execute(self, action: Action) -> Outcome:
        session = self.session
        done = session.step([(call.name, next(iter(call.arguments.values()))) for call in action])
        view = session.view(self.shown, self.snippet, len(done.lines))
        said = "\n".join(done.lines)
        return self._outcome(f"{said}\n\n{view}", done.reward, "; ".join(done.errors) or None)

    def _refuse(self, problem: str, commands: tuple[str, ...]) -> tuple[Observation, float, bool, bool, StepInfo]:
        text = f"Invalid action: {problem}. Tools: {', '.join(tool.name for tool in self.tools)}."
        outcome = self._outcome(f"{text}\n\n{self.session.view(self.shown, self.snippet, 0)}", error=problem)
        return self._observe(outcome), 0.0, False, False, self._info(outcome)

    def _outcome(self, text: str, reward: float = 0.0, error: str | None = None) -> Outcome:
        metrics = self.session.metrics()
        success = metrics["recall_all"] == 1.0
        return Outcome(
            text,
            reward=reward,
            done=success and self.end_when_found,
            error=error,
            success=success,
            score=metrics["recall_all"],
            metrics=metrics,
        )

    def _state_key(self) -> str:
        return hashlib.sha256(f"{self._task_id} {self.session.key()}".encode("utf-8", "surrogatepass")).hexdigest()

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        session = self._session
        if session is not None and len(session.papers) and rng.random() < 0.5:
            number = int(session.papers[int(rng.integers(len(session.papers)))])
            return ToolCall("expand", {"paper_id": self.library.key(number)})
        words = (session.question.text if session is not None else "papers").split() or ["papers"]
        some = rng.permutation(words)[: int(rng.integers(1, 6))]
        return ToolCall("search", {"query": " ".join(str(word) for word in some)})

    def snapshot(self) -> Token:
        """Returns the state of the episode as plain data that can be pickled.

        Raises:
            UsageError: No episode has been started.
        """
        if self._last is None:
            raise UsageError(f"{type(self).__name__}.snapshot called before reset; call reset() first")
        return Token(task_id=self._task_id, session=self.session.saved(), text=self._last["text"], done=self._done)

    def restore(self, token: object) -> Observation:
        """Restores a snapshot; returns the observation that was current when it was taken.

        Raises:
            UsageError: ``token`` is not a :meth:`snapshot`, or one of another corpus.
            UnknownTask: The environment does not have its task.
        """
        known = self._fields(token, Token)
        self._start(known["task_id"])
        saved = known["session"]
        if saved["papers"] and max(saved["papers"]) >= self.session.question.stop:
            raise UsageError(f"{type(self).__name__}.restore: the snapshot is of another corpus")
        self.session.load(saved)
        self._done = known["done"]
        return self._observe(Outcome(known["text"]))


def _check(rules: Rules, shown: int, snippet: int, max_calls: int) -> None:
    """Raises :class:`UsageError` for a number that is out of range."""
    least = {"results": 1, "citing": 1, "cited": 1, "best": 1}
    for field in fields(rules):
        value = getattr(rules, field.name)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < least.get(field.name, 0):
            raise UsageError(f"{field.name}={value!r}: give a number from {least.get(field.name, 0)}")
        if field.name in least and not isinstance(value, int):
            raise UsageError(f"{field.name}={value!r} is not a whole number")
    for name, value, low, high in (
        ("shown", shown, 1, 1000), ("snippet", snippet, 0, 10_000), ("max_calls", max_calls, 1, MOST_CALLS),
    ):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise UsageError(f"{name}={value!r}: give a whole number from {low} to {high:,}")
