"""Problems of MATH-500 and AIME 2025."""

from __future__ import annotations

from envsuite.data.catalog import MIB, DataSet, RemoteFile

DATA_SETS = (
    DataSet(
        name="mathematics",
        folder="mathematics",
        version="main",
        purpose="PythonMath-v0 with source='official': the problems of MATH-500 and AIME 2025, for tests",
        license="MATH: MIT; AIME: Mathematical Association of America",
        files=tuple(
            RemoteFile(
                name=name,
                urls=(f"https://huggingface.co/datasets/{place}",),
                size=None,  # nobody has reported it
                sha256=None,
                at_most=64 * MIB,
            )
            for name, place in (
                ("math500.jsonl", "HuggingFaceH4/MATH-500/resolve/main/test.jsonl"),
                ("aime2025-I.jsonl", "opencompass/AIME2025/resolve/main/aime2025-I.jsonl"),
                ("aime2025-II.jsonl", "opencompass/AIME2025/resolve/main/aime2025-II.jsonl"),
            )
        ),
    ),
)
