"""``SearchQA-v0``: questions of several hops as an environment of tool calls."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from envsuite.core.env import Observation, Outcome, StepInfo, ToolEnv
from envsuite.core.options import SEED, EnvOptions, option, source
from envsuite.core.players import require_episode
from envsuite.core.tools import Action, Tool, ToolCall
from envsuite.retrieval.documents import Retriever
from envsuite.retrieval.retrievers import RETRIEVER, SEARCHED, Description
from envsuite.searchqa import prompts
from envsuite.searchqa.tasks import ENV_ID, load
from envsuite.searchqa.world import QuestionSearch, SavedQuestion

MOST_CALLS = 4
"""Calls in one step (StepPO, B.2)."""
REWARDS = ("em", "f1")
VIEWS = ("all", "new", "search-r1")


_SEARCH = Tool.of_string("search", prompts.SEARCH, "query", prompts.QUERY)
_OPEN = Tool.of_string("open", prompts.OPEN, "page", prompts.PAGE)
_ANSWER = Tool.of_string("answer", prompts.ANSWER, "text", prompts.TEXT)


@dataclass(frozen=True, kw_only=True)
class SearchQAOptions(EnvOptions):
    """The options of ``SearchQA-v0``."""

    env_id: ClassVar[str] = ENV_ID
    source: str | Path = source(
        about='"builtin" (an encyclopaedia from corpus_seed, built on first use), "official" (the folder questions in '
        "$ENVSUITE_DATA), or the path of a corpus, or of official files of questions"
    )
    entities: int = option(3000, "number of pages of the built-in encyclopaedia", minimum=100, maximum=20_000)
    questions: int | None = option(
        None, "number of its questions; null: one for three pages", minimum=1, clients={"maximum": 20_000}
    )
    corpus_seed: int = option(0, "its seed", **SEED)
    retriever: Description | Retriever = option("bm25", RETRIEVER, **SEARCHED)
    results: int = option(3, "passages that a search returns", minimum=1, maximum=100)
    open_pages: bool = option(False, "whether there is the tool open, which StepPO does not have")
    reward: str = option(
        "em",
        'reward s of an answer: "em" (1 for a normalised exact match with the answer or an alias, else 0; StepPO, B.1, '
        'and Search-R1) or "f1"',
        enum=REWARDS,
    )
    format_reward: float = option(
        0.0,
        "weight w of the form: the reward is (1 - w) s + w if no action of the episode was invalid, and (1 - w) s "
        "else; 0 in StepPO and Search-R1; the latter's format reward, without its retrieval term, is 0.2",
        minimum=0,
        maximum=1,
    )
    observation: str = option(
        "all",
        '"all": the passages found so far, and earlier queries (StepPO\'s prompt); "new": those of the last step, for '
        'memories that show all steps; "search-r1": those, in Search-R1\'s words',
        enum=VIEWS,
    )
    shown: int = option(20, "most passages that an observation shows: the last ones found", minimum=1, maximum=1000)
    passage_length: int = option(1000, "characters of a passage that it shows", minimum=20, maximum=100_000)
    max_calls: int = option(MOST_CALLS, "most calls in one step", minimum=1, maximum=MOST_CALLS)


class SearchQAEnv(ToolEnv):
    """Answer a question whose facts are on several pages, by searching for passages.

    Tools, passages of a search, calls of a step and the reward ``"em"`` are those of StepPO's multi-hop questions
    (appendix B.1, "Multi-Hop Question Answering", and B.2), but for the search, which is BM25 unless another is given.

    Args:
        given: Values of :class:`SearchQAOptions`.
    """

    tools: tuple[Tool, ...] = (_SEARCH, _ANSWER)
    takes = SearchQAOptions

    def __init__(self, **given: Any) -> None:
        options = SearchQAOptions.of(given)
        self.results, self.shown, self.max_calls = options.results, options.shown, options.max_calls
        self.passage_length = options.passage_length
        self.collection = load(options.source, options.entities, options.questions, options.corpus_seed)
        self.library = self.collection.searched_by(options.retriever)
        self.reward, self.format_reward = options.reward, float(options.format_reward)
        self.shows = options.observation
        self.tools = (_SEARCH, _OPEN, _ANSWER) if options.open_pages else (_SEARCH, _ANSWER)
        versions = {"search": self.library.retriever.name, "reward": self.reward}
        if self.collection.problems:
            versions["data_problems"] = self.collection.problems
        super().__init__(self.collection.task_set.select(options.tasks), options.split, options.render_mode, versions)
        self._session: QuestionSearch | None = None

    @property
    def session(self) -> QuestionSearch:
        """The session of the current episode.

        Raises:
            UsageError: No episode has been started.
        """
        return require_episode(self._session, ENV_ID)

    def _goal(self, task_id: str) -> str:
        return prompts.task(self.collection.task(task_id)["text"], self.collection.may_have_none)

    def _identity(self, task_id: str) -> dict[str, Any]:
        """Returns the data set, the question's id in it, the corpus, and a SHA-256 of question and answers."""
        task = self.collection.task(task_id)
        text = "\n".join((task["text"], *task["answers"], *task["support"]))
        return {
            "corpus": self.collection.corpus.digest,
            "data_set": task["data_set"],
            "question_id": task.get("question_id", task_id),
            "answerable": task.get("answerable", True),
            "sha256": hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(),
        }

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        question = self.collection.question(task_id)
        self._session = QuestionSearch(self.library, question, self.results)
        return prompts.task(question.text, self.collection.may_have_none), self._outcome(prompts.NOTHING)

    def _call(self, call: ToolCall) -> Outcome:
        return self._execute((call,))

    def _execute(self, action: Action) -> Outcome:
        """Executes the calls together; see :meth:`QuestionSearch.step`. The step is valid if none was refused."""
        session = self.session
        step = session.step([(call.name, next(iter(call.arguments.values()))) for call in action])
        error = "; ".join(step.errors) or None
        if session.answer is not None:
            scores = session.judgement()
            score = scores.em if self.reward == "em" else scores.f1
            format_bonus = 0.0 if session.invalid else self.format_reward
            verdict = prompts.RIGHT if scores.em else prompts.WRONG
            return self._outcome(verdict, (1 - self.format_reward) * score + format_bonus, error)
        if self.shows == "search-r1" and error is None and len(step.found):
            contents = [self.library.content(number) for number in step.found[: self.shown]]
            return self._outcome(prompts.documents(contents, self.passage_length))
        return self._outcome("\n".join((*step.lines, "", self._page_text(step.found))), error=error)

    def _page_text(self, last: tuple[int, ...] = ()) -> str:
        return self.session.view(self.shown, self.passage_length, None if self.shows == "all" else last)

    def _refuse(self, problem: str, commands: tuple[str, ...]) -> tuple[Observation, float, bool, bool, StepInfo]:
        self.session.invalid += 1
        text = f"Invalid action: {problem}. Tools: {', '.join(tool.name for tool in self.tools)}."
        outcome = self._outcome(f"{text}\n\n{self._page_text()}" if self.shows == "all" else text, error=problem)
        return self._observe(outcome), 0.0, False, False, self._info(outcome)

    def _outcome(self, text: str, reward: float = 0.0, error: str | None = None) -> Outcome:
        metrics = self.session.metrics()
        return Outcome(
            text,
            reward=reward,
            done=self.session.answer is not None,
            error=error,
            success=metrics["em"] == 1.0,
            score=metrics["f1"],
            metrics=metrics,
        )

    def _state_key(self) -> str:
        return hashlib.sha256(self.session.key().encode("utf-8", "surrogatepass")).hexdigest()

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        """Proposes searches and pages only: an answer ends the episode."""
        words = (self._session.question.text if self._session is not None else "a question").split() or ["question"]
        query = " ".join(str(word) for word in rng.permutation(words)[: int(rng.integers(1, 6))])
        if rng.random() < 0.4 and len(self.tools) > 2 and self._session is not None and self._session.seen:
            keys = self._session.keys()
            return ToolCall("open", {"page": keys[int(rng.integers(len(keys)))]})
        return ToolCall("search", {"query": query})

    def _save(self) -> SavedQuestion:
        return self.session.save()

    def _resume(self, task_id: str, world: SavedQuestion) -> None:
        self._begin(task_id)
        self.session.load(world)
