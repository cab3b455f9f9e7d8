"""Environments and the rollout manager of a run, made from their settings."""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium

from envsuite.core import TaskSet, Tool, ToolEnv
from envsuite.core.errors import EnvsuiteError, UnknownName, UsageError
from envsuite.evaluation.panels import Panel, panel_of
from envsuite.playing.activity import ACTIVITY
from envsuite.playing.dialog import ChatDialogs, TokenDialogs
from envsuite.playing.engine import BaseEngine, ChatEngine, Sampling
from envsuite.playing.manager import RolloutManager
from envsuite.prompting import (
    Answer,
    ChatTokenizer,
    Codec,
    CompactMemory,
    Conversation,
    EndpointCodec,
    FullMemory,
    NativeCodec,
    PromptFile,
    PromptSpec,
    RawCall,
    TemplateRenderer,
    departure,
    load_prompt_file,
    make_codec,
    make_memory,
)
from envsuite.prompting.images import ImageFormat
from envsuite.prompting.ordinary import added_tokens
from envsuite.prompting.rendering import DAY, writes_day
from envsuite.prompting.shipped import template_names
from envsuite.prompting.template import turn_stops
from envsuite.vector import EnvFactory, make_vector
from envsuite.vector.milestones import Kind, MilestoneFactory
from trainers.rollout.config import EnvConfig, EvalSamplingConfig, PromptConfig, RolloutConfig, SamplingConfig
from trainers.settings import ConfigError, config_errors
from trainers.settings.shipped import located

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LOG = logging.getLogger(__name__)
_FACTS = "_facts"
"""Attribute of a settings object that keeps the facts of its environment; no field of it, so not printed."""


def factory_of(env: EnvConfig) -> EnvFactory:
    """How a vector makes the environment."""
    horizon = {} if env.max_episode_steps is None else {"max_episode_steps": env.max_episode_steps}
    where = {} if env.url is None else {"url": env.url}
    return EnvFactory(env.id, {"split": env.split, **env.kwargs, **horizon, **where})


@dataclass(frozen=True)
class EnvFacts:
    """Facts of an environment that a run follows from."""

    tasks: TaskSet
    """Its tasks, filtered as its arguments say."""
    restorable: bool
    """Whether episodes can start in the middle, from snapshots."""
    images: bool
    """Whether observations have images."""
    name: str
    """Name of its class."""


def facts_of(env: EnvConfig, key: str) -> EnvFacts:
    """Facts of the environment, which is made once for all who ask for those of one settings object.

    Args:
        env: The environment.
        key: Its place in the configuration, for the message.

    Raises:
        ConfigError: It cannot be made, or has no tasks; the message names the key.
    """
    facts: EnvFacts | None = vars(env).get(_FACTS)
    if facts is None:
        with open_environment(env, key) as world:
            if not world.tasks.ids(env.split):
                raise ConfigError(f"{key}: split {env.split!r} of {env.id} has no task left after {key}.kwargs.tasks")
            facts = EnvFacts(world.tasks, world.restorable, world.images, type(world).__name__)
        object.__setattr__(env, _FACTS, facts)
    return facts


def tasks_of(env: EnvConfig, key: str) -> TaskSet:
    """The tasks of the environment; see :func:`facts_of`."""
    return facts_of(env, key).tasks


def check_snapshots(env: EnvConfig, key: str, setting: str) -> None:
    """Refuses an environment whose episodes cannot start in the middle.

    Raises:
        ConfigError: It has no snapshots, or cannot be made; the message names the key, and the setting that needs them.
    """
    if not (facts := facts_of(env, key)).restorable:
        raise ConfigError(
            f"{setting} starts episodes in the middle, from snapshots, but {key} ({env.id}) has none: {facts.name} "
            f"does not implement snapshot and restore; leave out {setting}"
        )


def panel_of_env(env: EnvConfig, key: str) -> tuple[Panel, dict[str, str]]:
    """Returns the panel of the environment's split, and the versions of its components.

    Raises:
        ConfigError: It cannot be made; the message names the key.
    """
    with open_environment(env, key) as world:
        return panel_of(world, env.split), dict(world.versions)


