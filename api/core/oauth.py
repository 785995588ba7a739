"""The names of the objects of OAuth tokens and codes. Pure."""

from __future__ import annotations

import base64
import hashlib

TOKEN_PREFIX = "sha256~"
"""The prefix of tokens, codes, and the names of their objects."""


def token_name(token: str) -> str:
    """Return the name of the object of a token or a code: the SHA-256 hash of the part after the prefix."""
    digest = hashlib.sha256(token.removeprefix(TOKEN_PREFIX).encode(errors="replace")).digest()
    return f"{TOKEN_PREFIX}{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
