"""The official games of ALFWorld, as their authors publish them."""

from __future__ import annotations

from envsuite.data.catalog import GIB, DataSet, RemoteFile, Unpack

_RELEASES = "https://github.com/alfworld/alfworld/releases/download/"

DATA_SETS = (
    DataSet(
        name="alfworld",
        folder="alfworld",
        version="json_2.1.1, games of release 0.4.2",
        purpose="ALFWorld-v0: the games of train, valid_seen and valid_unseen",
        license="MIT (alfworld/alfworld)",
        tree="json_2.1.1",
        files=(
            RemoteFile(
                name="json_2.1.1_json.zip",
                urls=(f"{_RELEASES}0.2.2/json_2.1.1_json.zip", "https://aka.ms/alfworld/json_2.1.1_json.zip"),
                size=72_018_818,
                sha256="25171f16e20ad7b048c47275c45b0babf3aa1cbab29cec97387922350a9844bc",
                at_most=72_018_818,
                unpack=Unpack(("json_2.1.1/*/*/*/traj_data.json",), strip=1, at_most=8 * GIB),
            ),
            RemoteFile(
                name="json_2.1.3_tw-pddl.zip",
                urls=(f"{_RELEASES}0.4.2/json_2.1.3_tw-pddl.zip",),
                size=36_507_267,
                sha256="5df77ea759f2211a4106082839ddbbb790f1ba4e7d097ed732cf453f72aa36cf",
                at_most=36_507_267,
                unpack=Unpack(("json_2.1.1/*/*/*/game.tw-pddl",), strip=1, at_most=8 * GIB),
            ),
        ),
    ),
)
