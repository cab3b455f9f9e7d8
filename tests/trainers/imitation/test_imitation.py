"""The base model: its words, its transcripts in the prompts of a rollout, its first attention, its training."""

from __future__ import annotations

import math
import random
import re
import string
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from envsuite.alfworld.env import ALFWorld
from envsuite.bifurcation.env import Bifurcation
from envsuite.core import Move, ToolCall, ToolEnv
from envsuite.core.errors import DataError, UnknownName, UsageError
from envsuite.core.practice import Spelling, Teacher
from envsuite.mathematics.env import PythonMathEnv
from envsuite.mathematics.generate import BY_STRATUM, generate_problem
from envsuite.papersearch.env import PaperSearchEnv
from envsuite.papersearch.literature import Literature
from envsuite.playing.engine import Request, Sampling
from envsuite.playing.episode import EpisodePlan
from envsuite.playing.step import Episode
from envsuite.prompting import Codec, Conversation, FullMemory, PromptSpec, make_codec
from envsuite.remote.making import practice_of
from envsuite.searchqa.encyclopaedia import Encyclopaedia
from envsuite.searchqa.env import SearchQAEnv
from envsuite.searchqa.scoring import normalise_answer
from envsuite.sokoban.env import SokobanEnv
from envsuite.textcraft.env import TextCraft
from envsuite.textcraft.player import CraftPlanner
from envsuite.textcraft.practice import texts as textcraft_texts
from envsuite.webshop.env import WebShop
from envsuite.webshop.generate import Shop
from trainers.imitation import training
from trainers.imitation.attention import look_back
from trainers.imitation.config import Architecture, ImitateConfig, PlayConfig, Stage
from trainers.imitation.muon import Float32Muon
from trainers.imitation.play import RESPONSE, SLIP, ImitationGame, Transcript, transcribe
from trainers.imitation.training import Transcripts, imitate, load_start, loss_of, new_model, optimizers_of, parts_of
from trainers.imitation.vocabulary import byte_tokenizer, word_tokenizer
from trainers.policy.config import AdapterConfig, ModelConfig
from trainers.policy.loading import load_model
from trainers.policy.model import Policy
from trainers.policy.rows import rows_reason
from trainers.programs.imitate import main
from trainers.rollout.config import EnvConfig, PromptConfig, RolloutConfig
from trainers.rollout.environments import make_conversation, make_manager
from trainers.rollout.scripted import ScriptedEngine

PARTS = word_tokenizer(["Ar of ,"], 64, Spelling(parts=("ta", "rin", "in")))
EXPLAINED = PromptConfig(think=False, memory="full")
TINY = ImitateConfig(architecture=Architecture(layers=2, width=32))
HYBRID = Architecture(
    model_type="qwen3_5_text", layers=2, width=32, head_width=16, look_back=[],
    fields=dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2)
    | dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8)
    | {"layer_types": ["linear_attention", "full_attention"]},
)  # fmt: skip
KWARGS = {"source": "generated", "goals": 60, "max_distractors": 0}
GAMES = [PlayConfig(kwargs=KWARGS)]
BARE = replace(EXPLAINED, instructions=False, commands=False)


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer(textcraft_texts(), 2048)


def _written(
    env: ToolEnv, task: str, player: Teacher, tokenizer: Any, codec: Codec, steps: int, rng: random.Random
) -> tuple[Transcript, bool]:
    """The one sequence of an episode under the memory full, and whether the player won."""
    spec = PromptSpec(codec, FullMemory(), instructions=False, commands=False)
    conversation = Conversation(tokenizer, spec, env.tools, env.max_calls)
    game = transcribe(env, task, player, conversation, steps, rng)
    (one,) = game.transcripts
    return one, game.success


@dataclass(frozen=True)
class World:
    """An environment whose player is imitated: with which mistakes, and how often it wins at least."""

    env: Callable[[], ToolEnv]
    mistakes: dict[str, float]
    codec: str = "brackets"
    words: int = 512
    steps: int = 100
    wins: float = 0.0
    every: int = 1
    state: Callable[[Any], object] = lambda env: env._state_key()


