"""``envsuite data``: the benchmarks' own files, from a shell."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from envsuite.core.errors import UsageError
from envsuite.core.registration import ENVIRONMENTS
from envsuite.data import catalog
from envsuite.data.catalog import DataSet, data_set
from envsuite.data.manager import Verification, fetch, state, verify
from envsuite.data.places import data_root
from envsuite.data.progress import DownloadDisplay, format_size, resumable

EXAMPLES = """examples:
  envsuite data list
  envsuite data fetch webshop
  envsuite data fetch alfworld --to /data/envsuite
  envsuite data fetch alfworld --mirror https://files.example.org/alfworld --mirror file:///mnt/share/alfworld
  envsuite data verify alfworld
  envsuite data verify alfworld ~/.cache/alfworld --play
  ENVSUITE_DATA=/data/envsuite envsuite data verify
  envsuite data build webshop --builtin 100000 --out shop.catalogue

The same command resumes an interrupted download where it stopped. Without a network, copy the files to a folder and
name it: --mirror file:///mnt/share/folder
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommands to ``parser``; those of ``build`` are the environments' own."""
    commands = parser.add_subparsers(dest="data_command", required=True, metavar="COMMAND")
    commands.add_parser(
        "list", help="list the data sets", description="Lists the data sets with state, size, version and folder."
    )
    names = ", ".join(data.name for data in catalog.data_sets())
    fetching = commands.add_parser(
        "fetch",
        help="download a data set",
        description="Downloads a data set, checks it and unpacks it. Keeps correct files and replaces damaged ones.\n"
        "Respects HTTP_PROXY, HTTPS_PROXY and NO_PROXY.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    fetching.add_argument("name", metavar="NAME", help=names)
    fetching.add_argument(
        "--mirror",
        action="append",
        default=[],
        metavar="URL",
        help="take the files from here instead of the public addresses: the address (http://, https://, file:///) of a "
        "folder that holds them under their own names; may be repeated",
    )
    fetching.add_argument(
        "--to",
        type=Path,
        metavar="DIR",
        help="fetch to this folder instead of $ENVSUITE_DATA; set ENVSUITE_DATA=DIR to use the data there",
    )
    fetching.add_argument("--keep-archives", action="store_true", help="keep the archives, e.g. for a mirror")
    verifying = commands.add_parser(
        "verify",
        help="check the local files, byte by byte",
        description="Reads every file and compares it with its checksum. Of alfworld, says which games are missing,\n"
        "altered or unsolvable, in a download of your own too. The exit code is 1 if a file is missing, truncated\n"
        "or changed; the files are named on stdout.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verifying.add_argument("name", nargs="?", metavar="NAME", help=f"{names}; default: all that are present")
    verifying.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="look into a folder of your own instead of $ENVSUITE_DATA (alfworld: the one that holds json_2.1.1)",
    )
    verifying.add_argument("--play", action="store_true", help="play every game, too (alfworld)")
    building = commands.add_parser(
        "build",
        help="build the file that an environment reads from its data",
        description="Builds, from an environment's files, one file that opens quickly and that all processes share.",
    )
    builders = building.add_subparsers(dest="built", required=True, metavar="WHAT")
    for name, module in _builds().items():
        builder = import_module(module)
        about = (builder.__doc__ or "").partition("\n")[0]
        builder.add_arguments(builders.add_parser(name, help=builder.HELP, description=about))


def _builds() -> dict[str, str]:
    return {name: module for spec in ENVIRONMENTS.values() for name, module in spec.builds.items()}


def _contents() -> dict[str, ModuleType]:
    """Returns the check of the contents of each data set that has one."""
    return {name: import_module(module) for spec in ENVIRONMENTS.values() for name, module in spec.contents.items()}


def run(arguments: argparse.Namespace) -> int:
    """Executes a subcommand; returns the exit code.

    Raises:
        EnvsuiteError: As :func:`~envsuite.data.manager.fetch`, :func:`~envsuite.data.manager.verify`, the check of the
            contents, or the build.
    """
    if arguments.data_command == "build":
        return int(import_module(_builds()[arguments.built]).run(arguments))
    if arguments.data_command == "list":
        _list()
        return 0
    if arguments.data_command == "verify":
        return _verify(arguments.name, arguments.folder, arguments.play)
    return _fetch(data_set(arguments.name), arguments.to, arguments.mirror, arguments.keep_archives)


def _list() -> None:
    rows = [("name", "state", "size", "version", "where")]
    for data in catalog.data_sets():
        local = state(data)
        size = format_size(local.size) if local.size else _to_fetch(data)
        rows.append((data.name, local.state, size, local.version, str(local.folder / (data.tree or ""))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(f"{line.rstrip()}\n")


def _to_fetch(data: DataSet) -> str:
    sizes = [file.size for file in data.files if file.size is not None]
    return f"{format_size(sum(sizes))} to fetch" if len(sizes) == len(data.files) else "not known"


def _fetch(data: DataSet, root: Path | None, mirrors: list[str], keep_archives: bool) -> int:
    sys.stderr.write(f"{data.name} ({data.version}): {data.purpose}\nlicense: {data.license}\n")
    with resumable():
        folder = fetch(data, root, mirrors=mirrors, keep_archives=keep_archives, progress=DownloadDisplay(sys.stderr))
    sys.stdout.write(f"{folder}\n")
    return 0


def _verify(name: str | None, folder: Path | None, play: bool) -> int:
    contents = _contents()
    if (folder is not None or play) and name not in contents:
        names = ", ".join(contents)
        raise UsageError(f"DIR and --play are for {names} alone: type, e.g., envsuite data verify {names} DIR")
    if name is not None and folder is not None:
        return int(contents[name].run(folder, play))
    present = (data for data in catalog.data_sets() if _is_here(data, contents.get(data.name)))
    data_sets = [data_set(name)] if name is not None else [*present]
    if not data_sets:
        sys.stderr.write(f"envsuite: nothing is in {data_root()}; envsuite data list shows what can be fetched\n")
        return 1
    return max(_check_data(data, play, contents.get(data.name)) for data in data_sets)


def _is_here(data: DataSet, inside: ModuleType | None) -> bool:
    return state(data).state != "absent" or (inside is not None and inside.present())


def _check_data(data: DataSet, play: bool, inside: ModuleType | None) -> int:
    report = verify(data)
    if inside is None or not inside.present():
        return _report_files(data, report)
    code = 0
    if report.record is None:  # put there by hand
        sys.stderr.write(f"{data.name}: not fetched by this command, so there are no checksums of all files\n")
    else:
        code = _report_files(data, report)
    return max(code, int(inside.run(None, play)))


def _report_files(data: DataSet, report: Verification) -> int:
    for damage in report.damages:
        sys.stdout.write(f"{damage.path}: {damage.what}\n")
    if report.damages:
        sys.stderr.write(
            f"{data.name}: {len(report.damages)} of {max(report.files, len(report.damages))} files are missing or "
            f"damaged. Type: envsuite data fetch {data.name}\n"
        )
        return 1
    by = "checksums as reported by others"
    sources = report.record.sources if report.record is not None else {}
    if unknown := [name for name, source in sources.items() if not source.known]:
        by = f"no checksum is known for {', '.join(unknown)}: compared with the record of the first fetch"
    elif data.tree is not None:
        by = "unpacked from archives with checksums as reported by others"
    sys.stdout.write(f"{data.name}: {report.files} files, {format_size(report.size)}, all correct ({by})\n")
    return 0
