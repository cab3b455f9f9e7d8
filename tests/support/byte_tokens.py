"""A tokenizer of bytes, which loses nothing."""

from __future__ import annotations

from typing import Any

from transformers import ByT5Tokenizer

TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def byte_tokenizer() -> Any:
    """With a chat template of plain text."""
    made = ByT5Tokenizer()
    made.chat_template = TEMPLATE
    return made
