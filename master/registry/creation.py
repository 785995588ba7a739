"""Creates objects: admission, the fields that the server sets, and the default objects of a new namespace."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from api.core.config import ConfigMap
from api.core.node import Namespace
from api.meta.types import Object, ObjectMeta
from api.validation.registry import default
from master import errors
from master.admission.chain import AdmissionChain
from master.admission.plugin import AdmissionRequest, Operation, ignore_annotation, ignore_warning
from master.admission.scc.plugin import may_use
from master.auth.attributes import (
    AUTHENTICATED,
    SERVICE_ACCOUNT_USER_PREFIX,
    Authorize,
    User,
    service_account_groups,
)
from master.auth.rbac import Requester
from master.auth.service_account_tokens import DEFAULT_SERVICE_ACCOUNT, ROOT_CA_CONFIGMAP
from master.registry import strategy
from master.registry.decoding import random_letters
from master.registry.pod_security_labels import namespace_level, with_level
from master.resources.configuration import ServiceAccount
from master.resources.metadata import Clock
from master.resources.pod_template import check_pod_numbers
from master.resources.resource import AnyResource
from master.resources.scheme import BY_KIND, group_resource
from master.resources.security_context_constraints import SecurityContextConstraints
from master.storage.interface import Key, Transaction


@dataclass(frozen=True, slots=True)
class ObjectCreation:
    """Creates objects for clients and for controllers.

    `ca_certificate` is the PEM that pods verify the server with. `authorize` decides who may use an SCC; it is None
    without SCCs.
    """

    chain: AdmissionChain
    clock: Clock
    ca_certificate: str
    authorize: Authorize | None = None

    def create(
        self,
        resource: AnyResource,
        obj: Any,
        transaction: Transaction,
        requester: Requester | None = None,
        client_address: str = "",
        *,
        warn: Callable[[str], None] = ignore_warning,
        annotate: Callable[[str, str], None] = ignore_annotation,
        is_trusted: bool = False,
    ) -> Any:
        """Return a decoded object as it is to be stored: mutate, set server fields, validate, admit, reserve.

        The order is that of Kubernetes: the validation of the kind sees what the plugins have changed. `requester` is
        None for controllers, which may replace an object that is deleted in the same write. An object of the master
        that has no template of a client is trusted and not validated: the endpoint of the service `kubernetes` may be a
        loopback address. The transaction gets what is written with the object, but not the object. Raises
        `errors.StatusError`, and leaves the transaction as it was.
        """
        admission = AdmissionRequest(
            operation=Operation.CREATE,
            resource=resource,
            now=self.clock(),
            random_suffix=random_letters,
            requester=requester,
            client_address=client_address,
            warn=warn,
            annotate=annotate,
        )
        # A controller creates pods of templates that no client has sent as such, as that in a ControllerRevision.
        if problems := list(check_pod_numbers(obj)):
            raise errors.invalid(resource, obj.metadata.name, problems)
        with transaction.savepoint():
            obj = self.chain.mutate(admission, obj, transaction)
            obj = strategy.prepare_create(resource, obj, str(uuid.uuid4()), admission.now)
            if not is_trusted:
                strategy.validate(resource, obj)
            key = Key(resource.stored_group_resource, obj.metadata.namespace, obj.metadata.name)
            if requester is not None and transaction.get(key) is not None:
                raise errors.already_exists(resource, obj.metadata.name)
            self.chain.validate(admission, obj, transaction)
            if resource.stored_kind == Namespace.KIND:
                self._create_default_objects(resource.to_stored(obj), transaction)
            obj = self.chain.reserve(admission, obj, transaction)
            if resource.stored_kind == Namespace.KIND:
                obj = resource.from_stored(self._with_security_labels(resource.to_stored(obj), transaction))
            return obj

    def _with_security_labels(self, namespace: Namespace, transaction: Transaction) -> Namespace:
        """Return a new namespace with the Pod Security labels of what its service accounts may use."""
        name, level = namespace.metadata.name, None
        if self.authorize is not None:
            groups = frozenset((AUTHENTICATED, *service_account_groups(name)))
            account = User(f"{SERVICE_ACCOUNT_USER_PREFIX}{name}:{DEFAULT_SERVICE_ACCOUNT}", groups)
            sccs: list[SecurityContextConstraints] = transaction.list(group_resource(SecurityContextConstraints))
            usable = frozenset(scc.metadata.name for scc in sccs if may_use(account, scc, name, self.authorize))
            level = namespace_level(namespace, usable, sccs)
        return with_level(namespace, level, self.clock())

    def _create_default_objects(self, namespace: Namespace, transaction: Transaction) -> None:
        """Create what every namespace has in the same write, because pods may be created right after it."""
        name = namespace.metadata.name
        accounts = transaction.list(group_resource(ServiceAccount), name)
        configs = transaction.list(group_resource(ConfigMap), name)
        for default_object, _ in default_objects([namespace], accounts, configs, self.ca_certificate):
            resource = BY_KIND[default_object.KIND]
            obj = default(default_object, resource.rules)
            transaction.put(
                resource.group_resource, strategy.prepare_create(resource, obj, str(uuid.uuid4()), self.clock())
            )


def default_objects(
    namespaces: Iterable[Namespace],
    accounts: Iterable[ServiceAccount],
    configs: Iterable[ConfigMap],
    ca_certificate: str,
) -> Iterator[tuple[Object, Object | None]]:
    """Yield the missing or changed default objects of namespaces, each with the stored object or None.

    The default objects are the service account `default` and the ConfigMap with the CA certificate.
    """
    with_account = {
        account.metadata.namespace for account in accounts if account.metadata.name == DEFAULT_SERVICE_ACCOUNT
    }
    ca_configs = {
        config_map.metadata.namespace: config_map
        for config_map in configs
        if config_map.metadata.name == ROOT_CA_CONFIGMAP
    }
    for namespace in namespaces:
        name = namespace.metadata.name
        if namespace.metadata.deletion_timestamp:
            continue
        if name not in with_account:
            yield ServiceAccount(metadata=ObjectMeta(name=DEFAULT_SERVICE_ACCOUNT, namespace=name)), None
        data = {"ca.crt": ca_certificate}
        old = ca_configs.get(name)
        if old is None:
            yield ConfigMap(metadata=ObjectMeta(name=ROOT_CA_CONFIGMAP, namespace=name), data=data), None
        elif old.data != data:
            yield ConfigMap(api_version=old.api_version, kind=old.kind, metadata=old.metadata, data=data), old
