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
_FOREIGN_NAMES = {
    "optim.lr": "learning_rate lr",
    "optim.weight_decay": "weight_decay",
    "optim.max_grad_norm": "max_grad_norm grad_clip",
    "optim.warmup": "warmup_steps lr_warmup_steps",
    "optim.epochs": "num_train_epochs ppo_epochs num_iterations",
    "optim.minibatches": "num_mini_batch num_mini_batches ppo_mini_batch_size",
    "optim.tokens_per_microbatch": "per_device_train_batch_size ppo_micro_batch_size_per_gpu micro_train_batch_size",
    "rollout.tasks": "batch_size train_batch_size rollout_batch_size",
    "rollout.group_size": "num_generations n_samples_per_prompt n",
    "rollout.sampling.max_tokens": "max_completion_length max_new_tokens max_response_length",
    "rollout.sampling.temperature": "temperature",
    "evaluation.sampling.top_p": "top_p",
    "prompt.max_tokens": "max_prompt_length",
    "method.objective.kl_coef": "beta kl_coef kl_loss_coef init_kl_coef",
    "method.objective.clip_low": "clip_range cliprange clip_ratio eps_clip epsilon",
    "method.objective.clip_high": "epsilon_high",
    "method.objective.entropy_coef": "entropy_coeff entropy_coef",
    "method.estimator": "adv_estimator advantage_estimator",
    "recipe": "algorithm",
    "model.path": "model_name_or_path pretrain",
    "output": "output_dir save_path",
    "name": "run_name experiment_name",
    "iterations": "max_steps total_training_steps total_epochs",
    "checkpoint_every": "save_steps save_freq",
    "evaluation.every": "eval_steps test_freq",
    "tracking.trackers": "report_to",
    "rollout.engine": "use_vllm",
    "model.adapter": "lora_r lora_rank use_peft",
}
"""Setting -> names of it, or of what comes nearest, in TRL, verl and OpenRLHF."""
FOREIGN = {name: setting for setting, names in _FOREIGN_NAMES.items() for name in names.split()}

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
