"""The command ``envsuite eval run``."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from envsuite.core.errors import DataError, UsageError, require_extra
from envsuite.core.naming import resolve_id
from envsuite.core.settings import read_json, read_option
from envsuite.evaluation.demonstrations.arguments import add_source
from envsuite.evaluation.evaluate import EvaluationOutcome, Machinery, evaluate
from envsuite.evaluation.progress import EvaluationDisplay, Notes
from envsuite.evaluation.prompting import EXAMPLES as DEMONSTRATIONS
from envsuite.evaluation.prompting import TRIALS, Prompting
from envsuite.evaluation.protocol import (
    ENDPOINT,
    SEEDS,
    EvaluatedEnv,
    ProtocolSetting,
    check_policy,
    evaluated_env,
    measured_splits,
    open_env,
)
from envsuite.playing.player import RANDOM
from envsuite.prompting.endpoints import EndpointOptions
from envsuite.vector import EnvFactory

if TYPE_CHECKING:
    from envsuite.playing.endpoint import EndpointEngine

EXAMPLES = """examples:
  envsuite eval run TextCraft-v0 --policy expert --policy random
  envsuite eval run ALFWorld-v0 WebShop-v0 --policy lexical --out results/lexical
  envsuite eval run TextCraft-v0 --policy endpoint --url http://127.0.0.1:8000/v1 --model NAME --baseline react \\
    --baseline reflexion --tools native
  envsuite eval run retry results
"""
RETRY = "retry"
INCOMPLETE = 3
"""Exit status where episodes are missing, or the infrastructure broke some."""
INTERRUPTED = 130
_OWN_OPTIONS = {"split": "--split", "source": "--source", "tasks": "--types", "max_episode_steps": "--steps"}
"""Arguments of ``gymnasium.make`` that have options of their own."""
_MACHINERY = ("url", "key_variable", "concurrency", "patience", "timeout", "budget")
"""Settings of an endpoint that a retry may change."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add = parser.add_argument
    add("environments", nargs="+", metavar="ENV", help="ids, as `envsuite envs list` shows them; or: retry FOLDER")
    add("--policy", action="append", default=[], help="expert, lexical, random or endpoint; may be repeated")
    add(
        "--split", action="append", default=[],
        help="may be repeated (default: test; where there is none, all but train and validation)",
    )  # fmt: skip
    add("--out", type=Path, default=Path("results"), help="folder of the results (default: %(default)s)")
    add(
        "--seeds", type=int,
        help=f"episodes of each task (default: {SEEDS}; 1 where a policy draws nothing: a player, temperature 0)",
    )  # fmt: skip
    add("--sample", type=int, metavar="N", help="only N tasks, the same ones everywhere (default: all of the split)")
    add("--types", nargs="+", action="extend", metavar="TYPE", help="only tasks of these types, or with these ids")
    add_source(parser)
    add("--steps", type=int, help="most steps of an episode (default: the environment's horizon)")
    add(
        "--workers", type=int, default=max(1, (os.cpu_count() or 1) - 1),
        help="processes that play environments (default: %(default)s); 0: none, a hang is not noticed then",
    )  # fmt: skip
    add("--deadline", type=float, default=60.0, help="seconds that a call may take (default: %(default)g)")
    endpoint = parser.add_argument_group("the policy endpoint: a model behind OpenAI's chat completions")
    add = endpoint.add_argument
    add("--url", help="address up to the part before /chat/completions")
    add("--model", help="the model's name there")
    add("--name", help="the model's name in tables (default: --model)")
    add(
        "--baseline", action="append", default=[],
        help=f"direct, react, reflexion or few-shot[:K] (K: {DEMONSTRATIONS}); may be repeated (default: direct)",
    )  # fmt: skip
    add("--trials", type=int, help=f"most trials of a task, for reflexion (default: {TRIALS})")
    add(
        "--tools", action="append", default=[],
        help="native (the endpoint's own tool calls), tags or brackets (text); may be repeated (default: tags)",
    )  # fmt: skip
    add("--memory", default="full", help="full, window(K), window(K,B), summary(K) or rendered (default: %(default)s)")
    add("--temperature", type=float, default=0.4, help="(default: %(default)g; 0 is greedy)")
    add("--top-p", type=float, default=1.0, help="(default: %(default)g)")
    add("--max-tokens", type=int, default=512, help="most tokens of an answer (default: %(default)s)")
    add("--key-variable", metavar="NAME", help="environment variable that has the API key (default: none is sent)")
    add("--concurrency", type=int, help="most requests at a time (default: 8)")
    add("--patience", type=float, help="seconds for which a failed request is repeated (default: 120)")
    add("--timeout", type=float, help="seconds that an answer may take (default: 600)")
    add("--budget", type=int, metavar="TOKENS", help="ask nothing more after so many tokens in this run of the command")
    add("--prices", metavar="JSON", help='of a million tokens, e.g. {"input": 0.5, "output": 1.5}')
    add("--served-as", metavar="NAME", help="name that answers come under, where it is not --model")
    add("--extra", metavar="JSON", help='further fields of each request, e.g. {"reasoning_effort": "low"}')


