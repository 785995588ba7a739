"""The admission chain: every new object passes it, and every object that a client changes.

Admission does not wait, and its decision is part of the caller's transaction. So quotas and allocated numbers hold when
several writes happen at the same time.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from typing import Any

from api.core.config import ConfigMap
from api.core.node import Namespace
from api.core.pod import Pod
from api.core.storage import PersistentVolumeClaim
from api.network.types import ClusterNetwork, HostSubnet, NetNamespace
from api.validation.registry import check, default
from master import errors
from master.admission import (
    cluster_network,
    defaults,
    limit_ranger,
    namespace_lifecycle,
    resource_quota,
    service_account,
)
from master.admission.service_ips import allocate_service_ips
from master.config import ServiceConfig
from master.registry import creation, strategy
from master.registry.decoding import random_letters
from master.resources.configuration import ServiceAccount
from master.resources.ingresses import Ingress, IngressClass
from master.resources.pods import PODS
from master.resources.priority_classes import PriorityClass
from master.resources.quotas import LimitRange, ResourceQuota
from master.resources.resource import AnyResource
from master.resources.scheme import BY_KIND
from master.storage.interface import Key, Transaction


class AdmissionChain:
    """Raises `errors.StatusError`, and then leaves the transaction as it was."""

    def __init__(self, clock: Callable[[], datetime.datetime], authority: str, services: ServiceConfig) -> None:
        """`authority` is the certificate by which pods know this server, as PEM."""
        self._clock = clock
        self._services = services
        self._authority = authority

    def created(self, resource: AnyResource, item: Any, transaction: Transaction) -> Any:
        """A new object as it begins; the transaction gets what is written beside it."""
        meta = item.metadata
        if resource.namespaced:
            namespace = transaction.get(Key(Namespace.KIND, "", meta.namespace))
            namespace_lifecycle.check_namespace(resource, meta.name, meta.namespace, namespace)
        if isinstance(item, Pod):
            item = _mutate_pod(item, transaction)
        elif isinstance(item, Ingress):
            item = defaults.apply_default_class(item, transaction.list(IngressClass.KIND))
        item = self._begun(resource, item)
        if resource.stored_kind == Namespace.KIND:
            self._furnish(resource.to_stored(item), transaction)
        return self._admitted(resource, item, None, transaction)

    def changed(self, resource: AnyResource, new: Any, old: Any, transaction: Transaction) -> Any:
        """An object after an update, as it is to be kept."""
        return self._admitted(resource, new, old, transaction)

    def _begun(self, resource: AnyResource, item: Any) -> Any:
        return strategy.prepare_create(resource, item, str(uuid.uuid4()), self._clock())

    def _furnish(self, namespace: Namespace, transaction: Transaction) -> None:
        """What every project has is there with it, for the pods that are made next."""
        name = namespace.metadata.name
        known = (transaction.list(ServiceAccount.KIND, name), transaction.list(ConfigMap.KIND, name))
        for write in creation.reconcile_companions([namespace], *known, self._authority):
            resource = BY_KIND[write.item.KIND]
            transaction.put(self._begun(resource, default(write.item, resource.rules)))

    def _admitted(self, resource: AnyResource, new: Any, old: Any, transaction: Transaction) -> Any:
        kept, before = resource.to_stored(new), None if old is None else resource.to_stored(old)
        _check_unique(kept, before, transaction)
        namespace = new.metadata.namespace
        if isinstance(new, PersistentVolumeClaim) or (isinstance(new, Pod) and old is None):
            limit_ranger.check_limit_ranges(resource, new, transaction.list(LimitRange.KIND, namespace))
        found = transaction.list(ResourceQuota.KIND, namespace) if resource.namespaced else []
        charged = resource_quota.charge(resource, kept, before, found, transaction.list, self._clock())
        new = allocate_service_ips(new, old, transaction, self._services)
        for quota in charged:
            transaction.put(quota)
        return new


def _mutate_pod(pod: Pod, transaction: Transaction) -> Pod:
    """The pod with what its account, its class and the project's bounds fill in; all of it must still make sense."""
    pod = service_account.set_service_account_name(pod)
    account = transaction.get(Key(ServiceAccount.KIND, pod.metadata.namespace, pod.spec.service_account_name))
    pod = service_account.apply_service_account(pod, account, random_letters())
    pod = defaults.apply_priority(pod, transaction.list(PriorityClass.KIND))
    filled = limit_ranger.apply_limit_range(pod, transaction.list(LimitRange.KIND, pod.metadata.namespace))
    if filled is pod:
        return pod
    filled = default(filled, PODS.rules)
    if problems := list(check(filled, PODS.rules)):
        raise errors.invalid(PODS, pod.metadata.name, problems)
    return filled


def _check_unique(new: Any, old: Any, transaction: Transaction) -> None:
    """What must not be the same in two objects. What an update leaves as it was is not looked at again."""
    if isinstance(new, HostSubnet) and (old is None or (old.subnet, old.host_ip) != (new.subnet, new.host_ip)):
        cluster = transaction.get(Key(ClusterNetwork.KIND, "", "default"))
        cluster_network.check_host_subnet(new, transaction.list(HostSubnet.KIND), cluster)
    elif isinstance(new, NetNamespace) and (old is None or old.netid != new.netid):
        cluster_network.check_net_namespace(new, transaction.list(NetNamespace.KIND))
    elif isinstance(new, PriorityClass):
        defaults.check_single_default(new, transaction.list(PriorityClass.KIND))
