"""The login session of a browser: a sealed cookie, and the token against cross-site request forgery. Pure, but for
random numbers and `load_session_key`.

The cookie holds name and uid of the user and the end of the session, encrypted and authenticated by AES-GCM, so masters
that share a key need to store nothing.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import hmac
import secrets
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from reconcile import atomic_file
from reconcile.errors import NotReady, Refused

SESSION_COOKIE, CSRF_COOKIE = "__Host-ssn", "__Host-csrf"
"""Browsers accept cookies with this prefix from this host only, not from another one of its domain (RFC 6265bis)."""

SESSION_SECONDS = 300
"""Lifetime of a session: the time from the login to the end of the authorization."""

KEY_BYTES, NONCE_BYTES, CSRF_BYTES, ID_BYTES = 32, 12, 32, 16
MAX_COOKIE_LENGTH = 4096
_PURPOSE = b"podlane login session"


class Session(msgspec.Struct, frozen=True):
    """A logged-in user. `end` is in seconds since 1970, `id` is random."""

    name: str
    uid: str
    end: int
    id: str


def load_session_key(directory: Path) -> bytes:
    """Return the key that seals sessions. Creates it if there is none. Raises NotReady and Refused."""
    path = directory / "session.key"
    try:
        if not path.exists():
            atomic_file.write(path, secrets.token_bytes(KEY_BYTES))
        key = path.read_bytes()
    except OSError as error:
        raise NotReady(f"session key {path}: {error}") from error
    if len(key) != KEY_BYTES:
        raise Refused(
            f"session key {path} has {len(key)} bytes; {KEY_BYTES} are accepted. If removed, it is created anew"
        )
    return key


@dataclass(frozen=True, slots=True)
class SessionSealer:
    """Seals sessions in cookies, and opens them."""

    key: bytes

    def seal(self, name: str, uid: str, now: datetime.datetime) -> str:
        """Return the cookie of a session that begins now."""
        session = Session(name, uid, int(now.timestamp()) + SESSION_SECONDS, secrets.token_urlsafe(ID_BYTES))
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = AESGCM(self.key).encrypt(nonce, msgspec.json.encode(session), _PURPOSE)
        return base64.urlsafe_b64encode(nonce + sealed).decode()

    def open(self, cookie: str, now: datetime.datetime) -> Session | None:
        """Return the session of a cookie; None if this key did not seal it, or it has ended."""
        if not cookie or len(cookie) > MAX_COOKIE_LENGTH:
            return None
        try:
            data = base64.b64decode(cookie, altchars=b"-_", validate=True)
            plain = AESGCM(self.key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], _PURPOSE)
            session = msgspec.json.decode(plain, type=Session)
        except (binascii.Error, ValueError, InvalidTag, msgspec.MsgspecError):
            return None
        return session if session.end > now.timestamp() else None


class EndedSessions:
    """Sessions that a logout or an authorization has ended before their time. A copy of their cookie is void.

    They are forgotten when their time is over, and when the server ends.
    """

    def __init__(self) -> None:
        self._ends: dict[str, int] = {}

    def __contains__(self, session: Session) -> bool:
        return session.id in self._ends

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, session: Session, now: datetime.datetime) -> None:
        """End a session."""
        for ended, end in tuple(islice(self._ends.items(), 2)):
            # Two are forgotten for each new one, so there is no more to forget than what a few minutes have brought.
            if end <= now.timestamp():
                del self._ends[ended]
        self._ends[session.id] = session.end


def new_csrf_token() -> str:
    """Return a random token. A form must send the same one as the cookie, which no other site can read."""
    return secrets.token_urlsafe(CSRF_BYTES)


def is_same_csrf_token(cookie: str, form: str) -> bool:
    """Return whether the tokens of cookie and form are the same, in constant time."""
    if len(cookie) < CSRF_BYTES or not (cookie.isascii() and form.isascii()):
        return False
    return hmac.compare_digest(cookie, form)
