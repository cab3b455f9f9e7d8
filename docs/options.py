"""``python -m docs.options > docs/environments/options.md``: the page of the options of all environments."""

from __future__ import annotations

import json
import sys
from dataclasses import fields

import envsuite  # noqa: F401  (registers the environments)
from envsuite.core.listing import env_class
from envsuite.core.options import EnvOptions, values_of
from envsuite.core.registration import builtin

HEAD = """# Options of the environments

What `gymnasium.make(ENV, NAME=VALUE)`, `env.kwargs` of a training and `--option NAME=VALUE` of commands take.
A server sets its clients narrower limits. In a terminal: `envsuite envs options ENV`.

This page is made by `python -m docs.options > docs/environments/options.md`.
"""


def page() -> str:
    """Returns the page: first the options that all environments have, then those of each."""
    text, common = HEAD, {field.name for field in fields(EnvOptions)}
    for name, kind in {"Every environment": EnvOptions, **{s.id: env_class(s.id).takes for s in builtin()}}.items():
        text += f"\n## {name}\n| option | default | values | meaning |\n|---|---|---|---|\n"
        for field in fields(kind):
            if kind is EnvOptions or field.name not in common:
                cells = (f"`{field.name}`", f"`{json.dumps(field.default)}`", values_of(kind.schema()[field.name]))
                text += f"| {' | '.join(cells)} | {field.metadata['about']} |\n"
    return text


if __name__ == "__main__":
    sys.stdout.write(page())
