"""Sentence-transformers models by path: bi-encoders such as E5, BGE-M3 and MiniLM.

Needs sentence-transformers and torch: ``pip install 'envsuite[embeddings]'``. Nothing is downloaded.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import DataError, require_extra
from envsuite.data.arrays import ArrayWriter
from envsuite.retrieval.encoders import Role, unit

_BATCH = 32


class SentenceEncoder:
    """A sentence-transformers model.

    Args:
        path: The model's folder. A corpus keeps its absolute path.
        query: Prefix of queries, e.g. E5's ``"query: "``; by default the model's own prompt, where it has one.
        passage: Prefix of passages, e.g. E5's ``"passage: "``.
        name: Name in tables; by default the folder's.
        dtype: Number format of the computation. On processors with instructions for it, bfloat16 is three times as
            fast; its vectors have a cosine of 0.9999 with those in single precision.

    Raises:
        DataError: The folder has no such model.
        MissingExtra: sentence-transformers is not installed.
    """

    def __init__(
        self,
        path: Path,
        query: str | None = None,
        passage: str | None = None,
        name: str | None = None,
        dtype: Literal["float32", "bfloat16"] = "float32",
    ) -> None:
        self.path = path.absolute()
        self.name = self.path.name if name is None else name
        self._prefixes = {"query": query, "passage": passage}
        self._dtype = dtype
        self._model = _load(self.path, dtype)
        self.dimensions = int(self._model.get_embedding_dimension())
        self._running = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return SentenceEncoder, (self.path, self._prefixes["query"], self._prefixes["passage"], self.name, self._dtype)

    def encode(self, texts: Sequence[str], role: Role) -> NDArray[np.float32]:
        """Returns the model's vectors, scaled to length 1; a text is cut at the model's limit."""
        encode = self._model.encode_query if role == "query" else self._model.encode_document
        prefix = self._prefixes[role]
        options = {} if prefix is None else {"prompt": prefix}
        with self._running:
            vectors = encode(list(texts), batch_size=_BATCH, show_progress_bar=False, convert_to_numpy=True, **options)
        return unit(np.asarray(vectors).reshape(len(texts), self.dimensions))

    def write(self, writer: ArrayWriter) -> dict[str, Any]:
        """Adds no array: the model stays where it is."""
        facts = {"name": self.name, "model": str(self.path), "dtype": self._dtype}
        return {"kind": "sentence", **facts, **self._prefixes}


def _load(path: Path, dtype: str) -> Any:
    """Returns the model in ``path``."""
    if not (path / "config.json").is_file():
        raise DataError(f"{path} has no model: it must be a folder with config.json, as save_pretrained writes it")
    with require_extra("models as encoders need sentence-transformers", "embeddings"):
        import sentence_transformers
    try:
        return sentence_transformers.SentenceTransformer(
            str(path), local_files_only=True, trust_remote_code=False, model_kwargs={"dtype": dtype}
        )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path} has no model that sentence-transformers can load ({error})") from error
