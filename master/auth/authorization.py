"""Authorization: system:masters may do everything; then node rules decide, then RBAC."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

import msgspec

from api.core.auth import NonResourceAttributes, ResourceAttributes, TokenRequest
from api.core.certificates import CertificateSigningRequest
from api.core.events import Event
from api.core.node import Namespace, Node
from api.core.pod import Pod
from api.core.references import Reference, pod_refs
from api.core.storage import PersistentVolume, PersistentVolumeClaim
from api.meta.schema import without_nulls
from api.meta.types import Object
from api.network.queries import NodeQuery
from master import errors
from master.admission import certificate_requests, node_restriction
from master.auth import impersonation, rbac, service_account_tokens
from master.auth.attributes import ALLOWED, SYSTEM_MASTERS, Attributes, Decision, PathAttributes, User, denial_message
from master.auth.node_authorizer import NODE_RESOURCES, READABLE_IF_REFERENCED, node_denial
from master.auth.rbac import BindingIndex
from master.registry.request import (
    METHOD_VERBS,
    NameFilter,
    Request,
    RequestInfo,
    parse_delete_options,
    parse_selection,
)
from master.resources import scheme
from master.resources.configuration import ServiceAccount
from master.resources.rbac import PolicyRule
from master.resources.resource import AnyResource
from master.resources.resource_slices import ResourceSlice
from master.storage.interface import Key, Storage


def decide(
    user: User, asked: Attributes | PathAttributes, by_roles: Callable[[Attributes | PathAttributes], Decision]
) -> Decision:
    """Whether the user may do that. `by_roles` says what roles allow."""
    if SYSTEM_MASTERS in user.groups:
        return ALLOWED
    if user.node and isinstance(asked, Attributes) and (asked.group, asked.resource) in NODE_RESOURCES:
        reason = node_denial(user.node, asked)
        return ALLOWED if reason is None else Decision(False, reason)
    return by_roles(asked)


NODE_BOUND_KINDS = frozenset(("Pod", "NodeQuery", "ResourceSlice"))
"""Kinds whose objects belong to the node that `spec.nodeName` names."""

VERBS = frozenset((*METHOD_VERBS.values(), "list", "watch", "deletecollection"))


class Authorizer:
    """Raises `errors.StatusError`. `asked(ask)` is the TokenRequest in a body."""

    def __init__(self, storage: Storage, asked: Callable[[Request], TokenRequest]) -> None:
        self._store = storage
        self._asked = asked
        self._grants = BindingIndex(storage)

    def check(self, user: User, verb: str, request: Request) -> None:
        """Whether the user may do that with objects. A namespace lies in itself: who may read there may read it."""
        if SYSTEM_MASTERS in user.groups:
            return
        attributes = self._attributes(user, verb, request)
        found = self.decision(user, attributes)
        if not found.allowed:
            raise errors.forbidden(request.info.resource, request.info.name, _denial(user, attributes, found))

    def visible(self, user: User, resource: AnyResource) -> NameFilter | None:
        """Which objects of a kind somebody is shown in lists; None for all."""
        if not resource.filtered_list or SYSTEM_MASTERS in user.groups:
            return None
        keeper = resource.stored_resource
        return lambda name: (
            self.decision(user, Attributes("get", keeper.group, keeper.plural, namespace=name, name=name)).allowed
        )

    def check_attributes(self, user: User, attributes: Attributes | PathAttributes) -> None:
        """The same for what is no object that is kept."""
        found = self.decision(user, attributes)
        if found.allowed:
            return
        raise errors.forbidden_request(attributes, _denial(user, attributes, found))

    def decision(self, user: User, attributes: Attributes | PathAttributes) -> Decision:
        """Whether the user may do that, and why."""
        namespace = attributes.namespace if isinstance(attributes, Attributes) else ""
        return decide(user, attributes, lambda asked: rbac.decide(asked, self._grants.of(user, namespace)))

    def reviewed(self, user: User, access: ResourceAttributes | NonResourceAttributes) -> Decision:
        """The same as a review asks it."""
        if isinstance(access, NonResourceAttributes):
            return self.decision(user, PathAttributes(access.verb, access.path))
        where = scheme.find_resource(access.group, access.resource) if user.node else None
        if where is None or access.verb not in VERBS:
            asked = (access.verb, access.group, access.resource, access.subresource, access.namespace, access.name)
            return self.decision(user, Attributes(*asked))
        info = RequestInfo(where, access.namespace, access.name, access.subresource)
        return self.decision(user, self._attributes(user, access.verb, Request(info, {})))

    def rules(self, user: User, namespace: str) -> tuple[PolicyRule, ...]:
        """Everything that roles allow somebody in a namespace."""
        if SYSTEM_MASTERS in user.groups:
            return rbac.ALL_RULES
        return tuple(chain.from_iterable(grant.rules or () for grant in self._grants.of(user, namespace)))

    def disguised(self, user: User, headers: Iterable[tuple[str, str]]) -> User:
        """Whom a request is to be answered as: by its headers somebody else, if the user may be that."""
        wanted = impersonation.parse_impersonation(headers)
        if wanted is None:
            return user
        for attributes in wanted.needed:
            self.check_attributes(user, attributes)
        return wanted.user

    def guard(self, resource: AnyResource, new: Any, old: Any, user: User, part: str = "") -> None:
        """Whether the user may give away what a role, a binding or a certificate gives; a node, say that of itself."""
        if isinstance(new, CertificateSigningRequest):
            if old is None:
                certificate_requests.check_csr_create(new, user)
            certificate_requests.check_csr_update(
                new, old, part, user, lambda who, asked: self.decision(who, asked).allowed
            )
        if user.node and SYSTEM_MASTERS not in user.groups and isinstance(new, Node):
            found = node_restriction.node_restriction_denial(new, old)
            if found is not None:
                raise errors.forbidden(resource, new.metadata.name, found)
        if isinstance(new, rbac.ESCALATION_CHECKED):
            giver = rbac.Requester(
                user,
                may=lambda asked: self.decision(user, asked).allowed,
                held=lambda namespace: self.rules(user, namespace),
                rules=self._grants.rules,
            )
            rbac.check_escalation(resource, new, old, giver)

    # --- what nodes' rules look at ---------------------------------------------------------------------------------

    def _attributes(self, user: User, verb: str, request: Request) -> Attributes:
        info = request.info
        name = info.name
        if not name and "fieldSelector" in request.query:
            name = parse_selection(info, request.query).fields.required_value("metadata.name") or ""
        namespace = info.name if info.resource.stored_kind == Namespace.KIND else info.namespace
        plain = Attributes(verb, info.resource.group, info.resource.plural, info.subresource, namespace, name)
        return self._of_node(user.node, plain, request) if user.node else plain

    def _of_node(self, node: str, plain: Attributes, request: Request) -> Attributes:
        info, verb = request.info, plain.verb
        record = self._store.get_uncommitted(request.key) if info.name else None
        asked_node = ""
        if info.resource.name in NODE_BOUND_KINDS and not info.name:
            asked_node = parse_selection(info, request.query).fields.required_value("spec.nodeName") or ""
        creates, own = verb == "create", self._store.get_uncommitted(Key("Node", "", node))
        return replace(
            plain,
            asked_node=asked_node,
            bound_to=None if record is None else bound_node(record.object),
            body_name=_in_body(request, "metadata", "name") if creates else "",
            body_host=_in_body(request, "source", "host") if creates else "",
            grace=parse_delete_options(request).grace_period_seconds if verb == "delete" and info.name else None,
            needed=self._is_needed(node, request),
            pod=_body_pod(request) if creates and info.resource.name == "Pod" else None,
            node_uid="" if own is None else own.object.metadata.uid,
        )

    def _is_needed(self, node: str, request: Request) -> bool:
        info = request.info
        if info.resource.type is ServiceAccount:
            return self._is_bound_there(node, request)
        if (info.resource.group, info.resource.plural) not in READABLE_IF_REFERENCED:
            return False
        name = info.name or parse_selection(info, request.query).fields.required_value("metadata.name")
        pods: Iterable[Pod] = (record.object for record in self._store.list_uncommitted(Pod.KIND, info.namespace))
        named = (one for pod in pods if pod.spec.node_name == node for one in pod_refs(pod))
        if info.resource.type is PersistentVolume:
            return any(self._has_storage(claim, name or "") for claim in named if claim.kind is PersistentVolumeClaim)
        return Reference(info.resource.type, info.namespace, name or "") in named

    def _is_bound_there(self, node: str, request: Request) -> bool:
        """Whether a token is asked for, for a pod on that node that runs under the account."""
        if request.info.subresource != "token" or request.body is None:
            return False
        reference = self._asked(request).spec.bound_object_ref
        record = reference and self._store.get_uncommitted(Key(reference.kind, request.info.namespace, reference.name))
        if reference is None or not record or not isinstance(record.object, Pod):
            return False
        pod: Pod = record.object
        account = pod.spec.service_account_name or service_account_tokens.DEFAULT_SERVICE_ACCOUNT
        same = reference.uid == pod.metadata.uid and account == request.info.name
        return same and pod.spec.node_name == node

    def _has_storage(self, claim: Reference, volume: str) -> bool:
        record = self._store.get_uncommitted(Key(claim.kind.KIND, claim.namespace, claim.name))
        return record is not None and record.object.spec.volume_name == volume


def bound_node(item: Object) -> str:
    """The node to which an object belongs; that of an Event is the one that tells it."""
    if isinstance(item, Event):
        return item.source.host
    return item.spec.node_name or "" if isinstance(item, Pod | NodeQuery | ResourceSlice) else ""


def _denial(user: User, attributes: Attributes | PathAttributes, found: Decision) -> str:
    sentence = denial_message(user, attributes)
    return f"{sentence}: {found.reason}" if found.reason else sentence


def _in_body(request: Request, part: str, field: str) -> str:
    document = request.body
    held = document.get(part) if isinstance(document, dict) else None
    found = held.get(field) if isinstance(held, dict) else None
    return found if isinstance(found, str) else ""


def _body_pod(request: Request) -> Pod | None:
    """The Pod in the body of a create; None if it has not the shape of one."""
    try:
        return msgspec.convert(without_nulls(request.body), Pod)
    except msgspec.ValidationError:
        return None
