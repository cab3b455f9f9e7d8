"""Images in prompts: token ids, embeddings, log-probabilities and gradients against transformers' own way."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import vision_models
from episodes import episode, step
from numpy.typing import NDArray
from row_by_row import batch_logprobs, same_gradients, taken_gradients
from transformers import AutoProcessor, PreTrainedModel, PreTrainedTokenizerBase

from envsuite.core import ToolCall, UsageError
from envsuite.core.errors import DataError
from envsuite.core.images import Pixels
from envsuite.playing.engine import Request, Sampling
from envsuite.playing.step import Step
from envsuite.prompting import Chat, Conversation, PromptSpec, make_codec, make_memory
from envsuite.prompting.images import images_of, part_id, parts_of, readable, renumber_images
from envsuite.sokoban.env import SokobanEnv
from trainers.policy import rows
from trainers.policy import vision as vision_module
from trainers.policy.adapter import save_adapter, trained_weights
from trainers.policy.config import AdapterConfig, ModelConfig
from trainers.policy.hidden import Fingerprint, at_prompt_ends
from trainers.policy.loading import load_backbone, load_model, load_tokenizer
from trainers.policy.model import Policy
from trainers.policy.packing import micro_batches
from trainers.policy.recurrent import is_recurrent
from trainers.policy.vision import ImageProcessing, check_vision, format_of, save_tokenizer, vision_of
from trainers.rollout.hf_engine import HFEngine
from trainers.rollout.plain_engine import PlainEngine
from trainers.settings import ConfigError
from trainers.steps import StepTable
from trainers.steps.parquet import read_episodes, write_episodes

MEMORIES = ("window(0)", "window(2)", "full", "compact(220)", "rendered")
MOVES = ("left", "up", "right", "down", "left", "left")


@pytest.fixture(scope="session", params=vision_models.NAMES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vision_models.save(request.param, tmp_path_factory.mktemp(request.param))


def config_of(folder: Path, **how: Any) -> ModelConfig:
    """The settings of a model, which say where a model for text alone is to take images."""
    return ModelConfig(
        **{"path": str(folder), "images": "frozen" if folder.name.startswith("qwen3_5") else "auto", **how}
    )


@cache
def loaded(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    config = config_of(folder)
    return load_model(config), load_tokenizer(config)


def processing(tokenizer: PreTrainedTokenizerBase) -> ImageProcessing:
    found = format_of(tokenizer)
    assert found is not None
    return found


def conversation(tokenizer: Any, memory: str, env: SokobanEnv, **how: Any) -> Conversation:
    codec = make_codec("brackets", think=False)
    form = how.pop("image_format", format_of(tokenizer))
    spec = PromptSpec(codec, make_memory(memory), instructions=False, **how)
    return Conversation(tokenizer, spec, env.tools, image_format=form)


Prompt = tuple[tuple[int, ...], tuple[Pixels, ...]]


def prompts(tokenizer: Any, memory: str, seed: int = 3) -> tuple[list[Prompt], list[list[dict[str, Any]]]]:
    """The prompts of an episode, and the messages that each stands for, with the images in them."""
    env = SokobanEnv(observation="both", style="spaced")
    talk = conversation(tokenizer, memory, env)
    observation, _ = env.reset(seed=seed)
    talk.start(observation)
    made, messages = [talk.prompt()], [talk.messages()]
    for move in MOVES[:4]:
        action = (ToolCall("move", {"direction": move}),)
        text = talk.codec.write(action, tools=env.tools)
        observation, _, done, _, _ = env.step(action)
        if done:
            break
        talk.add([*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id], text, observation)
        made.append(talk.prompt())
        messages.append(talk.messages())
    return made, messages


def as_parts(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its images as parts of its content."""
    content: list[dict[str, str]] = []
    for number, text in enumerate(message["content"].split("[image]")):
        content += [{"type": "image"}] if number else []
        content += [{"type": "text", "text": text}] if text else []
    return {**message, "content": content}


def real(ids: Sequence[int] | NDArray[Any], token: int) -> NDArray[np.int64]:
    """The ids as the model itself takes them."""
    array = np.asarray(ids, np.int64)
    return np.where(array < 0, token, array)


