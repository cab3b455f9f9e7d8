"""Configurations, models and agents that are installed with the trainer, found from any folder."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = {
    "models": _PACKAGE / "models",
    # A wheel has these within the package; in a clone they are beside it.
    **{
        name: next((f for f in (_PACKAGE / name, _PACKAGE.parent / name) if f.is_dir()), None)
        for name in ("configs", "examples")
    },
}


def located(name: str) -> Path:
    """The file or folder that a relative path names: here, or else among those that are shipped.

    ``configs/textcraft.yaml`` is the file of the working folder if there is one, and otherwise the one that is
    installed with the trainer; ``models/craft-1m`` and ``examples/agents.py`` likewise. Any other path is returned as
    it is.
    """
    path = Path(name)
    folder = _FOLDERS.get(path.parts[0]) if path.parts else None
    if folder is None or path.exists() or ".." in path.parts:
        return path
    shipped_path = folder.joinpath(*path.parts[1:])
    return shipped_path if shipped_path.exists() else path


def shipped_configs() -> dict[str, Path]:
    """The shipped YAML files by the names that ``--config`` takes, such as ``configs/textcraft.yaml``."""
    folder = _FOLDERS["configs"]
    if folder is None:
        return {}
    return {f"configs/{file.relative_to(folder).as_posix()}": file for file in sorted(folder.rglob("*.yaml"))}
