"""``python solving_run.py ARGUMENTS…``: a run whose episodes succeed by task and number, whatever they do."""

import sys
from dataclasses import replace
from zlib import crc32

from envsuite.playing.episode import EpisodeEnding, RunningEpisode
from envsuite.playing.step import Episode

_finish = RunningEpisode.finish


def finish(self: RunningEpisode, ending: EpisodeEnding) -> Episode:
    """The episode; tasks succeed in none to all of five episodes."""
    episode = _finish(self, ending)
    return replace(episode, success=episode.episode_id % 5 < crc32(episode.task_id.encode()) % 6)


if __name__ == "__main__":
    from trainers.train import main

    RunningEpisode.finish = finish  # type: ignore[method-assign]
    sys.exit(main(sys.argv[1:]))
