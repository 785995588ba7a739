"""The syntax of names, labels and paths. Each check returns what is accepted, or nothing when the value is good."""

from __future__ import annotations

import re

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")


def dns_label(text: str) -> str:
    """A name of up to 63 characters (RFC 1123 label)."""
    if len(text) <= 63 and _LABEL.fullmatch(text):
        return ""
    return 'lower case letters, digits and "-" are accepted, up to 63, with a letter or digit at both ends'


def dns_subdomain(text: str) -> str:
    """A name of up to 253 characters (RFC 1123 subdomain)."""
    if len(text) <= 253 and _SUBDOMAIN.fullmatch(text):
        return ""
    return 'lower case letters, digits, "-" and "." are accepted, up to 253, with a letter or digit at both ends'


def label_key(text: str) -> str:
    """`prefix/name` or `name`."""
    prefix, slash, name = text.rpartition("/")
    if slash and dns_subdomain(prefix):
        return "the part before the slash must be a DNS name"
    if len(name) <= 63 and _QUALIFIED.fullmatch(name):
        return ""
    return 'letters, digits, "-", "_" and "." are accepted, up to 63, with a letter or digit at both ends'


def label_value(text: str) -> str:
    """Like the name of a key, or empty."""
    if not text or (len(text) <= 63 and _QUALIFIED.fullmatch(text)):
        return ""
    return 'letters, digits, "-", "_" and "." are accepted, up to 63, with a letter or digit at both ends'


def port_name(text: str) -> str:
    """A name of up to 15 characters with a letter in it (RFC 6335 service name)."""
    plain = len(text) <= 15 and dns_label(text) == "" and "--" not in text
    if plain and any(letter.isalpha() for letter in text):
        return ""
    return 'lower case letters, digits and single "-" are accepted, up to 15, with at least one letter'
