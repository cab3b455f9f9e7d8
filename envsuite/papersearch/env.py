"""``PaperSearch-v0``: the search for papers as an environment of tool calls."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from envsuite.core.env import Observation, Outcome, StepInfo, ToolEnv
from envsuite.core.options import SEED, EnvOptions, option, source
from envsuite.core.players import require_episode
from envsuite.core.tools import Action, Tool, ToolCall
from envsuite.papersearch import prompts
from envsuite.papersearch.question import Scorer
from envsuite.papersearch.selectors import NAMES, selector_of
from envsuite.papersearch.tasks import ENV_ID, load
from envsuite.papersearch.world import REWARDS, LiteratureSearch, Rules, SavedLiterature
from envsuite.retrieval.documents import Retriever
from envsuite.retrieval.retrievers import RETRIEVER, SEARCHED, Description

MOST_CALLS = 5
"""Calls in one step (StepPO, B.2)."""
COUNT: dict[str, Any] = {"minimum": 1, "clients": {"maximum": 1000}}
CHARGE: dict[str, Any] = {"minimum": 0, "clients": {"maximum": 100}}
SHARE: dict[str, Any] = {"minimum": 0, "clients": {"maximum": 1}}


@dataclass(frozen=True, kw_only=True)
class LiteratureOptions(EnvOptions):
    """The options of both environments with papers to find."""

    source: str | Path = source(
        about='"builtin" (a literature from corpus_seed, built on first use), "official" (papers and queries in the '
        "folder papersearch in $ENVSUITE_DATA), or the path of a corpus"
    )
    papers: int = option(10_000, "number of papers of the built-in literature", minimum=200, maximum=20_000)
    corpus_seed: int = option(0, "its seed", **SEED)
    retriever: Description | Retriever = option("bm25", RETRIEVER, **SEARCHED)
    results: int = option(Rules.results, "papers that a search returns", **COUNT)
    citing: int = option(Rules.citing, "most papers citing an expanded one that are returned", **COUNT)
    cited: int = option(Rules.cited, "most papers cited by an expanded one that are returned", **COUNT)
    best: int = option(Rules.best, "number of new papers whose scores are the reward of a call, or of a step", **COUNT)
    penalty: float = option(
        Rules.penalty, "charged for a repeated search, and for an invalid or repeated expansion", **CHARGE
    )
    cost: float = option(Rules.cost, "charged for each other call", **CHARGE)
    shown: int = option(20, "number of papers that an observation shows", minimum=1, maximum=1000)
    snippet: int = option(120, "characters of their abstracts that it shows", minimum=0, maximum=10_000)
    max_calls: int = option(MOST_CALLS, "most calls in one step", minimum=1, maximum=MOST_CALLS)
    end_when_found: bool = option(True, "whether an episode ends when all gold papers are in the final list")
    reward: str = option(
        Rules.reward,
        'whether the best scores are those of each "call", added up over the step as StepPO\'s code does, or of the '
        '"step"',
        enum=tuple(REWARDS),
    )

    def rules(self) -> Rules:
        """Returns the rules of an episode."""
        names = {field.name for field in fields(self)} & {field.name for field in fields(Rules)}
        return Rules(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class PaperSearchOptions(LiteratureOptions):
    """The options of ``PaperSearch-v0``."""

    env_id: ClassVar[str] = ENV_ID
    selector: str | Path | Scorer = option(
        "gold",
        'what scores papers, for the reward and the final list: "gold" (the annotations), "lexical" (the query\'s '
        "words), the path of a language model, or in Python a function",
        clients={"enum": tuple(NAMES)},
    )
    discard: float = option(
        Rules.discard, "papers with a lower score are discarded, unless the selector is gold", **SHARE
    )
    threshold: float = option(
        Rules.threshold,
        "papers with at least this score make the final list, of which recall and F1 are computed",
        **SHARE,
    )


class PaperSearchEnv(ToolEnv):
    """Find the papers that a research query asks for, by searches and by following citations.

    Args:
        given: Values of :class:`PaperSearchOptions`.
    """

    tools: tuple[Tool, ...] = (
        Tool.of_string("search", prompts.SEARCH, "query", prompts.QUERY),
        Tool.of_string("expand", prompts.EXPAND, "paper_id", prompts.PAPER_ID),
    )
    takes: type[EnvOptions] = PaperSearchOptions

    def __init__(self, **given: Any) -> None:
        options = PaperSearchOptions.of(given)
        self._open(options, options.selector)

    def _open(self, options: LiteratureOptions, selector: str | Path | Scorer) -> None:
        """Makes the environment."""
        self.rules = options.rules()
        self.collection = load(options.source, options.papers, options.corpus_seed)
        self.library = self.collection.searched_by(options.retriever)
        self.selector = selector_of(selector, self.collection.corpus, self.library.words)
        self.shown, self.snippet, self.max_calls = options.shown, options.snippet, options.max_calls
        self.end_when_found = options.end_when_found
        versions = {"search": self.library.retriever.name, "selector": self.selector.name}
        super().__init__(self.collection.task_set.select(options.tasks), options.split, options.render_mode, versions)
        self._session: LiteratureSearch | None = None

    @property
    def session(self) -> LiteratureSearch:
        """The session of the current episode.

        Raises:
            UsageError: No episode has been started.
        """
        return require_episode(self._session, ENV_ID)

    def _goal(self, task_id: str) -> str:
        task = self.collection.task(task_id)
        return prompts.task(task["text"], task["date"])

    def _identity(self, task_id: str) -> dict[str, Any]:
        """Returns the corpus, and query, date and a SHA-256 of the gold papers of a task.

        The SHA-256 is that of the papers' ids, sorted and joined by line feeds.
        """
        task = self.collection.task(task_id)
        gold = hashlib.sha256("\n".join(sorted(task["gold"])).encode()).hexdigest()
        corpus = self.collection.corpus.digest
        return {"corpus": corpus, "query": task["text"], "date": task["date"], "gold_sha256": gold}

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        question = self.collection.question(task_id)
        self._session = LiteratureSearch(self.library, self.selector, self.rules, question)
        view = self._session.view(self.shown, self.snippet, 0)
        return prompts.task(question.text, question.date), self._outcome(view)

    def _call(self, call: ToolCall) -> Outcome:
        return self._execute((call,))

    def _execute(self, action: Action) -> Outcome:
        """Executes the calls together; see :meth:`LiteratureSearch.step`. The step is valid if none is refused."""
        session = self.session
        report = session.step([(call.name, next(iter(call.arguments.values()))) for call in action])
        view = session.view(self.shown, self.snippet, len(report.lines))
        text = "\n".join(report.lines)
        return self._outcome(f"{text}\n\n{view}", report.reward, "; ".join(report.errors) or None)

    def _refuse(self, problem: str, commands: tuple[str, ...]) -> tuple[Observation, float, bool, bool, StepInfo]:
        text = f"Invalid action: {problem}. Tools: {', '.join(tool.name for tool in self.tools)}."
        outcome = self._outcome(f"{text}\n\n{self.session.view(self.shown, self.snippet, 0)}", error=problem)
        return self._observe(outcome), 0.0, False, False, self._info(outcome)

    def _outcome(self, text: str, reward: float = 0.0, error: str | None = None) -> Outcome:
        metrics = self.session.metrics()
        score = metrics["recall_all"]
        success = score == 1.0
        end = success and self.end_when_found
        return Outcome(text, reward=reward, done=end, error=error, success=success, score=score, metrics=metrics)

    def _state_key(self) -> str:
        return hashlib.sha256(f"{self._task_id} {self.session.key()}".encode("utf-8", "surrogatepass")).hexdigest()

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        session = self._session
        if session is not None and len(session.papers) and rng.random() < 0.5:
            number = int(session.papers[int(rng.integers(len(session.papers)))])
            return ToolCall("expand", {"paper_id": self.library.key(number)})
        words = (session.question.text if session is not None else "papers").split() or ["papers"]
        terms = rng.permutation(words)[: int(rng.integers(1, 6))]
        return ToolCall("search", {"query": " ".join(str(word) for word in terms)})

    def _save(self) -> SavedLiterature:
        return self.session.save()

    def _resume(self, task_id: str, world: SavedLiterature) -> None:
        self._begin(task_id)
        self.session.load(world)
