"""VNIDs of DNS clients by address, and what is kept for a start without the master. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

import dns.name
import msgspec
from msgspec.structs import replace

from api.core.endpoints import EndpointSlice
from api.core.services import Service
from api.meta.types import Object, ObjectMeta
from nameserver.resolver import GLOBAL_VNID, UNKNOWN_CLIENT, ClusterZone, ZoneConfig
from nameserver.service_store import ServiceStore
from sdn.topology import NodeNetwork

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, eq=False)
class ClientVnids:
    """`lanes` is the VNID of each address that is known, `docker` those of containers outside of any pod.

    An address of the cluster network of which nothing is known here is a pod of another node: in the flat network it
    may know what all know, otherwise only what is for everybody, and others are not asked for it.
    """

    lanes: Mapping[str, int]
    docker: tuple[IPv4Network, int] | None
    networks: tuple[IPv4Network, ...]

    def lane(self, address: str) -> int:
        """The VNID of who asks; STRANGER for who is not known."""
        known = self.lanes.get(address)
        return self._by_network(IPv4Address(address)) if known is None else known

    def _by_network(self, address: IPv4Address) -> int:
        if self.docker is not None and address in self.docker[0]:
            return self.docker[1]
        return GLOBAL_VNID if any(address in network for network in self.networks) else UNKNOWN_CLIENT


def client_vnids(view: NodeNetwork) -> ClientVnids:
    """Who may ask on this node: its pods, each in its lane, and the node itself."""
    node, docker = view.node, view.docker
    own = (str(node.gateway), str(node.address), LOOPBACK)
    lanes = {str(pod.address): pod.vnid for pod in view.pods}
    return ClientVnids(
        lanes={**lanes, **dict.fromkeys(own, GLOBAL_VNID)},
        docker=(docker.subnet, docker.vnid) if docker is not None else None,
        networks=() if view.cluster.multitenant else view.cluster.networks,
    )


class PersistedZone(msgspec.Struct, frozen=True):
    """`networks` are those whose addresses have names, `lanes` the VNIDs of namespaces (null: one flat network).

    `askers`, `docker` and `flat` are who may ask, as `sdn.cluster_dns.state.Askers` has it.
    """

    gateway: str
    networks: tuple[str, ...]
    lanes: dict[str, int] | None
    askers: dict[str, int]
    docker: tuple[str, int] | None
    flat: tuple[str, ...]
    services: tuple[Service, ...]
    slices: tuple[EndpointSlice, ...]


def dump(names: ClusterZone, who: ClientVnids) -> bytes:
    """The bytes to keep; of the objects what has to do with names."""
    directory, docker = names.directory, who.docker
    services = [one for namespace in directory.namespaces() for one in directory.services(namespace)]
    return msgspec.json.encode(
        PersistedZone(
            gateway=names.domain.server,
            networks=tuple(map(str, names.domain.networks)),
            lanes=dict(names.lanes) if names.lanes is not None else None,
            askers=dict(who.lanes),
            docker=(str(docker[0]), docker[1]) if docker is not None else None,
            flat=tuple(map(str, who.networks)),
            services=tuple(replace(one, metadata=_named_only(one)) for one in services),
            slices=tuple(_slices(directory, services)),
        )
    )


def _slices(directory: ServiceStore, services: list[Service]) -> Iterator[EndpointSlice]:
    for service in services:
        for item in directory.slices(service.metadata.namespace, service.metadata.name):
            yield replace(item, metadata=_named_only(item))


def _named_only(item: Object) -> ObjectMeta:
    meta = item.metadata
    return ObjectMeta(name=meta.name, namespace=meta.namespace, labels=meta.labels)


def load(data: bytes, origin: dns.name.Name) -> tuple[ClusterZone, ClientVnids]:
    """What was kept. Raises ValueError for what is no recollection."""
    found = msgspec.json.decode(data, type=PersistedZone)
    directory = ServiceStore()
    directory.replace(found.services, found.slices)
    domain = ZoneConfig(origin, tuple(map(IPv4Network, found.networks)), found.gateway)
    docker = (IPv4Network(found.docker[0]), found.docker[1]) if found.docker is not None else None
    who = ClientVnids(found.askers, docker, tuple(map(IPv4Network, found.flat)))
    return ClusterZone(directory, domain, found.lanes), who
