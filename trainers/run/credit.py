"""The credit assignment of a run: its method, what supplies the columns that it reads, and replay."""

from __future__ import annotations

import logging

from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

from envsuite.prompting import Codec, TemplateRenderer
from trainers.credit.crediting import Crediting, make_providers
from trainers.credit.hindsight import HindsightPrompts
from trainers.credit.method import Method
from trainers.credit.rounds import EarlierRounds
from trainers.credit.spear.self_imitation import SelfImitation
from trainers.policy.loading import model_settings
from trainers.rollout.engine import longest_sequence
from trainers.run.config import TrainConfig
from trainers.run.policy import RunPolicy
from trainers.run.teacher import make_teacher
from trainers.steps.columns import HINDSIGHT, PLANNED, REFERENCE

_LOG = logging.getLogger(__name__)


def make_crediting(
    config: TrainConfig,
    accelerator: Accelerator,
    policy: RunPolicy,
    tokenizer: PreTrainedTokenizerBase,
    codec: Codec,
    recompute: bool,
) -> tuple[Crediting, SelfImitation | None]:
    """What turns episodes into training data, and the replay of good ones where the method has it.

    Args:
        config: All settings.
        accelerator: The run's accelerator.
        policy: The policy.
        tokenizer: The policy's.
        codec: That of the prompts.
        recompute: Whether the old log-probabilities are the trainer's (``OptimConfig.recomputes``).

    Raises:
        ConfigError: A setting of the method does not fit the model.
        DataError: The model of a reference, teacher or critic cannot be loaded.
    """
    method, model, optim = config.method, config.model, config.optim
    credit_method, hindsight = Method.of(method), None
    needs = set(credit_method.estimator.needs)
    if HINDSIGHT in needs:
        render = TemplateRenderer(tokenizer, config.prompt.template_arguments)
        hindsight = HindsightPrompts.of(render, codec, longest_sequence(model_settings(model)))
    providers = make_providers(
        method, credit_method.estimator, accelerator=accelerator, policy=policy.policy, model=model, optim=optim,
        reference=policy.make_reference(), teacher=make_teacher(config, policy), hindsight=hindsight, seed=config.seed,
        tokenizer=tokenizer, lowercase=config.prompt.lowercase, recompute=recompute,
    )  # fmt: skip
    if needs.intersection(PLANNED) and not config.prompt.plan:
        _LOG.warning("%s reads plans, but prompt.plan is false: each episode is one segment", method.estimator)
    first_only = recompute and optim.is_one_step  # ratios of 1
    if model.compute_dtype == "bfloat16" and method.objective.clips_within_rounding and not first_only:
        _LOG.warning(
            "method.objective: clip_low %s and clip_high %s bound ratios of whole steps more closely than "
            "bfloat16 rounds, which alone may clip them; watch train/clip_fraction, or set compute_dtype: float32",
            method.objective.clip_low, method.objective.clip_high,
        )  # fmt: skip
    crediting = Crediting(credit_method, accelerator, providers, [env.id for env in config.envs])
    if method.replay is None:
        return crediting, None
    if method.replay.rules == "rounds":
        return crediting, EarlierRounds(method.replay, accelerator, config.seed)
    compares = method.objective.kl != "none"
    scorer = next((part for part in providers if compares and REFERENCE in part.supplies), None)
    return crediting, SelfImitation(method.replay, accelerator, config.seed, scorer)
