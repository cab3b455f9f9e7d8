"""A word-level tokenizer for a small model of a closed vocabulary."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PIECE = r"[A-Za-z]+|[0-9]+|[^\sA-Za-z0-9]"
"""A token is a word, a number or a punctuation mark; white space is dropped."""
JOINED = "##"
"""Prefix of a piece that follows the previous one without a blank."""
PIECE_OF_CODE = rf"{JOINED}(?:[a-z]+|[0-9]+|-)|{PIECE}"
CODES = (
    r"(?<=[a-z])(?=[0-9])|(?<=[0-9])(?=[a-z])|(?<=[a-z]-)(?=[a-z])|(?<=[a-z])(?=-[a-z])|(?<=[0-9])(?=[0-9]{2}(?![0-9]))"
)
"""Positions at which codes such as ``gh42kd17pt``, ``usb-c`` and ``1044`` are split."""
CONTROL = ("<pad>", "<unk>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
TAGS = ("<action>", "</action>", "<think>", "</think>")
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NUMBERS = range(100)


def word_tokenizer(
    texts: Iterable[str], max_length: int, codes: bool = False, splits: str = "", key: str = ""
) -> PreTrainedTokenizerFast:
    """Returns a tokenizer for the pieces of ``texts``, the numbers below 100, and the codec's tags.

    Args:
        texts: Everything that the model should be able to read and write.
        max_length: Context length of the model, in tokens.
        codes: Fold to lower case, and split words of letters and digits, words with a hyphen, and numbers above 99;
            decoding joins them again.
        splits: Regular expression of further positions at which words are split and joined again.
        key: A capital that stays one before a digit, as in ``P3166267``.
    """
    positions = "|".join(part for part in (CODES if codes else "", splits) if part)
    form = PIECE_OF_CODE if positions else PIECE
    normalizer = normalizers.Sequence([
        *([normalizers.Lowercase()] if codes else []),
        *([normalizers.Replace(Regex(rf"\b{key.lower()}(?=[0-9])"), key)] if key else []),
        *([normalizers.Replace(Regex(positions), f" {JOINED}")] if positions else []),
    ])  # fmt: skip
    pieces = {piece for text in texts for piece in re.findall(form, normalizer.normalize_str(text))}
    pieces |= {str(n) for n in NUMBERS}
    vocabulary = {word: i for i, word in enumerate((*CONTROL, *TAGS, *sorted(pieces)))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    if positions:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(form), behavior="removed", invert=True)
    tokenizer.decoder = decoders.Sequence([
        decoders.WordPiece(prefix=JOINED, cleanup=True),
        decoders.Fuse(),
        *(decoders.Replace(f"{tag} ", tag) for tag in ("<action>", "<think>")),
        *(decoders.Replace(f" {tag}", tag) for tag in ("</action>", "</think>", "<|end|>")),
    ])  # fmt: skip
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in CONTROL])
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in TAGS])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|end|>",
        chat_template=TEMPLATE,
        model_max_length=max_length,
    )
