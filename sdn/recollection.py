"""What a node's names were, kept for a daemon that begins while the master is away. Pure: values and their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network

import dns.name
import msgspec
from msgspec.structs import replace

from api.core.endpoints import EndpointSlice
from api.core.services import Service
from api.meta.types import Object, ObjectMeta
from nameserver.directory import Directory
from nameserver.names import Domain, Names
from sdn.askers import Askers


class Recollection(msgspec.Struct, frozen=True):
    """`networks` are those whose addresses have names, `lanes` the VNIDs of namespaces (null: one flat network).

    `askers`, `docker` and `flat` are who may ask, as `sdn.askers.Askers` has it.
    """

    gateway: str
    networks: tuple[str, ...]
    lanes: dict[str, int] | None
    askers: dict[str, int]
    docker: tuple[str, int] | None
    flat: tuple[str, ...]
    services: tuple[Service, ...]
    slices: tuple[EndpointSlice, ...]


def kept(names: Names, who: Askers) -> bytes:
    """The bytes to keep; of the objects what has to do with names."""
    directory, docker = names.directory, who.docker
    services = [one for namespace in directory.namespaces() for one in directory.services(namespace)]
    return msgspec.json.encode(
        Recollection(
            gateway=names.domain.server,
            networks=tuple(map(str, names.domain.networks)),
            lanes=dict(names.lanes) if names.lanes is not None else None,
            askers=dict(who.lanes),
            docker=(str(docker[0]), docker[1]) if docker is not None else None,
            flat=tuple(map(str, who.networks)),
            services=tuple(replace(one, metadata=_named(one)) for one in services),
            slices=tuple(_slices(directory, services)),
        )
    )


def _slices(directory: Directory, services: list[Service]) -> Iterator[EndpointSlice]:
    for service in services:
        for item in directory.slices(service.metadata.namespace, service.metadata.name):
            yield replace(item, metadata=_named(item))


def _named(item: Object) -> ObjectMeta:
    meta = item.metadata
    return ObjectMeta(name=meta.name, namespace=meta.namespace, labels=meta.labels)


def recalled(data: bytes, origin: dns.name.Name) -> tuple[Names, Askers]:
    """What was kept. Raises ValueError for what is no recollection."""
    found = msgspec.json.decode(data, type=Recollection)
    directory = Directory()
    directory.replace(found.services, found.slices)
    domain = Domain(origin, tuple(map(IPv4Network, found.networks)), found.gateway)
    docker = (IPv4Network(found.docker[0]), found.docker[1]) if found.docker is not None else None
    who = Askers(found.askers, docker, tuple(map(IPv4Network, found.flat)))
    return Names(directory, domain, found.lanes), who
