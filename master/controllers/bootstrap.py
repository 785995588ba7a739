"""Objects that belong to every cluster: namespaces, ClusterNetwork, priority classes, ServiceCIDR. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from api.core.node import Namespace
from api.meta.types import ObjectMeta
from api.network.types import ClusterNetwork, ClusterNetworkEntry
from master.config import NetworkConfig
from master.controllers.actions import Create, Update
from master.resources.namespaces import SYSTEM_NAMESPACES
from master.resources.priority_classes import SYSTEM_CLASSES, PriorityClass
from master.resources.services import ServiceCIDR, ServiceCIDRSpec

GLOBAL_NAMESPACE = "default"
SERVICE_CIDR_NAME = "kubernetes"


def bootstrap_objects(
    wish: NetworkConfig, namespaces: Iterable[Namespace], network: ClusterNetwork | None
) -> Iterator[Create | Update]:
    """The namespaces that are always there, and the ClusterNetwork `default` as the settings have it."""
    present = {namespace.metadata.name for namespace in namespaces}
    for name in SYSTEM_NAMESPACES:
        if name not in present:
            yield Create(Namespace(metadata=ObjectMeta(name=name)))
    first = wish.pools.pools[0]
    entries = (ClusterNetworkEntry(cidr=str(p.network), host_subnet_length=p.host_bits) for p in wish.pools.pools)
    wanted = ClusterNetwork(
        metadata=ObjectMeta(name="default") if network is None else network.metadata,
        network=str(first.network),
        hostsubnetlength=first.host_bits,
        service_network=str(wish.service_network),
        plugin_name=wish.plugin_name,
        cluster_networks=tuple(entries),
        mtu=wish.mtu,
    )
    if network is None:
        yield Create(wanted)
        return
    wanted = msgspec.structs.replace(
        wanted, api_version=network.api_version, kind=network.kind, vxlan_port=network.vxlan_port
    )
    if wanted != network:
        yield Update(wanted, network)


def bootstrap_priority_classes(found: Iterable[PriorityClass]) -> Iterator[Create]:
    """The classes that are always there, as far as they are not."""
    present = {item.metadata.name for item in found}
    yield from (Create(item) for item in SYSTEM_CLASSES if item.metadata.name not in present)


def bootstrap_service_cidr(wish: NetworkConfig, found: ServiceCIDR | None) -> Iterator[Create | Update]:
    """The one ServiceCIDR, `kubernetes`, says the network that the settings give to services."""
    spec = ServiceCIDRSpec(cidrs=(str(wish.service_network),))
    if found is None:
        yield Create(ServiceCIDR(metadata=ObjectMeta(name=SERVICE_CIDR_NAME), spec=spec))
    elif found.spec != spec:
        yield Update(msgspec.structs.replace(found, spec=spec), found)
