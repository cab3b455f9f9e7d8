"""What a user can get wrong: a message that names it and what exists, an exit code, no traceback."""

from __future__ import annotations

import math
import re
import shlex
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import ROOT, model, save_model, tokenizer, weights, write_settings
from told import lacks

from envsuite.core import EnvsuiteError
from trainers.run.cli import dump, parse
from trainers.run.config import TrainConfig
from trainers.settings import checked
from trainers.settings.check import numbers
from trainers.settings.words import describe_settings
from trainers.train import main

CRAFT = "TextCraft-v0"


Fails = Callable[..., None]


@pytest.fixture
def fails(capfd: pytest.CaptureFixture[str]) -> Fails:
    """Expects that a run ends with a status and one message."""

    def ended(code: int, arguments: list[str], told: str) -> None:
        capfd.readouterr()
        assert main(arguments) == code
        said = capfd.readouterr().err
        assert "Traceback" not in said and said.count("error: ") == 1, said
        assert not lacks(said[said.index("error: ") :], told), said

    return ended


@pytest.mark.parametrize(
    "words, told",
    [
        ("--optim.lrr 3", "'lrr' … Nearest: 'lr' … weight_decay"),
        ("--optimm.lr 3", "--optimm.lr … nearest is --optim.lr"),
        ("--optim.lr fast", "optim.lr is 'fast' … number"),
        ("--optim.schedule cosin", "optim.schedule … 'cosin' … Known: cosine, "),
        ("--seed 1e30", "seed is 1e+30; it must be a whole number that fits into 64 bits"),
        ("--envs '[{weight: yes}]'", "envs[0].weight is True; it must be a number"),
        ("--recipe gigpo --method.options.gamma true", "estimator gigpo: gamma is True … a number"),
        (
            "--optim.minibatches 100000 --envs '[{max_episode_steps: 4}]' --rollout.tasks 8",
            "optim.minibatches is 100000 … at most 256 steps (8 tasks of 8 episodes of 4 steps)",
        ),
        ("--optim.minibatches 300 --rollout.curriculum '{horizon: {steps: [2]}}'", "at most 256 steps … of 2 steps"),
        ("--rollout.curriculum '{succes: {}}'", "rollout.curriculum 'succes' … Nearest: 'success'"),
        ("--rollout.curriculum '{success: {floor: 0}}'", "success.floor is 0 … greater than 0"),
        ("--recipe ppo --method.critic.minibatches 100000", "method.critic.minibatches is 100000 … at most"),
        ("--optim.betas '[1.5,2]'", "optim.betas[0] is 1.5 … less than 1 … optim.betas[1] is 2"),
        ("--optim.betas '[0.5]'", "optim.betas is [0.5] … number 2 is missing"),
        ("--output ''", "output is ''"),
        ("--optim.lr .nan", "optim.lr is nan … finite"),
        ("--recipe gigpo --method.options.step_weight .nan", "step_weight is nan … finite"),
        ("--method.shapers.kl_penalty.coef inf", "kl_penalty … coef … finite"),
        ("--method.filters '{low_spread: {fraction: .nan}}'", "low_spread.fraction is nan … finite"),
        ("--recipe gigpo --rollout.group_size 1", "rollout.group_size is 1 … gigpo … at least 2"),
        ("--rollout.tasks 1000000000", "rollout.tasks is 1000000000 … at most 1048576"),
        ("--prompt.think maybe", "prompt.think is 'maybe' … boolean"),
        ("--prompt.template stps", "prompt.template: prompt file stps … no such file … Did you mean 'steps'?"),
        ("--prompt.template README.md --prompt.memory full", "prompt.memory 'full' … window(K)"),
        ("--prompt.template pyproject.toml --prompt.memory 'windw(2)'", "prompt.memory … window(K)"),
        ("--prompt.truncate left", "prompt.truncate is 'left' … prompt.max_tokens"),
        ("--prompt.codec tools --prompt.lowercase", "prompt.lowercase is true … prompt.codec is 'tools'"),
        ("--prompt.codec tools --prompt.require_thought", "prompt.require_thought … tags or brackets"),
        ("--model.path ''", "model.path is ''"),
        ("--optim.lr", "--optim.lr needs a value"),
        ("--optim.lr.x 3", "optim.lr is one value"),
        ("--recipe gigp", "recipe 'gigp' … Nearest: 'gigpo' … pgpo"),
        ("--method.estimator grppo", "estimator 'grppo' … Nearest: 'grpo' … pgpo"),
        ("--recipe gigpo --method.options.gama 1", "estimator gigpo 'gama' … Nearest: 'gamma'"),
        ("--recipe gigpo --method.options.gamma abc", "estimator gigpo … number … abc"),
        ("--method.objective.clip_low 3", "clip_low is 3 … less than or equal to 1"),
        ("--method.objective.kl_coef 0.1", "kl_coef is 0.1 but kl is 'none'"),
        ("--method.objective.aggregation seq-mean-token-sum-norm", "horizon"),
        ("--method.shapers '{invalid_action: {}}'", "shaper 'invalid_action' … invalid_action_penalty"),
        ("--method.filters '[zero]'", "filter 'zero' … zero_variance"),
        ("--envs '[{id: TextCraft-v0, splitt: test}]'", "envs[0] … 'splitt' … Nearest: 'split'"),
        ("--envs '[]'", "envs is [] … longer"),
        ("--envs '[{id: TextCraft-v0, kwargs: {split: test}}]'", "kwargs.split … beside kwargs"),
        ("--prompt.memory 'windw(2)'", "'windw(2)' … window(2) … compact"),
        ("--prompt.codec tag", "prompt.codec … Known: tags, brackets, native, search-r1, tools"),
        ("--rollout.engine hg", "rollout.engine … hf"),
        ("--rollout.engine_options '{maxlen: 9}'", "rollout.engine_options … engine 'hf' … maxlen"),
        ("--config nowhere.yaml", "nowhere.yaml … no such file"),
        ("--name ../up", "name is '../up' … one folder"),
        ("more", "more"),
    ],
)
def test_a_wrong_setting_is_named_with_what_exists(fails, words, told):
    fails(2, shlex.split(words), told)


