"""Whether a write fits what is already there. Pure. Raises `answers.Failure`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Network

from api.lanes import CHANGE_NETWORK
from api.objects import HostSubnet, Namespace, NetNamespace, StatusCause
from api.schema import DUPLICATE, Problem, shown
from master import answers
from master.allocators import GLOBAL_VNID
from master.kinds.host_subnet import HOST_SUBNET
from master.kinds.kind import AnyKind
from master.kinds.namespace import NAMESPACE
from master.kinds.net_namespace import NET_NAMESPACE


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


def check_host_subnet(new: HostSubnet, others: Iterable[HostSubnet]) -> None:
    """No two nodes have the same subnet, nor a part of it."""
    if not new.subnet:
        return
    first, last = _ends(new.subnet)
    for other in others:
        if not other.subnet:
            continue
        begin, end = _ends(other.subnet)
        if begin <= last and first <= end and other.metadata.name != new.metadata.name:
            why = f"HostSubnet {other.metadata.name} has {other.subnet}"
            raise answers.invalid(
                HOST_SUBNET, new.metadata.name, [Problem("subnet", shown(new.subnet), why, DUPLICATE)]
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
                NET_NAMESPACE, new.metadata.name, [Problem("netid", shown(new.netid), why, DUPLICATE)]
            )
