"""Whether a write fits what is already there. Pure. Raises `answers.Failure`."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network

from api.objects import HostSubnet, Namespace, StatusCause
from api.schema import DUPLICATE, Problem, shown
from master import answers
from master.kinds.host_subnet import HOST_SUBNET
from master.kinds.kind import AnyKind
from master.kinds.namespace import NAMESPACE


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
    wanted = IPv4Network(new.subnet)
    for other in others:
        if other.metadata.name != new.metadata.name and IPv4Network(other.subnet).overlaps(wanted):
            why = f"HostSubnet {other.metadata.name} has {other.subnet}"
            raise answers.invalid(
                HOST_SUBNET, new.metadata.name, [Problem("subnet", shown(new.subnet), why, DUPLICATE)]
            )
