"""Makes the panels that the package has.

python -m tools.panels          compares them with what the environments play
python -m tools.panels --write  writes them
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing

import envsuite  # noqa: F401  (registers the environments)
from envsuite.core.errors import DataError
from envsuite.core.registration import builtin
from envsuite.evaluation.panels.computing import panel_of
from envsuite.evaluation.panels.files import read_panel, shipped_file, write_panel
from envsuite.evaluation.panels.panel import Panel
from envsuite.remote.making import make


def builtin_panels(env_id: str, splits: Iterable[str] | None = None) -> Iterator[Panel]:
    """Computes the panels of an environment's built-in tasks: of ``splits``, by default of all.

    Raises:
        MissingExtra: The environment needs packages that are not installed.
    """
    with closing(make(env_id, source="builtin", split=None)) as env:
        for split in splits or env.tasks.splits:
            yield panel_of(env, split)


def main() -> None:
    """Compares the shipped panels with those that the environments play now, or writes them."""
    parser = argparse.ArgumentParser(prog="python -m tools.panels", description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="write the panels instead of comparing")
    write, same = parser.parse_args().write, True
    for spec in builtin():
        for panel in builtin_panels(spec.id):
            path = shipped_file(panel.env_id, panel.split)
            if write:
                write_panel(panel, path)
            right = _hash(panel) == panel.hash
            same = same and right
            state = "matches the environment" if right else "differs: run with --write"
            sys.stdout.write(f"{panel.env_id} {panel.split}: {len(panel.tasks)} tasks; {panel.hash[:12]}; {state}\n")
    sys.exit(0 if same else 1)


def _hash(panel: Panel) -> str | None:
    try:
        return read_panel(shipped_file(panel.env_id, panel.split)).hash
    except DataError:
        return None


if __name__ == "__main__":
    main()
