"""Stored episodes that are imitated: of a pool, of a folder of files, or of demonstrations, which are played again."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from envsuite.core import ToolEnv
from envsuite.core.errors import DataError
from envsuite.playing.engine import Sampling
from envsuite.playing.episode import EpisodePlan
from envsuite.playing.step import Episode
from envsuite.prompting import Conversation
from envsuite.prompting.rendering import vocabulary_of
from trainers.gateway.teaching import TAUGHT
from trainers.imitation.demonstrations import demonstrations, episodes_in
from trainers.pool import Pool, Query
from trainers.pool.database import FILE
from trainers.pool.query import choose_sessions
from trainers.rollout.environments import make_conversation, make_manager, open_environment
from trainers.rollout.scripted import ScriptedEngine
from trainers.run.config import TrainConfig
from trainers.run.examples import examples_of

_LOG = logging.getLogger(__name__)


class StoredEpisodes:
    """Episodes in memory, which are taken as those of a pool are.

    Args:
        folder: Where they were read.
        episodes: The episodes.
    """

    def __init__(self, folder: Path, episodes: Sequence[Episode]) -> None:
        self.folder, self.episodes = folder, episodes
        tokens = b"".join(step.response_ids.tobytes() for episode in episodes for step in episode.steps)
        self._digest = blake2b(tokens, digest_size=8).hexdigest()

    def take(
        self, query: Query, count: int, seed: int, state: Mapping[str, Any] | None = None
    ) -> tuple[list[Episode], dict[str, Any]]:
        """Takes episodes as :meth:`Pool.take` does; none has a source, tags, or a version among newest ones.

        Raises:
            DataError: The state is that of other episodes.
        """
        taken = set() if state is None else set(state["taken"])
        if state is not None and state["pool"] != self._digest:
            raise DataError(f"pool.folder: {self.folder} has other episodes than when the run began; put those back")
        rows = [
            (number, number, episode.env_id, episode.task_id)
            for number, episode in enumerate(self.episodes)
            if number not in taken and query.success in (None, episode.success)
            if query.min_score is None or episode.score >= query.min_score
            if not (query.source or query.tags or query.newest_versions)
        ]
        numbers = [*choose_sessions(rows, query, seed, count)]
        state = {"pool": self._digest, "taken": sorted(taken.union(numbers))}
        return [self.episodes[number] for number in numbers], state

    def close(self) -> None:
        """Closes nothing."""


def open_stored(config: TrainConfig, folder: Path, tokenizer: PreTrainedTokenizerBase) -> Pool | StoredEpisodes:
    """Opens a pool, or for imitation a folder of episodes or a file of demonstrations: those of tasks of ``envs``.

    Demonstrations, and episodes without tokens, are played again, in the prompts of this run.

    Raises:
        DataError: There are no episodes of such tasks, their prompts are not those of this run, or the moves of a
            demonstration do not solve its task again.
    """
    if not config.method.imitates or (folder / FILE).exists():
        return Pool(folder)
    stored = [episode for episode in (episodes_in(folder) if folder.is_dir() else ()) if _is_trainable(episode)]
    episodes, plans, examples = list[Episode](), list[EpisodePlan](), list[str]()
    answers = list[Iterator[list[int]]]()
    for place, env in enumerate(config.envs):
        examples.append(examples_of(env, config.prompt))
        with open_environment(env, f"envs[{place}]") as world:
            tasks = {*world.tasks.ids(env.split)}
            prompts = make_conversation(config.prompt, tokenizer, world.tools, world.max_calls, examples[-1])
            own = [episode for episode in stored if episode.env_id == env.id and episode.task_id in tasks]
            if own and not _fits(own[-1], prompts, world, tokenizer):
                raise DataError(
                    f"pool.folder: {folder} has episodes of {env.id} with other prompts than this run writes; set "
                    f"prompt, envs[{place}] and model.path (its tokenizer and chat template) as they were played with, "
                    f"or name the file that envsuite export episodes {folder} --env {env.id} --out FILE writes"
                )
            episodes += own
            for task, player in () if stored else demonstrations(folder, env.id).players:
                if task in tasks:
                    moves = [move for move in player.moves if not move.slip]
                    texts = [prompts.codec.write(move.action, move.thought, tools=world.tools) for move in moves]
                    ids = [prompts.tokenizer.encode(text, add_special_tokens=False) for text in texts]
                    answers.append(iter([[*answer, *prompts.end] for answer in ids]))
                    plans.append(EpisodePlan(len(plans), len(plans), place, task))
    if plans:
        engine = ScriptedEngine(lambda request: next(answers[request.session or 0], []))
        engine.policy_version = TAUGHT
        rollout, slots = replace(config.rollout, episode_tokens=None, attempts=1), min(config.rollout.slots, len(plans))
        with closing(make_manager(rollout, config.prompt, config.envs, slots, engine, tokenizer, examples)) as manager:
            episodes = manager.run(plans, Sampling(max_tokens=2**31), config.seed)
    unsolved = [episode.task_id for episode in episodes if plans and not episode.success]
    if unsolved or not episodes:
        what = (
            f"the moves of task {unsolved[0]!r} do not solve it again"
            if unsolved
            else "no episode is of a task of envs"
        )
        raise DataError(
            f"pool.folder: {folder}: {what}; set envs (split, kwargs, max_episode_steps) as they were played with"
        )
    _LOG.info(
        "%d episodes in %s, %d of them solved their task", len(episodes), folder, sum(e.success for e in episodes)
    )
    return StoredEpisodes(folder, episodes)


def _is_trainable(episode: Episode) -> bool:
    """Whether an episode ended without an error, shares no step with another, and has tokens of each step."""
    shortest = min((len(step.response_ids) for step in episode.steps), default=0)
    return episode.error is None and not episode.greedy and not episode.shared and shortest > 0


def _fits(episode: Episode, prompts: Conversation, world: ToolEnv, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether an episode begins with the prompt of its task; where agents write their own, with the same tokens."""
    first = episode.steps[0]
    if first.agent or first.info.get("gateway", {}).get("vocabulary") == vocabulary_of(tokenizer):
        return True
    prompts.start(world.reset(options={"task_id": episode.task_id})[0])
    return prompts.prompt()[0] == tuple(first.prompt_ids.tolist())