def with_milestones(env: EnvConfig, of: Kind) -> MilestoneFactory:
    """How a vector makes the environment such that its infos have milestones (:mod:`envsuite.vector.milestones`)."""
    factory = factory_of(env)
    return MilestoneFactory(factory.env_id, factory.kwargs, of=of)


def check_milestones(env: EnvConfig, key: str, of: Kind) -> None:
    """Checks that the environment has milestones.

    Raises:
        ConfigError: It has none, or they cannot be seen on a server; the message names the key.
    """
    try:
        with_milestones(env, of).check()
    except EnvsuiteError as error:
        raise ConfigError(
            f"{key} ({env.id}): the method reads milestones, but {error}; take another environment or method"
        ) from error


@contextmanager
def open_environment(env: EnvConfig, key: str) -> Iterator[ToolEnv]:
    """Makes the environment, and closes it after the block.

    Args:
        env: The environment.
        key: Its place in the configuration, for the message.

    Raises:
        ConfigError: It cannot be made; the message names the key.
    """
    kinds = (EnvsuiteError, gymnasium.error.Error, TypeError, ValueError, ImportError)
    with config_errors(f"{key} ({env.id})", kinds):
        environment = factory_of(env).make()
    world = environment.unwrapped
    if not isinstance(world, ToolEnv):
        raise ConfigError(f"{key}.id: {env.id} is no environment of tool calls ({type(world).__name__})")
    try:
        yield world
    finally:
        environment.close()


def sampling_of(config: SamplingConfig, stop_ids: Sequence[int]) -> Sampling:
    """The sampling settings of a request."""
    top_p, top_k = (config.top_p, config.top_k) if isinstance(config, EvalSamplingConfig) else (1.0, 0)
    return Sampling(config.temperature, top_p, top_k, config.max_tokens, tuple(stop_ids))


_UNKNOWN = 0.05
"""Largest share of unknown tokens in the texts of an environment."""
PLAIN = ("tools", "search-r1")
"""Codecs without options."""


def codec_of(prompt: PromptConfig, tokenizer: ChatTokenizer | None) -> Codec:
    """Makes the codec of the prompts; without a tokenizer they are messages, and the endpoint has the chat template.

    Raises:
        ConfigError: The tokenizer's chat template does not go with the codec, or does not read an argument.
    """
    if prompt.codec in PLAIN:
        return make_codec(prompt.codec)
    if prompt.codec == "native":
        if tokenizer is None:
            return EndpointCodec()
        try:
            return make_codec(prompt.codec, tokenizer=tokenizer, template_arguments=prompt.template_arguments)
        except UnknownName as error:
            raise ConfigError(f"prompt.template_arguments: {error}") from error
        except UsageError as error:
            raise ConfigError(
                f"prompt.codec is native, but of the model of model.path {error}. model.chat_template sets another "
                f"template (shipped: {', '.join(template_names('chat_templates'))})"
            ) from error
    return make_codec(
        prompt.codec, think=prompt.think, lowercase=prompt.lowercase, require_thought=prompt.require_thought,
        plan=prompt.plan,
    )  # fmt: skip


def ends_of(prompt: PromptConfig, tokenizer: ChatTokenizer, codec: Codec) -> tuple[int, ...]:
    """Tokens that end an answer besides the model's own: the codec's, and that with which the template ends a turn."""
    ends = turn_stops(TemplateRenderer(tokenizer, prompt.template_arguments))
    return (*codec.stop_ids, *(end for end in ends if tokenizer.decode([end]) not in codec.inner_tokens))


def answers_of(prompt: PromptConfig, tokenizer: ChatTokenizer) -> Callable[[Sequence[int]], str]:
    """Returns a function from a sampled answer to its text."""
    return partial(answer_text, tokenizer, codec_of(prompt, tokenizer))


