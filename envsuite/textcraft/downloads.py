"""The official recipe files of TextCraft."""

from __future__ import annotations

from envsuite.data.catalog import GIB, MIB, DataSet, RemoteFile, Unpack

_AGENTGYM = "64ebf3e7441c16e153194ebe82fb8688913592f5"

DATA_SETS = (
    DataSet(
        name="textcraft",
        folder="textcraft",
        version=f"Minecraft 1.16.5, as in AgentGym {_AGENTGYM[:7]}",
        purpose="TextCraft-v0 with source='official': the recipe files of the paper",
        license="Minecraft's own files: Mojang's terms",
        tree="recipes",
        files=(
            RemoteFile(
                name=f"AgentGym-{_AGENTGYM[:7]}.zip",
                urls=(f"https://github.com/WooooDyy/AgentGym/archive/{_AGENTGYM}.zip",),
                size=None,  # GitHub creates these archives on request, and does not promise the same bytes each time
                sha256=None,
                at_most=GIB,
                unpack=Unpack(
                    ("AgentGym-*/agentenv-textcraft/agentenv_textcraft/recipes/*.json",), strip=4, at_most=64 * MIB
                ),
            ),
        ),
    ),
)
