"""Redaction: what looks like a secret is replaced, in the audit log and in what is collected for support. Pure."""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any
from urllib.parse import quote_from_bytes

SECRET_PARAMETERS = frozenset(
    (
        "access_token",
        "bearer_token",
        "client_secret",
        "code",
        "code_verifier",
        "id_token",
        "password",
        "refresh_token",
        "token",
    )
)
"""Query parameters whose values are not recorded."""

REDACTED = b"REDACTED"


def _without_signed_token(match: re.Match[bytes]) -> bytes:
    before, found, _ = match[0].partition(b"eyJ")
    return before + REDACTED if found else match[0]


_TOKENS: tuple[tuple[bytes, re.Pattern[bytes], Callable[[re.Match[bytes]], bytes]], ...] = (
    # Tokens and codes of the OAuth server. A percent-encoded tilde is one, too.
    (b"sha256", re.compile(rb"sha256(?:~|%(?:25)*7[eE])[A-Za-z0-9_%-]+"), lambda _: REDACTED),
    # Signed tokens of service accounts and identity providers, also without their signature. A match begins with a
    # whole word, and what it has read is not tried again: texts of many `eyJ` would take a time that grows with the
    # square of their length.
    (
        b"eyJ",
        re.compile(rb"(?<![A-Za-z0-9_-])([A-Za-z0-9_-]++(?:\.|%(?:25)*+2[eE]))([A-Za-z0-9_.%-]++)"),
        _without_signed_token,
    ),
    # Secrets of bootstrap tokens. The six characters before them are a public ID.
    (b".", re.compile(rb"\.(?<=[a-z0-9]{6}\.)[a-z0-9]{16}(?![a-z0-9])"), lambda _: b"." + REDACTED),
    (b"%2", re.compile(rb"(?<=[a-z0-9]{6})%(?:25)*2[eE][a-z0-9]{16}(?![a-z0-9])"), lambda _: b"." + REDACTED),
)
"""What looks like a token of ours: bytes that are in it, its form, and what is recorded instead of a match."""

_CUT_SECRET = re.compile(r"\.[a-z0-9]{0,16}\Z", re.ASCII)
"""The end of a text that was cut, if it may be a part of a bootstrap token. Parts of other tokens are redacted."""


def redact(text: bytes, shown: bytes = b"") -> bytes:
    """Return UTF-8 text without what looks like a token of ours. `shown` is what looks like one and is none."""
    for part, form, replaced in _TOKENS:
        if part in text:
            text = form.sub(lambda match: shown if match[0] == shown else replaced(match), text)  # noqa: B023
    return text


def cut(text: str, length: int) -> str:
    """Return at most `length` characters of a text, and no part of a token that is cut."""
    return text if len(text) <= length else _CUT_SECRET.sub("", text[:length])


# --- texts of all kinds ---------------------------------------------------------------------------------------------

MIN_KNOWN = 8
"""Characters of a value below which it is not looked for everywhere: it would stand in harmless words."""

_SECRET_NAME = (
    r"(?:[A-Za-z0-9_.-]{0,64}?(?:pass|passw(?:or)?d|pwd|passwd|passphrase|passcode|secret|token|credentials?|api[_-]?key"
    r"|(?:private|secret|access|signing|encryption|pre[_-]?shared)[_-]?key|psk|client-key-data|client[_-]?key|auth))"
)
_NO_SECRET = rb"(?!(?:true|false|null|none|REDACTED)\b)"
_ASSIGNED = (
    _SECRET_NAME.encode()
    + rb"(?:\\{0,8}[\"'])?(?:\s{0,32}(?:[:=]|%(?:25)*3[adAD])\s{0,32}|(?<=[\"']),\s{0,8}(?=\\{0,8}[\"']))"
)
"""The name of a secret, and what is between it and its value in settings, JSON, YAML, lists of words and URLs."""

