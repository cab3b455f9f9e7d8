"""The levels of Boxoban."""

from __future__ import annotations

from envsuite.data.catalog import GIB, DataSet, RemoteFile, Unpack

_BOXOBAN = "d5ca5614a803b604740ed9095ded127e8e3d5255"

DATA_SETS = (
    DataSet(
        name="boxoban",
        folder="boxoban",
        version=f"commit {_BOXOBAN[:7]}",
        purpose="Sokoban-v0 with source='official': the levels of Boxoban",
        license="Apache-2.0",
        tree="levels",
        files=(
            RemoteFile(
                name=f"boxoban-levels-{_BOXOBAN[:7]}.zip",
                urls=(f"https://github.com/google-deepmind/boxoban-levels/archive/{_BOXOBAN}.zip",),
                size=None,  # GitHub does not promise the same bytes each time
                sha256=None,
                at_most=GIB,
                unpack=Unpack(("boxoban-levels-*/*/*/*.txt", "boxoban-levels-*/hard/*.txt"), strip=1, at_most=GIB),
            ),
        ),
    ),
)
