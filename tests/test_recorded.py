import orjson
import pytest
from recorded import FILE, PLAYS, replayed

EPISODES = orjson.loads(FILE.read_bytes())


@pytest.mark.parametrize("env_id", PLAYS)
def test_a_recorded_episode_is_answered_as_it_was(env_id):
    for number, (episode, before) in enumerate(zip(replayed(env_id, EPISODES[env_id]), EPISODES[env_id], strict=True)):
        for at, (step, old) in enumerate(zip(episode["steps"], before["steps"], strict=True)):
            assert step == old, f"episode {number}, step {at}; recorded anew by: python tests/recorded.py"
        assert episode == before, f"episode {number}; recorded anew by: python tests/recorded.py"


@pytest.mark.parametrize("env_id", PLAYS)
def test_the_recorded_episodes_are_won_and_lost_with_steps_that_are_refused(env_id):
    steps = [step for episode in EPISODES[env_id] for step in episode["steps"]]
    assert {episode["score"] == 1.0 for episode in EPISODES[env_id]} == {True, False}
    assert {step[4] for step in steps} == {True, False} and len({step[2] for step in steps}) > 30