def run(arguments: argparse.Namespace) -> int:
    """Plays what was asked for; the results so far are in the folder, in whatever way it ends.

    Returns:
        0; :data:`INCOMPLETE`; or :data:`INTERRUPTED`.

    Raises:
        EnvsuiteError: A setting cannot work.
    """
    retry = arguments.environments[0] == RETRY
    folder, settings = _read_retry(arguments) if retry else (arguments.out, list(_settings(arguments)))
    display, evaluations = EvaluationDisplay(sys.stderr), []
    notes, logger = Notes(display), logging.getLogger("envsuite")
    logger.addHandler(notes)
    try:
        with ExitStack() as stack:
            engines: dict[bytes, EndpointEngine] = {}
            envs: dict[bytes, EvaluatedEnv] = {}
            for setting in settings:
                engine = _engine(setting, arguments, engines, stack)
                machinery = Machinery(arguments.workers, arguments.deadline)
                env = _env(setting, envs, display)
                evaluations.append(evaluate(setting, env, folder, machinery, engine, display, broken_only=retry))
                if engine is not None and engine.stopped is not None:
                    break
            stop_reason = next((engine.stopped for engine in engines.values() if engine.stopped is not None), None)
    except KeyboardInterrupt:
        display.note("interrupted; what was played is kept, and the same command goes on where it stopped")
        return INTERRUPTED
    finally:
        logger.removeHandler(notes)
    return _write_summary(evaluations, len(settings), folder, stop_reason)


def _settings(arguments: argparse.Namespace) -> Iterator[ProtocolSetting]:
    """Yields every environment with every split and policy that the command line names."""
    if not arguments.policy:
        raise UsageError("name who plays with --policy: expert, lexical, random or endpoint")
    if arguments.name is not None and ENDPOINT not in arguments.policy:
        raise UsageError("--name is for the model of --policy endpoint; players have their own")
    promptings = list(_promptings(arguments)) if ENDPOINT in arguments.policy else []
    policies = list(dict.fromkeys(arguments.policy))
    for env_id in dict.fromkeys(map(resolve_id, arguments.environments)):
        options = dict(map(read_option, arguments.option))
        for name in options.keys() & _OWN_OPTIONS:  # results would name another split, source or budget than was played
            raise UsageError(f"--option {name} would hide what is played from the results; give {_OWN_OPTIONS[name]}")
        if arguments.types:
            options["tasks"] = sorted(set(arguments.types))
        for policy in policies:
            check_policy(policy, env_id)
        splits = list(dict.fromkeys(arguments.split)) or _splits(env_id, arguments.source, options)
        for split, policy in product(splits, policies):
            for prompting in promptings if policy == ENDPOINT else [None]:
                draws = policy == RANDOM if prompting is None else prompting.temperature > 0
                seeds = arguments.seeds if arguments.seeds is not None else SEEDS if draws else 1
                yield ProtocolSetting(
                    env_id, split, policy, arguments.source, options, arguments.sample, seeds, arguments.steps,
                    None if prompting is None else arguments.name, prompting,
                    None if prompting is None else _endpoint(arguments),
                )  # fmt: skip


def _promptings(arguments: argparse.Namespace) -> Iterator[Prompting]:
    """Yields every baseline with every form of actions."""
    baselines, forms = (list(dict.fromkeys(words)) for words in (arguments.baseline, arguments.tools))
    for text, tools in product(baselines or ["direct"], forms or ["tags"]):
        name, colon, count = text.partition(":")
        if colon and (name != "few-shot" or not count.isdecimal()):
            raise UsageError(f"--baseline {text!r}; it must be like few-shot:{DEMONSTRATIONS}")
        yield Prompting(
            name,
            tools,
            arguments.memory,
            examples=int(count) if colon else DEMONSTRATIONS if name == "few-shot" else 0,
            trials=(arguments.trials or TRIALS) if name == "reflexion" else 1,
            temperature=arguments.temperature,
            top_p=arguments.top_p,
            max_tokens=arguments.max_tokens,
        )