KINDS = [f"encyclopaedia-{kind}-{hops}" for kind in ("composition", "inference") for hops in (2, 3, 4)]
WORLDS = {
    "TextCraft-v0": World(lambda: TextCraft(source="builtin"), {"rash": 0.3, "careless": 0.3}, "tags", 2048, every=4),
    "ALFWorld-v0": World(
        lambda: ALFWorld(source="builtin", games=18),
        {"careless": 0.5, "idle": 0.2, "hasty": 0.2}, "tags", 2048, 200, 1.0,
    ),
    "WebShop-v0": World(
        lambda: WebShop(source="builtin", products=60, mode="structured"), {"hasty": 0.3, "dreamy": 0.2}, words=2048
    ),
    "Sokoban-v0": World(
        lambda: SokobanEnv(style="spaced", end_on_deadlock=True), {"stray": 0.2, "rash": 0.3}, every=40
    ),
    "Bifurcation-v0": World(
        lambda: Bifurcation(mistake="recoverable", aliasing="different", slip=0.2), {}, "tags", wins=1.0, every=10
    ),
    "PaperSearch-v0": World(
        lambda: PaperSearchEnv(papers=1_500, corpus_seed=3, max_calls=1, shown=5, snippet=0),
        {"rash": 0.3, "careless": 0.3}, words=2048, steps=6,
    ),
    "SearchQA-v0": World(
        lambda: SearchQAEnv(entities=400, questions=300, tasks=KINDS, observation="new", results=1),
        {"hasty": 0.2}, words=1024, steps=8, wins=0.8,
    ),
    "PythonMath-v0": World(
        lambda: PythonMathEnv(tasks=["arithmetic-1"]), {"careless": 0.3}, steps=8, wins=1.0, every=3, state=type
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.seconds] * (name == "PythonMath-v0")) for name in WORLDS]
)
def test_what_is_said_is_known_to_the_tokenizer_and_what_the_player_writes_is_what_it_did(tmp_path, monkeypatch, name):
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path))
    world, here = WORLDS[name], practice_of(name)
    tokenizer, codec = word_tokenizer(here.texts(), world.words, here.spelling), make_codec(world.codec, think=False)
    env, wins, said = world.env(), 0, list[Any]()
    step = env.step
    monkeypatch.setattr(env, "step", lambda action: said.append(step(action)) or said[-1])
    tasks = env.tasks.ids("train")[:: world.every]
    for task in tasks:
        one, won = _written(
            env, task, here.teacher(**world.mistakes), tokenizer, codec, world.steps, random.Random(task)
        )
        mine = one.tokens[(one.parts == RESPONSE) | (one.parts == SLIP)].tolist()
        assert tokenizer.unk_token_id not in (mine if name == "WebShop-v0" else one.tokens.tolist()), "but brands"
        assert name != "PythonMath-v0" or len(one.tokens) <= 120
        came, wins = (world.state(env), *said[-1][1:4], said[-1][4]["score"]), wins + won
        env.reset(options={"task_id": task})
        for text in filter(None, map(str.strip, tokenizer.decode(mine).split("<|end|>"))):
            action = codec.parse(text, env.tools, 1).action
            assert action is not None
            assert env.step(action)[-1]["valid"] or name in ("TextCraft-v0", "PaperSearch-v0")
        assert (world.state(env), *said[-1][1:4], said[-1][4]["score"], said[-1][4]["success"]) == (*came, won)
    assert wins >= world.wins * len(tasks)
    env.close()


def _shop() -> Iterator[str]:
    """The pages of the shop without the names of brands."""
    for raw in Shop(products=300).raw_products():
        brand = next(word for word in raw.title.split() if word.isalpha())
        reviews = [text for review in raw.reviews for text in (review.title, review.body)]
        for text in (*raw.bullets, raw.description, *reviews, raw.price_tag, raw.asin):
            yield re.sub(rf"(?i)\b{brand}\b", "", text)


def _problems() -> Iterator[str]:
    """Problems without long numbers."""
    for number in range(10):
        for task_type in BY_STRATUM:
            problem = generate_problem(f"words {number}", task_type, "train")
            yield re.sub("[0-9]{3,}", "10", f"{problem.text} {problem.code} {problem.answer}")


def _papers() -> Iterator[str]:
    literature = Literature(1_000, 4)
    yield from (part for one in literature.documents() for part in (one.key, one.title))
    yield from (task["text"] for task in literature.tasks())


def _pages() -> Iterator[str]:
    yield from (page.text for page in ENCYCLOPAEDIA.documents())
    yield from (task["text"] for task in ENCYCLOPAEDIA.tasks())


ENCYCLOPAEDIA = Encyclopaedia(entities=500, questions=300, seed=11)


