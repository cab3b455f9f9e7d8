"""Sources of papers and queries: files of several layouts, and a literature from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from envsuite.core.errors import DataError
from envsuite.data.places import data_root
from envsuite.papersearch import cacm
from envsuite.papersearch.cacm import Cacm
from envsuite.papersearch.ieee_vis import IeeeVis
from envsuite.papersearch.paper_files import PaperFiles
from envsuite.papersearch.pasa import PapersWithQueries
from envsuite.retrieval.documents import Source

QUERIES = "*Query*.jsonl"
"""Names of PaSa's files in the official folder."""
PAPERS = ("papers.jsonl", "papers.jsonl.gz")
"""Names of the file of papers in the official folder."""


def source_of(path: Path, queries: Sequence[Path] = (), strict: bool = False) -> Source:
    """Returns the papers in a file or folder, by its layout.

    Args:
        path: JSON lines (:class:`~envsuite.papersearch.paper_files.PaperFiles`) or a folder of such files, the table of
            IEEE VIS or its folder, or the folder of CACM.
        queries: Files of PaSa's queries on them.
        strict: Whether the first problem is an error.

    Raises:
        DataError: There is no such file, or it has none of these layouts.
    """
    source: Source
    if path.is_dir() and (path / cacm.FILES[0]).is_file():
        source = Cacm(path, strict)
    elif path.suffix == ".tsv" or (path.is_dir() and any(path.glob("*.tsv"))):
        source = IeeeVis(path, strict)
    else:
        source = PaperFiles(path, strict)
    if missing := [str(query) for query in queries if not query.is_file()]:
        raise DataError(f"{', '.join(missing)}: there is no such file of queries")
    return PapersWithQueries(source, queries) if queries else source


def official_source() -> Source:
    """Returns the papers and queries in the folder ``papersearch`` of ``$ENVSUITE_DATA``.

    Raises:
        DataError: They are not there.
    """
    folder = data_root() / "papersearch"
    papers = next((folder / name for name in PAPERS if (folder / name).is_file()), None)
    queries = sorted(folder.glob(QUERIES))
    if papers is None or not queries:
        raise DataError(
            f"{folder}: no papers and queries. It needs {' or '.join(PAPERS)} (a line of JSON for each paper, with "
            f"paper_id, title, abstract, date and references) and PaSa's {QUERIES}; or give source= a corpus file"
        )
    return source_of(papers, queries)
