"""Authorization: scopes of the token, then system:masters, which may do everything, then node rules, then RBAC."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain

from api.core.auth import NonResourceAttributes, ResourceAttributes
from api.core.events import Event
from api.core.node import Namespace
from api.core.pod import Pod
from api.core.references import Reference, pod_refs
from api.core.storage import LocalVolume, PersistentVolume, PersistentVolumeClaim
from api.meta.types import Object
from api.network.queries import NodeQuery
from master import errors, request_info
from master.auth import attributes as auth_attributes
from master.auth import impersonation, rbac, scopes
from master.auth.attributes import (
    ALLOWED,
    AUTHENTICATED,
    SYSTEM_MASTERS,
    Attributes,
    Decision,
    PathAttributes,
    User,
)
from master.auth.node_authorizer import NODE_RESOURCES, READABLE_IF_REFERENCED, NodeAccess, node_denial
from master.auth.rbac import BindingIndex, Requester
from master.request_info import NameFilter, RecordFilter, RequestInfo
from master.resources import scheme
from master.resources.group_resource import GroupResource
from master.resources.rbac import ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef
from master.resources.resource import VERBS, AnyResource
from master.resources.scheme import group_resource
from master.storage.interface import Key, Storage, WatchEvent

NODE_BOUND_KINDS = frozenset(("Pod", "NodeQuery", "LocalVolume", "ResourceSlice"))
"""Kinds whose objects belong to the node that `spec.nodeName` names."""


PROXY, UNSAFE_PROXY = "proxy", "unsafeproxy"
"""The verb and subresource for requests to pods, services and nodes through the master, and their name in rules for
users without credentials.
"""


def decide(
    user: User,
    attributes: Attributes | PathAttributes,
    access: NodeAccess,
    by_roles: Callable[[Attributes | PathAttributes], Decision],
) -> Decision:
    """Decide a request without scopes: system:masters first, then the rules for nodes, then roles (`by_roles`)."""
    if SYSTEM_MASTERS in user.groups:
        return ALLOWED
    if isinstance(attributes, Attributes) and AUTHENTICATED not in user.groups:
        attributes = browser_safe(attributes)
    if user.node and isinstance(attributes, Attributes) and (attributes.group, attributes.resource) in NODE_RESOURCES:
        denial = node_denial(user.node, attributes, access)
        return ALLOWED if denial is None else Decision(False, denial)
    return by_roles(attributes)


def browser_safe(attributes: Attributes) -> Attributes:
    """Return the attributes of a request without credentials: `proxy` is `unsafeproxy`.

    A browser that follows a link sends no credentials. A pod behind the proxy could answer it with a script, which
    then would run as one of the API server.
    """
    verb = UNSAFE_PROXY if attributes.verb == PROXY else attributes.verb
    subresource = UNSAFE_PROXY if attributes.subresource == PROXY else attributes.subresource
    return replace(attributes, verb=verb, subresource=subresource)


ROLES_AND_BINDINGS = (Role, RoleBinding, ClusterRole, ClusterRoleBinding)
"""Kinds on which decisions depend."""

MAX_READERS = 1000
"""Users whose readable names are kept."""


class ReadableNames:
    """The decisions whether users may get objects of filtered lists, kept until roles or bindings change.

    A user may have many watches, and each of them asks for each change of an object.
    """

    def __init__(self, store: Storage) -> None:
        self._by_reader: dict[tuple[User, GroupResource], dict[str, bool]] = {}
        for kind in ROLES_AND_BINDINGS:
            store.watch(group_resource(kind), self._forget)

    def of(self, user: User, resource: AnyResource) -> dict[str, bool]:
        """Return the decisions for a user, by name. The caller adds to them."""
        if len(self._by_reader) >= MAX_READERS:
            self._by_reader.clear()
        return self._by_reader.setdefault((user, resource.stored_group_resource), {})

    def _forget(self, _: WatchEvent) -> None:
        for decisions in self._by_reader.values():
            decisions.clear()


MAX_ADMISSION_DECISIONS = 2000
"""Decisions of admission that are kept."""


class AdmissionDecisions:
    """The decisions that admission asks for, kept until roles or bindings change.

    For one pod these are several: whether its service account and its requester may use one SCC after the other.
    """

    def __init__(self, store: Storage, decide: Callable[[User, Attributes], bool]) -> None:
        self._decide = decide
        self._decisions: dict[tuple[User, Attributes], bool] = {}
        for kind in ROLES_AND_BINDINGS:
            store.watch(group_resource(kind), lambda _: self._decisions.clear())

    def of(self, user: User, attributes: Attributes) -> bool:
        """Return the decision. That about a node depends on its pods, too, and is not kept."""
        if user.node:
            return self._decide(user, attributes)
        key = user, attributes
        allowed = self._decisions.get(key)
        if allowed is None:
            if len(self._decisions) >= MAX_ADMISSION_DECISIONS:
                self._decisions.clear()
            allowed = self._decisions[key] = self._decide(user, attributes)
        return allowed


class Authorizer:
    """Decides which requests are allowed. Methods that require something raise `errors.StatusError`."""

    def __init__(self, store: Storage) -> None:
        self._store = store
        self._bindings = BindingIndex(store)
        self._readable = ReadableNames(store)
        self._admission = AdmissionDecisions(store, self.allows)

    def require(self, user: User, verb: str, info: RequestInfo, query: Mapping[str, str]) -> Decision:
        """Require that the user may send this request for objects, and return why. Raises Forbidden."""
        if SYSTEM_MASTERS in user.groups and not user.extra:
            return ALLOWED
        attributes = request_attributes(verb, info, query)
        access = self._node_access(user.node, info, query) if user.node else NodeAccess()
        decision = self._decide(user, attributes, access)
        if not decision.allowed:
            raise errors.forbidden(info.resource, info.name, _denial(user, attributes, decision))
        return decision

    def require_attributes(self, user: User, attributes: Attributes | PathAttributes) -> Decision:
        """Require that the user may send a request not about stored objects, and return why. Raises Forbidden."""
        decision = self.decide(user, attributes)
        if decision.allowed:
            return decision
        denial = _denial(user, attributes, decision)
        if isinstance(attributes, PathAttributes):
            raise errors.forbidden_path(denial)
        raise errors.forbidden_request(attributes.group, attributes.resource, attributes.name, denial)

    def decide(self, user: User, attributes: Attributes | PathAttributes) -> Decision:
        """Decide a request by its attributes alone."""
        return self._decide(user, attributes, NodeAccess())

    def allows(self, user: User, attributes: Attributes | PathAttributes) -> bool:
        """Return whether a request is allowed by its attributes alone."""
        return self.decide(user, attributes).allowed

    def allows_in_admission(self, user: User, attributes: Attributes) -> bool:
        """Return whether a request is allowed, as `allows`. The decision is kept."""
        return self._admission.of(user, attributes)

    def _decide(self, user: User, attributes: Attributes | PathAttributes, access: NodeAccess) -> Decision:
        if user.extra and (denial := scopes.denial(user, attributes, self._cluster_role_rules)) is not None:
            return denial
        namespace = attributes.namespace if isinstance(attributes, Attributes) else ""
        bindings = self._bindings
        return decide(user, attributes, access, lambda requested: rbac.decide(requested, bindings.of(user, namespace)))

    def decide_review(self, user: User, access: ResourceAttributes | NonResourceAttributes) -> Decision:
        """Decide the request that an access review describes."""
        if isinstance(access, NonResourceAttributes):
            return self.decide(user, PathAttributes(access.verb, access.path))
        resource = scheme.find_resource(access.group, access.resource) if user.node else None
        if resource is None or access.verb not in VERBS:
            attributes = Attributes(
                access.verb, access.group, access.resource, access.subresource, access.namespace, access.name
            )
            return self.decide(user, attributes)
        info = RequestInfo(resource, access.namespace, access.name, access.subresource)
        return self._decide(user, request_attributes(access.verb, info, {}), self._node_access(user.node, info, {}))

    def rules_for(self, user: User, namespace: str) -> tuple[PolicyRule, ...]:
        """Return the rules of all roles that the user has in a namespace."""
        if SYSTEM_MASTERS in user.groups:
            return rbac.ALL_RULES
        matches = rbac.different_roles(self._bindings.of(user, namespace))
        return tuple(chain.from_iterable(match.rules or () for match in matches))

    def role_rules(self, reference: RoleRef, namespace: str) -> tuple[PolicyRule, ...] | None:
        """Return the rules of the role that a binding of the namespace refers to; None if it does not exist."""
        return self._bindings.role_rules(reference, namespace)

    def _cluster_role_rules(self, name: str) -> tuple[PolicyRule, ...] | None:
        return self.role_rules(RoleRef(kind=ClusterRole.KIND, name=name), "")

    def requester(self, user: User) -> Requester:
        """Return the user with access to what the user may do, for admission.

        A user whose token is limited by scopes holds no rules, and so cannot grant any.
        """
        return Requester(
            user,
            is_allowed=lambda attributes: self.allows(user, attributes),
            rules_for=lambda namespace: () if scopes.is_limited(user) else self.rules_for(user, namespace),
            role_rules=self.role_rules,
        )

    def name_filter(
        self, user: User, resource: AnyResource, current_user: Callable[[], User] | None = None
    ) -> NameFilter | None:
        """Return the filter of the names that lists show to the user; None for all.

        `current_user` returns the user with the groups of today, for a watch.
        """
        if not resource.filtered_list or (SYSTEM_MASTERS in user.groups and not user.extra):
            return None
        stored = resource.stored_resource

        def may_get(name: str) -> bool:
            reader = user if current_user is None else current_user()
            known = self._readable.of(reader, resource)
            allowed = known.get(name)
            if allowed is None:
                attributes = Attributes("get", stored.group, stored.plural, namespace=name, name=name)
                allowed = known[name] = self.allows(reader, attributes)
            return allowed

        return may_get

    def impersonate(self, user: User, headers: Iterable[tuple[str, str]]) -> User:
        """Return the user that the request is handled as: the impersonated one if headers name one.

        Raises Forbidden if the user may not impersonate that user.
        """
        requested = impersonation.parse_impersonation(headers)
        if requested is None:
            return user
        for attributes in requested.required:
            self.require_attributes(user, attributes)
        return requested.user

    # --- facts for the rules of nodes ------------------------------------------------------------------------------

    def _node_access(self, node: str, info: RequestInfo, query: Mapping[str, str]) -> NodeAccess:
        record = None
        if info.name:
            record = self._store.get_uncommitted(Key(info.resource.stored_group_resource, info.namespace, info.name))
        selected_node = ""
        if info.resource.kind in NODE_BOUND_KINDS and not info.name:
            selected_node = request_info.parse_selection(info, query).fields.required_value("spec.nodeName") or ""
        return NodeAccess(
            selected_node,
            None if record is None else bound_node(record.object),
            self._is_referenced(node, info, query),
        )

    def _is_referenced(self, node: str, info: RequestInfo, query: Mapping[str, str]) -> bool:
        """Return True if a pod on the node refers to the requested object."""
        if (info.resource.group, info.resource.plural) not in READABLE_IF_REFERENCED:
            return False
        name = info.name or request_info.parse_selection(info, query).fields.required_value("metadata.name") or ""
        records = self._store.list_uncommitted(group_resource(Pod), info.namespace)
        pods: Iterable[Pod] = (record.object for record in records)
        references = (reference for pod in pods if pod.spec.node_name == node for reference in pod_refs(pod))
        if info.resource.type is PersistentVolume:
            return any(
                self._has_storage(reference, name)
                for reference in references
                if reference.kind is PersistentVolumeClaim
            )
        return Reference(info.resource.type, info.namespace, name) in references

    def _has_storage(self, claim: Reference, volume: str) -> bool:
        record = self._store.get_uncommitted(Key(group_resource(claim.kind), claim.namespace, claim.name))
        return record is not None and bool(volume) and record.object.spec.volume_name == volume


def owner_filter(user: User, resource: AnyResource) -> RecordFilter | None:
    """Return the filter of the objects that only their owner sees; None if the resource has no owner."""
    owner = resource.owner
    return None if owner is None else lambda record: owner(record.object) == (user.name, user.uid)


def request_attributes(verb: str, info: RequestInfo, query: Mapping[str, str]) -> Attributes:
    """Return the attributes of a request for objects.

    A list with a field selector for one name counts as a request for that name. A namespace lies in itself: a user who
    may read it in that namespace may read it.
    """
    name = info.name
    if not name and "fieldSelector" in query:
        name = request_info.parse_selection(info, query).fields.required_value("metadata.name") or ""
    namespace = info.name if info.resource.is_stored_as(Namespace) else info.namespace
    return Attributes(verb, info.resource.group, info.resource.plural, info.subresource, namespace, name)


def bound_node(obj: Object) -> str:
    """Return the node that an object belongs to. For an Event, it is the node that reported it."""
    if isinstance(obj, Event):
        return obj.source.host
    return obj.spec.node_name or "" if isinstance(obj, Pod | NodeQuery | LocalVolume) else ""


def _denial(user: User, attributes: Attributes | PathAttributes, decision: Decision) -> str:
    sentence = auth_attributes.denial_message(user, attributes)
    return f"{sentence}: {decision.reason}" if decision.reason else sentence
