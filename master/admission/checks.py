"""Whether a write fits what is already there. Pure. Raises `answers.Failure`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network

from api.core.node import Namespace
from api.meta.schema import DUPLICATE, FieldError, quoted
from api.meta.types import StatusCause
from api.network.types import CHANGE_NETWORK, ClusterNetwork, HostSubnet, NetNamespace
from master.admission.allocators import GLOBAL_VNID
from master.kinds.host_subnet import HOST_SUBNET
from master.kinds.kind import AnyKind
from master.kinds.namespace import NAMESPACE
from master.kinds.net_namespace import NET_NAMESPACE
from master.wire import answers


def check_namespace(kind: AnyKind, name: str, namespace: str, found: Namespace | None) -> None:
    """Objects are made only in a namespace that exists and stays."""
    if found is None:
        raise answers.not_found(NAMESPACE, namespace)
    if found.metadata.deletion_timestamp:
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        cause = StatusCause(
            reason="NamespaceTerminating",
            message=f"namespace {namespace} is being terminated",
            field="metadata.namespace",
        )
        raise answers.forbidden(kind, name, why, [cause])


def check_host_subnet(new: HostSubnet, others: Iterable[HostSubnet], cluster: ClusterNetwork | None) -> None:
    """A subnet is a part of the cluster network and nobody else's; so is the address, which lies outside of it."""
    problems = [*_misplaced(new, cluster)] if cluster is not None else []
    first, last = _ends(new.subnet) if new.subnet else (1, 0)
    for other in others:
        if other.metadata.name == new.metadata.name:
            continue
        if other.host_ip == new.host_ip:
            why = f"HostSubnet {other.metadata.name} has this address; each host needs its own"
            problems.append(FieldError("hostIP", quoted(new.host_ip), why, DUPLICATE))
        begin, end = _ends(other.subnet) if other.subnet else (1, 0)
        if begin <= last and first <= end:
            why = f"HostSubnet {other.metadata.name} has {other.subnet}"
            problems.append(FieldError("subnet", quoted(new.subnet), why, DUPLICATE))
    if problems:
        raise answers.invalid(HOST_SUBNET, new.metadata.name, problems)


def _misplaced(new: HostSubnet, cluster: ClusterNetwork) -> Iterator[FieldError]:
    networks = [IPv4Network(entry.cidr) for entry in cluster.cluster_networks] or [IPv4Network(cluster.network)]
    if new.subnet and not any(IPv4Network(new.subnet).subnet_of(network) for network in networks):
        accepted = f"a part of the cluster network {', '.join(map(str, networks))} is accepted"
        yield FieldError("subnet", quoted(new.subnet), accepted)
    for network in (*networks, IPv4Network(cluster.service_network)):
        if IPv4Address(new.host_ip) in network:
            yield FieldError(
                "hostIP", quoted(new.host_ip), f"an address outside of {network} is accepted: it is the pods'"
            )


@lru_cache(maxsize=65536)
def _ends(subnet: str) -> tuple[int, int]:
    network = IPv4Network(subnet)
    return int(network.network_address), int(network.broadcast_address)


def check_net_namespace(new: NetNamespace, others: Iterable[NetNamespace]) -> None:
    """A lane is shared only on request, so that nobody shares one by mistake."""
    for other in others:
        if other.netid == new.netid != GLOBAL_VNID and other.metadata.name != new.metadata.name:
            name = other.metadata.name
            why = f"{name} has it; to share it, annotate with {CHANGE_NETWORK}=join:{name} (podlane network join)"
            raise answers.invalid(
                NET_NAMESPACE, new.metadata.name, [FieldError("netid", quoted(new.netid), why, DUPLICATE)]
            )
