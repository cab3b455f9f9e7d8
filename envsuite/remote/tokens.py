"""The bearer token of a server and its clients."""

from __future__ import annotations

import os
from pathlib import Path

from envsuite.core.errors import UsageError
from envsuite.remote.protocol import TOKEN_VARIABLE


def read_token(file: Path | None) -> str | None:
    """Returns the token in ``file``, or else the value of the environment variable, if set.

    Raises:
        UsageError: The file cannot be read, or is empty.
    """
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file}: cannot be read ({error})") from error
    if not token:
        raise UsageError(f"--token-file {file}: is empty")
    return token


def check_token(token: str | None) -> None:
    """Checks that a header can carry ``token``.

    Raises:
        UsageError: It cannot.
    """
    if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
        raise UsageError(
            f"the token (${TOKEN_VARIABLE}, or --token-file) must consist of printable ASCII characters without "
            "blanks, and not be empty"
        )


def token_needed(who: str, has_token: bool) -> str:
    """Returns the message for a client whose token is missing or wrong.

    Args:
        who: ``"server"`` or ``"bridge"``.
        has_token: The client has sent some token.
    """
    wrong = f"this {who} demands a token, and none was sent"
    if has_token:
        wrong = f"the token that was sent is not this {who}'s"
    return (
        f"{wrong}: set {TOKEN_VARIABLE} where the client runs to what it is here, or send the header "
        "Authorization: Bearer <token>"
    )
