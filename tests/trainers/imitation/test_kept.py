"""From play to imitation: answers that were sampled as tokens are imitated with what was thought in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES, Family, codec_of

import trainers
from envsuite.core import ToolCall
from envsuite.core.errors import DataError
from trainers.imitation.demonstrations import demonstrations, thought_of
from trainers.policy.config import ModelConfig
from trainers.policy.loading import load_tokenizer
from trainers.rollout.config import EnvConfig, PromptConfig
from trainers.rollout.environments import answers_of, check_vocabulary
from trainers.rollout.episode import EpisodePlan
from trainers.rollout.exchange import answer_text
from trainers.run.episode_folder import EpisodeFolder
from trainers.settings import ConfigError
from trainers.steps import Episode, Step

CRAFT = ModelConfig(path=str(Path(trainers.__file__).parent / "models/craft-1m"))


def test_kept_tokens_are_imitated_as_text_and_episodes_without_text_are_refused(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(CRAFT)
    ids = tokenizer.encode("<think>craft 1 stick</think><action>get 1 stick</action><|end|>", add_special_tokens=False)
    call = (ToolCall("env_step", {"command": "get 1 stick"}),)
    step = Step(0, [5], ids, [0.0] * len(ids), 0, "stop", "o", "k", call, None, True, 1.0)  # type: ignore[arg-type]
    episode = Episode(0, 0, "TextCraft-v0", "t", "x", "test", "Goal", (step,), True, False, True, 1.0)
    for name, text in (("texts", answers_of(PromptConfig(), tokenizer)), ("tokens", None)):
        folder = EpisodeFolder(tmp_path / name, {}, text)
        folder.add(EpisodePlan(0, 0, 0, "t"), episode, None)  # type: ignore[arg-type]
    ((_, player),) = demonstrations(tmp_path / "texts", "TextCraft-v0").players
    assert player.moves[0].thought == "craft 1 stick" and player.moves[0].action == call
    with pytest.raises(DataError, match="tokens alone"):
        demonstrations(tmp_path / "tokens", "TextCraft-v0")


@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_a_thought_in_the_model_s_own_form_is_found_in_the_text(smol: Any, family: Family) -> None:
    codec = codec_of(smol, family)
    written = codec.write([ToolCall("tool_name", {"argument": "value"})], "Think." if family.thinks else "")
    ids = [*codec.tokenizer.encode(written, add_special_tokens=False), *codec.end_ids(written, ())]
    text = answer_text(codec.tokenizer, codec, ids)
    step = Step(0, [5], ids, [0.0] * len(ids), 0, "stop", "", "", (), None, True, 0.0)  # type: ignore[arg-type]
    assert thought_of(replace(step, response_text=text)) == ("Think." if family.thinks else "")


def test_a_vocabulary_that_does_not_know_the_environment_is_refused(smol: Any) -> None:
    tokenizer = load_tokenizer(CRAFT)
    craft = EnvConfig("TextCraft-v0", kwargs={"source": "builtin"})
    check_vocabulary(craft, "envs[0]", tokenizer)
    for model in (tokenizer, smol):
        try:
            check_vocabulary(EnvConfig("Sokoban-v0"), "envs[1]", model)
        except ConfigError as error:
            assert model is tokenizer and str(error).startswith("envs[1] (Sokoban-v0)") and "of the words" in str(error)
        else:
            assert model is smol
