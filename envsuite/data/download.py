"""Downloads a file: under ``.NAME.part`` until it is complete and checked, then under its own name."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envsuite.core.errors import DataError
from envsuite.data.catalog import RemoteFile
from envsuite.data.connection import (
    DownloadAnswer,
    DownloadRefused,
    NotSatisfiable,
    Patience,
    TemporaryFailure,
    answer_to,
)
from envsuite.data.part import DownloadOrigin, PartFile, sha256_of, shape_trouble, version_of
from envsuite.data.places import WRITABLE
from envsuite.data.progress import ProgressReceiver

PAGE = re.compile(rb"(\xef\xbb\xbf)?\s*<(!doctype html|html|head|body|script|\?xml)", re.IGNORECASE)
"""The beginning of a web page, or of an error of a storage service in XML."""


@dataclass(frozen=True)
class FetchedFile:
    """A completed download."""

    url: str
    """Address from which its last bytes came."""
    size: int
    sha256: str


def download(
    file: RemoteFile, urls: Sequence[str], folder: Path, patience: Patience, progress: ProgressReceiver
) -> FetchedFile:
    """Downloads ``file`` into ``folder``; resumes the unfinished download of an earlier call.

    Args:
        file: The expected file.
        urls: Addresses to try, in this order.
        folder: An existing folder.
        patience: Limits of waits and retries.
        progress: Receives the progress.

    Raises:
        DataError: No address has the right file, or it cannot be written; the message gives the answer of each.
    """
    part = PartFile(folder / f".{file.name}.part")
    troubles = []
    try:
        for url in urls:
            try:
                sha256 = _from_place(file, url, part, patience, progress)
            except DownloadRefused as reason:
                troubles.append(f"  {url}: {reason}")
                progress.note(f"{file.name}: {url}: {reason}")
                continue
            size = part.size()
            part.finish(folder / file.name)
            progress.finish(file.name, size)
            return FetchedFile(url, size, sha256)
    except OSError as error:  # from the disk: errors of the network have been converted by now
        raise DataError(
            f"{part.path}: cannot be written ({error.strerror or error}). {WRITABLE}, or choose "
            f"another place with --to DIR. The part downloaded so far is kept, and the next fetch resumes it"
        ) from error
    note = f" The part downloaded so far is kept ({part.size():,} bytes), and resumed." if part.size() else ""
    raise DataError(
        f"{folder / file.name}: could not be fetched.\n" + "\n".join(troubles) + f"\nTry again later, or name another "
        f"place that has {file.name}: --mirror URL (http://…, https://… or file:///…).{note}"
    )


def _from_place(file: RemoteFile, url: str, part: PartFile, patience: Patience, progress: ProgressReceiver) -> str:
    """Downloads from one address, with retries; returns the SHA-256 of the complete ``part``."""
    high = part.size()
    fruitless = 0
    while True:
        try:
            was_resumed = _attempt(file, url, part, patience, progress)
            return _check_part(file, part, was_resumed)
        except TemporaryFailure as trouble:
            if part.size() >= high + patience.worth:
                high, fruitless = part.size(), 0
            else:
                fruitless += 1
            if fruitless >= patience.attempts:
                raise DownloadRefused(f"{trouble} ({fruitless} attempts)") from trouble
            wait = min(patience.longest_wait, patience.first_wait * 2.0 ** max(0, fruitless - 1))
            wait = max(wait * random.uniform(0.5, 1.0), trouble.wait)
            progress.note(f"{file.name}: {trouble}; attempt {fruitless + 1} of {patience.attempts} in {wait:.0f} s")
            patience.sleep(wait)


def _attempt(file: RemoteFile, url: str, part: PartFile, patience: Patience, progress: ProgressReceiver) -> bool:
    """Makes one request that completes ``part``; returns whether it holds bytes of earlier requests."""
    offset, condition = part.resumable(file, url)
    if offset and offset == part.total(file):
        return True
    headers = {"Accept-Encoding": "identity", "User-Agent": "envsuite"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
        if condition is not None:
            headers["If-Range"] = condition
    try:
        with answer_to(url, headers, patience) as answer:
            offset = _receive(file, url, answer, part, offset, progress)
    except NotSatisfiable as reason:
        if not offset or reason.total != offset or file.size not in (None, offset):
            part.drop()
            raise TemporaryFailure("HTTP 416: it has no such range") from reason
    return offset > 0


def _receive(
    file: RemoteFile, url: str, answer: DownloadAnswer, part: PartFile, offset: int, progress: ProgressReceiver
) -> int:
    """Writes the body into ``part``; returns the offset at which it starts."""
    version = version_of(answer.headers)
    if answer.status == 206:
        start, total = _content_range(answer)
        if start != offset:
            part.drop()
            raise TemporaryFailure(f"it answers with another range than asked (HTTP 206 from {start}, not {offset})")
        before = part.origin()
        if before.url == url:
            version = version or before.version  # a 206 may leave out what the 200 before it said
            if before.version not in (None, version) or before.total not in (None, total):
                part.drop()
                raise TemporaryFailure("its file has changed meanwhile")
    elif answer.status == 200:
        offset, total = 0, None
    else:
        raise DownloadRefused(f"HTTP {answer.status}")
    if (coding := answer.headers.get("Content-Encoding", "identity").strip().lower()) not in ("", "identity"):
        raise DownloadRefused(f"it sends the file in the encoding {coding!r}, though asked not to")
    if answer.headers.get_content_type() in ("text/html", "application/xhtml+xml") and "Content-Type" in answer.headers:
        raise DownloadRefused("a web page instead of the file (a log-in, a quota, or an error)")
    length = answer.headers.get("Content-Length", "")
    if total is None:
        total = offset + int(length) if re.fullmatch("[0-9]{1,18}", length) else file.size
    if total is not None and file.size is not None and total != file.size:
        raise DownloadRefused(f"its file has {total:,} bytes, the right one {file.size:,}")
    if total is not None and total > file.at_most:
        raise DownloadRefused(f"its file has {total:,} bytes; at most {file.at_most:,} can be right")
    free = shutil.disk_usage(part.path.parent).free
    if (remainder := (total or 0) - offset) > free:
        raise DataError(f"{part.path.parent}: {file.name} needs {remainder:,} bytes more, and {free:,} are free there")
    part.begin(DownloadOrigin(url, version, total), offset)
    progress.start(file.name, total, offset)
    end = _append(file, answer, part, offset, progress)
    if total is not None and end < total:
        raise TemporaryFailure(f"the connection ended after {end:,} of {total:,} bytes")
    if total is not None and end > total:
        part.drop()
        raise TemporaryFailure(f"it sent {end:,} bytes and had announced {total:,}")
    return offset


def _append(file: RemoteFile, answer: DownloadAnswer, part: PartFile, offset: int, progress: ProgressReceiver) -> int:
    """Writes the body from ``offset`` on; returns the offset of its end."""
    end = offset
    with part.open(offset) as out:
        while chunk := answer.read():
            if end == 0 and PAGE.match(chunk) is not None:
                raise DownloadRefused("a web page instead of the file (a log-in, a quota, or an error)")
            if end + len(chunk) > file.at_most:
                break
            out.write(chunk)
            end += len(chunk)
            progress.advance(len(chunk))
    if chunk:
        part.drop()
        raise DownloadRefused(f"it does not end after {file.at_most:,} bytes, where it should at the latest")
    return end


def _content_range(answer: DownloadAnswer) -> tuple[int | None, int | None]:
    """Returns the start of the range that was sent and the length of the whole file; ``None`` where unknown."""
    match = re.fullmatch(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|\*)", answer.headers.get("Content-Range", ""))
    if match is None:
        return None, None
    return int(match[1]), None if match[2] == "*" else int(match[2])


def _check_part(file: RemoteFile, part: PartFile, was_resumed: bool) -> str:
    """Returns the SHA-256 of ``part`` after checking it.

    Raises:
        TemporaryFailure: The file is wrong and was assembled from several requests, or is known to be truncated.
        DownloadRefused: The file is wrong and came in one piece.
    """
    if file.sha256 is None and (trouble := shape_trouble(part.path, file.name)) is not None:
        part.drop()
        raise TemporaryFailure(trouble)
    size, sha256 = part.size(), sha256_of(part.path)
    if file.sha256 in (None, sha256) and file.size in (None, size):
        return sha256
    part.drop()
    mismatch = f"its file is another one ({size:,} bytes, SHA-256 {sha256}; the right one has {file.sha256})"
    raise TemporaryFailure(f"{mismatch}, from the start this time") if was_resumed else DownloadRefused(mismatch)