@pytest.mark.parametrize(
    "text, told",
    [
        ("iteration: 3", "c.yaml … 'iteration' … Nearest: 'iterations'"),
        ("evaluation: {envs: [{id: A, split: test}, {idd: B}]}", "evaluation.envs[1] … 'idd' … Nearest: 'id'"),
        ("optim: 3", "c.yaml: optim is 3 … section"),
        ("optim: {lr: .nan, warmup: -1}", "c.yaml: optim.lr is nan … c.yaml: optim.warmup is -1"),
        ("seed: !!python/name:os.system", "c.yaml … not YAML"),
        ("[1, 2]", "c.yaml … settings were expected"),
        ("a: [", "c.yaml … not YAML"),
        ("\x00", "c.yaml"),
    ],
)
def test_a_wrong_line_of_a_config_file_is_named(tmp_path, fails, text, told):
    (tmp_path / "c.yaml").write_text(text)
    fails(2, ["--config", str(tmp_path / "c.yaml")], told)


@pytest.mark.parametrize(
    "env, told",
    [
        ({"id": "TextCraf-v0"}, "envs[0] … TextCraf"),
        ({"id": "CartPole-v1"}, "envs[0] … CartPole"),
        ({"id": CRAFT, "kwargs": {"source": "nowhere"}}, "envs[0] … nowhere"),
        ({"id": CRAFT, "kwargs": {"tasks": ["depth-22"]}}, "envs[0] … depth-22 … depth-2"),
        ({"id": CRAFT, "kwargs": {"sorce": "builtin"}}, "envs[0] … sorce"),
        ({"id": CRAFT, "split": "tets"}, "envs[0] … 'tets' … test"),
        ({"id": CRAFT, "kwargs": {"tasks": []}}, "envs[0].kwargs.tasks … no task left"),
    ],
)
def test_a_wrong_environment_is_named(place, fails, env, told):
    fails(2, ["--config", str(write_settings(place, envs=[env]))], told)
    fails(2, ["--config", str(write_settings(place, **{"evaluation.envs": [env]}))], "evaluation.envs[0]")


