"""The command ``envsuite doctor``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from envsuite import __version__
from envsuite.installation import checks, extras, gpu, machine
from envsuite.installation.check import InstallationCheck
from envsuite.installation.vllm import installed_vllm

EXAMPLES = """examples:
  envsuite doctor
  envsuite doctor --json > doctor.json
"""
PARTS: tuple[tuple[str, Callable[[], list[InstallationCheck]]], ...] = (
    ("packages", checks.python_itself),
    ("packages", checks.packages),
    ("packages", checks.conflicts),
    ("extras", extras.environments),
    ("extras", extras.trainer),
    ("data", checks.data),
    ("accelerator", machine.accelerators),
    ("accelerator", gpu.bfloat16_on_cpu),
    ("accelerator", gpu.variables),
    ("accelerator", gpu.flash_attention),
    ("accelerator", installed_vllm),
    ("sandbox", machine.sandboxes),
    ("programs", machine.programs),
    ("limits", machine.limits),
    ("quick start", checks.quickstart),
)
"""Sections and what looks at them, in the order in which they are shown."""
LEGEND = "-: not there; only what uses it is affected. !: may make something fail. BROKEN: there, but does not work."
NARROWEST, WIDEST = 20, 120
"""Columns: the least for the text of a check, and the most of a line."""
_MARKS = {"ok": "ok", "absent": "-", "warning": "!", "broken": "BROKEN"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--json", action="store_true", help="write the checks as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Looks at everything and writes what was found; returns 0 if the quick start can run, else 1."""
    findings = examine()
    ready = not any(check.stops_quickstart for check in findings)
    if arguments.json:
        report = {"version": __version__, "quickstart": ready, "checks": [*map(dataclasses.asdict, findings)]}
        sys.stdout.write(f"{json.dumps(report, indent=2)}\n")
    else:
        columns = shutil.get_terminal_size((WIDEST, 0)).columns
        sys.stdout.write(format_checks(findings, min(columns, WIDEST)))
    return 0 if ready else 1


def examine(parts: Sequence[tuple[str, Callable[[], list[InstallationCheck]]]] = PARTS) -> list[InstallationCheck]:
    """Runs the checks of all parts, several at a time, and returns them in order."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        return [check for group in pool.map(lambda part: _run_check(*part), parts) for check in group]


def _run_check(section: str, look: Callable[[], list[InstallationCheck]]) -> list[InstallationCheck]:
    try:
        return look()
    except Exception as error:  # whatever is wrong with this machine, the other checks are told
        finding = f"the check itself failed: {type(error).__name__}: {error}"
        return [InstallationCheck(section, look.__name__, "broken", finding)]


def format_checks(findings: Sequence[InstallationCheck], width: int = WIDEST) -> str:
    """Returns the checks as text: a block for each section, remedies, and whether the quick start can run.

    Args:
        findings: The checks.
        width: Columns that a line may have.
    """
    lines = [f"envsuite {__version__}"]
    names = max(len(check.name) for check in findings)
    for section in dict.fromkeys(check.section for check in findings):
        lines += ["", section]
        for check in (entry for entry in findings if entry.section == section):
            lines += _lines(f"  {_MARKS[check.status]:6}  {check.name:{names}}  ", check.found, width)
            if check.remedy and check.status != "ok":
                lines += _lines(" " * 10 + "→ ", check.remedy, width)
    stopping = [check.name for check in findings if check.stops_quickstart]
    verdict = f"cannot run: mend {', '.join(stopping)} first" if stopping else "can run: envsuite quickstart"
    return "\n".join([*lines, "", *_lines("", LEGEND, width), f"The quick start {verdict}", ""])


def _lines(head: str, text: str, width: int) -> list[str]:
    """Returns ``text`` behind ``head``, in lines broken at blanks only, so that commands and paths can be copied."""
    lines = textwrap.wrap(
        " ".join(text.split()),
        max(width, len(head) + NARROWEST),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [head.rstrip()]