def _endpoint(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the endpoint's settings that were given."""
    for name in ("url", "model"):
        if getattr(arguments, name) is None:
            raise UsageError(f"--policy endpoint needs --{name}")
    names = ("url", "model", *_MACHINERY[1:], "served_as")
    options = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    for name in ("prices", "extra"):
        if (text := getattr(arguments, name)) is not None:
            try:
                options[name] = read_json(text, f"--{name}")
            except orjson.JSONDecodeError as error:
                raise UsageError(f"--{name} {text!r} is not JSON ({error})") from error
    EndpointOptions(**options, prefix="--")
    return options


def _splits(env_id: str, source: str | None, options: Mapping[str, Any]) -> list[str]:
    given = {} if source is None else {"source": source}
    with open_env(EnvFactory(env_id, {"split": None, **options, **given})) as env:
        return measured_splits(env)


def _engine(
    setting: ProtocolSetting, arguments: argparse.Namespace, engines: dict[bytes, EndpointEngine], stack: ExitStack
) -> EndpointEngine | None:
    """Returns the engine of a setting's endpoint; settings of one endpoint share it, and its budget.

    Raises:
        MissingExtra: httpx2 is not installed.
    """
    if setting.endpoint is None:
        return None
    with require_extra("endpoints need httpx2", "endpoints"):
        from envsuite.playing.endpoint import EndpointEngine
    key = orjson.dumps(setting.endpoint, option=orjson.OPT_SORT_KEYS)
    if key not in engines:
        options = EndpointOptions(**setting.endpoint, prefix="--")
        engines[key] = stack.enter_context(closing(EndpointEngine(options, options.concurrency)))
    return engines[key]


def _env(setting: ProtocolSetting, envs: dict[bytes, EvaluatedEnv], display: EvaluationDisplay) -> EvaluatedEnv:
    """Returns a setting's environment; settings with the same one share it, as it takes a reset of each task."""
    check_policy(setting.policy, setting.env_id)
    key = orjson.dumps([setting.env_id, setting.factory.kwargs], option=orjson.OPT_SORT_KEYS)
    if key not in envs:
        display.note(f"{setting.env_id} {setting.split}: reading the tasks")
        envs[key] = evaluated_env(setting)
    return envs[key]


def _read_retry(arguments: argparse.Namespace) -> tuple[Path, list[ProtocolSetting]]:
    """Returns the folder to retry, and the settings of all evaluations in it.

    Raises:
        UsageError: The command line does not name one folder.
        DataError: The folder has no evaluation.
    """
    if len(arguments.environments) != 2:
        raise UsageError("envsuite eval run retry takes one folder, that of --out")
    folder = Path(arguments.environments[1])
    files = sorted(file for file in folder.glob("*.json") if file.with_suffix(".jsonl").exists())
    if not files:
        raise DataError(f"{folder} has no evaluation that envsuite eval run began")
    return folder, [_update_endpoint(ProtocolSetting.from_json(file), arguments) for file in files]


def _update_endpoint(setting: ProtocolSetting, arguments: argparse.Namespace) -> ProtocolSetting:
    """Returns a stored setting with what may change about its endpoint."""
    if setting.endpoint is None:
        return setting
    changes = {name: getattr(arguments, name) for name in _MACHINERY if getattr(arguments, name) is not None}
    return replace(setting, endpoint={**setting.endpoint, **changes})


def _write_summary(
    evaluations: Sequence[EvaluationOutcome], settings: int, folder: Path, stop_reason: str | None
) -> int:
    """Writes a short table, and what is incomplete; returns the exit status."""
    rows = [("environment", "split", "policy", "episodes", "solved", "broken", "missing")]
    for evaluation in evaluations:
        setting, sound = evaluation.setting, evaluation.sound
        rate = f"{100 * sum(result.success for result in sound) / len(sound):.1f} %" if sound else "-"
        rows.append((
            setting.env_id, setting.split, setting.label, str(len(sound)), rate,
            str(len(evaluation.broken_results)), str(evaluation.missing),
        ))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:{'<' if n < 3 else '>'}{widths[n]}}" for n, cell in enumerate(row))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
    sys.stdout.write(f"\nResults are in {folder}; for intervals and strata: envsuite eval table {folder}\n")
    for evaluation in evaluations:
        if not evaluation.sound:
            why = next((result.broken for result in evaluation.results), stop_reason) or "nothing was played"
            sys.stderr.write(f"{evaluation.setting.env_id}, {evaluation.setting.label}: no episode finished: {why}\n")
    reasons = Counter(result.broken for evaluation in evaluations for result in evaluation.broken_results)
    broken = reasons.total()
    incomplete = len(evaluations) < settings or any(evaluation.missing for evaluation in evaluations)
    if stop_reason is not None:
        sys.stderr.write(f"stopped: {stop_reason}\n")
    if broken:
        sys.stderr.write(
            f"{broken} episodes broke and are in no rate; play them again with envsuite eval run retry {folder}\n"
        )
        sys.stderr.writelines(f"  {count} of them by: {why}\n" for why, count in reasons.most_common(3))
    if incomplete:
        sys.stderr.write("incomplete; the same command goes on where it stopped\n")
    return INCOMPLETE if broken or incomplete else 0
