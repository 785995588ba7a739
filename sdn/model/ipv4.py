"""Converts IPv4 addresses from and to text. Pure but for the import of `socket`.

Its functions `inet_pton` and `inet_ntoa` compute from their argument alone, in a fraction of the time of `ipaddress`.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from socket import AF_INET, inet_ntoa, inet_pton

LOOPBACK = IPv4Network("127.0.0.0/8")
"""The addresses with which processes of one host talk to each other (RFC 1122)."""


def parse_ipv4(text: str) -> IPv4Address | None:
    """Return an IPv4 address, or None if the text is not one."""
    try:
        return IPv4Address(inet_pton(AF_INET, text))
    except (OSError, ValueError):
        return None


def ipv4_text(address: IPv4Address) -> str:
    """Return the text of an address, as `str(address)`."""
    return inet_ntoa(address.packed)
