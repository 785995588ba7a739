"""The syntax of names, labels and paths. Each check returns what is accepted, or an empty string if the value is
valid. Pure.
"""

from __future__ import annotations

import re

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE = re.compile(rf"({_QUALIFIED.pattern})?")

_LETTERS = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)


def _fits(text: str, length: int, pattern: re.Pattern[str], wanted: str, *examples: str) -> str:
    """The wording, with its two spaces, is that of Kubernetes: clients match on it."""
    if len(text) > length:
        return f"must be no more than {length} characters"
    if pattern.fullmatch(text):
        return ""
    listed = " or ".join(f"'{example}', " for example in examples)
    return f"{wanted} (e.g. {listed}regex used for validation is '{pattern.pattern}')"


def dns_label(text: str) -> str:
    """A name of up to 63 characters (RFC 1123 label)."""
    wanted = (
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
        "with an alphanumeric character"
    )
    return _fits(text, 63, _LABEL, wanted, "my-name", "123-abc")


def service_name(text: str) -> str:
    """A name of up to 63 characters that begins with a letter (RFC 1035 label)."""
    wanted = (
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
        "character, and end with an alphanumeric character"
    )
    return _fits(text, 63, _SERVICE, wanted, "my-name", "abc-123")


def dns_subdomain(text: str) -> str:
    """A name of up to 253 characters (RFC 1123 subdomain)."""
    wanted = (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
        "and end with an alphanumeric character"
    )
    return _fits(text, 253, _SUBDOMAIN, wanted, "example.com")


def path_segment(text: str) -> str:
    """What a path may hold between two slashes, colons as well: names of roles, and of other things that users name."""
    return (
        "" if text and "/" not in text and "%" not in text and text not in (".", "..") else 'may not contain "/" or "%"'
    )


def label_key(text: str) -> str:
    """`prefix/name` or `name`."""
    prefix, slash, name = text.partition("/")
    if not slash:
        prefix, name = "", prefix
    if "/" in name:
        wanted = _fits("/", 63, _QUALIFIED, f"a qualified name {_LETTERS}", "MyName", "my.name", "123-abc")
        return f"{wanted} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
    if slash and not prefix:
        return "prefix part must be non-empty"
    if prefix and dns_subdomain(prefix):
        return f"prefix part {dns_subdomain(prefix)}"
    if not name:
        return "name part must be non-empty"
    wanted = _fits(name, 63, _QUALIFIED, _LETTERS, "MyName", "my.name", "123-abc")
    return wanted and f"name part {wanted}"


def label_value(text: str) -> str:
    """Like the name of a key, or empty."""
    wanted = f"a valid label must be an empty string or {_LETTERS.removeprefix('must ')}"
    return _fits(text, 63, _LABEL_VALUE, wanted, "MyValue", "my_value", "12345")


def port_name(text: str) -> str:
    """A name of up to 15 characters with a letter in it (RFC 6335 service name)."""
    rows = (
        (len(text) <= 15, "must be no more than 15 characters"),
        (
            re.fullmatch(r"[-a-z0-9]+", text) is not None,
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
        ),
        (re.search(r"[a-z]", text) is not None, "must contain at least one letter (a-z)"),
        ("--" not in text, "must not contain consecutive hyphens"),
        (text.strip("-") == text, "must not begin or end with a hyphen"),
    )
    return next((wanted for good, wanted in rows if not good), "")
