"""Formats of strings in schemas (`format`). Unknown formats accept every value. Pure.

Every check takes time that is linear in the text, which clients choose.
"""

from __future__ import annotations

import base64
import datetime
import re
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_network
from urllib.parse import urlsplit

from api.meta import names

_UUID = r"[0-9a-f]{8}-?[0-9a-f]{4}-?%s[0-9a-f]{3}-?%s[0-9a-f]{3}-?[0-9a-f]{12}"
_EMAIL = re.compile(r"[^\s@<>()\[\],;:\"\\]+@[^\s@<>()\[\],;:\"\\]+")
_CONTROL = re.compile(r"[\x00-\x20\x7f]")
_HOST_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_MAC = re.compile(
    r"([0-9A-Fa-f]{2}([:-])([0-9A-Fa-f]{2}\2){4}[0-9A-Fa-f]{2}|([0-9A-Fa-f]{2}([:-])([0-9A-Fa-f]{2}\5){6}"
    r"[0-9A-Fa-f]{2})|([0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4}|([0-9A-Fa-f]{4}\.){3}[0-9A-Fa-f]{4})"
)
_DATE_TIME = re.compile(r"(\d{4}-\d\d-\d\d)([Tt ])(\d\d:\d\d:\d\d)([.,]\d+)?([Zz]|[+-]\d\d:?\d\d)?", re.ASCII)
_GO_DURATION = re.compile(r"[+-]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)
_WORD_DURATION = re.compile(
    r"\d+\s*(ns|nanos?|nanoseconds?|us|µs|micros?|microseconds?|ms|millis?|milliseconds?|s|secs?|seconds?|m|mins?|"
    r"minutes?|h|hrs?|hours?|d|days?|w|wks?|weeks?)",
    re.ASCII,
)
_RGB = re.compile(r"rgb\(\s*(\d{1,3})\s*,\s*(\d{1,3})\s*,\s*(\d{1,3})\s*\)", re.ASCII)
_CARD = re.compile(
    r"4\d{12}(\d{3})?|5[1-5]\d{14}|(222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}|6(011|5\d\d)\d{12}|"
    r"3[47]\d{13}|3(0[0-5]|[68]\d)\d{11}|(2131|1800|35\d{3})\d{11}",
    re.ASCII,
)
MAX_TEXT = 1 << 16
"""Characters of a text that a format other than byte and password accepts."""


def _fullmatch(pattern: str, flags: int = 0) -> Callable[[str], bool]:
    compiled = re.compile(pattern, flags | re.ASCII)
    return lambda text: compiled.fullmatch(text) is not None


def _without_error(function: Callable[[str], object]) -> Callable[[str], bool]:
    """Return a check that accepts every text for which the function raises no ValueError."""

    def accepts(text: str) -> bool:
        try:
            function(text)
        except ValueError:
            return False
        return True

    return accepts


def _uuid(version: str = "[0-9a-f]", variant: str = "[0-9a-f]") -> Callable[[str], bool]:
    return _fullmatch(_UUID % (version, variant), re.IGNORECASE)


def _is_uri(text: str) -> bool:
    """Accept a URI reference with a scheme, or an absolute path, as Go's url.ParseRequestURI does."""
    if not text or _CONTROL.search(text):
        return False
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    return bool(parts.scheme) or text.startswith("/")


def _is_hostname(text: str) -> bool:
    labels = text.removesuffix(".").split(".")
    return 0 < len(text) <= 253 and all(_HOST_LABEL.fullmatch(label) for label in labels)


def _is_cidr(text: str) -> bool:
    address, slash, length = text.partition("/")
    if not slash or not length.isdecimal() or len(length) > 3 or "%" in address:
        return False
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _is_byte(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


def _is_date(text: str) -> bool:
    return len(text) == 10 and _without_error(datetime.date.fromisoformat)(text)


def _is_date_time(text: str) -> bool:
    found = _DATE_TIME.fullmatch(text)
    if found is None:
        return False
    day, _, time, _, _ = found.groups()
    # A leap second is accepted.
    return _without_error(datetime.datetime.fromisoformat)(f"{day}T{time[:6]}{'59' if time[6:] == '60' else time[6:]}")


def _is_duration(text: str) -> bool:
    return _GO_DURATION.fullmatch(text) is not None or _WORD_DURATION.fullmatch(text) is not None


def _digits(text: str) -> str:
    return text.replace("-", "").replace(" ", "")


def _is_isbn10(text: str) -> bool:
    digits = _digits(text)
    if not re.fullmatch(r"\d{9}[\dX]", digits, re.ASCII):
        return False
    return sum((10 - i) * (10 if digit == "X" else int(digit)) for i, digit in enumerate(digits)) % 11 == 0


def _is_isbn13(text: str) -> bool:
    digits = _digits(text)
    if not re.fullmatch(r"\d{13}", digits, re.ASCII):
        return False
    return sum(int(digit) * (3 if i % 2 else 1) for i, digit in enumerate(digits)) % 10 == 0


def _is_credit_card(text: str) -> bool:
    digits = _digits(text)
    if not _CARD.fullmatch(digits):
        return False
    doubled = [int(digit) * (2 if i % 2 else 1) for i, digit in enumerate(reversed(digits))]
    return sum(value - 9 if value > 9 else value for value in doubled) % 10 == 0


def _is_rgb(text: str) -> bool:
    found = _RGB.fullmatch(text)
    return found is not None and all(int(part) <= 255 for part in found.groups())


def _is_ipv4(text: str) -> bool:
    return _without_error(IPv4Address)(text)


def _is_ipv6(text: str) -> bool:
    return "%" not in text and _without_error(IPv6Address)(text)


_FORMATS: Mapping[str, Callable[[str], bool]] = {
    "bsonobjectid": _fullmatch(r"[0-9a-fA-F]{24}"),
    "uri": _is_uri,
    "email": lambda text: _EMAIL.fullmatch(text) is not None,
    "hostname": _is_hostname,
    "ipv4": _is_ipv4,
    "ipv6": _is_ipv6,
    "cidr": _is_cidr,
    "mac": lambda text: _MAC.fullmatch(text) is not None,
    "uuid": _uuid(),
    "uuid3": _uuid("3"),
    "uuid4": _uuid("4", "[89ab]"),
    "uuid5": _uuid("5", "[89ab]"),
    "isbn": lambda text: _is_isbn10(text) or _is_isbn13(text),
    "isbn10": _is_isbn10,
    "isbn13": _is_isbn13,
    "creditcard": _is_credit_card,
    "ssn": _fullmatch(r"\d{3}[- ]?\d{2}[- ]?\d{4}"),
    "hexcolor": _fullmatch(r"#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})"),
    "rgbcolor": _is_rgb,
    "date": _is_date,
    "duration": _is_duration,
    "datetime": _is_date_time,
    "k8sshortname": lambda text: not names.dns_label_error(text),
    "k8slongname": lambda text: not names.dns_subdomain_error(text),
}
_OF_ANY_LENGTH: Mapping[str, Callable[[str], bool]] = {"byte": _is_byte, "password": lambda text: True}


def has_format(text: str, name: str) -> bool:
    """Return whether a text has a format. Hyphens in the name of the format do not count."""
    key = name.replace("-", "")
    if key in _OF_ANY_LENGTH:
        return _OF_ANY_LENGTH[key](text)
    accepts = _FORMATS.get(key)
    return accepts is None or (len(text) <= MAX_TEXT and accepts(text))


INTEGER_BITS: Mapping[str, int] = {"int32": 32, "int64": 64}
"""Formats of integers."""
MAX_FLOAT = 3.4028234663852886e38
"""The largest number of the format float."""
