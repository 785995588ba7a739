"""Registries that Docker asks only if the operator says so, because their addresses mean the node itself. Pure.

Docker connects from the node. With an image such as `127.0.0.1:5000/x`, a user would send requests to servers of the
node that accept the node alone, to those that pods do not reach, or to the metadata server of a cloud.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address

from api.network.addresses import unmapped, unreachable_reason


def registry_host(registry: str) -> str:
    """Return the host name or address of a registry, without its port."""
    if registry.startswith("["):
        return registry[1:].partition("]")[0]
    host, colon, _ = registry.partition(":")
    return host if colon else registry


def local_registry_problem(
    registry: str, addresses: Iterable[str], accepted: Collection[str], node_addresses: Collection[str]
) -> str:
    """Return why a registry is not asked for an image, empty if it is.

    `addresses` are those of its host. `accepted` are registries of the operator, with or without their port.
    `node_addresses` are all addresses of the node, as text.
    """
    if registry in accepted or registry_host(registry) in accepted:
        return ""
    own = set(map(_parsed, node_addresses)) - {None}
    local = next((address for address in addresses if unreachable_reason(address) or _parsed(address) in own), "")
    if not local:
        return ""
    where = f"registry {registry} is at {local}, an address of the node itself or of its link"
    return f"{where}; only registries of the setting localRegistries of the node may be at such addresses"


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    """Return an address, without the zone of a link and as IPv4 if it is mapped; None for other texts."""
    try:
        return unmapped(ip_address(text.partition("%")[0]))
    except ValueError:
        return None
