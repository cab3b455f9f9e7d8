"""Tokenizers of small models: of the words of a closed vocabulary, or of bytes and the frequent words of some texts."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from envsuite.core.practice import WORDS, Spelling

PIECE = r"[A-Za-z]+|[0-9]+|[^\sA-Za-z0-9]"
"""A token is a word, a number or a punctuation mark; white space is dropped."""
JOINED = "##"
"""Prefix of a piece that follows the previous one without a blank."""
PIECE_OF_CODE = rf"{JOINED}(?:[a-z]+|[0-9]+|-)|{PIECE}"
WORD = r"[A-Za-z]+|[0-9]+(?:,[0-9]{3})*|[^\sA-Za-z0-9]"
"""The same, but a number has its commas; each is split further where a vocabulary has parts of words."""
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
RUN = r"[^\p{L}\p{N}]+|\p{L}+|\p{N}+"
"""What no token of bytes goes beyond: a word, a number, or the marks and blanks between two, so that a word is the same
token after a blank and in quotation marks."""
MOST = 2048
"""Tokens of a vocabulary of bytes, with the 256 single ones."""


def word_tokenizer(texts: Iterable[str], max_length: int, spelling: Spelling = WORDS) -> PreTrainedTokenizerFast:
    """Returns a tokenizer for the pieces of ``texts``, the numbers below 100, and the codec's tags.

    Args:
        texts: Everything that the model should be able to read and write.
        max_length: Context length of the model, in tokens.
        spelling: How words are cut.
    """
    codes, key, parts = spelling.codes, spelling.key, spelling.parts
    positions = "|".join(part for part in (CODES if codes else "", spelling.splits) if part)
    form = PIECE_OF_CODE if positions else PIECE
    normalizer = normalizers.Sequence([
        *([normalizers.Lowercase()] if codes else []),
        *([normalizers.Replace(Regex(rf"\b{key.lower()}(?=[0-9])"), key)] if key else []),
        *([normalizers.Replace(Regex(positions), f" {JOINED}")] if positions else []),
    ])  # fmt: skip
    pieces = {piece for text in texts for piece in re.findall(form, normalizer.normalize_str(text))}
    pieces |= {str(n) for n in NUMBERS}
    if parts:
        letters = [*string.ascii_letters, *string.digits]
        pairs = [f"{first}{second}" for first in string.digits for second in string.digits]
        pieces |= {*letters, *pairs, *(f"{JOINED}{part}" for part in (*parts, *letters, *pairs, ","))}
        form = WORD
    vocabulary = {word: i for i, word in enumerate((*CONTROL, *TAGS, *sorted(pieces)))}
    kind = models.WordPiece if parts else models.WordLevel
    tokenizer = Tokenizer(kind(vocabulary, unk_token="<unk>"))
    if positions:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(form), behavior="removed", invert=True)
    tokenizer.decoder = decoders.Sequence([
        decoders.WordPiece(prefix=JOINED, cleanup=True),
        decoders.Fuse(),
        *(decoders.Replace(f"{tag} ", tag) for tag in ("<action>", "<think>")),
        *(decoders.Replace(f" {tag}", tag) for tag in ("</action>", "</think>", "<|end|>")),
    ])  # fmt: skip
    return _for_chats(tokenizer, max_length)


def byte_tokenizer(texts: Iterable[str], max_length: int) -> PreTrainedTokenizerFast:
    """Returns a tokenizer that writes every text as it was: of bytes, and of the words and marks frequent in ``texts``.

    Args:
        texts: What the model reads and writes, for example.
        max_length: Context length of the model, in tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(RUN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    kinds = [AddedToken(name, special=name in CONTROL, normalized=False) for name in (*CONTROL, *TAGS)]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    learner = BpeTrainer(
        vocab_size=MOST, min_frequency=2, show_progress=False, initial_alphabet=alphabet, special_tokens=kinds
    )
    tokenizer.train_from_iterator(texts, learner)
    return _for_chats(tokenizer, max_length)


def _for_chats(tokenizer: Tokenizer, max_length: int) -> PreTrainedTokenizerFast:
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
