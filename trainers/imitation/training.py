"""Trains a causal transformer on transcripts of players: a small one from nothing, or one that others have trained."""

from __future__ import annotations

import itertools
import logging
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.logging import disable_progress_bar

import envsuite  # noqa: F401  # registers the environments
from envsuite.core import ToolEnv, UsageError
from envsuite.core.errors import unknown
from envsuite.core.images import ImageTable
from envsuite.core.practice import ExpertTeacher, Teacher
from envsuite.prompting import Conversation
from envsuite.prompting.images import renumber_images
from envsuite.prompting.rendering import vocabulary_of
from envsuite.remote.making import make_player, practice_of
from trainers.imitation.attention import prepare_head
from trainers.imitation.config import ImitateConfig, PlayConfig, Stage
from trainers.imitation.demonstrations import demonstrations, transcribe_requests
from trainers.imitation.erring import ErringTeacher
from trainers.imitation.muon import Float32Muon
from trainers.imitation.play import (
    ANSWER,
    IMAGE,
    PROMPT,
    RESPONSE,
    ImitationGame,
    Transcript,
    by_length,
    repeated_words,
    transcribe,
)
from trainers.imitation.vocabulary import CONTROL, TAGS, byte_tokenizer, word_tokenizer
from trainers.policy.adapter import is_adapted, save_adapter
from trainers.policy.loading import load_model, load_tokenizer, without_noise
from trainers.policy.model import Policy
from trainers.policy.rows import rows_reason
from trainers.policy.source import find
from trainers.policy.tree import TokenSequence, TokenTree, token_tree
from trainers.policy.vision import save_tokenizer
from trainers.processes.cpu import bfloat16_is_slow
from trainers.rollout.config import EnvConfig
from trainers.rollout.environments import check_prompts, check_vocabulary, make_conversation
from trainers.settings import ConfigError

_LOG = logging.getLogger(__name__)
SAVE_EVERY = 300
"""Optimiser steps between two checkpoints of the model, for trying it meanwhile."""
TELL_EVERY = 30.0
"""Seconds after which progress is logged."""
TOO_LONG = 200
"""Number of overlong transcripts after which the error about them is raised."""
POOL = 32
"""Number of batches that are drawn and sorted by length at a time."""
COPYING_LOSS = 1.0
"""Loss of random words' second copy below which copying is learnt; before, it is some 5, and falls at once."""
GAMES = 200
"""Games of each stage of which a vocabulary is learnt."""
_NO_MODEL = (StrictDataclassError, ValueError, TypeError, LookupError, RuntimeError, ArithmeticError, AttributeError)
_LOOK_BACK = ((0, 0, 1), (0, 1, 2), (0, 2, 3), (0, 3, 4), (1, 0, 1))


