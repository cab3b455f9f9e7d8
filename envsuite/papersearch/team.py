"""``PaperSearchTeam-v0``: a searcher and a selector find papers together, by turns."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from envsuite.core.env import Observation, Outcome, StepInfo
from envsuite.core.options import option
from envsuite.core.schemas import object_schema
from envsuite.core.tools import Action, Tool, ToolCall, check_action
from envsuite.papersearch import prompts
from envsuite.papersearch.env import LiteratureOptions, PaperSearchEnv
from envsuite.papersearch.tasks import TEAM_ID
from envsuite.papersearch.world import Finder, LiteratureSearch

SEARCHER, SELECTOR = "searcher_0", "selector_0"
"""The agents, named as PettingZoo recommends."""
JUDGED = 100
"""Candidates that the selector is shown."""
_IDS = {"paper_ids": {"type": "array", "items": {"type": "string"}, "description": prompts.PAPER_IDS}}


class TeamSession(LiteratureSearch):
    """An episode in which found papers are candidates until the selector keeps them.

    The pool has all papers that were ever candidates, and are none again; :attr:`papers` those that were kept. Of more
    than :attr:`judged` new papers, the others are not found: a later search may find them.
    """

    candidates: tuple[int, ...] = ()
    """The papers that wait for the selector, best first; without any it is the searcher's turn."""
    kept: frozenset[int] = frozenset()
    judged: int = JUDGED

    def _add(self, finders: Mapping[int, Finder]) -> float:
        """Makes found papers candidates, the best by the query's words; returns the reward for them."""
        papers = np.array([*finders], dtype=np.int64)
        if not len(papers):
            self.candidates = ()
            return 0.0
        shares = self.library.words.shares(self.question.text, papers)
        papers = papers[np.lexsort((papers, -shares))[: self.judged]]
        scores = self.selector.scores(self.question, papers)
        self.candidates = tuple(papers.tolist())
        self.pool.update(self.candidates)
        return self._compute_reward(scores, papers, finders)

    def _expand(self, key: str) -> tuple[tuple[int, ...], str, bool]:
        """Returns the papers found, or why the expansion was refused: only papers that were kept can be expanded."""
        number = self.library.number(key.strip()) if len(key) <= 1_000 else None
        if number is not None and number not in self.kept:
            return (), prompts.NOT_THERE, True
        return super()._expand(key)

    def keep(self, keys: tuple[str, ...]) -> tuple[float, str | None]:
        """Puts candidates into the list and discards the others; returns the reward and why nothing was done.

        The reward is F1 of the kept papers against the gold ones among the candidates; 1 where there are neither.
        """
        numbers = {self.library.number(key) for key in keys}
        if not numbers <= {*self.candidates}:
            wrong_key = next(key for key in keys if self.library.number(key) not in self.candidates)
            return 0.0, prompts.no_candidate(wrong_key)
        new = [number for number in self.candidates if number in numbers]
        gold = len(self.question.gold & {*self.candidates})
        hits = len(self.question.gold & {*new})
        papers = np.array(new, dtype=np.int64)
        self._append(papers, np.ones(len(papers)), self.library.words.shares(self.question.text, papers))
        self.kept |= {*new}
        self.history.append(prompts.describe_selection(len(new), len(self.candidates)))
        self.candidates = ()
        return (2 * hits / (gold + len(new)) if gold or new else 1.0), None

    def key(self) -> str:
        """Returns the identity of what is known."""
        return f"{super().key()} {sorted(self.kept)} {self.candidates}"


@dataclass(frozen=True, kw_only=True)
class TeamOptions(LiteratureOptions):
    """The options of ``PaperSearchTeam-v0``; the searcher's selector is ``gold``."""

    env_id: ClassVar[str] = TEAM_ID
    judged: int = option(
        JUDGED, "most candidates of a step: of more new papers, the best by the query's words", minimum=1, maximum=1000
    )


