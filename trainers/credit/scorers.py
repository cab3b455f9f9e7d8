"""Scorers of SCPO: they measure the similarity of two step texts.

The models are read when the first pair is scored, and torch with them: reading a configuration needs neither.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import DataError, UsageError
from trainers.settings import AtLeastOne, Text
from trainers.settings.registry import Registry

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

Floats = NDArray[np.float64]
Pair = tuple[str, str]
K = TypeVar("K", str, Pair)
V = TypeVar("V", float, NDArray[np.float32])

KEPT = 200_000
"""Most scores (or embeddings) that a scorer remembers; the oldest are forgotten first."""


class Scorer(Protocol):
    """Scores the similarity of two step texts: its settings are its fields."""

    def __call__(self, pairs: Sequence[Pair]) -> Floats:
        """Returns a number in [0, 1] for each pair (step of the reference, step of a failed episode)."""


SCORERS: Registry[Scorer] = Registry("scorer")


@SCORERS.register("exact")
@dataclass(frozen=True)
class Exact:
    """Scores 1 where the texts are equal, else 0."""

    def __call__(self, pairs: Sequence[Pair]) -> Floats:
        """Returns 0 or 1 for each pair."""
        return np.array([float(first == second) for first, second in pairs])


@dataclass(frozen=True)
class _ModelScorer(ABC, Generic[K, V]):
    """Scores by a model, which computes a value of each key once, and in batches."""

    name: ClassVar[str]
    kind: ClassVar[str]
    """Class of transformers that loads the model."""
    path: Text
    batch: AtLeastOne
    max_tokens: AtLeastOne

    def __post_init__(self) -> None:
        folder = Path(self.path)
        local = folder.is_absolute() or folder.parts[:1] in ((".",), ("..",)) or folder.exists()
        if local and not (folder / "config.json").is_file():
            raise UsageError(
                f"scorer {self.name}: {self.path} has no config.json; give a folder that save_pretrained wrote"
            )

    @cached_property
    def _known(self) -> dict[K, V]:
        return {}

    @cached_property
    def _model(self) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
        import torch
        import transformers
        from safetensors import SafetensorError

        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(self.path)
            model = getattr(transformers, self.kind).from_pretrained(
                self.path, dtype=torch.float32, use_safetensors=True
            )
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise DataError(f"scorer {self.name}: path {self.path}: cannot be loaded ({reason})") from error
        model.requires_grad_(False)
        return tokenizer, model.to("cuda" if torch.cuda.is_available() else "cpu").eval()

    def _values(self, keys: Sequence[K]) -> list[V]:
        fresh = [key for key in dict.fromkeys(keys) if key not in self._known]
        # Texts of like length share a batch, so that little of it is padding.
        fresh.sort(key=lambda key: len("".join(key)))
        tokenizer, model = self._model
        for start in range(0, len(fresh), self.batch):
            batch = fresh[start : start + self.batch]
            tokens = tokenizer(batch, padding=True, truncation=True, max_length=self.max_tokens, return_tensors="pt")
            self._known.update(zip(batch, self._compute(model, tokens.to(model.device)), strict=True))
        values = [self._known[key] for key in keys]
        while len(self._known) > KEPT:
            del self._known[next(iter(self._known))]
        return values

    @abstractmethod
    def _compute(self, model: PreTrainedModel, tokens: BatchEncoding) -> Sequence[V]: ...


@SCORERS.register("cross_encoder")
@dataclass(frozen=True)
class CrossEncoder(_ModelScorer[Pair, float]):
    """A transformers cross-encoder: reads both texts at once and outputs their similarity (SCPO, 3.3)."""

    name, kind = "cross_encoder", "AutoModelForSequenceClassification"
    path: Text = "BAAI/bge-reranker-v2-m3"
    """Folder (or hub name) of a sequence classifier with one output; the default is the paper's."""
    batch: AtLeastOne = 64
    """Pairs scored at a time (paper: 64). The last bits of a score depend on what shares its batch; at 1 they do not,
    and a run that was resumed has the very scores of one that was not."""
    max_tokens: AtLeastOne = 512
    """Longer pairs are cut."""

    def __call__(self, pairs: Sequence[Pair]) -> Floats:
        """The logistic function of the model's output for each pair; each pair is computed once.

        Raises:
            DataError: The model cannot be loaded, or has not exactly one output.
        """
        return np.array(self._values(pairs) if pairs else [], np.float64)

    def _compute(self, model: PreTrainedModel, tokens: BatchEncoding) -> list[float]:
        import torch

        if (outputs := model.config.num_labels) != 1:
            raise DataError(f"scorer {self.name}: {self.path} has {outputs} outputs; a reranker has one")
        with torch.no_grad():
            scores: list[float] = torch.sigmoid(model(**tokens).logits[:, 0].double()).tolist()
        return scores


@SCORERS.register("sentence_embedder")
@dataclass(frozen=True)
class SentenceEmbedder(_ModelScorer[str, NDArray[np.float32]]):
    """Cosine of the texts' embeddings, 0 where it is negative.

    One forward pass a text, where a cross-encoder has one a pair.
    """

    name, kind = "sentence_embedder", "AutoModel"
    path: Text = "sentence-transformers/all-MiniLM-L6-v2"
    """Folder (or hub name) of an encoder whose token states are averaged."""
    batch: AtLeastOne = 64
    """Texts embedded at a time; as for ``cross_encoder``, the last bits depend on it."""
    max_tokens: AtLeastOne = 256
    """Longer texts are cut."""

    def __call__(self, pairs: Sequence[Pair]) -> Floats:
        """A number in [0, 1] for each pair; each text is embedded once.

        Raises:
            DataError: The model cannot be loaded.
        """
        if not pairs:
            return np.zeros(0)
        vectors = np.stack(self._values([text for pair in pairs for text in pair]))
        cosine = np.einsum("nd,nd->n", vectors[::2], vectors[1::2]).astype(np.float64)
        return np.asarray(np.clip(cosine, 0.0, 1.0))

    def _compute(self, model: PreTrainedModel, tokens: BatchEncoding) -> list[NDArray[np.float32]]:
        import torch

        with torch.no_grad():
            states = model(**tokens).last_hidden_state.float()
        mask = tokens["attention_mask"][:, :, None].float()
        mean = (states * mask).sum(1) / mask.sum(1)
        return list(torch.nn.functional.normalize(mean, dim=-1).cpu().numpy())
