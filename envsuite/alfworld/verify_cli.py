"""The part of ``envsuite data verify alfworld`` that looks into the games."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from envsuite.alfworld.source import LAYOUT, official_folder
from envsuite.alfworld.verifying import verify_games
from envsuite.data.progress import DownloadDisplay

REMEDY = "`envsuite data fetch alfworld` gets the games anew"


def present() -> bool:
    """Whether there are games to look into."""
    return (official_folder() / LAYOUT).is_dir()


def run(folder: Path | None, play: bool) -> int:
    """Verifies the games in ``folder``, by default the official ones; returns the exit code.

    Raises:
        DataError: There is no such folder.
    """
    progress = DownloadDisplay(sys.stderr, unit=lambda number: f"{number:,}")
    report = verify_games(official_folder() if folder is None else folder, play, progress)
    sys.stdout.writelines(f"{finding.path}: {finding.kind}: {finding.what}\n" for finding in report.findings)
    sys.stderr.writelines(f"{note}\n" for note in report.notes)
    counts = ", ".join(f"{split} {count:,}" for split, count in sorted(report.games.items())) or "none"
    if play:
        won = f"{report.walkthroughs:,} games were won with their walkthrough, {report.solved:,} by the expert"
        sys.stderr.write(f"{won}\n")
    if report.findings:
        kinds = Counter(finding.kind for finding in report.findings)
        summary = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        sys.stderr.write(f"alfworld: {summary}; games: {counts}. {REMEDY}\n")
        return 1
    hint = "" if play else " (--play plays them, too)"
    sys.stdout.write(f"alfworld: games: {counts}; none is missing or altered{hint}\n")
    return 0
