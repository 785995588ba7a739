"""The provider HTPasswd: names and hashed passwords in a file of Apache's `htpasswd`. Driver.

Hashes are bcrypt (`htpasswd -B`), Apache's MD5 (`-m`) and SHA-1 (`-s`). OpenShift accepts the bcrypt prefixes `$2y$`
and `$2a$`; here `$2b$` is accepted, too, which is the same algorithm and what Python's bcrypt writes.

A check takes the same work for every name, whether it is in the file or not, so its duration does not tell which names
exist: Apache's MD5 once if the file has such a hash, and 2^cost rounds of bcrypt, with the highest cost of the file.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import bcrypt

from master.auth.identity_providers.bounded_threads import BoundedThreads, bcrypt_threads
from master.auth.identity_providers.provider import ProviderError, ProviderIdentity, encoded_credentials
from reconcile.config_schema import MAX_PROBLEMS

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 16 * 2**20
MAX_USER_NAME_BYTES = 255
MAX_BCRYPT_COST = 17
"""The highest cost that `htpasswd -C` offers: about ten seconds."""

MAX_BCRYPT_BYTES = 72
"""bcrypt ignores further bytes of a password; the library rejects them."""

MAX_WAITING_CHECKS = 32

_BCRYPT = re.compile(rb"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_APR1 = re.compile(rb"\$apr1\$[^$]{0,8}\$[./A-Za-z0-9]{22}")
_SHA = re.compile(rb"\{SHA\}[A-Za-z0-9+/]{27}=")
_DUMMY_BCRYPT_TAIL = b"abcdefghijklmnopqrstuu" + b"." * 31
_DUMMY_APR1 = b"$apr1$saltsalt$" + b"." * 22
_APR1_ALPHABET = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

_threads = BoundedThreads("password", bcrypt_threads(), MAX_WAITING_CHECKS)


def check_bcrypt(password: bytes, hashed: bytes) -> bool:
    """Return whether a bcrypt hash is that of the password."""
    return bcrypt.checkpw(password[:MAX_BCRYPT_BYTES], hashed)


def apr1(password: bytes, salt: bytes) -> bytes:
    """Return Apache's MD5 hash of a password. Its salt has at most eight characters.

    Source: `apr_md5_encode` of the Apache Portable Runtime, which is MD5-crypt with another prefix.
    """
    salt = salt[:8]
    final = hashlib.md5(password + salt + password, usedforsecurity=False).digest()
    first = password + b"$apr1$" + salt
    first += (final * (len(password) // 16 + 1))[: len(password)]
    length = len(password)
    while length:
        first += b"\0" if length & 1 else password[:1]
        length >>= 1
    digest = hashlib.md5(first, usedforsecurity=False).digest()
    for number in range(1000):
        rounds = password if number & 1 else digest
        if number % 3:
            rounds += salt
        if number % 7:
            rounds += password
        rounds += digest if number & 1 else password
        digest = hashlib.md5(rounds, usedforsecurity=False).digest()
    groups = [(digest[i], digest[i + 6], digest[(i + 12) if i < 4 else 5]) for i in range(5)]
    text = bytearray()
    for number, bits in ((4, high << 16 | middle << 8 | low) for high, middle, low in groups):
        text += bytes(_APR1_ALPHABET[bits >> 6 * place & 63] for place in range(number))
    text += bytes(_APR1_ALPHABET[digest[11] >> 6 * place & 63] for place in range(2))
    return b"$apr1$" + salt + b"$" + bytes(text)


def bcrypt_cost(hashed: bytes) -> int:
    """Return the cost of a bcrypt hash; 0 if it is none, or one with a cost that is not accepted."""
    match = _BCRYPT.fullmatch(hashed)
    cost = int(match[1]) if match else 0
    return cost if 4 <= cost <= MAX_BCRYPT_COST else 0


def _dummy_costs(cost: int, highest: int) -> Sequence[int]:
    """Return the costs of the dummies with which a check of a hash of one cost takes 2^highest rounds.

    2^cost + 2^cost + 2^(cost + 1) + ... + 2^(highest - 1) = 2^highest. The cost is 0 if there is no such hash.
    """
    if cost:
        return range(cost, highest)
    return (highest,) if highest else ()


@dataclass(frozen=True, slots=True)
class PasswordFile:
    """The users of a file and their hashes, and the work of a check."""

    hashes: Mapping[bytes, bytes] = field(default_factory=dict)
    bcrypt_cost: int = 0
    has_apr1: bool = False

    def check(self, name: bytes, password: bytes) -> bool:
        """Return whether the password is that of the user. Raises ProviderError if the hash has an unknown form."""
        hashed = self.hashes.get(name, b"")
        is_correct, is_apr1, cost = False, hashed.startswith(b"$apr1$"), bcrypt_cost(hashed)
        if is_apr1 or self.has_apr1:
            stored = hashed if is_apr1 else _DUMMY_APR1
            is_correct = hmac.compare_digest(apr1(password, stored.split(b"$")[2]), stored) and is_apr1
        if cost:
            is_correct = check_bcrypt(password, hashed)
        for dummy_cost in _dummy_costs(cost, self.bcrypt_cost):
            check_bcrypt(password, b"$2b$%02d$%b" % (dummy_cost, _DUMMY_BCRYPT_TAIL))
        if hashed.startswith(b"{SHA}"):
            digest = hashlib.sha1(password, usedforsecurity=False).digest()
            return hmac.compare_digest(base64.b64encode(digest), hashed.removeprefix(b"{SHA}"))
        if hashed and not is_apr1 and not cost:
            is_crypt = len(hashed) == 13
            raise ProviderError("crypt is not supported" if is_crypt else "the hash of the user has an unknown form")
        return is_correct


def parse_password_file(content: bytes) -> tuple[PasswordFile, list[str]]:
    """Return the users of a file, and what is to be warned about. The last line of a user wins."""
    hashes: dict[bytes, bytes] = {}
    without_colon, repeated = [], []
    for number, line in enumerate(content.split(b"\n"), 1):
        name, colon, hashed = line.strip().partition(b":")
        if not colon:
            if name:
                without_colon.append(number)
            continue
        if name in hashes:
            repeated.append(number)
        hashes[name] = hashed
    parsed = PasswordFile(
        hashes,
        bcrypt_cost=max(map(bcrypt_cost, hashes.values()), default=0),
        has_apr1=any(hashed.startswith(b"$apr1$") for hashed in hashes.values()),
    )
    found = (("lines without a colon are skipped", without_colon), ("lines of users that had one replace it", repeated))
    return parsed, [f"{text}: {', '.join(map(str, lines[:10]))}" for text, lines in found if lines]


def password_file_problems(content: bytes) -> Iterator[str]:
    """Yield what is wrong with a file, by lines. A sentence has no part of a hash."""
    if len(content) > MAX_FILE_BYTES:
        yield f"found more than {MAX_FILE_BYTES} bytes; a smaller file is accepted"
        return
    first_lines: dict[bytes, int] = {}
    for number, line in enumerate(content.split(b"\n"), 1):
        name, colon, hashed = line.strip().partition(b":")
        if not line.strip():
            continue
        if not colon or not name:
            yield f"line {number}: found no name before a colon; NAME:HASH is accepted"
        elif name in first_lines:
            yield f"line {number}: found the name of line {first_lines[name]}; each name is accepted once"
        elif not _has_known_form(hashed):
            accepted = f"bcrypt (htpasswd -B) up to the cost {MAX_BCRYPT_COST}, Apache's MD5 (-m) and SHA-1 (-s)"
            yield f"line {number}: found a hash of another form; {accepted} are accepted"
        first_lines.setdefault(name, number)


def _has_known_form(hashed: bytes) -> bool:
    return bcrypt_cost(hashed) > 0 or _APR1.fullmatch(hashed) is not None or _SHA.fullmatch(hashed) is not None


class HTPasswdProvider:
    """Checks passwords with the file. A changed file is read again at the next check."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self._path = path
        self._lock = threading.Lock()
        self._version: tuple[int, int, int] | None = None
        self._file = PasswordFile()

    def file_problems(self) -> tuple[str, ...]:
        """Return what is wrong with the file now. Logins do not depend on it."""
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            return (f"{self._path}: cannot be read: {error.strerror}; a file of htpasswd is accepted",)
        return tuple(f"{self._path}: {problem}" for problem in islice(password_file_problems(content), MAX_PROBLEMS))

    async def authenticate_password(self, username: str, password: str) -> ProviderIdentity | None:
        """Return the identity; None if the name or the password is wrong. Raises ProviderError.

        A name is cut to 255 bytes. One with a colon is wrong, because the file cannot have it.
        """
        username = username.encode(errors="replace")[:MAX_USER_NAME_BYTES].decode(errors="ignore")
        credentials = encoded_credentials(username, password)
        if credentials is None or ":" in username:
            return None
        is_correct = await _threads.run(lambda: self._current().check(*credentials))
        return ProviderIdentity(self.name, username) if is_correct else None

    def _current(self) -> PasswordFile:
        """Return the users. A file that can no longer be read leaves them as they were. Raises ProviderError."""
        with self._lock:
            try:
                with self._path.open("rb") as file:
                    status = os.fstat(file.fileno())
                    version = (status.st_mtime_ns, status.st_size, status.st_ino)
                    if version != self._version:
                        self._read(file.read(MAX_FILE_BYTES + 1))
                        self._version = version
            except (OSError, ValueError) as error:
                if self._version is None:
                    raise ProviderError(f"{self._path}: {error}") from None
                log.warning("password file not read again", extra={"file": str(self._path), "error": str(error)})
            return self._file

    def _read(self, content: bytes) -> None:
        if len(content) > MAX_FILE_BYTES:
            raise ValueError(f"it is larger than {MAX_FILE_BYTES} bytes")
        self._file, warnings = parse_password_file(content)
        for text in warnings:
            log.warning("password file", extra={"file": str(self._path), "problem": text})
