"""IPAddresses: a record of each cluster IP of a service. Pure.

The services themselves carry their addresses (`master/admission/service_ips.py`); only clients read these records.
Their labels are those of kube-apiserver's allocator. Objects of others without its label stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from api.core.services import Service
from api.meta.types import ObjectMeta
from master.controllers.actions import Action, Create, ForceDelete
from master.controllers.context import Lister
from master.resources.services import IPAddress, IPAddressSpec, ParentReference

FAMILY_LABEL, MANAGED_BY_LABEL = "ipaddress.kubernetes.io/ip-family", "ipaddress.kubernetes.io/managed-by"
ALLOCATOR = "ipallocator.k8s.io"


def reconcile(services: Iterable[Service], records: Iterable[IPAddress]) -> Iterator[Create | ForceDelete]:
    """Yield the missing records, and the deletion of those whose service is gone or has another address."""
    owners = {
        address: ParentReference(
            resource=Service.PLURAL, namespace=service.metadata.namespace, name=service.metadata.name
        )
        for service in services
        for address in service.spec.cluster_ips
        if address and address != "None"
    }
    recorded: set[str] = set()
    for record in records:
        name = record.metadata.name
        is_ours = record.metadata.labels.get(MANAGED_BY_LABEL) == ALLOCATOR
        if is_ours and record.spec.parent_ref != owners.get(name):
            yield ForceDelete(record)
        # The record of another owner is written with the next pass, after the old one is gone.
        recorded.add(name)
    for address, owner in owners.items():
        if address not in recorded:
            family = "IPv6" if ":" in address else "IPv4"
            labels = {FAMILY_LABEL: family, MANAGED_BY_LABEL: ALLOCATOR}
            yield Create(
                IPAddress(metadata=ObjectMeta(name=address, labels=labels), spec=IPAddressSpec(parent_ref=owner))
            )


def sync_ip_addresses(lister: Lister) -> Iterator[Action]:
    """Record the addresses of all services."""
    return reconcile(lister.list(Service), lister.list(IPAddress))
