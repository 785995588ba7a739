"""Addresses that other hosts can reach. Pure."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_NAT64 = IPv6Network("64:ff9b::/96")
_IPV4_COMPATIBLE = IPv6Network("::/96")
_BROADCAST = IPv4Address("255.255.255.255")
_THIS_NETWORK = IPv4Network("0.0.0.0/8")


def unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that is embedded in an IPv6 address, or the address itself if there is none."""
    if not isinstance(address, IPv6Address):
        return address
    embedded = address.ipv4_mapped or address.sixtofour
    if embedded is not None:
        return embedded
    if address in _NAT64 or (address in _IPV4_COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


@lru_cache(4096)
def unreachable_reason(text: str) -> str:
    """Return why other hosts cannot reach an address; an empty string if they can.

    Loopback, link-local, multicast and unspecified addresses mean something else on every host, in IPv6 forms as well.
    At a link-local address, clouds serve the credentials of machines.
    """
    try:
        parsed = ip_address(text)
    except ValueError:
        return "an IP address is accepted"
    for address in (parsed, unmapped(parsed)):
        if (
            address.is_loopback
            or address.is_unspecified
            or address.is_link_local
            or address.is_multicast
            or address == _BROADCAST
            or (isinstance(address, IPv4Address) and address in _THIS_NETWORK)
        ):
            return "an address that other nodes can reach is accepted"
    return ""
