"""Decides whether rules and selectors of a webhook, a policy or a binding choose a request. Pure.

The order is that of kube-apiserver: the selector of namespaces, the selector of objects, the excluded requests, then
the rules. Match conditions are in `master/admission/cel_calls.py`, because CEL evaluates them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

from api.core.certificates import CertificateSigningRequest
from api.core.events import Event
from api.core.node import Lease, Namespace, Node
from api.meta.selectors import LabelSelector, compile_selector
from master.admission.plugin import AdmissionRequest, Operation
from master.resources.group_resource import GroupResource
from master.resources.match_resources import (
    ADMISSION_GROUP,
    ANY,
    CLUSTER_SCOPE,
    EXACT,
    NAMESPACED_SCOPE,
    MatchResources,
    NamedRuleWithOperations,
    RuleWithOperations,
)
from master.resources.resource import AnyResource
from master.resources.scheme import BY_PATH, Scheme, group_resource
from master.storage.interface import Key, Transaction

R = TypeVar("R", bound=RuleWithOperations)


class ResourceVersion(NamedTuple):
    """A resource in one of its versions (client-go: GroupVersionResource)."""

    group: str
    version: str
    resource: str


class MatchAttributes(NamedTuple):
    """What rules and selectors look at in a request.

    `resource` is what the client names, `equivalents` are other versions and projections with the same objects. `name`
    is empty for a create whose name is generated later. `object_labels` and `old_labels` are None if there is no such
    object. `namespace_labels` are those of the namespace; None for an object without a namespace.
    """

    operation: str
    resource: ResourceVersion
    subresource: str
    namespaced: bool
    name: str
    object_labels: Mapping[str, str] | None
    old_labels: Mapping[str, str] | None
    namespace_labels: Mapping[str, str] | None
    equivalents: tuple[ResourceVersion, ...] = ()


# --- deciding ---------------------------------------------------------------------------------------------------------


def match_resources(match: MatchResources, attributes: MatchAttributes) -> ResourceVersion | None:
    """Return as which resource a request matches, None if it does not match.

    This is the resource of the request, or with the policy Equivalent the one that a rule names. Constraints without
    rules match every request that the selectors choose.
    """
    if not matches_selectors(match.namespace_selector, match.object_selector, attributes):
        return None
    if match_named_rules(match.exclude_resource_rules, match.match_policy, attributes) is not None:
        return None
    if not match.resource_rules:
        return attributes.resource
    return match_named_rules(match.resource_rules, match.match_policy, attributes)


def matches_selectors(
    namespaces: LabelSelector | None, objects: LabelSelector | None, attributes: MatchAttributes
) -> bool:
    """Return whether the namespace of the request is selected, and its object or old object."""
    if not _is_empty(namespaces) and attributes.namespace_labels is not None:
        assert namespaces is not None
        if not compile_selector(namespaces).matches(attributes.namespace_labels):
            return False
    if _is_empty(objects):
        return True
    assert objects is not None
    selector = compile_selector(objects)
    return any(
        labels is not None and selector.matches(labels) for labels in (attributes.object_labels, attributes.old_labels)
    )


def _is_empty(selector: LabelSelector | None) -> bool:
    return selector is None or not (selector.match_labels or selector.match_expressions)


def match_rules(
    rules: Iterable[RuleWithOperations], match_policy: str, attributes: MatchAttributes
) -> ResourceVersion | None:
    """Return as which resource a request matches one of the rules of a webhook, None if it matches none."""
    return _first_match(tuple(rules), match_policy, attributes, lambda _: True)


def match_named_rules(
    rules: Sequence[NamedRuleWithOperations], match_policy: str, attributes: MatchAttributes
) -> ResourceVersion | None:
    """Return as which resource a request matches one of the rules of a policy, None if it matches none."""
    return _first_match(
        rules,
        match_policy,
        attributes,
        lambda rule: not rule.resource_names or attributes.name in rule.resource_names,
    )


def _first_match(
    rules: Sequence[Any], match_policy: str, attributes: MatchAttributes, matches_name: Callable[[Any], bool]
) -> ResourceVersion | None:
    equivalents = () if match_policy == EXACT else attributes.equivalents
    for resource in (attributes.resource, *equivalents):
        for rule in rules:
            if _matches_rule(rule, resource, attributes) and matches_name(rule):
                return resource
    return None


def _matches_rule(rule: RuleWithOperations, resource: ResourceVersion, attributes: MatchAttributes) -> bool:
    if not (
        _names(rule.operations, attributes.operation)
        and _names(rule.api_groups, resource.group)
        and _names(rule.api_versions, resource.version)
    ):
        return False
    if rule.scope == CLUSTER_SCOPE and attributes.namespaced:
        return False
    if rule.scope == NAMESPACED_SCOPE and not attributes.namespaced:
        return False
    for pattern in rule.resources:
        name, _, subresource = pattern.partition("/")
        if name in (ANY, resource.resource) and subresource in (ANY, attributes.subresource):
            return True
    return False


def _names(accepted: Sequence[str], value: str) -> bool:
    return ANY in accepted or value in accepted


# --- the attributes of a request --------------------------------------------------------------------------------------


def resource_version(resource: AnyResource) -> ResourceVersion:
    """Return the group, version and plural name of a resource."""
    return ResourceVersion(resource.group, resource.version, resource.plural)


def equivalent_resources(resource: AnyResource, scheme: Scheme) -> tuple[ResourceVersion, ...]:
    """Return the other resources that have the same objects.

    A projection is one of them: a rule for `namespaces` also matches a write of a Project, which changes a Namespace.
    """
    kind = scheme.custom_kind(resource.stored_group_resource)
    own = resource_version(resource)
    if kind is None:
        return _builtin_equivalents(resource.stored_group_resource, own)
    return tuple(each for version in kind.versions if (each := resource_version(version)) != own)


@cache
def _builtin_equivalents(stored_in: GroupResource, of: ResourceVersion) -> tuple[ResourceVersion, ...]:
    return tuple(
        each
        for resource in BY_PATH.values()
        if resource.stored_group_resource == stored_in and (each := resource_version(resource)) != of
    )


def matched_resource(request: AdmissionRequest, matched: ResourceVersion) -> AnyResource:
    """Return the resource that a rule names, among those of the objects of a request."""
    return request.scheme.at_path(matched.group, matched.version, matched.resource) or request.resource


def is_exempt(resource: AnyResource) -> bool:
    """Return whether neither webhooks nor policies are applied to a kind: those by which one repairs them."""
    return resource.group == ADMISSION_GROUP


SYSTEM_RESOURCES = frozenset(group_resource(kind) for kind in (Lease, Event, Node, CertificateSigningRequest))
"""What nodes and controllers write on their own."""


def applicable_rules(rules: Sequence[R], request: AdmissionRequest) -> tuple[R, ...]:
    """Return the rules that may choose a request.

    What nodes and controllers write on their own, so that the cluster works, is chosen only by rules that name groups
    and resources without `*`.
    """
    is_own = request.requester is None or bool(request.requester.user.node)
    if not is_own or request.resource.stored_group_resource not in SYSTEM_RESOURCES:
        return tuple(rules)
    return tuple(rule for rule in rules if _is_explicit(rule))


def _is_explicit(rule: RuleWithOperations) -> bool:
    return ANY not in rule.api_groups and not any(ANY in name.partition("/")[0] for name in rule.resources)


def match_attributes(request: AdmissionRequest, obj: Any, objects: Transaction) -> MatchAttributes:
    """Return the attributes of a request. `obj` is the new object, or that of a delete or connection."""
    resource = request.resource
    own = resource_version(resource)
    new = None if request.operation is Operation.DELETE else obj
    old = obj if request.operation is Operation.DELETE else request.old
    named = obj if obj is not None else request.old
    return MatchAttributes(
        operation=str(request.operation),
        resource=own,
        subresource=request.subresource,
        namespaced=resource.namespaced,
        name=named.metadata.name,
        object_labels=None if new is None else new.metadata.labels,
        old_labels=None if old is None else old.metadata.labels,
        namespace_labels=_namespace_labels(request, named, objects),
        equivalents=equivalent_resources(resource, request.scheme),
    )


def _namespace_labels(request: AdmissionRequest, obj: Any, objects: Transaction) -> Mapping[str, str] | None:
    """Return the labels of the namespace of an object; those of a Namespace are its own, the new ones."""
    if request.resource.stored_group_resource == group_resource(Namespace):
        labels: Mapping[str, str] = obj.metadata.labels
        return labels
    if not request.resource.namespaced:
        return None
    namespace = namespace_of(request, obj, objects)
    return {} if namespace is None else namespace.metadata.labels


def namespace_of(request: AdmissionRequest, obj: Any, objects: Transaction) -> Namespace | None:
    """Return the Namespace of an object that has one, as it is stored."""
    if not request.resource.namespaced:
        return None
    namespace: Namespace | None = objects.get(Key(group_resource(Namespace), "", obj.metadata.namespace))
    return namespace
