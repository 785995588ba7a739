"""Whether rules of a firewall accept the forwarded packets of pods. Pure."""

from __future__ import annotations

_DIRECTIONS = (('iifname "tun0"', "-i tun0 "), ('oifname "tun0"', "-o tun0 "))
"""What a rule for packets from pods, and one for packets to pods, has in the listings of nft and iptables."""


def accepts_pods(listed: str) -> bool:
    """Return whether a chain, as nft or iptables lists it, accepts what comes from tun0 and what goes to it."""
    lines = [line for line in listed.splitlines() if "accept" in line.lower()]
    return all(any(word in line for word in words for line in lines) for words in _DIRECTIONS)