_FORMS: tuple[tuple[re.Pattern[bytes], bytes], ...] = (
    (
        re.compile(
            rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?"
            rb"(?:-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
            re.DOTALL,
        ),
        REDACTED,
    ),
    # The rest of a key, in a text that was cut.
    (re.compile(rb"\A[A-Za-z0-9+/=\s]{1,8192}-----END [A-Z ]{0,40}PRIVATE KEY-----"), REDACTED),
    # Headers, also as logs show them.
    (
        re.compile(rb"(?i)\b(bearer|basic|negotiate)([ +:]+)(?!authentication\b)[A-Za-z0-9._~+/=-]{8,}"),
        rb"\1\2" + REDACTED,
    ),
    (re.compile(rb"(?i)\b(set-cookie|cookie|authorization)([\"']?\s{0,8}:\s{0,8})[^\r\n]+"), rb"\1\2" + REDACTED),
    # The password of a URL, which may have an @ that is not encoded.
    (re.compile(rb"(://[^/\s:@\"']{0,256}:)[^/\s\"']{1,256}@"), rb"\1" + REDACTED + b"@"),
    # Hashes of passwords: crypt(3) with bcrypt, MD5, SHA-256 and SHA-512, apr1, {SHA}.
    (re.compile(rb"\$(?:2[abxy]?|apr1|1|5|6|y|argon2[id]{1,2})\$[A-Za-z0-9./$=,+-]{8,}"), REDACTED),
    (re.compile(rb"\{S?SHA\}[A-Za-z0-9+/=]{8,}"), REDACTED),
    # Keys of AWS, GitHub, GitLab, Slack and Google, which people put into settings and commands.
    (
        re.compile(
            rb"\b(?:A[KS]IA[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
            rb"|xox[a-z]-[A-Za-z0-9-]{10,}|AIza[A-Za-z0-9_-]{30,})"
        ),
        REDACTED,
    ),
)
"""Forms of secrets in texts, and what is written instead."""

_NAMED: tuple[tuple[re.Pattern[bytes], bytes], ...] = (
    # --password VALUE
    (re.compile((r"(?i)(?<![A-Za-z0-9_.-])(--" + _SECRET_NAME + r"\s{1,8})[^\s-][^\s]*").encode()), rb"\1" + REDACTED),
    # "password": "VALUE", password='VALUE', and the same within a text in quotes: "{\\"password\\": \\"VALUE\\"}".
    # Without the second quote, to the end of the line.
    (
        re.compile(
            rb"(?i)(?<![A-Za-z0-9_.-])("
            + _ASSIGNED
            + rb"b?(\\{0,8}[\"']))"
            + _NO_SECRET
            + rb"(?:(?!(?<!\\)\2)[^\r\n])+"
        ),
        rb"\1" + REDACTED,
    ),
    # A line of YAML.
    (
        re.compile(
            rb"(?im)^([ \t]{0,64}(?:- )?"
            + _SECRET_NAME.encode()
            + rb":[ \t]{1,32})"
            + _NO_SECRET
            + rb"[^\s\"'][^\r\n]*"
        ),
        rb"\1" + REDACTED,
    ),
    # password=VALUE, password: VALUE
    (
        re.compile(rb"(?i)(?<![A-Za-z0-9_.-])(" + _ASSIGNED + rb")" + _NO_SECRET + rb"[^\s\\\"',;&}]{3,}"),
        rb"\1" + REDACTED,
    ),
    # <password>VALUE<
    (re.compile((r"(?i)(<" + _SECRET_NAME + r">)[^<\r\n]+").encode()), rb"\1" + REDACTED),
)
"""Forms of secrets with a name, which has one of _WORDS."""

_WORDS = (b"pass", b"pwd", b"secret", b"token", b"credential", b"key", b"auth", b"psk")

_BASE64 = re.compile(rb"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{16,}={0,2}")


