"""VNIDs of DNS clients by address, and the state file for a start without the master. Pure."""

from __future__ import annotations

from collections.abc import Mapping
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
    """VNIDs of DNS clients: by address, and one for the containers in Docker's subnet.

    `flat_networks` are the cluster networks if the network is flat: then pods of other nodes see all names. Otherwise
    they are unknown clients, which see global names only and whose questions are not forwarded.
    """

    vnids: Mapping[str, int]
    docker: tuple[IPv4Network, int] | None
    flat_networks: tuple[IPv4Network, ...]

    def vnid_of(self, address: str) -> int:
        """Return the VNID of a client, UNKNOWN_CLIENT if it is not known."""
        vnid = self.vnids.get(address)
        if vnid is not None:
            return vnid
        ip = IPv4Address(address)
        if self.docker is not None and ip in self.docker[0]:
            return self.docker[1]
        return GLOBAL_VNID if any(ip in network for network in self.flat_networks) else UNKNOWN_CLIENT


def client_vnids(network: NodeNetwork) -> ClientVnids:
    """Return the clients of this node: its pods with their VNIDs, Docker's containers, and the node itself."""
    node, docker = network.node, network.docker
    vnids = {str(pod.address): pod.vnid for pod in network.pods}
    vnids.update(dict.fromkeys((str(node.gateway), str(node.address), LOOPBACK), GLOBAL_VNID))
    return ClientVnids(
        vnids=vnids,
        docker=(docker.subnet, docker.vnid) if docker is not None else None,
        flat_networks=() if network.cluster.multitenant else network.cluster.networks,
    )


class PersistedZone(msgspec.Struct, frozen=True):
    """The contents of the state file. The names in the file are those of earlier versions.

    `networks` are the networks whose addresses have names. `vnids` has the VNID of each namespace, null with the flat
    network. `clients`, `docker` and `flat_networks` are the fields of ClientVnids.
    """

    gateway: str
    networks: tuple[str, ...]
    vnids: dict[str, int] | None = msgspec.field(name="lanes")
    clients: dict[str, int] = msgspec.field(name="askers")
    docker: tuple[str, int] | None
    flat_networks: tuple[str, ...] = msgspec.field(name="flat")
    services: tuple[Service, ...]
    slices: tuple[EndpointSlice, ...]


def dump(zone: ClusterZone, clients: ClientVnids) -> bytes:
    """Return the contents of the state file. Objects keep only the metadata on which names depend."""
    store, docker = zone.store, clients.docker
    services = [service for namespace in store.namespaces() for service in store.services(namespace)]
    slices = (
        endpoint_slice
        for service in services
        for endpoint_slice in store.slices(service.metadata.namespace, service.metadata.name)
    )
    return msgspec.json.encode(
        PersistedZone(
            gateway=zone.config.server,
            networks=tuple(map(str, zone.config.networks)),
            vnids=dict(zone.vnids) if zone.vnids is not None else None,
            clients=dict(clients.vnids),
            docker=(str(docker[0]), docker[1]) if docker is not None else None,
            flat_networks=tuple(map(str, clients.flat_networks)),
            services=tuple(replace(service, metadata=_reduced_metadata(service)) for service in services),
            slices=tuple(
                replace(endpoint_slice, metadata=_reduced_metadata(endpoint_slice)) for endpoint_slice in slices
            ),
        )
    )


def _reduced_metadata(obj: Object) -> ObjectMeta:
    meta = obj.metadata
    return ObjectMeta(name=meta.name, namespace=meta.namespace, labels=meta.labels)


def load(data: bytes, origin: dns.name.Name) -> tuple[ClusterZone, ClientVnids]:
    """Return the zone and the clients of a state file. Raises ValueError if the contents are invalid."""
    persisted = msgspec.json.decode(data, type=PersistedZone)
    store = ServiceStore()
    store.replace(persisted.services, persisted.slices)
    config = ZoneConfig(origin, tuple(map(IPv4Network, persisted.networks)), persisted.gateway)
    docker = None
    if persisted.docker is not None:
        subnet, vnid = persisted.docker
        docker = (IPv4Network(subnet), vnid)
    clients = ClientVnids(persisted.clients, docker, tuple(map(IPv4Network, persisted.flat_networks)))
    return ClusterZone(store, config, persisted.vnids), clients