class PaperSearchTeam(PaperSearchEnv):
    """Find papers as a team: a searcher searches and expands, a selector keeps of what was found what fits the query.

    A searcher's step that finds new papers is followed by a step of the selector, any other by the searcher's next. The
    searcher earns as in ``PaperSearch-v0`` with the selector ``gold``, whatever is kept; the selector earns F1 of its
    choice against the gold papers among the candidates. Recall and F1 are those of the kept papers.

    Args:
        given: Values of :class:`TeamOptions`.
    """

    tools: tuple[Tool, ...] = (*PaperSearchEnv.tools, Tool("keep", prompts.KEEP, object_schema(_IDS)))
    agents: Mapping[str, tuple[str, ...]] = {SEARCHER: ("search", "expand"), SELECTOR: ("keep",)}
    takes = TeamOptions

    def __init__(self, **given: Any) -> None:
        options = TeamOptions.of(given)
        self.judged = options.judged
        self._rewards = {SEARCHER: 0.0, SELECTOR: 0.0}
        self._open(options, "gold")
        self.tasks = replace(self.tasks, env_id=TEAM_ID)

    @property
    def team(self) -> TeamSession:
        """The session of the current episode.

        Raises:
            UsageError: No episode has been started.
        """
        session = self.session
        assert isinstance(session, TeamSession)
        return session

    @property
    def agent(self) -> str:
        """The agent whose turn it is."""
        return SELECTOR if self.team.candidates else SEARCHER

    def _goal(self, task_id: str) -> str:
        """Returns the instruction of a task, for both agents."""
        return f"{super()._goal(task_id)}\n\n{prompts.TEAM}"

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        session = TeamSession(self.library, self.selector, self.rules, self.collection.question(task_id))
        session.judged = self.judged
        self._session = session
        self._rewards = {SEARCHER: 0.0, SELECTOR: 0.0}
        return self.goal(task_id), self._outcome(self._turn_text())

    def step(  # type: ignore[override]
        self, action: Action
    ) -> tuple[Observation, float, bool, bool, StepInfo]:
        """Takes the step of the agent whose turn it is; the reward is that of both together.

        Raises:
            UsageError: Before the first :meth:`reset`, or after the episode has ended.
        """
        self._rewards = {SEARCHER: 0.0, SELECTOR: 0.0}
        if self._done or check_action(action, self.tools, self.max_calls) is not None:
            return super().step(action)
        agent, team = self.agent, self.team
        own = self.agents[agent]
        if wrong_tool := next((call.name for call in action if call.name not in own), None):
            return self._refuse(f"it is the turn of {agent}, whose tools are {', '.join(own)}, not {wrong_tool}", ())
        if agent == SELECTOR and len(action) > 1:
            return self._refuse("the selector makes one call a step", ())
        if agent == SEARCHER:
            report = team.step([(call.name, next(iter(call.arguments.values()))) for call in action])
            self._rewards[SEARCHER] = report.reward
            text, error = "\n".join(report.lines), "; ".join(report.errors) or None
        else:
            reward, error = team.keep(tuple(action[0].arguments["paper_ids"]))
            if error is not None:
                return self._refuse(error, ())
            self._rewards[SELECTOR] = reward
            text = team.history[-1]
        outcome = self._outcome(f"{text}\n\n{self._turn_text()}", sum(self._rewards.values()), error)
        self._done = outcome.done
        return self._observe(outcome), outcome.reward, outcome.done, False, self._info(outcome)

    def _turn_text(self) -> str:
        """Returns the text for the agent whose turn it is."""
        team = self.team
        if not team.candidates:
            return f"{prompts.YOUR_TURN[SEARCHER]}\n\n{team.view(self.shown, self.snippet, 0)}"
        cards = [team.library.card(number, self.snippet) for number in team.candidates]
        return f"{prompts.YOUR_TURN[SELECTOR]}\n\n{prompts.candidates(cards)}"

    def _refuse(self, problem: str, commands: tuple[str, ...]) -> tuple[Observation, float, bool, bool, StepInfo]:
        text = f"Invalid action: {problem}. Tools: {', '.join(self.agents[self.agent])}."
        outcome = self._outcome(f"{text}\n\n{self._turn_text()}", error=problem)
        return self._observe(outcome), 0.0, False, False, self._info(outcome)

    def _info(self, outcome: Outcome) -> StepInfo:
        info = super()._info(outcome)
        info["agent"], info["rewards"] = self.agent, dict(self._rewards)
        return info

    def _state_key(self) -> str:
        return hashlib.sha256(f"{self.agent} {super()._state_key()}".encode()).hexdigest()

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        team = self._session
        candidates = team.candidates if isinstance(team, TeamSession) else ()
        in_turn = rng.random() < 0.8  # else a call of the other agent, which is asked for where all act at once
        if in_turn != bool(candidates):
            return super()._propose(rng)
        keys = [self.library.key(number) for number in candidates if rng.random() < 0.5]
        return ToolCall("keep", {"paper_ids": keys})

    def _save(self) -> Any:
        team = self.team
        lists = {"seen": sorted(team.pool), "kept": sorted(team.kept), "candidates": [*team.candidates]}
        return {**super()._save(), **lists}

    def _resume(self, task_id: str, world: Any) -> None:
        super()._resume(task_id, world)
        team = self.team
        team.pool, team.kept, team.candidates = {*world["seen"]}, frozenset(world["kept"]), tuple(world["candidates"])