def given(ids: NDArray[np.int64], images: Sequence[Pixels], form: ImageProcessing) -> dict[str, torch.Tensor]:
    """The arguments of the model's own ``forward`` for these tokens and images."""
    if not images:
        return {"input_ids": torch.from_numpy(ids)[None]}
    found = [form.tensors([image]) for image in images]
    names = [name for name in found[0] if name not in ("input_ids", "attention_mask", "mm_token_type_ids")]
    nested = found[0]["pixel_values"].ndim == 5
    made = {name: torch.cat([one[name] for one in found], 1 if nested else 0) for name in names}
    made["input_ids"] = torch.from_numpy(real(ids, form.token))[None]
    if "mm_token_type_ids" in found[0]:
        made["mm_token_type_ids"] = torch.from_numpy(ids < 0)[None].long()
    return made


@pytest.mark.parametrize("memory", MEMORIES)
def test_the_ids_of_a_prompt_are_those_that_template_and_processor_give(folder, memory):
    _, tokenizer = loaded(folder)
    form = processing(tokenizer)
    for (ids, images), messages in zip(*prompts(tokenizer, memory), strict=True):
        assert len(images) == sum(message["content"].count("[image]") for message in messages) > 0
        parts = [as_parts(message) for message in messages]
        text = tokenizer.apply_chat_template(parts, add_generation_prompt=True, tokenize=False)
        from PIL import Image

        own: Any = form.processor(
            text=[text], images=[[Image.fromarray(image) for image in images]], add_special_tokens=False
        )
        assert real(ids, form.token).tolist() == list(own["input_ids"][0])
        numbers = images_of(np.array(ids))
        assert sorted(set(numbers.tolist())) == list(range(-1, len(images)))
        assert readable(tokenizer, np.array(ids)).count("[image]") == len(images)


def test_a_processor_that_also_takes_videos_is_read_and_has_pillow_s_pixels(folder, monkeypatch):
    def read(path: Path, **how: Any) -> Any:
        assert "backend" not in how, "processors of videos have no other"
        return own(path)

    own = AutoProcessor.from_pretrained
    monkeypatch.setattr(AutoProcessor, "from_pretrained", read)
    form = format_of(load_tokenizer(config_of(folder)))
    assert form is not None and type(form.processor.image_processor).__name__.endswith("Pil")


def test_prompts_that_continue_each_other_do_so_id_by_id(folder):
    _, tokenizer = loaded(folder)
    made, _ = prompts(tokenizer, "full")
    for (before, seen), (after, more) in itertools.pairwise(made):
        assert after[: len(before)] == before and len(more) == len(seen) + 1
        assert all(one is other for one, other in zip(seen, more, strict=False))


def table(tokenizer: Any, memory: str) -> StepTable:
    """Two episodes, the second played twice: steps with a few random response tokens."""
    rng = np.random.default_rng(5)
    lines: list[tuple[int, int, Prompt, NDArray[np.int64]]] = []
    for number, seed in enumerate((3, 4, 4)):
        made, _ = prompts(tokenizer, memory, seed)
        lines += [(number, t, prompt, rng.integers(4, 200, 3 + t)) for t, prompt in enumerate(made)]
    return StepTable.from_episodes(
        episode(number, *(shown(t, *prompt, response) for n, t, prompt, response in lines if n == number))
        for number in range(3)
    )


def shown(t: int, ids: Sequence[int], images: Sequence[Pixels], response: Sequence[int] | NDArray[Any]) -> Step:
    """A step with images in its prompt, the last of them new."""
    none = np.zeros(len(response))
    return step(t, prompt_ids=ids, response_ids=response, response_logprobs=none, images=tuple(images), shown=1)


def naive(model: PreTrainedModel, form: ImageProcessing, steps: StepTable) -> torch.Tensor:
    """Log-probability of each response token, a row at a time, by the model itself."""
    parts = []
    for row in range(len(steps)):
        prompt, response = steps.prompt[row], steps.response[row].astype(np.int64)
        arguments = given(np.concatenate([prompt, response]), steps.images[row], form)
        logits = model(**arguments, use_cache=False).logits[0].log_softmax(-1)
        where = torch.arange(len(prompt) - 1, len(prompt) + len(response) - 1)
        parts.append(logits[where, torch.from_numpy(response)])
    return torch.cat(parts)


def gradient(model: PreTrainedModel) -> torch.Tensor:
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return found


