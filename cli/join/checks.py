"""What must be right before a host joins: values of the arguments, time, name, address and networks. Pure.

Every function yields a sentence for each problem: what was found, and what is accepted.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, ip_network
from urllib.parse import urlsplit

from api.core.node import Node
from api.meta import names
from api.network.types import ClusterNetwork
from api.pki.pem import Certificate

TOKEN = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")
CA_HASH = re.compile(r"sha256:[0-9a-f]{64}")
MAX_CLOCK_DIFFERENCE = datetime.timedelta(hours=1)
"""Certificates are valid from one hour before they are issued."""

OWN_LINKS = frozenset(("lo", "br0", "tun0", "vxlan0", "lbr0"))
"""Links without a network of the host: loopback, and those of podlane-sdn, which it judges itself."""


@dataclass(frozen=True, slots=True)
class Link:
    """A link of the host with an address."""

    name: str
    address: IPv4Interface


@dataclass(frozen=True, slots=True)
class Route:
    """A route of the host. The default route has the network 0.0.0.0/0."""

    network: IPv4Network
    device: str


def argument_problems(server: str, token: str, hashes: Collection[str]) -> Iterator[str]:
    """Yield what is wrong with the arguments. Neither the URL nor the token is repeated: they may be secrets."""
    if not is_server(server):
        yield "the URL is not of the form https://HOST:PORT, which is accepted"
    if not TOKEN.fullmatch(token):
        yield "--token is not of the form ID.SECRET, 6 and 16 lower-case letters and digits, which is accepted"
    for text in hashes:
        if not CA_HASH.fullmatch(text):
            yield f"--ca-hash is {text[:80]!r}; sha256: and 64 hex digits are accepted"


def is_server(url: str) -> bool:
    """Return whether a URL is https://HOST or https://HOST:PORT."""
    try:
        parts = urlsplit(url)
        return (
            parts.scheme == "https"
            and bool(parts.hostname)
            and parts.port != 0
            and url == f"https://{parts.netloc}"
            and re.fullmatch(r"[A-Za-z0-9.:\[\]-]+", parts.netloc) is not None
        )
    except ValueError:
        return False


def name_problems(name: str, source: str) -> Iterator[str]:
    """Yield why a node cannot have this name. `source` is where the name is from."""
    if wrong := names.dns_subdomain_error(name):
        yield f"the name of the node is {name[:80]!r} ({source}): {wrong}; --name gives it another one"


def clock_problems(
    now: datetime.datetime, server_time: datetime.datetime | None, authorities: Iterable[Certificate]
) -> Iterator[str]:
    """Yield what is wrong with the time of this host: certificates would not be valid."""
    found = f"the clock of this host says {now:%Y-%m-%d %H:%M:%S} UTC"
    for certificate in authorities:
        if not certificate.not_before <= now <= certificate.not_after:
            valid = f"{certificate.not_before:%Y-%m-%d %H:%M} to {certificate.not_after:%Y-%m-%d %H:%M} UTC"
            yield f"{found}, and the cluster's authority is valid from {valid}; set the clock"
            return
    if server_time is not None and abs(now - server_time) > MAX_CLOCK_DIFFERENCE:
        yield f"{found}, and that of the master {server_time:%Y-%m-%d %H:%M:%S} UTC; at most an hour apart is accepted"


def address_problems(address: IPv4Address, links: Sequence[Link]) -> Iterator[str]:
    """Yield why a node cannot have this address."""
    if address.is_loopback or address.is_multicast or address.is_unspecified or address.is_link_local:
        yield f"the address of the node is {address}; one that other nodes reach is accepted (--address)"
        return
    own = sorted({str(link.address.ip) for link in links if link.name not in OWN_LINKS})
    if str(address) not in own:
        yield f"the address of the node is {address}; one of this host is accepted: {', '.join(own)} (--address)"


def name_conflicts(name: str, address: IPv4Address, node: Node | None) -> Iterator[str]:
    """Yield why another host has this name. `node` is the Node of the name, None if there is none."""
    if node is None:
        return
    remedy = f"--name gives this host another name; `podlane node remove {name}` on the master frees this one"
    addresses = sorted(each.address for each in node.status.addresses if each.type == "InternalIP")
    ready = next((condition.status for condition in node.status.conditions if condition.type == "Ready"), "Unknown")
    if addresses and str(address) not in addresses:
        yield f"there is a node {name} with the address {', '.join(addresses)}; this host has {address}. {remedy}"
    elif ready != "Unknown":
        yield f"there is a node {name} with this address, which sends heartbeats. {remedy}"


def network_conflicts(
    cluster: ClusterNetwork, address: IPv4Address, links: Sequence[Link], routes: Iterable[Route]
) -> Iterator[str]:
    """Yield which addresses and routes of the host overlap the networks of pods and services."""
    reserved = [("cluster network", text) for text in _cluster_networks(cluster)]
    reserved.append(("service network", cluster.service_network))
    for name, text in reserved:
        network = ip_network(text)
        if not isinstance(network, IPv4Network):
            continue
        if address in network:
            yield f"the address of the node {address} lies in the {name} {network}; another one is accepted (--address)"
        for link in links:
            if link.name not in OWN_LINKS and link.address.network.overlaps(network):
                yield f"{link.name} has the address {link.address}, which overlaps the {name} {network}; renumber it"
        for route in routes:
            is_foreign = route.device not in OWN_LINKS and not any(
                link.name == route.device and link.address.network == route.network for link in links
            )
            if is_foreign and route.network.prefixlen and route.network.overlaps(network):
                yield f"there is a route to {route.network} through {route.device}, which overlaps the {name} {network}"


def _cluster_networks(cluster: ClusterNetwork) -> list[str]:
    return [entry.cidr for entry in cluster.cluster_networks] or [cluster.network]
