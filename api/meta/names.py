"""The syntax of names, labels and paths. Each function returns what is accepted, or an empty string if the value is
valid. Pure.
"""

from __future__ import annotations

import re

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_LABEL_WITH_UNDERSCORES = r"_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SEARCH_DOMAIN = re.compile(rf"{_LABEL_WITH_UNDERSCORES}(\.{_LABEL_WITH_UNDERSCORES})*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE = re.compile(rf"({_QUALIFIED.pattern})?")

_LETTERS = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)


def _syntax_error(text: str, max_length: int, pattern: re.Pattern[str], message: str, *examples: str) -> str:
    """Check length and pattern. Clients match on the messages, which are those of Kubernetes, spaces included."""
    if len(text) > max_length:
        return f"must be no more than {max_length} characters"
    if pattern.fullmatch(text):
        return ""
    listed = " or ".join(f"'{example}', " for example in examples)
    return f"{message} (e.g. {listed}regex used for validation is '{pattern.pattern}')"


def dns_label_error(text: str) -> str:
    """Check an RFC 1123 label: up to 63 characters."""
    message = (
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
        "with an alphanumeric character"
    )
    return _syntax_error(text, 63, _LABEL, message, "my-name", "123-abc")


def dns_1035_label_error(text: str) -> str:
    """Check an RFC 1035 label, such as the plural name of a kind: up to 63 characters, the first one a letter."""
    message = (
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
        "character, and end with an alphanumeric character"
    )
    return _syntax_error(text, 63, _SERVICE, message, "my-name", "abc-123")


def dns_subdomain_error(text: str) -> str:
    """Check an RFC 1123 subdomain: up to 253 characters."""
    message = (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
        "and end with an alphanumeric character"
    )
    return _syntax_error(text, 253, _SUBDOMAIN, message, "example.com")


def search_domain_error(text: str) -> str:
    """Check a search domain of a resolver: an RFC 1123 subdomain whose labels may have underscores."""
    message = (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-', '_' or '.', and must "
        "start and end with an alphanumeric character or '_'"
    )
    return _syntax_error(text, 253, _SEARCH_DOMAIN, message, "example.com")


def path_segment_error(text: str) -> str:
    """Check a name that only has to fit into a URL path, such as the name of a role; colons are accepted."""
    if text and "/" not in text and "%" not in text and text not in (".", ".."):
        return ""
    return 'may not contain "/" or "%"'


def label_key_error(text: str) -> str:
    """Check the key of a label or an annotation: `prefix/name` or `name`."""
    prefix, slash, name = text.partition("/")
    if not slash:
        prefix, name = "", prefix
    if "/" in name:
        message = _syntax_error("/", 63, _QUALIFIED, f"a qualified name {_LETTERS}", "MyName", "my.name", "123-abc")
        return f"{message} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
    if slash and not prefix:
        return "prefix part must be non-empty"
    if prefix and dns_subdomain_error(prefix):
        return f"prefix part {dns_subdomain_error(prefix)}"
    if not name:
        return "name part must be non-empty"
    message = _syntax_error(name, 63, _QUALIFIED, _LETTERS, "MyName", "my.name", "123-abc")
    return message and f"name part {message}"


def label_value_error(text: str) -> str:
    """Check the value of a label: empty, or of the same syntax as the name of a key."""
    message = f"a valid label must be an empty string or {_LETTERS.removeprefix('must ')}"
    return _syntax_error(text, 63, _LABEL_VALUE, message, "MyValue", "my_value", "12345")


def port_name_error(text: str) -> str:
    """Check the name of a port (RFC 6335): up to 15 characters, at least one of them a letter."""
    if len(text) > 15:
        return "must be no more than 15 characters"
    if not re.fullmatch(r"[-a-z0-9]+", text):
        return "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
    if not re.search(r"[a-z]", text):
        return "must contain at least one letter (a-z)"
    if "--" in text:
        return "must not contain consecutive hyphens"
    if text.strip("-") != text:
        return "must not begin or end with a hyphen"
    return ""
