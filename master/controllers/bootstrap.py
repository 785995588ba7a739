"""What belongs to every cluster from the start. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network

import msgspec

from api.core.node import Namespace
from api.meta.types import ObjectMeta
from api.network.types import ClusterNetwork, ClusterNetworkEntry
from master.admission.allocators import SubnetPools
from master.admission.service_addresses import USUAL, ServiceWish
from master.kinds.namespace import LASTING
from master.kinds.priority_class import SYSTEM_CLASSES, PriorityClass
from master.kinds.service_cidr import ServiceCIDR, ServiceCIDRSpec
from master.writing.outcomes import Change, Make

GLOBAL_NAMESPACE = "default"
SERVICE_CIDR_NAME = "kubernetes"


@dataclass(frozen=True, slots=True)
class NetworkWish:
    """The overlay as the settings want it."""

    pools: SubnetPools
    service_network: IPv4Network
    plugin_name: str
    mtu: int | None = None
    services: ServiceWish = USUAL


def bootstrap(
    wish: NetworkWish, namespaces: Iterable[Namespace], network: ClusterNetwork | None
) -> Iterator[Make | Change]:
    """The namespaces that are always there, and the ClusterNetwork `default` as the settings have it."""
    present = {namespace.metadata.name for namespace in namespaces}
    for name in LASTING:
        if name not in present:
            yield Make(Namespace(metadata=ObjectMeta(name=name)))
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
        yield Make(wanted)
        return
    wanted = msgspec.structs.replace(
        wanted, api_version=network.api_version, kind=network.kind, vxlan_port=network.vxlan_port
    )
    if wanted != network:
        yield Change(wanted, network)


def priority_classes(found: Iterable[PriorityClass]) -> Iterator[Make]:
    """The classes that are always there, as far as they are not."""
    present = {item.metadata.name for item in found}
    yield from (Make(item) for item in SYSTEM_CLASSES if item.metadata.name not in present)


def service_cidr(wish: NetworkWish, found: ServiceCIDR | None) -> Iterator[Make | Change]:
    """The one ServiceCIDR, `kubernetes`, says the network that the settings give to services."""
    spec = ServiceCIDRSpec(cidrs=(str(wish.service_network),))
    if found is None:
        yield Make(ServiceCIDR(metadata=ObjectMeta(name=SERVICE_CIDR_NAME), spec=spec))
    elif found.spec != spec:
        yield Change(msgspec.structs.replace(found, spec=spec), found)
