"""HostSubnets and NetNamespaces: subnets, node addresses and VNIDs must not overlap. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from api.meta.schema import DUPLICATE, FieldError, quoted
from api.network.types import CHANGE_NETWORK_ANNOTATION, ClusterNetwork, HostSubnet, NetNamespace
from master import errors
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.allocators import GLOBAL_VNID
from master.resources.cluster_network import HOST_SUBNETS, NET_NAMESPACES
from master.resources.scheme import group_resource
from master.storage.interface import Key, Transaction


class ClusterNetworkUniqueness(AdmissionPlugin):
    """Rejects overlapping subnets, shared node addresses and shared VNIDs. Unchanged values are not checked again."""

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        old = request.old
        if request.operation is Operation.DELETE:
            return
        if isinstance(obj, HostSubnet) and (old is None or (old.subnet, old.host_ip) != (obj.subnet, obj.host_ip)):
            cluster = objects.get(Key(group_resource(ClusterNetwork), "", "default"))
            check_host_subnet(obj, objects.list(group_resource(HostSubnet)), cluster)
        elif isinstance(obj, NetNamespace) and (old is None or old.netid != obj.netid):
            check_net_namespace(obj, objects.list(group_resource(NetNamespace)))


def check_host_subnet(new: HostSubnet, others: Iterable[HostSubnet], cluster: ClusterNetwork | None) -> None:
    """Require that a HostSubnet has a subnet and an address of its own. Raises Invalid.

    The subnet must be in the cluster network, and the address outside the networks of pods and services.
    """
    problems = [*_network_problems(new, cluster)] if cluster is not None else []
    first, last = _first_and_last(new.subnet)
    for other in others:
        if other.metadata.name == new.metadata.name:
            continue
        if other.host_ip == new.host_ip:
            detail = f"HostSubnet {other.metadata.name} has this address; each host needs its own"
            problems.append(FieldError("hostIP", quoted(new.host_ip), detail, DUPLICATE))
        begin, end = _first_and_last(other.subnet)
        if begin <= last and first <= end:
            detail = f"HostSubnet {other.metadata.name} has {other.subnet}"
            problems.append(FieldError("subnet", quoted(new.subnet), detail, DUPLICATE))
    if problems:
        raise errors.invalid(HOST_SUBNETS, new.metadata.name, problems)


def _network_problems(new: HostSubnet, cluster: ClusterNetwork) -> Iterator[FieldError]:
    networks = [IPv4Network(entry.cidr) for entry in cluster.cluster_networks] or [IPv4Network(cluster.network)]
    if new.subnet and not any(IPv4Network(new.subnet).subnet_of(network) for network in networks):
        accepted = f"a part of the cluster network {', '.join(map(str, networks))} is accepted"
        yield FieldError("subnet", quoted(new.subnet), accepted)
    for network in (*networks, IPv4Network(cluster.service_network)):
        if IPv4Address(new.host_ip) in network:
            yield FieldError(
                "hostIP",
                quoted(new.host_ip),
                f"an address outside of {network} is accepted, which is for pods or services",
            )


@lru_cache(maxsize=65536)
def _first_and_last(subnet: str) -> tuple[int, int]:
    """Return the first and last address of a subnet as numbers. One that cannot be read, or is empty, has none."""
    try:
        network = IPv4Network(subnet)
    except ValueError:
        return 1, 0
    return int(network.network_address), int(network.broadcast_address)


def check_net_namespace(new: NetNamespace, others: Iterable[NetNamespace]) -> None:
    """Reject a VNID that another project has. A VNID is shared only on request (`join`), never by mistake."""
    for other in others:
        if other.netid == new.netid != GLOBAL_VNID and other.metadata.name != new.metadata.name:
            name = other.metadata.name
            annotation = f"{CHANGE_NETWORK_ANNOTATION}=join:{name}"
            detail = f"{name} has it; to share it, annotate with {annotation} (podlane network join)"
            raise errors.invalid(
                NET_NAMESPACES, new.metadata.name, [FieldError("netid", quoted(new.netid), detail, DUPLICATE)]
            )