def check_chat(rollout: RolloutConfig, prompt: PromptConfig, sampling: EvalSamplingConfig) -> None:
    """Refuses settings that need tokens, which an engine for messages does not have.

    Raises:
        ConfigError: One is set; the message names it, and the engine.
    """
    wrong = {
        f"prompt.memory is {prompt.memory!r}, which counts tokens; set it to window(K), full or rendered": isinstance(
            make_memory(prompt.memory), CompactMemory
        ),
        f"prompt.max_tokens is {prompt.max_tokens}; leave it out": prompt.max_tokens is not None,
        "prompt.template_arguments are for a chat template that is rendered here; a vLLM server takes them as "
        "rollout.engine_options.extra: {chat_template_kwargs: {…}}": bool(prompt.template_arguments),
        f"evaluation.sampling.top_k is {sampling.top_k}; leave it out, or set it in rollout.engine_options.extra where "
        "the endpoint takes it": sampling.top_k > 0,
    }
    for text, applies in wrong.items():
        if applies:
            raise ConfigError(f"rollout.engine is {rollout.engine!r}, which takes messages, not tokens, but {text}")


def with_day(prompt: PromptConfig, tokenizer: ChatTokenizer, earlier: Mapping[str, Any]) -> PromptConfig:
    """Returns ``prompt`` with the day that a chat template writes for today: that of ``earlier`` settings, or today."""
    if DAY in prompt.template_arguments or not writes_day(tokenizer):
        return prompt
    earlier_day = (earlier.get("template_arguments") or {}).get(DAY)
    day = str(earlier_day or datetime.date.today())
    return replace(prompt, template_arguments={**prompt.template_arguments, DAY: day})


def check_prompts(prompt: PromptConfig, tokenizer: ChatTokenizer) -> Codec:
    """Checks the prompts' settings with the tokenizer, and logs where prompts depart from the model's chat template.

    Returns:
        The codec of the prompts.

    Raises:
        ConfigError: The tokenizer's chat template does not go with the settings.
    """
    codec = codec_of(prompt, tokenizer)
    with config_errors("prompt.template_arguments", UnknownName):
        TemplateRenderer(tokenizer, prompt.template_arguments).check()
    if isinstance(codec, NativeCodec) and isinstance(make_memory(prompt.memory), FullMemory | CompactMemory):
        if (where := departure(codec)) is not None:
            _LOG.warning(
                "prompt.memory %s: each prompt continues the last one as it was sampled, but the model's chat template "
                "would render earlier turns in another way: %s; to follow it, set prompt.memory to rendered",
                prompt.memory, where,
            )  # fmt: skip
    return codec