@pytest.mark.parametrize(
    ("name", "words", "texts"),
    [
        ("WebShop-v0", 2048, _shop),
        ("PythonMath-v0", 512, _problems),
        ("PaperSearch-v0", 64, _papers),
        ("SearchQA-v0", 1024, _pages),
    ],
)
def test_every_word_of_what_is_made_is_known(name, words, texts):
    here = practice_of(name)
    tokenizer = word_tokenizer(here.texts(), words, here.spelling)
    for text in texts():
        assert tokenizer.unk_token_id not in tokenizer.encode(text), text


def test_a_start_has_a_model_and_a_tokenizer_which_tokenises_an_action_as_before(tokenizer, tmp_path):
    with pytest.raises(DataError, match=r"start .*no config\.json there"):
        load_start(str(tmp_path), tokenizer)
    new_model(TINY, tokenizer).save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"start .*no tokenizer_config\.json there"):
        load_start(str(tmp_path), tokenizer)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "<action>craft 4 oak planks using 1 oak logs, 12 string</action>"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.decode([*loaded.encode(text), loaded.eos_token_id], skip_special_tokens=True) == text


def test_what_a_player_does_by_mistake_is_read_and_not_learnt(tokenizer, monkeypatch):
    env = TextCraft(source="generated", goals=100)
    moves = CraftPlanner.turns

    def stumbling(self: CraftPlanner, env: Any, rng: random.Random) -> Iterator[Move]:
        for number, move in enumerate(moves(self, env, rng)):
            if number == 1:
                yield Move("", (ToolCall("env_step", {"command": "get 7 string"}),), slip=True)
            yield move

    monkeypatch.setattr(CraftPlanner, "turns", stumbling)
    task, codec = env.tasks.ids("train")[0], make_codec("tags", think=False)
    one, _ = _written(env, task, CraftPlanner(), tokenizer, codec, 30, random.Random(0))
    slip = one.parts == SLIP
    assert tokenizer.decode(one.tokens[slip].tolist()).startswith("<action>get 7 string</action>")
    model = new_model(TINY, tokenizer)
    policy = Policy(model)
    hidden = model.model(input_ids=torch.from_numpy(one.tokens[None])).last_hidden_state
    hidden.retain_grad()
    monkeypatch.setattr(model.model, "forward", lambda **_: SimpleNamespace(last_hidden_state=hidden))
    loss_of(policy, [one], 1.0)[0].backward(retain_graph=True)
    learnt = hidden.grad[0, :-1].abs().sum(-1) > 0
    assert not learnt[slip[1:]].any() and learnt[~slip[1:]].all()
    hidden.grad = None
    loss_of(policy, [one], 0.0)[0].backward()
    assert ((hidden.grad[0, :-1].abs().sum(-1) > 0).numpy() == (one.parts[1:] == RESPONSE)).all()


def test_a_head_that_looks_back_attends_to_that_token_whatever_the_tokens_are(tokenizer):
    torch.manual_seed(0)
    model = new_model(ImitateConfig(architecture=Architecture(look_back=[])), tokenizer)
    look_back(model, 0, 2, 3, strength=6.0)
    model.set_attn_implementation("eager")
    weights = model(torch.randint(10, 600, (2, 30)), output_attentions=True).attentions[0][:, 2]
    assert (weights.argmax(-1)[:, 3:] == torch.arange(27)).all()


@pytest.mark.seconds
def test_a_model_of_another_family_learns_from_the_player_of_an_id_and_goes_on_from_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path))
    first, second = tmp_path / "first", tmp_path / "second"
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({
        "output": str(first), "env": "ALFWorld-v0", "batch": 1, "warmup": 0, "architecture": asdict(HYBRID),
        "stages": [{"steps": 2, "games": [
            {"kwargs": {"source": "builtin", "games": 18}, "player": {"rash": 0.2, "careless": 0.5}}
        ]}],
    }))  # fmt: skip
    assert main(["--config", str(file)]) == 0
    assert main(["--config", str(file), "--start", str(first), "--output", str(second)]) == 0
    torch.manual_seed(0)
    models = [new_model(ImitateConfig(architecture=HYBRID), AutoTokenizer.from_pretrained(first))]
    models += [load_model(ModelConfig(path=str(folder))) for folder in (first, second)]
    assert all(model.config.model_type == "qwen3_5_text" and model.config.hidden_size == 32 for model in models)
    assert all(model.get_output_embeddings().weight is model.get_input_embeddings().weight for model in models)
    for one, other in pairwise(models):
        still = [name for name, p in one.named_parameters() if torch.equal(p, other.get_parameter(name))]
        assert not still, "every weight is trained"
    assert rows_reason(models[2]) is None, "in a tree of tokens"


