"""A language model that judges papers, as PaSa's selector does: the probability that it answers ``True``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envsuite.core.errors import DataError, require_extra
from envsuite.papersearch.prompts import judgement
from envsuite.papersearch.question import Scorer

BATCH = 8
"""Papers that are judged together."""
MOST_TOKENS = 2_048
"""Tokens of a paper's prompt; of longer ones, the beginning is left out."""


def scorer_of(folder: Path) -> Scorer:
    """Returns a function that scores papers by a local model; it is on the GPU where there is one.

    The score is the probability of the token ``True`` against that of ``False`` after the prompt of StepPO's appendix.

    Args:
        folder: A causal language model and its tokenizer, such as pasa-7b-selector, as transformers saves them.

    Raises:
        MissingExtra: torch or transformers is not installed.
        DataError: The folder has no such model.
    """
    with require_extra("a model as selector needs torch and transformers", "train"):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left", truncation_side="left")
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: no language model that transformers can load ({error})") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.to(device)
    answers = [tokenizer.encode(word, add_special_tokens=False)[0] for word in (" True", " False")]

    def scorer(query: str, papers: Sequence[tuple[str, str]]) -> list[float]:
        scores: list[float] = []
        for start in range(0, len(papers), BATCH):
            texts = [judgement(query, title, text) for title, text in papers[start : start + BATCH]]
            batch = tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=MOST_TOKENS)
            with torch.inference_mode():
                logits = model(**batch.to(device)).logits[:, -1, answers].float()
            scores += logits.softmax(dim=-1)[:, 0].tolist()
        return scores

    return scorer