def test_a_model_that_cannot_be_loaded_is_named(place, fails):
    config, folder, kept = ["--config", str(write_settings(place))], place / "model", place / "kept"
    fails(1, [*config, "--model.path", str(place / "none")], "model.path … no such folder")
    shutil.copytree(folder, kept)
    for change, words in {
        "tokenizer_config.json": "tokenizer_config.json",
        "chat_template.jinja": "chat template",
        "model.safetensors": "no *.safetensors",
    }.items():
        (folder / change).unlink()
        fails(1, config, f"{folder} … {words}")
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    fails(1, config, str(folder))
    fails(2, [*config, "--prompt.codec", "native"], "prompt.codec is native … takes no tools … tags or tools")
    other = [*config, "--prompt.template_arguments", "{enable_thinking: false}"]
    fails(2, other, "prompt.template_arguments … 'enable_thinking' … leave it out")
    (folder / "model.safetensors").unlink()
    torch.save(model("qwen2", len(tokenizer())).state_dict(), folder / "pytorch_model.bin")
    fails(1, config, "can hold code")


@pytest.mark.slow
def test_checkpoints_are_checked_before_a_run_goes_on(place, fails, caplog):
    config = ["--config", str(write_settings(place, iterations=2, checkpoint_every=1, **{"evaluation.every": 0}))]
    fails(1, [*config, "--resume"], "no checkpoint to resume from … without --resume")
    assert main(config) == 0
    fails(2, config, "holds a run already")
    fails(1, [*config, "--resume", "--optim.lr", "0.5"], "optim.lr = 0.01, this run has 0.5")
    fails(1, [*config, "--resume", str(place / "model")], "not a checkpoint")
    run = place / "runs/tiny"
    old, new = run / "checkpoints/iteration-00001", run / "checkpoints/iteration-00002"
    assert sorted(path.suffix for path in new.iterdir()) == [".jinja", *[".json"] * 6, *[".safetensors"] * 2]
    save_model(place / "model", seed=4)  # the same shape: the checkpoint's weights count
    before = weights(new)
    (new / "model.safetensors").write_bytes(b"short")
    fails(1, [*config, "--resume", str(new)], str(new / "model.safetensors"))
    assert main([*config, "--resume"]) == 0, "the checkpoint before it is taken"
    assert "trying the checkpoint before it" in caplog.text and f"from {old}" in caplog.text
    assert weights(new) == before, "and the iterations after it are done again"
    run.rename(run.with_name("renamed"))
    renamed = [*config, "--name", "renamed"]
    assert main([*renamed, "--resume"]) == 0, "a run folder can be renamed"
    wider = model("qwen2", len(tokenizer()) + 1)
    wider.generation_config.eos_token_id = tokenizer().eos_token_id
    wider.save_pretrained(place / "model")
    fails(1, [*renamed, "--resume"], "embed_tokens.weight has shape … the model of the config")
    for folder in (run.with_name("renamed") / "checkpoints").iterdir():
        (folder / "state.json").write_bytes(b"{}")
    fails(1, renamed, "every checkpoint is damaged … --name")


def test_a_run_of_one_process_says_that_it_shards_nothing(place, caplog):
    changes = {"model.shard": "full", "iterations": 0, "evaluation.envs": []}
    assert main(["--config", str(write_settings(place, **changes))]) == 0
    assert "model.shard is full, but the run has one process, which shards nothing" in caplog.text


def test_what_print_config_prints_gives_the_same_config(tmp_path, capsys):
    arguments = ["--config", str(ROOT / "configs/textcraft.yaml"), "--method.options.gamma", "0.5", "--seed", "7"]
    with pytest.raises(SystemExit) as done:
        parse([*arguments, "--print-config"])
    assert done.value.code in (0, None)
    printed = tmp_path / "printed.yaml"
    printed.write_text(capsys.readouterr().out)
    config = parse(arguments).config
    assert parse(["--config", str(printed)]).config == config
    assert config.seed == 7 and config.method.options["gamma"] == 0.5


def test_a_file_goes_over_the_recipe_and_the_command_line_over_both(tmp_path):
    def read(options: dict[str, Any], *words: str, **other: str) -> TrainConfig:
        method = {"recipe": "gigpo", "method": {"options": {"compare": options}, **other}, "seed": 3}
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(method))
        return parse(["--config", str(tmp_path / "c.yaml"), *words]).config

    mean = {"normalise": "mean"}
    assert read(mean).method.estimator == "gigpo"
    assert read(mean).method.options == {"step_weight": 1.0, "gamma": 0.95, "compare": mean}
    changed = read(mean, "--method.options.gamma", "0.5").method.options
    assert changed == {"step_weight": 1.0, "gamma": 0.5, "compare": mean}
    config = read(mean, "--recipe", "rloo", "--method.options", "{}")
    assert config.method.estimator == "rloo" and config.seed == 3
    other = read({"ddof": 0}, estimator="grpo").method.options
    assert other == {"compare": {"ddof": 0}}, "another estimator, other options"


