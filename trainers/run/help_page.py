"""Which settings a page of ``--help`` shows, and the names that other frameworks give to settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from envsuite.core.errors import unknown
from trainers.run.config import TrainConfig
from trainers.settings.words import describe_settings

MAIN = (
    *("recipe", "name", "output", "seed", "iterations", "checkpoint_every"),
    *("envs[].id", "envs[].split", "envs[].kwargs"),
    *("model.path", "model.compute_dtype", "model.adapter", "model.shard", "model.gradient_checkpointing"),
    *("prompt.codec", "prompt.memory", "prompt.max_tokens"),
    *("rollout.engine", "rollout.tasks", "rollout.group_size", "rollout.slots", "rollout.staleness"),
    *("rollout.sampling.temperature", "rollout.sampling.max_tokens"),
    *("method.options", "method.objective.kl_coef"),
    *("optim.lr", "optim.minibatches", "optim.epochs", "optim.tokens_per_microbatch"),
    *("evaluation.every", "evaluation.episodes", "tracking.trackers"),
)
"""Settings on the first page of the help: those that people change."""
FOREIGN = {
    "learning_rate": "optim.lr",
    "lr": "optim.lr",
    "weight_decay": "optim.weight_decay",
    "max_grad_norm": "optim.max_grad_norm",
    "grad_clip": "optim.max_grad_norm",
    "warmup_steps": "optim.warmup",
    "lr_warmup_steps": "optim.warmup",
    "num_train_epochs": "optim.epochs",
    "ppo_epochs": "optim.epochs",
    "num_iterations": "optim.epochs",
    "num_mini_batch": "optim.minibatches",
    "num_mini_batches": "optim.minibatches",
    "ppo_mini_batch_size": "optim.minibatches",
    "per_device_train_batch_size": "optim.tokens_per_microbatch",
    "ppo_micro_batch_size_per_gpu": "optim.tokens_per_microbatch",
    "micro_train_batch_size": "optim.tokens_per_microbatch",
    "batch_size": "rollout.tasks",
    "train_batch_size": "rollout.tasks",
    "rollout_batch_size": "rollout.tasks",
    "num_generations": "rollout.group_size",
    "n_samples_per_prompt": "rollout.group_size",
    "n": "rollout.group_size",
    "max_completion_length": "rollout.sampling.max_tokens",
    "max_new_tokens": "rollout.sampling.max_tokens",
    "max_response_length": "rollout.sampling.max_tokens",
    "temperature": "rollout.sampling.temperature",
    "top_p": "evaluation.sampling.top_p",
    "max_prompt_length": "prompt.max_tokens",
    "beta": "method.objective.kl_coef",
    "kl_coef": "method.objective.kl_coef",
    "kl_loss_coef": "method.objective.kl_coef",
    "init_kl_coef": "method.objective.kl_coef",
    "clip_range": "method.objective.clip_low",
    "cliprange": "method.objective.clip_low",
    "clip_ratio": "method.objective.clip_low",
    "eps_clip": "method.objective.clip_low",
    "epsilon": "method.objective.clip_low",
    "epsilon_high": "method.objective.clip_high",
    "entropy_coeff": "method.objective.entropy_coef",
    "entropy_coef": "method.objective.entropy_coef",
    "adv_estimator": "method.estimator",
    "advantage_estimator": "method.estimator",
    "algorithm": "recipe",
    "model_name_or_path": "model.path",
    "pretrain": "model.path",
    "output_dir": "output",
    "save_path": "output",
    "run_name": "name",
    "experiment_name": "name",
    "max_steps": "iterations",
    "total_training_steps": "iterations",
    "total_epochs": "iterations",
    "save_steps": "checkpoint_every",
    "save_freq": "checkpoint_every",
    "eval_steps": "evaluation.every",
    "test_freq": "evaluation.every",
    "report_to": "tracking.trackers",
    "use_vllm": "rollout.engine",
    "lora_r": "model.adapter",
    "lora_rank": "model.adapter",
    "use_peft": "model.adapter",
}
"""Names of settings in TRL, verl and OpenRLHF -> the setting here that does the same or comes nearest."""


_SECTIONS = ("actor_rollout_ref", "data", "algorithm", "trainer", "actor", "reward", "generate", "train", "rollout")
"""Sections of verl and OpenRLHF that lead to these names."""


def here(path: Sequence[str]) -> str | None:
    """Returns the setting that another framework calls by ``path``, if there is one; dashes count as underscores."""
    if len(path) > 1 and path[0] not in _SECTIONS:
        return None
    return FOREIGN.get(path[-1].replace("-", "_"))


def on_page(asked: str) -> Callable[[str], bool]:
    """Returns whether the setting at a path is on the page that was asked for: ``main``, ``all``, or a section."""
    if asked == "main":
        return lambda path: path in MAIN
    paths = [setting.path.replace("[]", "") for setting in describe_settings(TrainConfig)]
    if asked != "all" and not any(path == asked or path.startswith(f"{asked}.") for path in paths):
        raise unknown("section of settings", asked, sorted({path.partition(".")[0] for path in paths}))
    return lambda path: asked == "all" or f"{path.replace('[]', '')}.".startswith(f"{asked}.")
