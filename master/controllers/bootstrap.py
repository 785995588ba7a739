"""Objects that belong to every cluster: namespaces, ClusterNetwork, priority classes, ServiceCIDR, SCCs, StorageClass.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from api.core.node import Namespace
from api.meta.types import ObjectMeta
from api.network.types import ClusterNetwork, ClusterNetworkEntry
from master.auth.bootstrap_sccs import BOOTSTRAP_SCCS
from master.config import NetworkConfig
from master.controllers.actions import Action, Create, Update
from master.controllers.context import Lister
from master.resources.namespaces import SYSTEM_NAMESPACES
from master.resources.priority_classes import SYSTEM_CLASSES, PriorityClass
from master.resources.security_context_constraints import SecurityContextConstraints
from master.resources.services import SERVICE_CIDR_NAME, ServiceCIDR, ServiceCIDRSpec
from master.resources.volumes import DEFAULT_CLASS_ANNOTATIONS, LOCAL_CLASS, StorageClass, default_class

GLOBAL_NAMESPACE = "default"


def bootstrap_objects(
    config: NetworkConfig, namespaces: Iterable[Namespace], network: ClusterNetwork | None
) -> Iterator[Create | Update]:
    """Yield the missing system namespaces, and the ClusterNetwork `default` as configured."""
    existing = {namespace.metadata.name for namespace in namespaces}
    for name in SYSTEM_NAMESPACES:
        if name not in existing:
            yield Create(Namespace(metadata=ObjectMeta(name=name)))
    first = config.pools.pools[0]
    entries = (
        ClusterNetworkEntry(cidr=str(pool.network), host_subnet_length=pool.host_bits) for pool in config.pools.pools
    )
    desired = ClusterNetwork(
        metadata=ObjectMeta(name="default") if network is None else network.metadata,
        network=str(first.network),
        hostsubnetlength=first.host_bits,
        service_network=str(config.service_network),
        plugin_name=config.plugin_name,
        cluster_networks=tuple(entries),
        mtu=config.mtu,
    )
    if network is None:
        yield Create(desired)
        return
    desired = msgspec.structs.replace(
        desired, api_version=network.api_version, kind=network.kind, vxlan_port=network.vxlan_port
    )
    if desired != network:
        yield Update(desired, network)


def bootstrap_priority_classes(classes: Iterable[PriorityClass]) -> Iterator[Create]:
    """Yield the missing system priority classes."""
    existing = {priority_class.metadata.name for priority_class in classes}
    yield from (
        Create(priority_class) for priority_class in SYSTEM_CLASSES if priority_class.metadata.name not in existing
    )


def bootstrap_sccs(sccs: Iterable[SecurityContextConstraints]) -> Iterator[Create]:
    """Yield the missing default SCCs. Those that exist stay as an administrator has changed them."""
    existing = {scc.metadata.name for scc in sccs}
    yield from (Create(scc) for scc in BOOTSTRAP_SCCS if scc.metadata.name not in existing)


def bootstrap_service_cidr(config: NetworkConfig, existing: ServiceCIDR | None) -> Iterator[Create | Update]:
    """Yield the ServiceCIDR `kubernetes` with the configured service network."""
    spec = ServiceCIDRSpec(cidrs=(str(config.service_network),))
    if existing is None:
        yield Create(ServiceCIDR(metadata=ObjectMeta(name=SERVICE_CIDR_NAME), spec=spec))
    elif existing.spec != spec:
        yield Update(msgspec.structs.replace(existing, spec=spec), existing)


def bootstrap_storage_class(classes: Sequence[StorageClass]) -> Iterator[Create]:
    """Yield the class of local volumes if it is missing, as the default class if there is none."""
    if any(storage_class.metadata.name == LOCAL_CLASS.metadata.name for storage_class in classes):
        return
    annotations = {} if default_class(classes) else {DEFAULT_CLASS_ANNOTATIONS[0]: "true"}
    metadata = msgspec.structs.replace(LOCAL_CLASS.metadata, annotations=annotations)
    yield Create(msgspec.structs.replace(LOCAL_CLASS, metadata=metadata))


def sync_storage_class(lister: Lister) -> Iterable[Action]:
    """Create the class of local volumes, unless the setting turns it off."""
    return bootstrap_storage_class(lister.list(StorageClass)) if lister.context.local_storage_class else ()


def sync_service_cidr(lister: Lister) -> Iterable[Action]:
    """Create and update the ServiceCIDR `kubernetes`."""
    return bootstrap_service_cidr(lister.context.network, lister.get(ServiceCIDR, SERVICE_CIDR_NAME))


def sync_priority_classes(lister: Lister) -> Iterable[Action]:
    """Create the system priority classes."""
    return bootstrap_priority_classes(lister.list(PriorityClass))


def sync_sccs(lister: Lister) -> Iterable[Action]:
    """Create the default SCCs."""
    return bootstrap_sccs(lister.list(SecurityContextConstraints))