@pytest.mark.parametrize("way", ["shared", "apart", "rows"])
@pytest.mark.parametrize("memory", ["window(2)", "full"])
def test_log_probabilities_and_gradients_are_the_model_s_own(folder, memory, way, monkeypatch):
    model, tokenizer = loaded(folder)
    monkeypatch.setitem(rows._REASONS, model, rows.ALWAYS if way == "rows" else None)
    steps = table(tokenizer, memory)
    own = naive(model, processing(tokenizer), steps)
    weight = torch.linspace(-1, 1, len(own))
    (own * weight).sum().backward()
    wanted = gradient(model)
    found = batch_logprobs(Policy(model), steps, weight, 400, way != "apart")
    assert (found - own.detach()).abs().max() < 1e-5
    assert float((gradient(model) - wanted).norm() / wanted.norm()) < 1e-5


@pytest.mark.seconds
@pytest.mark.parametrize("change", ["adapter", "checkpointing", "bfloat16", "bfloat16 base"])
def test_adapters_checkpointing_and_bfloat16_compute_the_same(folder, change):
    how: dict[str, Any] = {
        "adapter": {"adapter": AdapterConfig(rank=4)},
        "checkpointing": {"gradient_checkpointing": True},
        "bfloat16": {"compute_dtype": "bfloat16"},
        "bfloat16 base": {"compute_dtype": "bfloat16", "adapter": AdapterConfig(rank=4, base="bfloat16")},
    }[change]
    config = config_of(folder, **how)
    plain, tokenizer = loaded(folder)
    steps = table(tokenizer, "window(2)")
    own = naive(plain, processing(tokenizer), steps).detach()
    model = load_model(config)
    policy = Policy(model, compute_dtype=config.compute_dtype).train()
    found = batch_logprobs(policy, steps, torch.ones(len(own)), 2000)
    off = (found - own).abs()
    assert off.mean() < 0.1 if "bfloat16" in change else off.max() < 1e-4
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained and all(p.grad is not None for p in model.parameters() if p.requires_grad)
    assert not any("vision" in name or "connector" in name or "projector" in name for name in trained)


def noise(*shapes: tuple[int, int]) -> list[Pixels]:
    """Images of noise of these numbers of rows and columns."""
    rng = np.random.default_rng(1)
    return [rng.integers(0, 256, (*shape, 3), np.uint8) for shape in shapes]


def forked(tokenizer: PreTrainedTokenizerBase) -> StepTable:
    """Prompts that part after an image, before, between and behind wide, high and square ones."""
    form, (wide, high, even) = processing(tokenizer), noise((32, 64), (48, 32), (32, 32))
    seen = ([wide], [wide], [wide, high], [wide, even, high], [high], [])
    ends = ((7,), (8, 9), (7, 8), (9,), (10, 11, 12), (7, 9))
    steps = []
    for images, end in zip(seen, ends, strict=True):
        parts = [[5, 6], *([*renumber_images(np.array(form.ids(image)), [n]), 7 + n] for n, image in enumerate(images))]
        steps.append(shown(0, [int(token) for part in parts for token in part], images, (*end, 13)))
    return StepTable.from_episodes(episode(n, one) for n, one in enumerate(steps))


