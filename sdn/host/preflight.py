"""Conflicts of the pod network with what is already on the node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network

from sdn.model.host import ALIAS, DOCKER_BRIDGE, GATEWAY_PORT_NAME, OWNER, Bridge, Link, Route
from sdn.topology import Cluster

TUNNEL_OVERHEAD = 50
"""Bytes that VXLAN over IPv4 adds to a packet of a pod."""


def underlay_link(address: IPv4Address, links: Mapping[str, Link]) -> Link | None:
    """Return the link that has the node's address."""
    return next((link for link in links.values() if any(interface.ip == address for interface in link.addresses)), None)


def conflicts(
    cluster: Cluster, address: IPv4Address, links: Mapping[str, Link], routes: Iterable[Route], bridge: Bridge | None
) -> Iterator[str]:
    """Yield a sentence for each conflict, with what to do about it. Our own links and routes are no conflicts.

    `bridge` is br0, if there is one.
    """
    ours = _ours(links, bridge)
    if GATEWAY_PORT_NAME in links and GATEWAY_PORT_NAME not in ours:
        yield (
            f"there is a link {GATEWAY_PORT_NAME} that Podlane did not make (a VPN, perhaps); it is left alone. "
            f"Rename it, for example with `dev-type tun` and `dev vpn0` in OpenVPN"
        )
    reserved = [("cluster network", network) for network in cluster.networks]
    reserved.append(("service network", cluster.service_network))
    for name, network in reserved:
        if address in network:
            yield f"the node's address {address} lies in the {name} {network}; give the node an address outside of it"
        for link in links.values():
            for interface in link.addresses if link.name not in ours else ():
                if interface.network.overlaps(network):
                    yield (
                        f"{link.name} has the address {interface}, which overlaps the {name} {network}; "
                        f"renumber {link.name}, or set up the cluster with another {name}"
                    )
        yield from _route_conflicts(name, network, [route for route in routes if route.device not in ours])
    underlay = underlay_link(address, links)
    if underlay is not None and cluster.mtu > underlay.mtu - TUNNEL_OVERHEAD:
        yield (
            f"the pods' MTU is {cluster.mtu}, but {underlay.name} carries {underlay.mtu} bytes and a tunnel takes "
            f"{TUNNEL_OVERHEAD}; at most {underlay.mtu - TUNNEL_OVERHEAD} is accepted (mtu of the master)"
        )


def _ours(links: Mapping[str, Link], bridge: Bridge | None) -> frozenset[str]:
    """Return our own links: the gateway port by its bridge, Docker's bridge by its alias."""
    ours = {"lo"}
    if bridge is not None and OWNER in bridge.external_ids and bridge.port(GATEWAY_PORT_NAME) is not None:
        ours.add(GATEWAY_PORT_NAME)
    if DOCKER_BRIDGE in links and links[DOCKER_BRIDGE].alias == ALIAS:
        ours.add(DOCKER_BRIDGE)
    return frozenset(ours)


def _route_conflicts(name: str, network: IPv4Network, routes: Iterable[Route]) -> Iterator[str]:
    for route in routes:
        if route.target.prefixlen and route.target.overlaps(network):
            yield (
                f"there is a route to {route.target} through {route.device}, which overlaps the {name} {network}; "
                f"remove it, or set up the cluster with another {name}"
            )
