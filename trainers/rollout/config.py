"""Settings of environments, prompts and sampling."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from envsuite.core.naming import resolve_id
from trainers.rollout.curriculum import Curricula
from trainers.settings import AtLeastOne, ConfigError, Count, NotNegative, Positive, Share, Text, checked

MOST_EPISODES = 2**20
"""Most episodes of one iteration, which are held in memory until its update."""
_ADDRESS = re.compile(r"(\[[^][]+\]|[^][:/]+):([0-9]{1,5})")


@dataclass(frozen=True)
class EnvConfig:
    """One environment that tasks are drawn from."""

    id: Text = "TextCraft-v0"
    """Gymnasium id; the file of an environment of functions (lock.py); or another package's environment
    (reasoning_gym/chain_sum)."""
    split: Text = "train"
    """Split that tasks are drawn from."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Further arguments of gymnasium.make: source, tasks, …"""
    url: str | list[str] | None = None
    """Address of the `envsuite serve http` that plays it, or of several: http://127.0.0.1:8080; or dns://name:8080 or
    file:///folder/servers.txt, which name servers that may join and leave; null plays it here."""
    max_episode_steps: AtLeastOne | None = None
    """Horizon; the environment's own where it is not given."""

    def __post_init__(self) -> None:
        for name in ("id", "split", "url", "max_episode_steps"):
            if name in self.kwargs:
                raise ConfigError(f"envs: kwargs.{name} is {self.kwargs[name]!r}; write {name} beside kwargs instead")
        object.__setattr__(self, "id", resolve_id(self.id))


@dataclass(frozen=True)
class TrainingEnvConfig(EnvConfig):
    """One environment that tasks of training are drawn from."""

    weight: Positive = 1.0
    """Share of the tasks that come from here, relative to the other environments."""


@dataclass(frozen=True)
class PromptConfig:
    """How observations become prompts and completions become actions."""

    codec: Literal["tags", "brackets", "tools", "search-r1", "native"] = "tags"
    """Format of actions: <action>…</action>, the same with tool[argument] in it, <tool_call>…</tool_call>, a tag for
    each tool as Search-R1 has it, or that of the model's chat template."""
    think: bool = True
    """Ask for a thought before the action (codecs tags and brackets)."""
    instructions: bool = True
    """Begin with a system message that explains format and tools; a model that was trained on the format needs none."""
    commands: bool = True
    """Show the admissible commands with the observation, where the environment lists them."""
    memory: str = "window(2)"
    """Part of the history that is shown: window(k), summary(k) (and a summary that the policy writes in its answers),
    full, compact(budget in tokens), or rendered. window(k,b) and summary(k,b) leave the oldest pairs out b at a time:
    successive prompts share more of their tokens."""
    template_arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of the model's chat template, e.g. {enable_thinking: false} or {date_string: 1 Jan 2026}."""
    template: Text | None = None
    """File with the user message of a step as a Jinja template, or the name of one of this package (steps, sections,
    shared); docs/prompts.md has its variables. By default the message is written as docs/prompting.md shows."""
    max_tokens: AtLeastOne | None = None
    """Most tokens of a prompt; by default only the engine's context bounds it."""
    truncate: Literal["episode", "left"] = "episode"
    """Where a prompt has more than max_tokens: episode ends the episode there, as truncated; left leaves out the first
    tokens of the prompt."""
    lowercase: bool = False
    """Read answers in lower case (codecs tags and brackets)."""
    require_thought: bool = False
    """Count an answer without <think> and </think> as invalid (codecs tags and brackets)."""
    plan: bool = False
    """Ask for a subgoal before the action, and whether it changes: <switch>…</switch><subgoal>…</subgoal> (codecs tags
    and brackets). Every method can be trained with it; hiper credits these blocks."""
    examples: Count = 0
    """Episodes of the environment's expert that every prompt shows (few-shot prompting); codecs tags, brackets and
    tools."""

    def __post_init__(self) -> None:
        if self.examples and self.codec == "native":
            raise ConfigError(
                f"prompt.examples is {self.examples} and prompt.codec native, whose calls are no text that a prompt "
                "could show; set prompt.codec to tags, brackets or tools, or leave prompt.examples out"
            )
        if self.template is not None and not self.memory.strip().startswith(("window", "summary")):
            raise ConfigError(
                f"prompt.template is {self.template!r} and prompt.memory {self.memory!r}: a template is rendered anew "
                "at each step, while this memory continues the last prompt; set it to window(K) or summary(K)"
            )
        if self.truncate == "left" and self.max_tokens is None:
            raise ConfigError("prompt.truncate is 'left', but there is no prompt.max_tokens to truncate to; set it")
        for name in ("lowercase", "require_thought", "plan"):
            if getattr(self, name) and self.codec not in ("tags", "brackets"):
                raise ConfigError(
                    f"prompt.{name} is true, but prompt.codec is {self.codec!r}, which reads calls as they are; leave "
                    f"prompt.{name} out, or set prompt.codec to tags or brackets"
                )