SHAPES = [
    ({"model_type": "quen3_5_text"}, "unknown architecture.model_type 'quen3_5_text'. Nearest: 'qwen3_5_text'"),
    ({"model_type": "qwen3_5"}, "qwen3_5 is not for text alone"),
    ({"fields": {"linear_key_heads": 2}}, "unknown field of qwen3_5_text 'linear_key_heads'. Nearest: 'linear_"),
    ({"fields": {"linear_num_key_heads": "two"}}, "expected int, got str"),
    ({"fields": {"layer_types": ["some", "other"]}}, "`layer_types` entries must be in"),
    ({"fields": {"linear_value_head_dim": -200}}, "no qwen3_5_text can be made of these fields"),
    ({"fields": {"dtype": "float33"}}, "no qwen3_5_text can be made of these fields"),
    ({"fields": {"vocab_size": 3}}, "architecture.fields: vocab_size comes from the vocabulary; leave it out"),
    ({"heads": 2, "key_heads": 4}, "2 heads do not share 4 key_heads evenly"),
    ({"look_back": [[1, 0, 1]]}, "look_back: (1, 0, 1) is neither"),
    ({"look_back": [[0, 0, 4]]}, "look_back: (0, 0, 4) is neither"),
    ({"look_back": [[7, 0, 1]]}, "look_back: (7, 0, 1) is neither"),
    ({"look_back": [[0, -1, 1]]}, "architecture.look_back[0][1] is -1"),
]
SETTINGS = [
    ({"model": {"path": "one"}, "start": "two"}, "model.path is one and start two"),
    ({"model": {"path": "one"}, "stages": [{"steps": 3}]}, "without games"),
    ({"model": {"path": "/nowhere"}, "stages": []}, "there is no such folder"),
    ({"prompt": {"memory": "summary(2)"}, "stages": []}, "prompt.memory is 'summary(2)'"),
    ({"stages": [{"steps": 3, "lr": math.nan}]}, "stages[0].lr is nan"),
]