def moved(model: PreTrainedModel) -> PreTrainedModel:
    """The model after its trained weights have changed."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model


def projecting(model: PreTrainedModel) -> list[str]:
    """Names of the weights of its projector that are trained."""
    named = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert not any(part in name for name in named for part in ("blocks.", "encoder.", "embeddings."))
    return [name for name in named if any(part in name for part in ("connector", "projector", "merger"))]


@pytest.mark.seconds
@pytest.mark.parametrize("how", ["tree", "parts", "rows", "adapter"])
@pytest.mark.parametrize("images", ["frozen", "train-projector"])
def test_branches_before_between_and_after_images_of_any_shape_are_the_model_s_own(folder, images, how, monkeypatch):
    adapter = AdapterConfig(rank=4, targets=["q_proj"]) if how == "adapter" else None
    model = load_model(config_of(folder, images=images, adapter=adapter))
    monkeypatch.setitem(rows._REASONS, model, rows.ALWAYS if how == "rows" else None)
    if how == "parts" and is_recurrent(model):
        pytest.skip("a tree with recurrent layers is not computed in parts")
    steps, form = forked(loaded(folder)[1]), processing(loaded(folder)[1])
    policy = Policy(moved(model)).train()
    for _ in range(2):
        own = naive(model, form, steps)
        own.sum().backward()
        wanted = taken_gradients(model)
        projected = [name for name in projecting(model) if wanted[name].any()]
        assert len(projected) >= (0 if images == "frozen" else 2 if how == "adapter" else 1)
        for tree in micro_batches(steps, 1000, True, rows=how == "rows"):
            stats = policy(replace(tree, part=7) if how == "parts" else tree)  # parts end within images
            stats.logprob.sum().backward()
            assert (stats.logprob - own[torch.from_numpy(tree.index)]).abs().max() < 2e-5
        same_gradients(taken_gradients(model), wanted)
        moved(model)  # embeddings of the weights before are not used again


@pytest.mark.parametrize("adapted", [False, True])
def test_a_trained_projector_is_sampled_from_and_saved(folder, adapted, tmp_path):
    adapter = AdapterConfig(rank=4) if adapted else None
    model = load_model(config_of(folder, images="train-projector", adapter=adapter))
    form, (image,) = processing(loaded(folder)[1]), noise((32, 48))
    engine, ids = HFEngine(model), (5, *form.ids(image), 6)
    for version in range(2):
        engine.submit([Request(version, ids, Sampling(max_tokens=4), seed=2, images=(image,))])
        (answer,) = engine.poll()
        row = StepTable.from_episodes([episode(0, shown(0, ids, [image], answer.token_ids))])
        assert np.abs(naive(model, form, row).detach().numpy() - answer.logprobs).max() < 1e-4
        engine.sync(trained_weights(moved(model)), version + 1)
    expected = naive(model, form, row).detach()
    if adapted:
        save_adapter(model, tmp_path)
        config = json.loads((tmp_path / "adapter_config.json").read_text()) | {"base_model_name_or_path": str(folder)}
        (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    else:
        model.save_pretrained(tmp_path)
        save_tokenizer(loaded(folder)[1], tmp_path)
    again = load_model(config_of(folder, path=str(tmp_path)))
    assert (naive(again, form, row) - expected).abs().max() < 1e-4
    assert not projecting(again), "what is frozen stays so where an adapter is merged"


def test_an_engine_that_always_has_requests_keeps_their_images_alone(folder):
    model, form = load_model(config_of(folder)), processing(loaded(folder)[1])
    engine = HFEngine(model, max_batch=1)
    images = noise((32, 48), (32, 48), (48, 32))
    for number, image in enumerate(images):
        ids = (5, *form.ids(image), 6)
        engine.submit([Request(number, ids, Sampling(max_tokens=3), seed=2, images=(image,))])
    engine.poll()
    engine.sync(trained_weights(moved(model)), 1)
    assert engine.pending == 2 and len(engine._images.images) == 2
    (answer,) = [one for one in iter(engine.poll, []) for one in one if one.request_id == 2]
    row = StepTable.from_episodes([episode(0, shown(0, ids, [image], answer.token_ids))])
    assert np.abs(naive(model, form, row).detach().numpy() - answer.logprobs).max() < 1e-4
    engine.rest()
    assert not engine._images.images, "nothing is kept that nobody asks for"


@pytest.mark.parametrize("images", ["frozen", "train-projector"])
def test_images_are_refused_for_a_model_for_text(images):
    with pytest.raises(ConfigError, match=f"model.images is {images}, but .* model for text"):
        load_model(ModelConfig(images=images))


def test_a_model_for_text_and_images_is_read_for_text_unless_it_is_to_take_images(tmp_path):
    folder = vision_models.save("qwen3_5", tmp_path)
    for images in (False, True):
        config = ModelConfig(path=str(folder), images="frozen" if images else "auto")
        model = load_model(config)
        assert (vision_of(model) is not None) == (format_of(load_tokenizer(config)) is not None) == images
        assert any("visual" in name for name, _ in model.named_parameters()) == images


def test_the_image_s_token_in_a_response_is_a_word_like_any_other(folder):
    model, tokenizer = load_model(config_of(folder)), loaded(folder)[1]
    form, (image,) = processing(tokenizer), noise((32, 48))
    embedding = model.get_input_embeddings().weight
    with torch.no_grad():
        embedding[form.token] = embedding[20]
    made = StepTable.from_episodes(
        episode(n, shown(0, (5, *form.ids(image), 6), [image], (7, token, 8)))
        for n, token in enumerate((form.token, 20))
    )
    (tree,) = micro_batches(made, 1000, True)
    found = dict(zip(tree.index.tolist(), Policy(model)(tree).logprob.tolist(), strict=True))
    assert found[2] == pytest.approx(found[5], abs=1e-5)


def test_equal_ids_of_different_images_are_not_shared(folder):
    model, tokenizer = loaded(folder)
    form = processing(tokenizer)
    one, other = (np.random.default_rng(seed).integers(0, 256, (32, 32, 3), np.uint8) for seed in (0, 1))
    prompt = (5, *form.ids(one), 6)
    seen = (one, other, one.copy())
    made = StepTable.from_episodes(episode(n, shown(0, prompt, [image], (7, 8))) for n, image in enumerate(seen))
    (piece,) = micro_batches(made, 10_000, True)
    parts = sum(token < -1 for token in prompt)
    assert (piece.tokens < -1).sum() == 2 * parts and len(piece.images) == 2, "the copy is the same image"
    found = dict(zip(piece.index.tolist(), Policy(model)(piece).logprob.tolist(), strict=True))
    assert [found[4], found[5]] == pytest.approx([found[0], found[1]], abs=1e-6)
    assert abs(found[2] - found[0]) > 1e-3
    assert torch.allclose(torch.tensor([found[n] for n in range(6)]), naive(model, form, made).detach(), atol=1e-5)


def test_the_engine_samples_what_the_model_says_with_and_without_kept_beginnings(folder):
    model, tokenizer = loaded(folder)
    form = processing(tokenizer)
    asked = [prompt for memory in ("full", "window(2)") for prompt in prompts(tokenizer, memory)[0]]
    answers = []
    for engine in (HFEngine(model), HFEngine(model, cache_tokens=0), PlainEngine(model)):
        ended = {}
        for begin in range(0, len(asked), 4):  # the steps of an episode follow each other, some beside each other
            engine.submit([
                Request(n, ids, Sampling(max_tokens=5), session=n % 3, seed=n, images=images)
                for n, (ids, images) in enumerate(asked[begin : begin + 4], begin)
            ])  # fmt: skip
            while engine.pending:
                ended.update((answer.request_id, answer) for answer in engine.poll())
        answers.append([ended[n] for n in range(len(asked))])
    for (ids, images), kept, *others in zip(asked, *answers, strict=True):
        assert kept.error is None
        row = StepTable.from_episodes([episode(0, shown(0, ids, images, kept.token_ids))])
        if form.token not in kept.token_ids:  # the model by itself would ask for an image
            assert np.abs(naive(model, form, row).detach().numpy() - kept.logprobs).max() < 1e-4
        for other in others:
            assert kept.token_ids.tolist() == other.token_ids.tolist()
            assert np.abs(other.logprobs - kept.logprobs).max() < 1e-4


def test_a_prompt_that_refers_to_an_image_that_is_not_there_is_answered_with_an_error(folder):
    model, tokenizer = loaded(folder)
    ids, images = prompts(tokenizer, "full")[0][1]
    engine = HFEngine(model)
    engine.submit([Request(0, ids, Sampling(max_tokens=2), images=images[:1]), Request(1, (-1, 4), Sampling())])
    answers = {answer.request_id: answer.error for answer in engine.poll()}
    assert answers[0] is not None and "more than its 1 images" in answers[0]
    assert answers[1] is not None and "outside 0.." in answers[1]


def test_hidden_states_and_a_critic_s_backbone_see_the_images(folder):
    model, tokenizer = loaded(folder)
    form = processing(tokenizer)
    steps = table(tokenizer, "window(2)")
    (found,) = at_prompt_ends(model, steps, [Fingerprint()], budget=400)
    backbone = load_backbone(config_of(folder), "model.path")
    assert vision_of(backbone) is not None
    for row in range(0, len(steps), 3):
        arguments = given(steps.prompt[row].astype(np.int64), steps.images[row], form)
        for whole in (model.base_model, backbone):
            states = whole(**arguments, use_cache=False).last_hidden_state
            assert np.abs(states[0, -1].detach().numpy() - found[row]).max() < 1e-4


def test_episodes_with_images_are_read_from_parquet_as_they_were_written(folder, tmp_path):
    _, tokenizer = loaded(folder)
    made, _ = prompts(tokenizer, "window(2)")
    steps = [shown(t, *prompt, (5, 6)) for t, prompt in enumerate(made)]
    episodes = [episode(0, *steps), episode(1, error="lost")]
    write_episodes(tmp_path / "some.parquet", episodes)
    again = read_episodes(tmp_path / "some.parquet")
    assert again == episodes and again[0].steps[1].images[0].shape == (96, 96, 3)
    changed = again[0].steps[0].images[0].copy()
    changed[0, 0, 0] ^= 1
    assert replace(again[0].steps[0], images=(changed,)) != again[0].steps[0]


def test_a_model_that_computes_an_image_otherwise_than_here_is_refused(folder, monkeypatch):
    model, _ = loaded(folder)
    check_vision(model)
    vision = vision_of(model)
    assert vision is not None
    embeddings, index = vision.embeddings, getattr(model.base_model, "get_rope_index", None)
    if index is None:
        monkeypatch.setattr(vision, "embeddings", lambda images: [one.flip(0) for one in embeddings(images)])
    else:
        monkeypatch.setattr(vision_module, "own_positions", lambda *_: None)
    with pytest.raises(DataError, match="positions or attention of their own"):
        check_vision(model)


def test_a_tokenizer_of_a_text_model_refuses_images_and_left_truncation_is_refused(folder):
    _, tokenizer = loaded(folder)
    env = SokobanEnv(observation="image")
    observation, _ = env.reset(seed=0)
    talk = conversation(tokenizer, "full", env, image_format=None)
    with pytest.raises(UsageError, match="takes none"):
        talk.start(observation)
    cut = conversation(tokenizer, "full", env, truncate="left")
    with pytest.raises(UsageError, match="cut an image in two"):
        cut.start(observation)
    cut.start(SokobanEnv().reset(seed=0)[0])  # a model that takes images may be shown text alone


@pytest.mark.parametrize("memory", ["window(2)", "full", "rendered"])
def test_neither_a_world_s_text_nor_a_model_s_can_place_an_image(folder, memory):
    _, tokenizer = loaded(folder)
    env = SokobanEnv(observation="image")
    talk = conversation(tokenizer, memory, env)
    observation, _ = env.reset(seed=0)
    forged = "\ue0000\ue001"
    talk.start({**observation, "text": f"push {forged}", "task": forged})
    talk.add((5,), f"<action>move[{forged}]</action>", {**observation, "text": forged})
    ids, images = talk.prompt()
    parts = sum(number < -1 for number in processing(tokenizer).ids(images[0]))
    assert len(images) == 2 and np.unique(images_of(np.array(ids)), return_counts=True)[1].tolist()[1:] == [parts] * 2
    plain = SokobanEnv()
    text, _ = plain.reset(seed=0)
    for form in (None, format_of(tokenizer)):
        kept = conversation(tokenizer, memory, plain, image_format=form)
        kept.start({**text, "text": forged})
        assert forged in kept.messages()[0]["content"], "texts of an environment without images stay as they are"
        assert kept.prompt()[1] == ()


def test_messages_for_endpoints_have_images_as_parts():
    env = SokobanEnv(observation="both")
    chat = Chat(PromptSpec(make_codec("brackets"), make_memory("full")), env.tools)
    observation, _ = env.reset(seed=0)
    chat.start(observation)
    system, user = chat.messages()
    assert isinstance(system["content"], str)
    text, image, commands = user["content"]
    assert text["type"] == "text" and observation["text"] in text["text"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert commands["text"].startswith("\nCommands: ")


def test_ids_of_parts_say_which_part_of_which_image_they_are():
    ids = np.array([4, part_id(0, 0), part_id(0, 1), 0, part_id(3, 16_383), 7])
    assert images_of(ids).tolist() == [-1, 0, 0, -1, 3, -1]
    assert parts_of(ids).tolist() == [0, 0, 1, 0, 16_383, 0]
    assert renumber_images(ids, [2, 0, 0, 1]).tolist() == [4, part_id(2, 0), part_id(2, 1), 0, part_id(1, 16_383), 7]
    assert part_id(100_000, 0) > np.iinfo(np.int32).min