@dataclass(frozen=True)
class SamplingConfig:
    """How tokens are drawn."""

    temperature: NotNegative = 1.0
    """Temperature; 0 is greedy."""
    max_tokens: AtLeastOne = 512
    """Most tokens of one response."""


@dataclass(frozen=True)
class EvalSamplingConfig(SamplingConfig):
    """How tokens are drawn in evaluation."""

    temperature: NotNegative = 0.4
    """Temperature; 0 is greedy."""
    top_p: Share = 1.0
    """Nucleus mass; 1 keeps every token. Training always does: its ratios are those of the whole vocabulary."""
    top_k: Count = 0
    """Keep only the k likeliest tokens; 0 keeps every token."""


@dataclass(frozen=True)
class TreeConfig:
    """Episodes of a task as trees: further episodes start at steps of earlier ones (Tree-GRPO)."""

    trees: AtLeastOne = 2
    """Trees per task, each grown from one whole episode."""
    rounds: AtLeastOne = 1
    """Rounds of branching; a round draws from all steps that its tree has by then."""
    branches: AtLeastOne = 2
    """Steps drawn for each tree and round, with replacement; an episode starts at each."""
    keep: AtLeastOne | None = None
    """Episodes kept of a tree, drawn at random; the others are not trained on. By default all."""

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep > self.leaves:
            raise ConfigError(
                f"rollout.tree.keep is {self.keep}, but {self.rounds} rounds of {self.branches} branches make a tree "
                f"of {self.leaves} episodes"
            )

    @property
    def leaves(self) -> int:
        """Episodes played per tree."""
        return 1 + self.rounds * self.branches

    @property
    def kept_episodes(self) -> int:
        """Episodes kept per task."""
        return self.trees * (self.leaves if self.keep is None else self.keep)


