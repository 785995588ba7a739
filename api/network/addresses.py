"""Addresses that other hosts can reach. Pure."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_NAT64 = IPv6Network("64:ff9b::/96")
_COMPATIBLE = IPv6Network("::/96")
_TO_ALL = IPv4Address("255.255.255.255")
_THIS_NETWORK = IPv4Network("0.0.0.0/8")


def plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that one of IPv6 stands for, or the address itself."""
    if not isinstance(address, IPv6Address):
        return address
    held = address.ipv4_mapped or address.sixtofour
    if held is not None:
        return held
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


@lru_cache(4096)
def out_of_reach(text: str) -> str:
    """Why nobody on another machine can be reached at an address; empty if one can.

    Those of loopback, of one link (where clouds keep the credentials of machines), of many, and of none mean something
    else on every machine, in whatever form they are written.
    """
    try:
        written = ip_address(text)
    except ValueError:
        return "an IP address is accepted"
    for one in (written, plain(written)):
        if (
            one.is_loopback
            or one.is_unspecified
            or one.is_link_local
            or one.is_multicast
            or one == _TO_ALL
            or (isinstance(one, IPv4Address) and one in _THIS_NETWORK)
        ):
            return "an address that other nodes can reach is accepted"
    return ""
