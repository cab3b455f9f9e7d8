"""Compare environments with the originals, step by step.

    python -m benchmarks.parity textcraft --recipes DIR --episodes FILE... [--tree FILE]
    python -m benchmarks.parity alfworld --games DIR --transcripts FILE... [--engine native|textworld|both]
    python -m benchmarks.parity webshop --products FILE --attributes FILE [--human FILE] [--rewards FILE...]
        [--searches FILE...] [--episodes FILE...] [--sessions DIR]
    python -m benchmarks.parity alfworld --games DIR --against textworld [--commands N] [--jobs N] [--limit N]
    python -m benchmarks.parity papersearch --recordings FILE
    python -m benchmarks.parity sokoban --recordings FILE

Exits with 1 on any difference, after listing the first ones, and with 2 if nothing could be compared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from benchmarks import parity_alfworld, parity_papersearch, parity_sokoban, parity_textcraft, parity_webshop
from benchmarks.parity_report import read_lines
from envsuite.core.errors import EnvsuiteError

ENVIRONMENTS: dict[str, ModuleType] = {
    "textcraft": parity_textcraft,
    "alfworld": parity_alfworld,
    "webshop": parity_webshop,
    "papersearch": parity_papersearch,
    "sokoban": parity_sokoban,
}
"""Those without options of their own compare one file of recorded episodes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison that ``argv`` names; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parity", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="environment", required=True)
    for name, module in ENVIRONMENTS.items():
        about = module.__doc__ or ""
        command = commands.add_parser(
            name, help=about.split("\n")[0], description=about, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        command.set_defaults(module=module)
        if hasattr(module, "arguments"):
            module.arguments(command)
        else:
            command.add_argument("--recordings", type=Path, required=True, help="recorded episodes (JSON lines)")
    args = parser.parse_args(argv)
    try:
        own = hasattr(args.module, "run")
        report = args.module.run(args) if own else args.module.compare(read_lines(args.recordings))
    except EnvsuiteError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(report.text() + "\n")
    return 1 if report.differences else 0


if __name__ == "__main__":
    sys.exit(main())