def check_vocabulary(env: EnvConfig, key: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuses a model whose vocabulary does not know the environment's words.

    Raises:
        ConfigError: More than a few percent of the first task's tokens are unknown; the message names the key.
    """
    unknown = tokenizer.unk_token_id
    if unknown is None:
        return
    with open_environment(env, key) as world:
        try:
            first, _ = world.reset(options={"task_id": world.tasks.ids(env.split)[0]})
        except Exception:  # of somebody's environment: its episodes fail, with the reason, and are counted
            return
    ids = added_tokens(tokenizer).split(tokenizer, f"{first['task']}\n{first['text']}")
    if (share := ids.count(unknown) / max(1, len(ids))) > _UNKNOWN:
        raise ConfigError(
            f"{key} ({env.id}): the vocabulary of model.path does not know {share:.0%} of the words of its first task; "
            "take a model for any text, or one that was made for this environment (envsuite imitate)"
        )


def prompt_file_of(prompt: PromptConfig) -> PromptFile | None:
    """Loads the prompt file of the prompts, if there is one.

    Raises:
        ConfigError: It is missing or not valid; the message names file, line and the variables that exist.
    """
    if prompt.template is None:
        return None
    with config_errors("prompt.template"):
        file = load_prompt_file(str(located(prompt.template)))
    if prompt.examples and "examples" not in file.variables:
        raise ConfigError(
            f"prompt.examples is {prompt.examples}, but prompt.template {prompt.template} does not show them; write "
            "{{ examples }} into it, or leave prompt.examples out"
        )
    return file


def spec_of(prompt: PromptConfig, tokenizer: ChatTokenizer | None, examples: str = "") -> PromptSpec:
    """How the prompts of a rollout with these settings are written.

    Args:
        prompt: The settings.
        tokenizer: The policy's; ``None`` where an endpoint has the chat template.
        examples: Demonstrations, as text.
    """
    return PromptSpec(
        codec_of(prompt, tokenizer),
        make_memory(prompt.memory),
        instructions=prompt.instructions,
        commands=prompt.commands,
        prompt_file=prompt_file_of(prompt),
        examples=examples,
        max_tokens=prompt.max_tokens,
        truncate=prompt.truncate,
        template_arguments=prompt.template_arguments,
    )


def make_conversation(
    prompt: PromptConfig, tokenizer: ChatTokenizer, tools: Sequence[Tool], max_calls: int, examples: str = ""
) -> Conversation:
    """A conversation whose prompts are those of a rollout with these settings, and these examples as text."""
    spec = spec_of(prompt, tokenizer, examples)
    return Conversation(tokenizer, spec, tools, max_calls, image_format=_images(tokenizer))


def _images(tokenizer: ChatTokenizer) -> ImageFormat | None:
    """Returns how prompts of ``tokenizer`` take images; ``None``: they take none."""
    from trainers.policy.vision import format_of  # settings are checked without PyTorch, in a second

    return format_of(tokenizer)


def answer_text(tokenizer: ChatTokenizer, codec: Codec, ids: Sequence[int]) -> str:
    """Returns a sampled answer as text, with thought and calls in tags where they have a form of the model's own."""
    text = str(tokenizer.decode(list(ids), skip_special_tokens=not codec.special_tokens))
    if not isinstance(codec, NativeCodec):
        return text
    turn = codec.split_completion(text, ())
    calls = tuple(RawCall(call.name, json.dumps(dict(call.arguments), ensure_ascii=False)) for call, _ in turn.called)
    return Answer(turn.text, calls, turn.thought).text


def make_manager(
    rollout: RolloutConfig,
    prompt: PromptConfig,
    envs: Sequence[EnvConfig],
    slots: int,
    engine: BaseEngine[Any, Any],
    tokenizer: ChatTokenizer | None,
    examples: Sequence[str] = (),
    factory: Callable[[EnvConfig], EnvFactory] = factory_of,
    snapshots: bool = False,
) -> RolloutManager:
    """A manager that plays ``envs``, at most ``slots`` episodes at a time; close its vector after use.

    Args:
        rollout: How episodes are sampled.
        prompt: How prompts are written.
        envs: The environments.
        slots: Most episodes at a time.
        engine: Generates tokens, or answers messages.
        tokenizer: The policy's; ``None`` with an engine for messages.
        examples: Demonstrations for the prompts of each environment, as text; by default none.
        factory: How an environment is made.
        snapshots: Take snapshots, from which episodes can start.
    """
    spec = spec_of(prompt, tokenizer)  # what is wrong with it is said before an environment starts
    slots = min(slots, engine.most) if isinstance(engine, ChatEngine) else slots
    with ACTIVITY.waiting(f"the environments to start ({', '.join(sorted({env.id for env in envs}))})"):
        vector = make_vector(
            [factory(env) for env in envs], slots, rollout.workers, rollout.deadline, snapshots,
            rollout.ray,
        )  # fmt: skip
    images = None if tokenizer is None else _images(tokenizer)
    dialogs = ChatDialogs(spec, examples) if tokenizer is None else TokenDialogs(tokenizer, spec, examples, images)
    if any(example and vector.agents(env) for env, example in enumerate(examples)):
        raise UsageError("prompt.examples are for environments of one agent: they show the tools of all")
    return RolloutManager(
        engine,
        vector,
        [env.id for env in envs],
        dialogs,
        episode_tokens=rollout.episode_tokens,
        attempts=rollout.attempts,
    )
