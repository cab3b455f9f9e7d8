"""Templates by path, or by the name of one that this package ships."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from envsuite.core.errors import DataError, nearest

_SUFFIX = ".jinja"


def template_names(folder: str) -> tuple[str, ...]:
    """Returns the names of the templates in ``folder`` of this package."""
    files = (resources.files("envsuite.prompting") / folder).iterdir()
    return tuple(sorted(file.name.removesuffix(_SUFFIX) for file in files if file.name.endswith(_SUFFIX)))


def read_template(name: str, folder: str, kind: str) -> str:
    """Reads a template.

    Args:
        name: The path of a file, or the name of one of :func:`template_names`.
        folder: Folder of this package.
        kind: What it is, for messages.

    Raises:
        DataError: The file is missing, cannot be read or is not UTF-8.
    """
    names = template_names(folder)
    if name in names:
        return (resources.files("envsuite.prompting") / folder / f"{name}{_SUFFIX}").read_text(encoding="utf-8")
    try:
        return Path(name).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        near = nearest(name, names, limit=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise DataError(
            f"{kind} {name}: no such file in {Path.cwd()}.{hint} Shipped are, by name: {', '.join(names)}"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(f"{kind} {name}: cannot be read as UTF-8 text ({error})") from error