class KnownValues:
    """Secret values and their encoded forms. The time to find them in a text does not grow with their number."""

    def __init__(self, values: Iterable[bytes] = ()) -> None:
        """Values that are shorter than MIN_KNOWN are not looked for."""
        forms: dict[bytes, set[bytes]] = {}
        for value in values:
            for form in _encodings(value):
                forms.setdefault(form[:MIN_KNOWN], set()).add(form)
        self._forms = {begin: sorted(known, key=len, reverse=True) for begin, known in forms.items()}

    def redact(self, text: bytes) -> bytes:
        """Return a text without the values."""
        if not self._forms:
            return text
        parts: list[bytes] = []
        end = 0
        begins = (at for at in range(len(text) - MIN_KNOWN + 1) if text[at : at + MIN_KNOWN] in self._forms)
        for at in begins:
            known = self._forms[text[at : at + MIN_KNOWN]] if at >= end else []
            form = next((form for form in known if text.startswith(form, at)), b"")
            if form:
                parts += (text[end:at], REDACTED)
                end = at + len(form)
        return b"".join((*parts, text[end:]))


NOTHING_KNOWN = KnownValues()


def redact_text(text: bytes, known: KnownValues = NOTHING_KNOWN) -> bytes:
    """Return a text without what looks like a secret, also in base64, and without the values `known`."""
    text = known.redact(text)
    return _BASE64.sub(_redact_base64, _redact_forms(text))


def _redact_forms(text: bytes) -> bytes:
    text = redact(text)
    for form, replaced in _FORMS:
        text = form.sub(replaced, text)
    return b"".join(_redact_named(text))


def _redact_named(text: bytes) -> Iterable[bytes]:
    """Yield a text without secrets that have a name. Only lines with such a name, and those that follow, are looked at:
    that takes a tenth of the time.
    """
    lines = text.splitlines(keepends=True)
    names = [any(word in line for word in _WORDS) for line in text.lower().splitlines()]
    is_near = (name or before for name, before in zip(names, (False, *names), strict=False))
    for near, run in itertools.groupby(zip(is_near, lines, strict=True), key=itemgetter(0)):
        part = b"".join(line for _, line in run)
        if near:
            for form, replaced in _NAMED:
                part = form.sub(replaced, part)
        yield part


def _redact_base64(match: re.Match[bytes]) -> bytes:
    """Return a word, or what is written instead if it is base64 of a text with a secret."""
    word = match[0].rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
    try:
        decoded = base64.b64decode(word + b"=" * (-len(word) % 4), validate=True)
    except binascii.Error:
        return match[0]
    return match[0] if not decoded.isascii() or _redact_forms(decoded) == decoded else REDACTED


def _encodings(value: bytes) -> Iterable[bytes]:
    """Yield a value and its forms: in base64 alone and at each of three positions in the middle of other bytes, in hex,
    in a URL, and as a text of JSON, once and twice.
    """
    if len(value) < MIN_KNOWN:
        return
    yield value
    for offset in range(3):
        # The first and last characters depend on the neighbouring bytes, too.
        begin, end = -(-offset * 8 // 6), (offset + len(value)) * 8 // 6
        core = base64.b64encode(bytes(offset) + value)[begin:end]
        yield core
        yield core.translate(bytes.maketrans(b"+/", b"-_"))
    yield value.hex().encode()
    yield value.hex().upper().encode()
    for safe in ("", "/"):
        in_url = quote_from_bytes(value, safe)
        yield in_url.encode()
        yield in_url.replace("%20", "+").encode()
    yield repr(value)[2:-1].encode()
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return
    yield repr(text)[1:-1].encode()
    for ascii_only in (True, False):
        once = json.dumps(text, ensure_ascii=ascii_only)
        yield once[1:-1].encode()
        yield json.dumps(once, ensure_ascii=ascii_only)[3:-3].encode()


_SECRET_KEY = re.compile(rf"(?i)^{_SECRET_NAME}$")


def redact_document(document: Any) -> Any:
    """Return a decoded document (JSON or YAML) without the values of keys that name secrets."""
    if isinstance(document, Mapping):
        return {
            key: REDACTED.decode() if _is_secret(key, value) else redact_document(value)
            for key, value in document.items()
        }
    if isinstance(document, (list, tuple)):
        return [redact_document(value) for value in document]
    return document


def _is_secret(key: object, value: object) -> bool:
    return isinstance(key, str) and bool(value) and not isinstance(value, bool) and bool(_SECRET_KEY.match(key))