class Transcripts:
    """Batches of transcripts for the stages, determined by the seed."""

    def __init__(self, config: ImitateConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        self.config = config
        self.tokenizer = tokenizer
        source = config.demonstrations
        self._source = None if source is None else demonstrations(Path(source), config.env)
        self._practice = practice_of(config.env) if self._source is None else None
        self._fresh = "" if self._practice is None else self._practice.fresh
        self._vocabulary = vocabulary_of(tokenizer)
        self._envs: dict[str, tuple[int, ToolEnv, Conversation]] = {}
        """Arguments -> number of the world, its environment, and the prompts of the episode in it."""
        self._rng = random.Random(config.seed)
        self._world = config.fresh_from
        self._games = 0
        self.won = 0
        self.played = 0
        self.longest = self.longest_answer = 0
        """Tokens of the longest sequence, and of the longest answer."""
        self.unknown = 0
        """Tokens that stand for a word which the vocabulary does not have."""

    def batches(self, stage: Stage) -> Iterator[list[Transcript]]:
        """Yields batches for ``stage``, endlessly."""
        if not stage.games:
            words = range(len(CONTROL) + len(TAGS), len(self.tokenizer))
            while True:
                yield repeated_words(words, self.config.batch, self._rng)
        first_pool = True
        while True:
            pool: list[Transcript] = []
            shortest, left_out, too_long = math.inf, 0, 0
            while len(pool) < POOL * self.config.batch:
                transcripts = self.play(stage)
                pool += [transcript for transcript in transcripts if len(transcript.tokens) <= self.config.max_tokens]
                lengths = [len(transcript.tokens) for transcript in transcripts]
                excess = [length for length in lengths if length > self.config.max_tokens]
                left_out, too_long = left_out + (len(excess) if lengths else 1), too_long + len(excess)
                shortest = min([shortest, *excess])
                if left_out >= TOO_LONG and left_out > 99 * len(pool):
                    raise UsageError(self._left_out(stage, left_out, left_out + len(pool), shortest))
            if too_long > len(pool) / 10 and first_pool:
                _LOG.warning("%s", self._left_out(stage, too_long, too_long + len(pool), shortest))
            first_pool = False
            for _ in range(self.config.epochs):
                yield from by_length(pool, self.config.batch, self._rng)

    def _left_out(self, stage: Stage, left_out: int, games: int, shortest: float) -> str:
        if math.isinf(shortest) and stage.solved:
            return f"solved: none of {games} games was; raise max_steps={stage.max_steps}, or leave solved out"
        if math.isinf(shortest):
            memory, most = self.config.prompt.memory, self.config.prompt.max_tokens
            return f"prompt.memory {memory}, prompt.max_tokens {most}: no room for the first prompts; raise the number"
        return (
            f"max_tokens={self.config.max_tokens}: {left_out} of {games} transcripts are longer, the shortest of them "
            f"of {shortest} tokens; raise max_tokens, or lower max_steps"
        )

    def play(self, stage: Stage) -> list[Transcript]:
        """Returns the sequences of the next game."""
        self._games += 1
        if self._games % self.config.fresh_every == 0:
            self._world += 1
        play = self._rng.choices(stage.games, [game.weight for game in stage.games])[0]
        if self._source is not None and self._source.agent_episodes:
            game = transcribe_requests(self._rng.choice(self._source.agent_episodes), stage.max_steps, self._vocabulary)
        else:
            game = self._transcribe(play, stage.max_steps)
        self.played += 1
        self.won += game.success
        for one in game.transcripts:
            answers = [len([*parts]) for part, parts in itertools.groupby(one.parts) if part == RESPONSE]
            self.longest, self.longest_answer = max(self.longest, len(one.tokens)), max([self.longest_answer, *answers])
        self.unknown += sum(int((one.tokens == self.tokenizer.unk_token_id).sum()) for one in game.transcripts)
        return game.transcripts if game.success or not stage.solved else []

    def _transcribe(self, play: PlayConfig, max_steps: int) -> ImitationGame:
        env, conversation = self._env(play.kwargs)
        if (split := env.split) is None:
            raise UsageError("imitation draws its games from a split; name one in the kwargs of the games")
        task = self._rng.choice(env.tasks.ids(split))
        task, player = (task, self._player(play)) if self._source is None else self._source.draw(env, self._rng)
        return transcribe(env, task, player, conversation, max_steps, self._rng, thoughts=self.config.thoughts)

    def _player(self, play: PlayConfig) -> Teacher:
        if play.errs is None or play.player is not None:
            assert self._practice is not None
            try:
                player = self._practice.teacher(**(play.player or {}))
            except TypeError as error:
                raise UsageError(f"stages[].games[].player: {error}") from None
        else:
            player = ExpertTeacher(make_player(self.config.env, "expert"))
        return player if play.errs is None else ErringTeacher(player, play.errs)

    def _env(self, kwargs: dict[str, Any]) -> tuple[ToolEnv, Conversation]:
        """Returns the environment of these arguments and the current world; keeps the last one of each kind."""
        world, env, conversation = self._envs.get(str(kwargs), (self._world, None, None))
        if env is None or conversation is None or (self._fresh and world != self._world):
            fresh = {self._fresh: self._world} if self._fresh else {}
            wrapper = gymnasium.make(self.config.env, disable_env_checker=True, **kwargs, **fresh)
            env = cast(ToolEnv, wrapper.unwrapped)
            if conversation is None:
                conversation = make_conversation(self.config.prompt, self.tokenizer, env.tools, env.max_calls)
            self._envs[str(kwargs)] = self._world, env, conversation
        return env, conversation


def new_model(config: ImitateConfig, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Returns an untrained model for the vocabulary of ``tokenizer``.

    Raises:
        UnknownName: There is no such family, or its configuration has no such field.
        ConfigError: No model can be made of these fields.
    """
    shape = config.architecture
    if shape.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise unknown("architecture.model_type", shape.model_type, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    kind = CONFIG_MAPPING[shape.model_type]
    names = {field.name for field in fields(kind)} | kind.attribute_map.keys()
    if "vocab_size" not in names:
        raise ConfigError(f"architecture.model_type: {shape.model_type} is not for text alone; name its text model")
    for name in shape.fields:
        if name not in names:
            raise unknown(f"field of {shape.model_type}", name, names)
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    words = {"vocab_size": len(tokenizer), "bos_token_id": None, "eos_token_id": end, "pad_token_id": pad}
    own = {kind.attribute_map.get(name, name): value for name, value in shape.fields.items()}
    if fixed := sorted(own.keys() & {kind.attribute_map.get(name, name) for name in words}):
        raise ConfigError(f"architecture.fields: {', '.join(fixed)} comes from the vocabulary; leave it out")
    if shape.heads % shape.key_heads:
        raise ConfigError(
            f"architecture: {shape.heads} heads do not share {shape.key_heads} key_heads evenly; make heads a multiple"
        )
    values = {
        "hidden_size": shape.width,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads,
        "head_dim": shape.head_width,
        "max_position_embeddings": shape.context,
        "tie_word_embeddings": True,
        **({"attention_bias": True} if shape.model_type == "llama" else {}),
        **words,
    }
    sizes = {kind.attribute_map.get(name, name): value for name, value in values.items() if name in names}
    try:
        settings = kind(**{**sizes, **own})
        without_noise(settings)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(settings)  # type: ignore[no-untyped-call]
    except _NO_MODEL as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"architecture: no {shape.model_type} can be made of these fields: {reason}") from error
    heads = _LOOK_BACK if shape.look_back is None and shape.model_type == "llama" else shape.look_back or ()
    for layer, head, distance in heads:
        prepare_head(model, layer, head, distance)
    return model


def load_start(name: str, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Loads the model in the folder ``name`` for the vocabulary of ``tokenizer``.

    Words of its own vocabulary keep their embeddings; those of other words are drawn with the same mean and spread.

    Raises:
        DataError: There is no such folder, or it has no model or no tokenizer.
    """
    folder = find(name, "start").folder
    settings = AutoConfig.from_pretrained(folder)
    without_noise(settings)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, config=settings)
    old_words = PreTrainedTokenizerFast.from_pretrained(folder).get_vocab()
    words = tokenizer.get_vocab()
    if old_words == words:
        return model
    rows = []
    for old in [weight.detach() for weight in _of_words(model)]:
        rows.append(old.mean(0) + old.std(0) * torch.randn(len(tokenizer), old.shape[1]))
        for word in words.keys() & old_words.keys():
            rows[-1][words[word]] = old[old_words[word]]
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        for weight, new in zip(_of_words(model), rows, strict=True):
            weight.copy_(new)
    model.config.eos_token_id, model.config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    return model


def loss_of(
    policy: Policy, batch: Sequence[Transcript], context_weight: float, whole: Sequence[Transcript] | None = None
) -> tuple[Tensor, float]:
    """Returns the training loss, and the loss on the player's tokens alone; mistakes are context, not targets.

    Args:
        policy: The model.
        batch: Transcripts that are computed together.
        context_weight: Weight of the mean loss of prompts and observations; that of the player's tokens has weight 1.
        whole: The transcripts of the optimiser step, whose shares of the loss add up; by default ``batch``.
    """
    targets = (RESPONSE,) if context_weight == 0.0 else (RESPONSE, PROMPT, ANSWER)
    # The output layer is a third of the work, and nine tenths of the tokens are not targets.
    places = [np.flatnonzero(np.isin(transcript.parts[1:], targets)) for transcript in batch]
    kinds = np.concatenate([transcript.parts[1:][own] for transcript, own in zip(batch, places, strict=True)])
    logprob = policy(_tree(batch, places)).logprob
    mine = torch.from_numpy(kinds == RESPONSE).to(logprob.device)
    counts = np.bincount(np.concatenate([transcript.parts[1:] for transcript in whole or batch]), minlength=IMAGE + 1)
    loss = -logprob[mine].sum() / max(int(counts[RESPONSE]), 1)
    if context_weight == 0.0:
        return loss, float(loss.detach())
    context = -logprob[~mine].sum() / max(int(counts[PROMPT] + counts[ANSWER]), 1)
    return loss + context_weight * context, float(loss.detach())


def _tree(batch: Sequence[Transcript], places: Sequence[NDArray[np.int64]]) -> TokenTree:
    """The transcripts as a tree; ``places`` are the indices before their targets."""
    pool = ImageTable()
    firsts = np.cumsum([0, *map(len, places)])
    sequences = [
        TokenSequence.of(renumber_images(transcript.tokens, pool.numbers(transcript.images)), own, first)
        for transcript, own, first in zip(batch, places, firsts.tolist(), strict=False)
    ]
    return token_tree(sequences, images=pool.images)


def parts_of(batch: Sequence[Transcript], most: int) -> Iterator[Sequence[Transcript]]:
    """Yields the transcripts in parts of at most ``most`` tokens, or of one transcript."""
    part: list[Transcript] = []
    for transcript in batch:
        if part and sum(len(member.tokens) for member in [*part, transcript]) > most:
            yield part
            part = []
        part.append(transcript)
    yield part


def learner(config: ImitateConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Returns the model that is to learn, and its tokenizer.

    Raises:
        DataError: ``start`` has no model, or ``model.path`` cannot be loaded.
        ConfigError: The tokenizer's chat template does not go with the prompts.
    """
    torch.manual_seed(config.seed)
    if config.model is not None:
        tokenizer = load_tokenizer(config.model)
        check_prompts(config.prompt, tokenizer)
        kwargs = next((dict(game.kwargs) for stage in config.stages for game in stage.games), {})
        check_vocabulary(EnvConfig(config.env, kwargs.pop("split", "train"), kwargs=kwargs), "env", tokenizer)
        return load_model(config.model), tokenizer
    here = practice_of(config.env) if config.demonstrations is None else None
    context = config.architecture.context
    if here is None or here.texts is None:
        tokenizer = byte_tokenizer(texts_of(config), context)
    else:
        tokenizer = word_tokenizer(here.texts(), context, here.spelling)
    return (new_model(config, tokenizer) if config.start is None else load_start(config.start, tokenizer)), tokenizer


def texts_of(config: ImitateConfig) -> Iterator[str]:
    """Yields what the first games of each stage show and what the player answers, as a model would see them."""
    memory = "full" if config.prompt.memory.strip().startswith("compact") else config.prompt.memory
    prompt = replace(config.prompt, memory=memory, max_tokens=None, truncate="episode")
    tokenizer = byte_tokenizer((), config.architecture.context)
    games = Transcripts(replace(config, prompt=prompt), tokenizer)
    for stage in config.stages:
        for _ in range(GAMES if stage.games else 0):
            for transcript in games.play(replace(stage, solved=False)):
                yield str(tokenizer.decode(transcript.tokens))


def _of_words(model: PreTrainedModel) -> list[Tensor]:
    """The matrices with a row for each word: the embeddings, and the output layer's where that has its own."""
    own: Any = model
    layers = [own.get_input_embeddings(), own.get_output_embeddings()]
    return list({id(layer.weight): layer.weight for layer in layers if layer is not None}.values())


def optimizers_of(config: ImitateConfig, model: PreTrainedModel) -> list[torch.optim.Optimizer]:
    """Returns AdamW for a model that others have trained, or its adapter; else Muon for the matrices of its layers."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if config.model is not None:
        return [torch.optim.AdamW(parameters.values(), weight_decay=0.0)]
    tables = [part.weight for part in model.modules() if isinstance(part, nn.Embedding)]
    table_ids = {id(weight) for weight in (*_of_words(model), *tables)}
    matrices = [p for p in parameters.values() if p.ndim == 2 and id(p) not in table_ids]
    other_weights = [p for p in parameters.values() if p.ndim != 2 or id(p) in table_ids]
    muon = Float32Muon if bfloat16_is_slow() else torch.optim.Muon
    return [
        muon(matrices, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(other_weights, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def imitate(config: ImitateConfig, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Trains ``model`` by the settings in ``config``."""
    torch.manual_seed(config.seed)
    nn.Module.to(model, "cuda" if torch.cuda.is_available() else "cpu")
    policy = Policy(model, compute_dtype="float32" if config.model is None else config.model.compute_dtype).train()
    if (reason := rows_reason(model)) is not None:
        _LOG.warning("the model is trained row by row, not in a tree of tokens: %s", reason)
    optimizers = optimizers_of(config, model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    source = Transcripts(config, tokenizer)
    total, step, began = sum(stage.steps for stage in config.stages), 0, time.perf_counter()
    recent: list[float] = []
    last_report = began
    for number, stage in enumerate(config.stages, 1):
        for i, batch in zip(range(stage.steps), source.batches(stage), strict=False):
            rate = stage.lr + (stage.lr_end - stage.lr) * i / stage.steps
            rate *= min(1.0, (step + 1) / max(1, config.warmup))
            for optimizer in optimizers:
                optimizer.zero_grad()
                for group in optimizer.param_groups:
                    group["lr"] = rate
            batch_loss = 0.0
            for part in parts_of(batch, config.tokens_per_microbatch):
                loss, share = loss_of(policy, part, stage.context_weight, batch)
                loss.backward()  # type: ignore[no-untyped-call]
                batch_loss += share
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            for optimizer in optimizers:
                optimizer.step()
            step += 1
            recent.append(batch_loss)
            if step % SAVE_EVERY == 0:
                save(config, model, tokenizer)
            now = time.perf_counter()
            if step % 50 == 0 or step in (5, total) or now - last_report > TELL_EVERY:
                spent, last_report = now - began, now
                _LOG.info(
                    "stage %d, step %d of %d: loss of the player's tokens %.3f, %.0f s, %.0f s left",
                    number, step, total, np.mean(recent), spent, spent / step * (total - step),
                )  # fmt: skip
                recent.clear()
            if not stage.games and i + 1 == stage.steps and batch_loss > COPYING_LOSS:
                _LOG.warning("stage %d ends before copying is learnt (loss %.2f): raise its steps", number, batch_loss)
    model.train(False)
    _LOG.info(
        "games played %d, won by the player %d; the longest sequence has %d tokens, the longest answer %d",
        source.played, source.won, source.longest, source.longest_answer,
    )  # fmt: skip
    if source.unknown and config.model is None:
        _LOG.warning("the tokenizer does not know %d words of these games: to the model they are one", source.unknown)


def save(config: ImitateConfig, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Writes the model, or its adapter, and its tokenizer to the output folder."""
    folder = Path(config.output)
    if is_adapted(model):
        folder.mkdir(parents=True, exist_ok=True)
        save_adapter(model, folder)
    else:
        disable_progress_bar()  # type: ignore[no-untyped-call]  # one file is written at once
        model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
