"""Creates objects: admission, the fields that the server sets, and the default objects of a new namespace."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from api.core.config import ConfigMap
from api.core.node import Namespace
from api.meta.types import Object, ObjectMeta
from api.validation.registry import default
from master import errors
from master.admission.chain import AdmissionChain
from master.admission.external_calls import PendingWrite
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
from master.registry.external_caller import ExternalCaller
from master.registry.pod_security_labels import namespace_level, with_level
from master.resources.configuration import ServiceAccount
from master.resources.metadata import Clock
from master.resources.pod_template import check_pod_numbers
from master.resources.resource import AnyResource
from master.resources.scheme import BUILTIN_SCHEME, BY_KIND, Scheme, group_resource
from master.resources.security_context_constraints import SecurityContextConstraints
from master.storage.interface import Key, Transaction


def new_uid() -> str:
    """Return a new uid."""
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True)
class ObjectCreation:
    """Creates objects for clients and for controllers.

    `caller` makes the external calls of creates and of all other writes. `ca_certificate` is the PEM that pods verify
    the server with. `authorize` decides who may use an SCC; it is None without SCCs. `scheme` has the resources that
    are served.
    """

    chain: AdmissionChain
    clock: Clock
    ca_certificate: str
    authorize: Authorize | None = None
    caller: ExternalCaller = field(default_factory=ExternalCaller)
    scheme: Scheme = BUILTIN_SCHEME

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
        options: Mapping[str, Any] | None = None,
        is_dry_run: bool = False,
        write: PendingWrite | None = None,
    ) -> Any:
        """Return a decoded object as it is to be stored: mutate, set server fields, validate, admit, reserve.

        The order is that of Kubernetes: the validation of the kind sees what the plugins have changed.
        `requester` is None for controllers, which may replace an object that is deleted in the same write. An
        object of the master that has no template of a client is trusted and not validated: the endpoint of the
        service `kubernetes` may be a loopback address. No external call is made about a create without `write`.
        The transaction gets what is written with the object, but not the object. Raises `errors.StatusError`
        and CallsPending, and leaves the transaction as it was.
        """
        draws = PendingWrite() if write is None else write
        admission = AdmissionRequest(
            operation=Operation.CREATE,
            resource=resource,
            now=draws.now(self.clock),
            random_suffix=lambda: draws.letters(random_letters),
            requester=requester,
            client_address=client_address,
            warn=warn,
            annotate=annotate,
            is_dry_run=is_dry_run,
            options=options,
            external=None if write is None else write.external,
            scheme=self.scheme,
        )
        # A controller creates pods of templates that no client has sent as such, as that in a ControllerRevision.
        if problems := list(check_pod_numbers(obj)):
            raise errors.invalid(resource, obj.metadata.name, problems)
        with transaction.savepoint():
            obj = self.chain.mutate(admission, obj, transaction)
            obj = strategy.prepare_create(resource, obj, draws.uid(new_uid), admission.now)
            if not is_trusted:
                strategy.validate_create(resource, obj)
            key = Key(resource.stored_group_resource, obj.metadata.namespace, obj.metadata.name)
            if requester is not None and transaction.get(key) is not None:
                raise errors.already_exists(resource, obj.metadata.name)
            self.chain.validate(admission, obj, transaction)
            if resource.is_stored_as(Namespace):
                self._create_default_objects(resource.to_stored(obj), transaction, draws)
            obj = self.chain.reserve(admission, obj, transaction)
            if resource.is_stored_as(Namespace):
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

    def _create_default_objects(self, namespace: Namespace, transaction: Transaction, draws: PendingWrite) -> None:
        """Create what every namespace has in the same write, because pods may be created right after it."""

        def get(kind: type[Object], name: str, namespace: str) -> Any:
            return transaction.get(Key(group_resource(kind), namespace, name))

        for default_object, _ in default_objects([namespace], get, self.ca_certificate):
            resource = BY_KIND[default_object.KIND]
            obj = default(default_object, resource.rules)
            transaction.put(
                resource.group_resource,
                strategy.prepare_create(resource, obj, draws.uid(new_uid), draws.now(self.clock)),
            )


def default_objects(
    namespaces: Iterable[Namespace], get: Callable[[type[Object], str, str], Any], ca_certificate: str
) -> Iterator[tuple[Object, Object | None]]:
    """Yield the missing or changed default objects of namespaces, each with the stored object or None.

    The default objects are the service account `default` and the ConfigMap with the CA certificate. `get` returns the
    stored object of a type, name and namespace, or None.
    """
    for namespace in namespaces:
        name = namespace.metadata.name
        if namespace.metadata.deletion_timestamp:
            continue
        if get(ServiceAccount, DEFAULT_SERVICE_ACCOUNT, name) is None:
            yield ServiceAccount(metadata=ObjectMeta(name=DEFAULT_SERVICE_ACCOUNT, namespace=name)), None
        data = {"ca.crt": ca_certificate}
        old = get(ConfigMap, ROOT_CA_CONFIGMAP, name)
        if old is None:
            yield ConfigMap(metadata=ObjectMeta(name=ROOT_CA_CONFIGMAP, namespace=name), data=data), None
        elif old.data != data:
            yield ConfigMap(api_version=old.api_version, kind=old.kind, metadata=old.metadata, data=data), old