@pytest.mark.parametrize(
    ("settings", "said"), [*(({"architecture": asdict(HYBRID) | shape}, said) for shape, said in SHAPES), *SETTINGS]
)
def test_settings_that_cannot_work_are_named_in_one_line(settings, said, tmp_path, capsys):
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"output": str(tmp_path), **settings}))
    assert main(["--config", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_fields_may_have_the_family_s_own_names_and_nothing_is_drawn_at_random_in_training(tokenizer):
    shape = Architecture(model_type="gpt2", width=32, heads=2, key_heads=2, fields={"n_layer": 2})
    config = ImitateConfig(architecture=shape)
    model = new_model(config, tokenizer).train()
    assert len(model.transformer.h) == 2
    words = torch.arange(20)[None]
    assert torch.equal(model(words).logits, model(words).logits), "no dropout"
    muon, _ = optimizers_of(config, model)
    tables = {id(model.transformer.wte.weight), id(model.transformer.wpe.weight)}
    assert not tables & {id(p) for group in muon.param_groups for p in group["params"]}
    assert new_model(ImitateConfig(architecture=replace(HYBRID, look_back=None)), tokenizer) is not None


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_that_is_started_from_knows_its_words_in_another_vocabulary(tied, tmp_path):
    first, second = (word_tokenizer([text], 64) for text in ("a b c d", "d c x b a"))
    shape = replace(TINY.architecture, fields={"tie_word_embeddings": tied})
    old = new_model(ImitateConfig(architecture=shape), first).eval()
    old.save_pretrained(tmp_path)
    first.save_pretrained(tmp_path)
    new = load_start(str(tmp_path), second).eval()
    before, after = (
        {word: float(model(torch.tensor([tokenizer.encode("a b")])).logits[0, -1, tokenizer.get_vocab()[word]])
         for word in "abcd"}
        for model, tokenizer in ((old, first), (new, second))
    )  # fmt: skip
    assert after == pytest.approx(before, abs=1e-5) and new.config.vocab_size == len(second) != len(first)
    assert (new.get_output_embeddings().weight is new.get_input_embeddings().weight) == tied


@pytest.mark.parametrize("distance", [1, 2])
def test_a_head_of_the_delta_rule_recalls_what_stood_after_the_token_before(tokenizer, distance):
    torch.manual_seed(0)
    fields = HYBRID.fields | {"linear_num_value_heads": 1, "linear_num_key_heads": 1, "linear_value_head_dim": 64}
    shape = replace(HYBRID, width=64, fields=fields | {"linear_key_head_dim": 64})
    blank, ready = (
        new_model(ImitateConfig(architecture=replace(shape, look_back=heads)), tokenizer)
        for heads in ([], [(0, 0, distance)])
    )
    words = torch.stack([torch.randperm(600)[:30] + 10 for _ in range(20)]).repeat(1, 2)
    wanted = words[:, 30 + distance :]
    for model, least, most in ((blank, 0.0, 0.05), (ready, 0.2, 1.0)):
        likely = model(words).logits[:, 30:-distance].topk(5).indices
        assert least <= float((likely == wanted[..., None]).any(-1).float().mean()) <= most


@pytest.mark.seconds
def test_the_same_seed_gives_the_same_model(tokenizer):
    config = replace(TINY, stages=[Stage(3), Stage(4, GAMES)], batch=2, prompt=BARE)
    models = []
    for _ in range(2):
        torch.manual_seed(config.seed)
        models.append(new_model(config, tokenizer))
        imitate(config, models[-1], tokenizer)
    assert all(torch.equal(a, b) for a, b in zip(*(model.parameters() for model in models), strict=True))


def test_muon_in_float32_takes_the_steps_of_pytorchs_but_for_what_bfloat16_rounds():
    torch.manual_seed(0)
    shapes, settings = (
        ((8, 24), (24, 8), (16, 16)),
        {"weight_decay": 0.01, "adjust_lr_fn": "match_rms_adamw", "lr": 0.02},
    )
    ours, theirs = ([torch.nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    optimizers = Float32Muon(ours, **settings), torch.optim.Muon(theirs, **settings)
    for _ in range(4):
        for mine, its in zip(ours, theirs, strict=True):
            mine.grad = its.grad = torch.randn(mine.shape)
        for optimizer in optimizers:
            optimizer.step()
    for mine, its in zip(ours, theirs, strict=True):
        moved = (its - 1.0).norm()
        assert moved > 0.1 and (mine - its).norm() < 0.03 * moved
    assert torch.equal(
        optimizers[0].state[ours[0]]["momentum_buffer"], optimizers[1].state[theirs[0]]["momentum_buffer"]
    )


def test_an_environment_that_nobody_plays_for_imitation_is_named_in_the_error_with_those_that_are_played():
    with pytest.raises(UnknownName, match=r"'CraftText-v0'.*TextCraft-v0"):
        practice_of("CraftText-v0")


@pytest.mark.parametrize(
    ("config", "stage", "said"),
    [
        (ImitateConfig(max_tokens=40, prompt=BARE), Stage(1, GAMES), r"max_tokens=40: 200 of 200 .* raise max_tokens"),
        (
            ImitateConfig(prompt=PromptConfig(memory="compact(20)")),
            Stage(1, GAMES),
            r"compact\(20\).*no room for the first prompts",
        ),
        (
            ImitateConfig(prompt=BARE),
            Stage(1, [PlayConfig(kwargs={"tasks": ["depth-3"]}, errs=0.0)], max_steps=2, solved=True),
            r"solved: none of 200 games was; raise max_steps=2",
        ),
    ],
)
def test_where_no_transcript_fits_it_says_so_and_does_not_play_for_ever(tokenizer, config, stage, said):
    with pytest.raises(UsageError, match=said):
        next(Transcripts(replace(config, batch=2), tokenizer).batches(stage))


def test_games_that_are_left_out_as_too_long_are_told_once_and_unsolved_ones_are_not(tokenizer, caplog):
    stage = Stage(1, [PlayConfig(errs=0.2)], solved=True)
    lengths = sorted(len(one.tokens) for one in next(Transcripts(ImitateConfig(prompt=BARE), tokenizer).batches(stage)))
    for most in (10_000, lengths[len(lengths) // 2]):
        batches = Transcripts(ImitateConfig(prompt=BARE, batch=1, max_tokens=most), tokenizer).batches(stage)
        for _ in range(3 * training.POOL):
            next(batches)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert re.match(rf"max_tokens={most}: \d+ of \d+ transcripts are longer", line)


def test_a_stage_of_copying_that_ends_too_soon_is_told(tokenizer, caplog):
    config = replace(TINY, prompt=BARE, batch=2, stages=[Stage(2)])
    imitate(config, new_model(config, tokenizer), tokenizer)
    assert "stage 1 ends before copying is learnt" in caplog.text and "raise its steps" in caplog.text


@pytest.mark.parametrize("env", ["TextCraft-v0", "Sokoban-v0"])
def test_a_player_that_is_given_what_it_does_not_take_is_told(tokenizer, env):
    transcripts = Transcripts(ImitateConfig(env=env, prompt=BARE), tokenizer)
    with pytest.raises(UsageError, match=r"stages\[\]\.games\[\]\.player: .*'foo'"):
        transcripts.play(Stage(1, [PlayConfig(player={"foo": 1})]))


def test_a_stage_may_learn_from_solved_games_alone(tokenizer):
    stage = Stage(1, [PlayConfig(errs=0.2)])
    config = ImitateConfig(prompt=BARE, batch=2, epochs=1, max_tokens=10_000)
    every, solved = Transcripts(config, tokenizer), Transcripts(config, tokenizer)
    batches = every.batches(stage), solved.batches(replace(stage, solved=True))
    both = [[one for _ in range(training.POOL) for one in next(source)] for source in batches]
    games, kept = ([list(one.tokens) for one in sequences] for sequences in both)
    assert every.won < every.played == len(games)
    assert solved.won == len(kept) < solved.played
    assert 0 < sum(game in kept for game in games) == every.won
    answers = [run for one in both[0] for run in re.findall(f"{RESPONSE}+", "".join(map(str, one.parts)))]
    assert every.longest == max(map(len, games)) and every.longest_answer == max(map(len, answers))


def test_names_of_the_encyclopaedia_are_few_pieces_that_join_as_they_were():
    here = practice_of("SearchQA-v0")
    tokenizer = word_tokenizer(here.texts(), 1024, here.spelling)
    for entity in ENCYCLOPAEDIA.world.all:
        pieces = tokenizer.encode(entity.name)
        assert normalise_answer(tokenizer.decode(pieces)) == normalise_answer(entity.name)
        assert len(pieces) <= 4 * len(entity.name.split()), entity.name


@given(st.text(string.ascii_letters, max_size=12) | st.text(string.digits, max_size=12))
def test_a_vocabulary_with_parts_of_words_splits_any_word_or_number_and_joins_it_again(word):
    assert PARTS.decode(PARTS.encode(word)) == word
    assert PARTS.unk_token_id not in PARTS.encode(word)


def test_words_are_split_into_the_longest_parts_and_they_numbers_keys_and_codes_are_put_together_again():
    here = practice_of("PaperSearch-v0")
    papers = word_tokenizer(here.texts(), 64, here.spelling)
    codes = word_tokenizer(["gh12kd 1044 .05 usb-c 3xl , click [ ]"], 64, Spelling(codes=True))
    assert PARTS.tokenize("Artarin of Ara") == "Ar ##ta ##rin of Ar ##a".split()
    assert PARTS.tokenize("503,213, 1979") == "50 ##3 ##, ##21 ##3 , 19 ##79".split()
    wanted = "P ##3 ##16 ##62 ##67 l ##o ##br ##e ##tor 20 ##23 ( mantle )".split()
    assert papers.tokenize("P3166267 Lobretor 2023 (Mantle)") == wanted
    for text in ("P0012345", "P3166267", "lobretor simulators", "vutiosel", "expand [ P0000001 ]"):
        assert papers.decode(papers.encode(text)) == text
    for text in ("gh12kd", "usb-c", "3xl", "1044", "click [ gh12kd ]"):
        assert codes.decode(codes.encode(text.upper())) == text
    assert PARTS.decode(PARTS.encode("503,213")) == "503,213" and codes.unk_token_id not in codes.encode("1012")


@pytest.mark.parametrize("other", [{"codes": True}, {"splits": "x"}])
def test_a_spelling_has_parts_or_codes(other):
    with pytest.raises(UsageError, match="either parts, or codes and splits"):
        Spelling(parts=("ta",), **other)


# -- models that others have trained ---------------------------------------------------------------------------------


def test_the_parts_of_a_batch_add_up_to_its_loss_and_gradient(tokenizer):
    policy = Policy(new_model(TINY, tokenizer)).train()
    source = Transcripts(ImitateConfig(batch=5, max_tokens=2000, prompt=BARE), tokenizer)
    batch = next(source.batches(Stage(1, GAMES)))
    longest = max(len(one.tokens) for one in batch)
    parts = list(parts_of(batch, 2 * longest))
    assert len(parts) > 1 and [one for part in parts for one in part] == batch
    found = []
    for some in ([batch], parts):
        told = [loss_of(policy, part, 0.3, batch) for part in some]
        sum(loss for loss, _ in told).backward()
        found.append((sum(share for _, share in told), torch.cat([p.grad.flatten() for p in policy.parameters()])))
        policy.zero_grad()
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    assert float((found[0][1] - found[1][1]).norm() / found[0][1].norm()) < 1e-5


@pytest.mark.parametrize("architecture", [TINY.architecture, HYBRID], ids=["llama", "qwen3_5_text"])
def test_the_loss_is_the_cross_entropy_of_the_plain_model(tokenizer, architecture):
    model = new_model(ImitateConfig(architecture=architecture), tokenizer)
    source = Transcripts(ImitateConfig(batch=3, max_tokens=2000, prompt=BARE), tokenizer)
    batch = next(source.batches(Stage(1, GAMES)))
    losses, own = [], []
    for one in batch:
        with torch.no_grad():
            logits = model(torch.from_numpy(one.tokens)[None]).logits[0, :-1]
        losses.append(torch.nn.functional.cross_entropy(logits, torch.from_numpy(one.tokens[1:]), reduction="none"))
        own.append(torch.from_numpy(one.parts[1:] == RESPONSE))
    flat, mine = torch.cat(losses), torch.cat(own)
    expected = flat[mine].mean()
    assert loss_of(Policy(model), batch, 0.0)[1] == pytest.approx(float(expected), rel=1e-5)
    both = float(expected + 0.5 * flat[~mine].mean())
    assert float(loss_of(Policy(model), batch, 0.5)[0].detach()) == pytest.approx(both, rel=1e-5)


@pytest.mark.seconds
def test_a_model_that_others_have_trained_learns_by_an_adapter(tokenizer, tmp_path):
    base = new_model(TINY, tokenizer)
    base.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    file = tmp_path / "config.yaml"
    file.write_text(f"""
output: {tmp_path / "adapter"}
model: {{path: {tmp_path / "base"}, gradient_checkpointing: true, adapter: {{rank: 8, alpha: 16}}}}
prompt: {{think: false, memory: full}}
max_tokens: 2000
tokens_per_microbatch: 1000
batch: 4
warmup: 1
stages: [{{steps: 12, lr: 0.02, lr_end: 0.02, max_steps: 3, games: [{{kwargs: {KWARGS}}}]}}]
""")
    assert main(["--config", str(file)]) == 0
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= {
        path.name for path in (tmp_path / "adapter").iterdir()
    }
    learnt = load_model(ModelConfig(path=str(tmp_path / "adapter"), adapter=AdapterConfig(rank=8, alpha=16)))
    source = Transcripts(ImitateConfig(batch=4, max_tokens=2000, prompt=EXPLAINED), tokenizer)
    batch = next(source.batches(Stage(1, GAMES, max_steps=3)))
    before, after = (loss_of(Policy(model), batch, 0.0)[1] for model in (base, learnt))
    assert after < before - 0.1  # the embeddings, which are random here, stay


# -- What is imitated stands in the prompts that a rollout builds


ENV = EnvConfig(kwargs=KWARGS)
MEMORIES = ("full", "compact(220)", "rendered", "window(0)", "window(2)")
PROMPTS = {memory: PromptConfig(memory=memory) for memory in MEMORIES} | {
    "file": PromptConfig(memory="window(2)", template="steps"),
    "left": PromptConfig(memory="full", max_tokens=150, truncate="left"),
    "cut": PromptConfig(memory="full", max_tokens=250),
    "thought": PromptConfig(memory="full", require_thought=True),
}


def _world() -> ToolEnv:
    return gymnasium.make("TextCraft-v0", split="train", **KWARGS).unwrapped


def _transcribed(prompt: PromptConfig, tokenizer, task: str) -> ImitationGame:
    env = _world()
    conversation = make_conversation(prompt, tokenizer, env.tools, env.max_calls)
    return transcribe(env, task, CraftPlanner(), conversation, 50, random.Random(0))


def _rolled_out(prompt: PromptConfig, tokenizer, task: str, answers: list[list[int]]) -> Episode:
    """The episode of a rollout whose engine gives ``answers``, in turn."""
    left = iter(answers)

    def answer(request: Request) -> list[int]:
        return next(left, [tokenizer.eos_token_id])

    manager = make_manager(RolloutConfig(), prompt, [ENV], 1, ScriptedEngine(answer), tokenizer)
    with manager.vector:
        (episode,) = manager.run([EpisodePlan(0, 0, 0, task)], Sampling(max_tokens=500), seed=0)
    return episode


def _answers(game: ImitationGame) -> list[list[int]]:
    """The player's answers: the runs of its tokens."""
    found = []
    for one in game.transcripts:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], (one.parts == RESPONSE).astype(np.int8), [0]])))
        found += [one.tokens[a:b].tolist() for a, b in edges.reshape(-1, 2)]
    return found


@pytest.mark.parametrize("name", PROMPTS)
def test_the_player_s_answers_stand_after_the_prompts_of_a_rollout_token_by_token(tokenizer, name):
    prompt = PROMPTS[name]
    steps = 0
    for task in _world().tasks.ids("train")[:4]:
        game = _transcribed(prompt, tokenizer, task)
        episode = _rolled_out(prompt, tokenizer, task, _answers(game))
        steps += len(episode.steps)
        assert game.success == episode.success and (game.success or name == "cut")
        rows = iter(episode.steps)
        for one in game.transcripts:
            mine = one.parts == RESPONSE
            assert not (one.parts == SLIP).any()
            learnt = np.zeros_like(mine)
            end = 0
            while end < np.flatnonzero(mine)[-1] + 1:
                row = next(rows)
                end = len(row.prompt_ids) + len(row.response_ids)
                assert one.tokens[:end].tolist() == [*row.prompt_ids.tolist(), *row.response_ids.tolist()]
                learnt[len(row.prompt_ids) : end] = True
            assert (learnt == mine).all(), "the loss is on the answers, and on nothing else"
        assert next(rows, None) is None, "no step is left out"
    assert steps > (4 if name == "cut" else 12)


def test_prompts_that_continue_each_other_are_one_sequence_and_others_one_for_each_step(tokenizer):
    task = _world().tasks.ids("train")[0]
    whole, apart = (_transcribed(PROMPTS[memory], tokenizer, task) for memory in ("full", "window(2)"))
    assert len(whole.transcripts) == 1
    assert len(apart.transcripts) == len(_answers(whole)) == len(_answers(apart)) > 2
    compact = _transcribed(PROMPTS["compact(220)"], tokenizer, task)
    assert 1 < len(compact.transcripts) < len(apart.transcripts)


def test_without_thoughts_the_actions_are_the_same(tokenizer):
    env, task = _world(), _world().tasks.ids("train")[0]
    written = []
    for thoughts in (True, False):
        conversation = make_conversation(PROMPTS["full"], tokenizer, env.tools, env.max_calls)
        game = transcribe(env, task, CraftPlanner(), conversation, 50, random.Random(0), thoughts=thoughts)
        written.append([tokenizer.decode(ids) for ids in _answers(game)])
    assert any("<think>" in text for text in written[0]) and not any("<think>" in text for text in written[1])
    assert [text[text.find("<action>") :] for text in written[0]] == written[1]


def test_an_answer_that_a_rollout_would_refuse_is_not_transcribed(tokenizer, monkeypatch):
    look = ToolCall("env_step", {"command": "inventory"})
    monkeypatch.setattr(CraftPlanner, "turns", lambda *_: iter([Move("", (look, look))]))
    with pytest.raises(UsageError, match=r"prompt: the player's answer '<action>.* invalid in a rollout: 2 calls"):
        _transcribed(PROMPTS["full"], tokenizer, _world().tasks.ids("train")[0])


def test_an_answer_that_the_tokenizer_turns_into_another_is_not_transcribed(tokenizer):
    prompt, task = replace(PROMPTS["full"], codec="tools"), _world().tasks.ids("train")[0]
    with pytest.raises(UsageError, match=r"the tokenizer turns the player's answer .*<tool_call>.* into another"):
        _transcribed(prompt, tokenizer, task)  # words keep no blanks: a tool's name in quotation marks gets some
    assert _transcribed(prompt, byte_tokenizer((), 2048), task).success
