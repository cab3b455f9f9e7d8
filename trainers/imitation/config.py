"""Settings of the training of a base model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from envsuite.core.naming import resolve_id
from trainers.policy.config import ModelConfig
from trainers.rollout.config import PromptConfig
from trainers.settings import AtLeastOne, ConfigError, Count, Fraction, NotNegative, Positive, Seed, Text


@dataclass(frozen=True)
class Architecture:
    """A transformer with tied embeddings: a Llama with biases in its attention, or another family of transformers."""

    model_type: Text = "llama"
    """The family, by transformers' name, whose configuration gets the sizes below where it has such fields."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Further fields of the family's configuration, by transformers' names."""
    layers: AtLeastOne = 4
    width: AtLeastOne = 128
    heads: AtLeastOne = 4
    key_heads: AtLeastOne = 2
    """Number of heads of keys and values, which the ``heads`` of queries share."""
    head_width: AtLeastOne = 64
    feed_forward: AtLeastOne = 352
    context: AtLeastOne = 2048
    """Maximum number of tokens of a prompt and its response."""
    look_back: list[tuple[Count, Count, AtLeastOne]] | None = None
    """(layer, head, distance): heads that initially attend ``distance`` tokens back, or, if of Qwen3.5's gated delta
    rule, recall what earlier stood that many tokens after the present one; null: five heads of a Llama, none of another
    family."""


@dataclass(frozen=True)
class PlayConfig:
    """One kind of game in the mixture."""

    weight: Positive = 1.0
    """Relative share of the transcripts."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment."""
    player: dict[str, Any] | None = None
    """Arguments of the player, if any."""
    errs: Fraction | None = None
    """Put a random move in place of this share of the moves, all of which are targets: the model errs at every step
    alike, and has no way of playing to choose. The moves are the environment's expert's, or with ``player`` (``{}``
    sets no argument) the demonstration player's, which looks at what an agent sees."""


@dataclass(frozen=True)
class Stage:
    """A part of the training."""

    steps: AtLeastOne
    """Optimiser steps."""
    games: list[PlayConfig] = field(default_factory=list)
    """Games to play; without any, the transcripts are repeated random words, which teach copying."""
    max_steps: AtLeastOne = 24
    """Steps after which a game is truncated; 1 keeps only the plan and the first action, the difficult part."""
    lr: Positive = 4e-3
    """Learning rate at the beginning of the stage, of Muon for matrices and AdamW for the rest."""
    lr_end: Positive = 4e-3
    """Learning rate at its end; linear in between."""
    context_weight: NotNegative = 0.0
    """Weight of the loss on prompts and observations; the player's own tokens have weight 1."""
    solved: bool = False
    """Learn from solved games alone."""


@dataclass(frozen=True)
class ImitateConfig:
    """Settings of a base model and its training."""

    output: Text = "models/base"
    """Folder of the model."""
    model: ModelConfig | None = None
    """A model that others have trained, which learns with its own tokenizer and chat template, by its adapter if it has
    one: a hub name, folder or GGUF file. Its optimiser is AdamW, for which the stages' learning rates are high."""
    start: str | None = None
    """Folder of a model to continue from, instead of an untrained one of ``architecture``. If its vocabulary differs,
    the common words keep their embeddings."""
    seed: Seed = 0
    """Seed of weights, tasks and the players' mistakes."""
    env: Text = "TextCraft-v0"
    """Id of the environment, whose demonstration player is imitated."""
    demonstrations: Text | None = None
    """Folder with episodes of another model, as envsuite eval model --keep writes it, or a file of demonstrations, as
    envsuite export demos and envsuite play --save write it (--from is short for it). Those that solved their task are
    imitated, again and again, in place of a player: player and errs of the games are not read."""
    teacher: dict[str, Any] | None = None
    """Settings of envsuite eval model, with which another model first plays the episodes of ``demonstrations``; what is
    in the folder is not played again."""
    fresh_from: Count = 1_000_000
    """First seed of the generated worlds; every ``fresh_every`` games use another one."""
    fresh_every: AtLeastOne = 400
    """Number of games per world."""
    max_tokens: AtLeastOne = 640
    """Length limit in tokens; longer sequences are dropped."""
    prompt: PromptConfig = field(default_factory=PromptConfig)
    """How observations become prompts: the section of the run that is to go on from here."""
    thoughts: bool = True
    """Write the player's thoughts before its actions."""
    architecture: Architecture = field(default_factory=Architecture)
    """The model."""
    stages: list[Stage] = field(default_factory=list)
    """The stages of the training, in order."""
    batch: AtLeastOne = 16
    """Sequences per optimiser step: episodes, or steps of them where ``prompt.memory`` renders each prompt anew."""
    epochs: AtLeastOne = 1
    """Number of times that each sequence is trained on; more than one pays if games are slow to play."""
    tokens_per_microbatch: AtLeastOne = 16384
    """Most tokens in one forward pass; bounds memory, changes no result."""
    warmup: Count = 60
    """Optimiser steps of linear warm-up."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "env", resolve_id(self.env))
        if self.model is not None and self.start is not None:
            raise ConfigError(
                f"model.path is {self.model.path} and start {self.start}; each names the model to train: leave one out"
            )
        if self.teacher is not None and self.demonstrations is None:
            raise ConfigError("teacher is set, but not demonstrations, the folder that its episodes are kept in")
        if self.model is not None and not all(stage.games for stage in self.stages):
            raise ConfigError(
                "stages: one is without games, which teaches an untrained model to copy; a model that others have "
                "trained can, so leave that stage out"
            )
        if self.prompt.examples:
            raise ConfigError(
                f"prompt.examples is {self.prompt.examples}, but who imitates learns from episodes, not from a prompt "
                "that shows some; leave it out"
            )
        if self.prompt.memory.strip().startswith("summary"):
            raise ConfigError(
                f"prompt.memory is {self.prompt.memory!r}, but the player writes no summaries, so that its "
                "imitator would learn to leave them out; take window(K), full, compact(TOKENS) or rendered"
            )
