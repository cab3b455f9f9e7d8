"""Episodes that another model has played, to imitate.

Their actions are played again in the environment: so prompts are written as they would be for the environment's expert,
in the student's own format and template. Those of an agent at the gateway have the student's tokens already.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gymnasium

from envsuite.core import Action, Move, Observation, ToolEnv, UnparsedAction
from envsuite.core.errors import DataError, UnknownTask, UsageError
from envsuite.evaluation.demonstrations.demonstration import Demonstration
from envsuite.evaluation.demonstrations.file import read_demonstrations
from envsuite.playing.step import Episode, Step
from trainers.imitation.play import ImitationGame, TranscriptBuilder
from trainers.pool import Pool
from trainers.pool.database import FILE
from trainers.steps.parquet import episode_files, read_episodes

_THOUGHT = ("<think>", "</think>")
_CALLS = ("<action>", "<tool_call>")


@dataclass(frozen=True)
class RecordedPlayer:
    """Plays the moves of a recorded episode."""

    moves: tuple[Move, ...]

    def turns(self, env: gymnasium.Env[Observation, Action], rng: random.Random) -> Iterator[Move]:
        """Yields each move."""
        yield from self.moves


@dataclass(frozen=True)
class Demonstrations:
    """Successful episodes, by task."""

    players: tuple[tuple[str, RecordedPlayer], ...]
    """Task ids, each with the player of an episode."""
    played: int
    """Number of episodes that were read, those without success included."""
    agent_episodes: tuple[Episode, ...] = ()
    """Episodes of agents at the gateway, which are imitated in the tokens of their own requests."""

    _sound: set[int] = field(default_factory=set, repr=False, compare=False)
    """Places of the players whose moves have solved their task again."""

    def draw(self, env: ToolEnv, rng: random.Random) -> tuple[str, RecordedPlayer]:
        """Returns a task and the player of an episode of it.

        Args:
            env: The environment in which it is to be played again.
            rng: Source of randomness.

        Raises:
            UsageError: The moves do not solve the task there.
        """
        place = rng.randrange(len(self.players))
        task, player = self.players[place]
        if place not in self._sound:
            if not _solves(env, task, player):
                raise UsageError(
                    f"demonstrations: the recorded moves do not solve task {task!r} again; set stages[].games[].kwargs "
                    "to the arguments of the environment that they were recorded in"
                )
            self._sound.add(place)
        return task, player


def demonstrations(source: Path, env_id: str) -> Demonstrations:
    """Reads the episodes in ``source``: a file of demonstrations, or a folder with those of a run and the ones in it.

    Kept are those that solved their task. In those that are played again, a step whose answer was no action is left
    out, as it changed nothing; one that the environment refused stays as a mistake: context, no target.

    Args:
        source: A file that ``envsuite export demos`` or ``envsuite play --save`` wrote, a folder as
            ``envsuite eval model --keep`` writes it, or one of a pool.
        env_id: Id of the environment.

    Raises:
        DataError: There are no episodes, none of this environment, none with success, or both kinds.
    """
    records: Sequence[Episode | Demonstration] = read_demonstrations(source) if source.is_file() else _of_folder(source)
    mine = [episode for episode in records if episode.env_id == env_id]
    good = [episode for episode in mine if episode.success]
    episodes = [record for record in good if isinstance(record, Episode)]
    agent_episodes = tuple(episode for episode in episodes if all("gateway" in step.info for step in episode.steps))
    by_agents = set(map(id, agent_episodes))
    episodes = [episode for episode in episodes if id(episode) not in by_agents]
    if any(step.response_text is None for episode in episodes for step in episode.steps):
        raise DataError(
            f"demonstrations: {source} has answers as tokens alone, so no thought can be read; play "
            "the tasks again with envsuite eval model --keep, in a new folder"
        )
    players = [(record.task_id, RecordedPlayer(_moves(record))) for record in good if id(record) not in by_agents]
    if agent_episodes and players:
        raise DataError(f"demonstrations: {source} has episodes of agents and others; keep them in two folders")
    if not good:
        other_ids = sorted({episode.env_id for episode in records} - {env_id})
        what = f"{len(mine)} episodes of {env_id}, none of which solved its task"
        raise DataError(f"demonstrations: {source} has {what}{f' (besides: {other_ids})' if other_ids else ''}")
    return Demonstrations(tuple(players), len(mine), agent_episodes)


def transcribe_requests(episode: Episode, max_steps: int, vocabulary: str) -> ImitationGame:
    """Returns the requests and answers of an agent's episode; a cut answer, or one with a refused call, is a mistake.

    Args:
        episode: One of :attr:`Demonstrations.agent_episodes`.
        max_steps: Answers after which it is cut.
        vocabulary: That of the student's tokenizer (:func:`~envsuite.prompting.rendering.vocabulary_of`).

    Raises:
        DataError: It has the tokens of another tokenizer.
    """
    builder = TranscriptBuilder()
    for step in episode.steps[:max_steps]:
        if step.info["gateway"].get("vocabulary") != vocabulary:
            raise DataError(
                "demonstrations: they have the tokens of another tokenizer than that of model.path; let the agent be "
                "answered again with --model.path set to the model that is to learn"
            )
        builder.prompt(step.prompt_ids.tolist(), step.images)
        builder.answer(step.response_ids.tolist(), slip=not step.valid or step.finish_reason == "length")
    builder.end()
    return ImitationGame(builder.transcripts, episode.success)


def episodes_in(folder: Path) -> list[Episode]:
    """Returns the recorded episodes in ``folder`` and the folders in it, or those of the pool that it is.

    Raises:
        DataError: A file is damaged.
    """
    if (folder / FILE).exists():
        with Pool(folder) as pool:
            return pool.episodes()
    folders = [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]
    return [episode for subfolder in folders for file in episode_files(subfolder) for episode in read_episodes(file)]


def thought_of(step: Step) -> str:
    """Returns what a response says before its action."""
    before, end, _ = (step.response_text or "").partition(_THOUGHT[1])
    if not end:
        before = before[: min((at for tag in _CALLS if (at := before.find(tag)) >= 0), default=0)]
    return before.replace(_THOUGHT[0], "").strip()


def _of_folder(folder: Path) -> list[Episode]:
    if not folder.is_dir():
        raise DataError(
            f"demonstrations: there is no file or folder {folder}; envsuite export demos makes a file, "
            f"envsuite eval model --keep {folder} a folder"
        )
    return episodes_in(folder)


def _solves(env: ToolEnv, task: str, player: RecordedPlayer) -> bool:
    try:
        env.reset(options={"task_id": task})
    except UnknownTask:
        return False
    for move in player.moves:
        _, _, terminated, truncated, info = env.step(move.action)
        if terminated or truncated:
            return bool(info["success"])
    return False


def _moves(episode: Episode | Demonstration) -> tuple[Move, ...]:
    if isinstance(episode, Demonstration):
        steps = (step for step in episode.steps if not isinstance(step.action, UnparsedAction))
        return tuple(Move(step.thought, step.action, slip=not step.valid) for step in steps)
    return tuple(
        Move(thought_of(step), step.action, slip=not step.valid) for step in episode.steps if step.action is not None
    )
