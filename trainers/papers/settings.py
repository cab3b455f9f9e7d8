"""The settings of the papers' runs, from the layers of ``settings.yaml``, and the text of a file that has them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, reduce
from pathlib import Path
from typing import Any

import yaml

from envsuite.core.errors import UnknownName, nearest
from trainers.papers.index import PaperRun, Row, display_name, published_rows, read_data
from trainers.settings.words import merge, read_file

FOLDER = "papers/"
"""Beginning of the names of runs."""
SECTIONS = "name output seed iterations recipe model envs prompt rollout method optim evaluation".split()


@dataclass(frozen=True)
class Setting:
    """How one run is trained."""

    gpus: str
    """Hardware of the paper, as ``envsuite plan --gpus`` takes it."""
    settings: Mapping[str, Any]
    """All settings, as a file has them, in the order of their sections."""
    stated: tuple[str, ...]
    """Places where the paper states the settings."""
    taken: tuple[str, ...]
    """Settings that it does not state, or that differ here, and the choice that was made."""


def read_settings(name: str) -> dict[str, Any]:
    """The settings that ``--config`` names: those of a YAML file, or of a paper's run.

    Raises:
        UnknownName: There is no run of that name; the message has the nearest.
        ConfigError: The file cannot be read, or holds something else.
    """
    if not name.startswith(FOLDER) or Path(name).is_file():
        return read_file(name)
    return dict(setting_of(find_run(name)).settings)


def find_run(name: str) -> PaperRun:
    """The run of that name.

    Raises:
        UnknownName: There is none; the message has the nearest.
    """
    runs = {run.name: run for run in published_rows()}
    if name not in runs:
        hint = f" Nearest: {', '.join(near)}." if (near := nearest(name, runs)) else ""
        raise UnknownName(f"{name}: no paper's run has this name.{hint} envsuite papers list shows all")
    return runs[name]


@cache
def setting_of(run: PaperRun) -> Setting:
    """How a run is trained: the layers of ``settings.yaml`` that apply to it, in their order."""
    layers = [layer for layer in read_data("settings.yaml")["layers"] if applies(layer, run)]
    values = {key: layer[key] for layer in layers for key in ("recipe", "gpus") if key in layer}
    names = {"name": run.name.removeprefix(FOLDER).replace("/", "-"), "recipe": values["recipe"].format(env=run.env)}
    settings: dict[str, Any] = reduce(merge, (layer.get("settings", {}) for layer in layers), names)
    stated, taken = (tuple(note for layer in layers for note in layer.get(key, ())) for key in ("stated", "taken"))
    sections = {key: settings[key] for key in (*SECTIONS, *settings) if key in settings}
    return Setting(values["gpus"], sections, stated, taken)


def applies(layer: Mapping[str, Any], run: PaperRun) -> bool:
    """Whether each part of the run's name is among the words that the layer has for it."""
    parts = [(value, layer[key].split()) for key, value in vars(run).items() if key in layer]
    return all(any(fnmatchcase(value, word) for word in words) for value, words in parts)


def text_of(run: PaperRun) -> str:
    """The run as a file: figures that were published, settings that are stated or were taken, and the settings."""
    setting, rows = setting_of(run), published_rows()[run]
    title = f"{display_name(run.paper)}, {display_name(run.env)}, {setting.settings['model']['path']}: {rows[0].label}"
    notes = {
        "Published": [citation(row, run.env) for row in rows],
        "Stated": setting.stated,
        "Not stated, or not as here": setting.taken,
    }
    lines = [f"# {title}.", f"# Printed by `envsuite papers show {run.name}`.", "#"]
    for heading, texts in notes.items():
        lines.append(f"# {heading}:")
        for text in texts:
            lines += textwrap.wrap(text, 118, initial_indent="# - ", subsequent_indent="#   ", break_on_hyphens=False)
    settings = yaml.safe_dump(setting.settings, default_flow_style=None, sort_keys=False, width=118)
    return "\n".join([*lines, "#", f"#   {command(run)}", "", settings])


def citation(row: Row, env: str) -> str:
    """Place, label and figures of a row in one environment."""
    figures = row.figures_in(env) or "the figure is not in the text that was read"
    text = f'{display_name(row.paper)}, table {row.table}, "{row.label}": {figures}'
    text += f" ({row.metric})" if row.metric else ""
    text += f" [{row.source}]" if row.source and env in row.figures else ""
    return f"{text}; {row.note}" if row.note else text


def command(run: PaperRun) -> str:
    """The command that trains the run on the paper's hardware."""
    *counts, _ = setting_of(run).gpus.split("x")
    launch = f"accelerate launch --config_file configs/accelerate/gpu{'2x8' if len(counts) > 1 else '8'}.yaml"
    launch += f" --num_machines {counts[0]}" if len(counts) > 1 else ""
    launch += f" --num_processes {math.prod(map(int, counts))}"
    launch += " --machine_rank RANK --main_process_ip HOST" if len(counts) > 1 else ""
    return f"{launch} -m trainers.train --config {run.name}"
