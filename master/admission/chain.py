"""What every new object goes through, whoever makes it, and every changed one that a client sends.

Nothing waits in here, and what is decided is part of the write that the caller does with the draft: so bounds and
numbers hold whatever is written at the same time.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterable
from ipaddress import IPv4Network
from typing import Any

from api.core.config import ConfigMap
from api.core.node import Namespace
from api.core.pod import Pod
from api.core.services import Service
from api.core.storage import PersistentVolumeClaim
from api.meta.types import ObjectMeta
from api.network.types import ClusterNetwork, HostSubnet, NetNamespace
from api.validation.registry import check, default
from master.access import accounts
from master.admission import checks, external_addresses, ingress_classes, limit_ranges, pod_accounts, priorities, quotas
from master.admission.service_addresses import Cursors, ServiceWish, assigned
from master.kinds import BY_NAME
from master.kinds.ingress import Ingress, IngressClass
from master.kinds.kind import AnyKind
from master.kinds.limit_range import LimitRange
from master.kinds.pod import POD
from master.kinds.priority_class import PriorityClass
from master.kinds.resource_quota import ResourceQuota
from master.kinds.service_account import ServiceAccount
from master.store.draft import Draft
from master.store.records import Key
from master.wire import answers
from master.writing import writes
from master.writing.naming import random_letters
from master.writing.outcomes import Cursor, moved


class AdmissionChain:
    """Raises `answers.Failure`, and then leaves the draft as it was."""

    def __init__(self, clock: Callable[[], datetime.datetime], authority: str, services: ServiceWish) -> None:
        """`authority` is the certificate by which pods know this server, as PEM."""
        self._clock = clock
        self._services = services
        self._authority = authority

    def created(self, kind: AnyKind, item: Any, draft: Draft) -> Any:
        """A new object as it begins; the draft gets what is written beside it."""
        meta = item.metadata
        if kind.namespaced:
            namespace = draft.one(Key(Namespace.KIND, "", meta.namespace))
            checks.check_namespace(kind, meta.name, meta.namespace, namespace)
        if isinstance(item, Pod):
            item = _completed(item, draft)
        elif isinstance(item, Ingress):
            item = ingress_classes.classed(item, draft.all(IngressClass.KIND))
        item = self._begun(kind, item)
        if kind.stored == Namespace.KIND:
            self._furnish(kind.kept(item), draft)
        return self._admitted(kind, item, None, draft)

    def changed(self, kind: AnyKind, new: Any, old: Any, draft: Draft) -> Any:
        """An object after an update, as it is to be kept."""
        return self._admitted(kind, new, old, draft)

    def _begun(self, kind: AnyKind, item: Any) -> Any:
        return writes.created(kind, item, str(uuid.uuid4()), self._clock())

    def _furnish(self, namespace: Namespace, draft: Draft) -> None:
        """What every project has is there with it, for the pods that are made next."""
        name = namespace.metadata.name
        known = (draft.all(ServiceAccount.KIND, name), draft.all(ConfigMap.KIND, name))
        for write in accounts.passes([namespace], *known, self._authority):
            kind = BY_NAME[write.item.KIND]
            draft.put(self._begun(kind, default(write.item, kind.rules)))

    def _admitted(self, kind: AnyKind, new: Any, old: Any, draft: Draft) -> Any:
        kept, before = kind.kept(new), None if old is None else kind.kept(old)
        _check_alone(kept, before, draft)
        namespace = new.metadata.namespace
        if isinstance(new, PersistentVolumeClaim) or (isinstance(new, Pod) and old is None):
            limit_ranges.check(kind, new, draft.all(LimitRange.KIND, namespace))
        found = draft.all(ResourceQuota.KIND, namespace) if kind.namespaced else []
        charged = quotas.charged(kind, kept, before, found, draft.all, self._clock())
        new = _with_addresses(new, old, draft, self._services)
        for quota in charged:
            draft.put(quota)
        return new


def _completed(pod: Pod, draft: Draft) -> Pod:
    """The pod with what its account, its class and the project's bounds fill in; all of it must still make sense."""
    pod = pod_accounts.named(pod)
    account = draft.one(Key(ServiceAccount.KIND, pod.metadata.namespace, pod.spec.service_account_name))
    pod = pod_accounts.with_account(pod, account, random_letters())
    pod = priorities.prioritised(pod, draft.all(PriorityClass.KIND))
    filled = limit_ranges.filled(pod, draft.all(LimitRange.KIND, pod.metadata.namespace))
    if filled is pod:
        return pod
    filled = default(filled, POD.rules)
    if problems := list(check(filled, POD.rules)):
        raise answers.invalid(POD, pod.metadata.name, problems)
    return filled


def _check_alone(new: Any, old: Any, draft: Draft) -> None:
    """What must not be the same in two objects. What an update leaves as it was is not looked at again."""
    if isinstance(new, HostSubnet) and (old is None or (old.subnet, old.host_ip) != (new.subnet, new.host_ip)):
        cluster = draft.one(Key(ClusterNetwork.KIND, "", "default"))
        checks.check_host_subnet(new, draft.all(HostSubnet.KIND), cluster)
    elif isinstance(new, NetNamespace) and (old is None or old.netid != new.netid):
        checks.check_net_namespace(new, draft.all(NetNamespace.KIND))
    elif isinstance(new, PriorityClass):
        priorities.check_default(new, draft.all(PriorityClass.KIND))


def _with_addresses(new: Any, old: Any, draft: Draft, wish: ServiceWish) -> Any:
    """The service with what the master hands out; the cursors move with it."""
    cluster = draft.one(Key(ClusterNetwork.KIND, "", "default"))
    if not isinstance(new, Service) or new.metadata.deletion_timestamp or cluster is None:
        return new
    others = [one for one in draft.all(Service.KIND) if one.metadata.uid != new.metadata.uid]
    if new.spec.external_ips:
        hosts = draft.all(HostSubnet.KIND)
        external_addresses.check(new, old, others, wish.external, _reserved(cluster, wish, hosts))
    known = [_cursor(name, draft) for name in ("service-addresses", "node-ports")]
    network = IPv4Network(cluster.service_network)
    done, after = assigned(new, old, others, network, wish.node_ports, Cursors(*(cursor.next for cursor in known)))
    for cursor, number in zip(known, (after.address, after.node_port), strict=True):
        if cursor.next != number:
            draft.put(moved(cursor, number).item)
    return done


def _reserved(cluster: ClusterNetwork, wish: ServiceWish, hosts: Iterable[HostSubnet]) -> dict[IPv4Network, str]:
    """What no external address may be."""
    entries = [entry.cidr for entry in cluster.cluster_networks] or [cluster.network]
    return {
        **{IPv4Network(cidr): f"in the cluster network {cidr}" for cidr in entries},
        IPv4Network(cluster.service_network): f"in the service network {cluster.service_network}",
        **({wish.ingress: f"in the network of ingress addresses {wish.ingress}"} if wish.ingress else {}),
        **{IPv4Network(host.host_ip): f"the address of {host.metadata.name}" for host in hosts if host.host_ip},
    }


def _cursor(name: str, draft: Draft) -> Cursor:
    found: Cursor | None = draft.one(Key(Cursor.KIND, "", name))
    return found or Cursor(metadata=ObjectMeta(name=name))