WORDS = st.one_of(
    st.sampled_from(["0", "-1", ".nan", "1e999", "null", "", "[]", "{}", "[{}]", "{a: 1}", "true", "'", "\0", "é"]),
    st.integers().map(str),
    st.floats().map(str),
    st.text(max_size=8),
)
PATHS = [setting.path for setting in describe_settings(TrainConfig) if "[]" not in setting.path]
KEYS = ["envs", "model", "optim", "rollout", "method", "sampling", "objective", "replay", "critic", "kwargs", "x"]


@given(st.lists(st.tuples(st.sampled_from(PATHS), WORDS), min_size=1, max_size=3))
def test_whatever_is_typed_the_settings_are_usable_or_the_error_has_a_message(words):
    arguments = [f"--{path}={word}" for path, word in words]
    try:
        config = parse(arguments).config
    except EnvsuiteError as error:
        assert str(error)
        return
    assert checked(TrainConfig, yaml.safe_load(dump(config))) == config, "and can be written and read again"
    assert all(math.isfinite(number) for _, number in numbers(config))


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*PATHS, *KEYS]), inner, max_size=4),
))  # fmt: skip
def test_whatever_a_file_holds_it_is_taken_or_refused_with_a_message(content):
    try:
        checked(TrainConfig, content if isinstance(content, dict) else {"optim": content})
    except EnvsuiteError as error:
        assert str(error)
        assert not re.search("it must be [A-Z]", str(error)), "a sentence within a sentence"


def test_a_setting_of_the_command_line_is_read_as_its_type_wants_it():
    words = "--name 007 --model.path 1e3 --optim.lr 1e-5 --prompt.think --method.objective.kl=none --recipe gigpo"
    config = parse([*words.split(), "--method.options.gamma=5e-1", "--pool", "null"]).config
    assert (config.name, config.model.path, config.optim.lr, config.prompt.think) == ("007", "1e3", 1e-5, True)
    assert (config.method.objective.kl, config.method.options["gamma"], config.pool) == ("none", 0.5, None)
    assert parse(["--envs", "[{url: [http://a, http://b]}]"]).config.envs[0].url == ["http://a", "http://b"]


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"rollout.engine_options": {"max_length": 513}}, "max_length is 513 … model.path … 512 tokens"),
        (
            {"rollout.engine": "vllm", "rollout.engine_options": {"arguments": {"max-model-len": 1024}}},
            "max-model-len is 1024 … model.path … 512 tokens",
        ),
        (
            {"rollout.engine": "vllm", "rollout.engine_options": {"arguments": {"tensor_parallel_size": 3}}},
            "tensor-parallel-size is 3 … model.path … 4 attention heads … divisor of 4",
        ),
        ({"rollout.sampling.max_tokens": 513}, "rollout.sampling.max_tokens is 513 … model.path … 512 tokens"),
        ({"prompt.max_tokens": 507}, "prompt.max_tokens + rollout.sampling.max_tokens is 513 … 512 tokens"),
        (
            {"prompt.max_tokens": 300},
            "prompt.max_tokens + rollout.sampling.max_tokens is 306 … optim.tokens_per_microbatch is 300",
        ),
        ({"optim.tokens_per_microbatch": 5}, "rollout.sampling.max_tokens is 6 … tokens_per_microbatch is 5"),
        ({"model.adapter": {"targets": ["q_proj", "w_proj"]}}, "model.adapter.targets: w_proj … model.path … q_proj"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_settings_that_contradict_the_model_are_refused_before_its_weights_are_read(
    place, fails, monkeypatch, changes, told
):
    def read(*_: object, **__: object) -> None:
        raise AssertionError("the weights were read")

    monkeypatch.setattr("trainers.policy.loading.read", read)
    place_of_check = "trainers.rollout.vllm.options.check_interpreter"
    monkeypatch.setattr(place_of_check, lambda python, here=True: python)  # vLLM is not here
    fails(2, ["--config", str(write_settings(place, **changes))], told)