@dataclass(frozen=True)
class AgentConfig:
    """An agent with a loop of its own, which asks the model at an address (docs/your-agent.md)."""

    run: Text | list[Text] = ""
    """Who plays an episode. file.py:function: a function that is called with a task and a client, and may return the
    reward. A program and its arguments: a process, which finds address, key and task in its environment. service:
    agents elsewhere, which ask for sessions over HTTP and post rewards."""
    sandbox: bool = True
    """Run the command where it reaches the gateway alone, and reads its own files; false lets it do what this user
    may."""
    reads: list[Text] = field(default_factory=list)
    """Files and folders that the command may read, besides the files that its arguments name, Python, and /usr."""
    memory: AtLeastOne = 4096
    """Most memory of a command and its processes, in MiB."""
    test: list[Text] = field(default_factory=list)
    """A program and its arguments, run in the folder of the command after it: status 0 is the reward 1, another one 0;
    a last line `reward: 0.35` tells it."""
    environment: bool = True
    """Give the agent the environment to play, whose rewards count; else the environment has the tasks alone."""
    listen: Text = "127.0.0.1:0"
    """Address and port to listen at; port 0 takes a free one. Further processes take the following ones."""
    masking: Literal["refuse", "ignore"] = "refuse"
    """Requests that force a tool or a format, which would mask the distribution that is trained on: refuse answers
    400; ignore answers as if they did not."""
    models: dict[str, Text | None] = field(default_factory=dict)
    """Further models by name: null is another name of policy; an address is the endpoint of another model, whose
    answers are not recorded. A key stands in the environment: {gpt-4o: null, judge: https://$JUDGE_KEY@example.org/v1}."""
    requests: AtLeastOne = 200
    """Most requests of an episode; each choice counts, and each count of tokens."""
    tokens: AtLeastOne | None = None
    """Most sampled tokens of an episode."""
    seconds: Positive = 600.0
    """Longest time of an episode."""

    def __post_init__(self) -> None:
        if not self.run:
            raise ConfigError("rollout.agent.run is missing: file.py:function, a program and its arguments, or service")
        if "policy" in self.models:
            raise ConfigError(
                "rollout.agent.models names policy, which is the model that is trained; leave it out there"
            )
        if self.test and not self.command:
            raise ConfigError(
                "rollout.agent.test runs in the folder of a program; name that in rollout.agent.run, or leave it out"
            )
        if (match := _ADDRESS.fullmatch(self.listen)) is None or int(match[2]) > 65535:
            raise ConfigError(
                f"rollout.agent.listen is {self.listen!r}; write an address and a port: 127.0.0.1:8080, or [::1]:8080"
            )

    @property
    def service(self) -> bool:
        """Whether agents elsewhere play."""
        return self.run == "service"

    @property
    def command(self) -> Sequence[str]:
        """The program that plays, with its arguments; empty where none does."""
        return () if isinstance(self.run, str) else self.run

    @property
    def function(self) -> str | None:
        """The function that plays; ``None`` where none does."""
        return self.run if isinstance(self.run, str) and not self.service else None

    def address(self, rank: int) -> tuple[str, int]:
        """Returns the address and the port that a process listens at."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port) and int(port) + rank


@dataclass(frozen=True)
class RolloutConfig:
    """How episodes are sampled."""

    engine: str = "hf"
    """Name of the engine that generates tokens: hf, vllm, or auto, which is vllm on a GPU where it starts, else hf;
    packages register others (docs/engine.md). Not for training: openai, an endpoint, and expert, the environment's,
    which answers what rollout.agent asks."""
    engine_options: dict[str, Any] = field(default_factory=dict)
    """Settings of the engine (docs/engine.md); the hf engine takes max_length, the most tokens of a sequence."""
    tasks: AtLeastOne = 16
    """Tasks per iteration, over all processes."""
    group_size: AtLeastOne = 8
    """Episodes per task, from one initial state."""
    curriculum: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Curricula of training by name, each with its settings (docs/curriculum.md): success draws tasks by their success
    so far; horizon raises the most steps of an episode by stages."""
    tree: TreeConfig | None = None
    """Play the episodes of a task as trees (tree_grpo), trees times keep of them in place of group_size; null is off.
    The steps before a branch are sampled once, so the same tokens buy more episodes."""
    slots: AtLeastOne = 128
    """Episodes that run at a time, per process."""
    workers: Count = 0
    """Environment worker processes per training process; 0 runs environments in the process itself."""
    ray: dict[str, Any] | None = None
    """Makes the workers actors of Ray on the machines of its cluster (docs/serving.md), with these options of actors,
    e.g. {num_cpus: 0.5, resources: {worlds: 1}}, or {} for the usual ones; null: they are processes here."""
    deadline: Positive = 60.0
    """Seconds that one call of an environment may take, before its episode is started again."""
    attempts: AtLeastOne = 2
    """Times that an episode is started of which an environment or the engine fails, or misses its deadline; then it is
    left out of training and counted."""
    episode_tokens: AtLeastOne | None = None
    """Most response tokens of an episode, in training and evaluation: one that has used them up is cut, so that a few
    that ramble do not keep all others waiting. By default only the environment ends an episode."""
    staleness: Count = 0
    """Most updates that may have changed the weights since they sampled a token that is trained on. 0: an iteration
    plays its episodes, then updates. Above: an update starts when its groups are whole, and unfinished episodes of
    later groups go on after it (docs/asynchronous.md)."""
    agent: AgentConfig | None = None
    """An agent of yours plays the episodes, in training and evaluation; null: the prompts of this run do."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """How tokens are drawn in training."""

    def __post_init__(self) -> None:
        _ = self.curricula  # checks names and settings
        if self.ray is not None and not self.workers:
            raise ConfigError("rollout.ray makes workers actors of Ray, and rollout.workers is 0; set their number")
        if self.engine == "expert" and self.agent is None:
            raise ConfigError(
                "rollout.engine expert answers the requests of an agent, and there is none; set rollout.agent, or let "
                "envsuite eval run ENV --policy expert play"
            )
        if (episodes := self.tasks * self.episodes_per_task * (self.staleness + 1)) > MOST_EPISODES:
            setting = f"group_size {self.group_size}" if self.tree is None else f"tree plays {self.episodes_per_task}"
            raise ConfigError(
                f"rollout.tasks is {self.tasks}, rollout.{setting} and rollout.staleness "
                f"{self.staleness}: {episodes} episodes are held in memory; at most {MOST_EPISODES} are taken"
            )
        if not self.sampling.temperature > 0:
            raise ConfigError("rollout.sampling.temperature must be above 0: greedy episodes of a group are equal")

    @property
    def curricula(self) -> Curricula:
        """The curricula, made with their settings."""
        return checked(Curricula, self.curriculum, "setting of rollout.curriculum")

    @property
    def episodes(self) -> int:
        """Episodes per task that are trained on."""
        return self.group_size if self.tree is None else self.tree.kept_episodes

    @property
    def episodes_per_task(self) -> int:
        """Episodes per task that are played."""
        return self.group_size if self.tree is None else self.tree.trees * self.tree.leaves
