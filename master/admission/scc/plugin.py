"""SecurityContextConstraint: admits pods by SCCs, and NamespaceSecurityAllocation: the IDs of namespaces. Pure.

Source: the SCC admission of OpenShift, and the namespace-security-allocation-controller. The block of IDs is part of
the write that creates the namespace, so pods never wait for it, and no two namespaces get the same one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from api.core.node import Namespace
from api.core.pod import Pod
from master import errors
from master.admission.cursors import move_cursor, read_cursor
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.admission.scc.matching import (
    REQUIRED_SCC_ANNOTATION,
    SCC_ANNOTATION,
    SERVICE_ACCOUNT_SUBJECT,
    SUBJECT_ANNOTATION,
    USER_SUBJECT,
    Decision,
    Trial,
    Usable,
    annotate,
    decide,
    least_permissive_scc,
)
from master.admission.scc.namespace_ranges import (
    UID_BLOCK_CURSOR,
    UID_RANGE_ANNOTATION,
    BadNamespaceRanges,
    NamespaceRanges,
    allocate_blocks,
    parse_ranges,
)
from master.admission.scc.provider import MutablePart
from master.admission.service_account import service_account_user
from master.auth.attributes import (
    AUTHENTICATED,
    SERVICE_ACCOUNT_USER_PREFIX,
    Attributes,
    Authorize,
    User,
    service_account_groups,
)
from master.resources.metadata import with_metadata
from master.resources.pods import EPHEMERAL_CONTAINERS
from master.resources.resource import AnyResource
from master.resources.scheme import group_resource
from master.resources.security_context_constraints import SCC_PLURAL, SECURITY_GROUP, SecurityContextConstraints
from master.storage.interface import Key, Transaction

CHOSEN_ANNOTATION = "securitycontextconstraints.admission.openshift.io/chosen"
"""Annotation of audit events: the SCC that admits the pod."""

MAX_DENIAL, MAX_SCC_NAME = 16_384, 253
"""Characters of a rejection, and of the name of an SCC."""

CHECKED_CONNECTIONS = frozenset(("attach", "exec"))

CONTROLLERS = User(
    f"{SERVICE_ACCOUNT_USER_PREFIX}kube-system:podlane-controllers",
    frozenset((AUTHENTICATED, *service_account_groups("kube-system"))),
)
"""The requester of pods that the master's own controllers create. It has the rights of every authenticated user only,
so a workload gets an SCC through its service account, or one that everybody may use.
"""


class SecurityContextConstraint(AdmissionPlugin):
    """Completes new pods by the first SCC that admits them, and rejects pods and updates that none admits.

    A node creates only mirror pods. They show pods that the node's administrator runs, so they are admitted unchanged.
    """

    def __init__(self, authorize: Authorize) -> None:
        self._authorize = authorize

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        if not isinstance(obj, Pod) or (request.requester is not None and request.requester.user.node):
            return obj
        if request.operation is Operation.CREATE:
            return annotate(self._admit(request, obj, objects))
        if request.operation is Operation.UPDATE and request.subresource in ("", EPHEMERAL_CONTAINERS):
            return self._update(request, obj, objects)
        return obj

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        """Reject exec and attach in a pod that nobody would admit if the requester created it."""
        if request.operation is not Operation.CONNECT or request.subresource not in CHECKED_CONNECTIONS:
            return
        decision, ranges = self._decide(request, without_scc(obj), objects)
        if decision.admitted is None:
            denied = f"{request.subresource} operation is not allowed because the pod's security context exceeds your"
            reason = f"{denied} permissions: {denial(decision, obj, ranges)}"
            raise errors.forbidden(request.resource, obj.metadata.name, reason)

    def _update(self, request: AdmissionRequest, pod: Pod, objects: Transaction) -> Pod:
        """Return the pod of an update. Only new ephemeral containers are completed."""
        old: Pod = request.old
        pod = _with_annotations_of(old, pod)
        meta, before = pod.metadata, old.metadata
        if (pod.spec, meta.labels, meta.annotations) == (old.spec, before.labels, before.annotations):
            return pod
        name, required = meta.annotations.get(REQUIRED_SCC_ANNOTATION), before.annotations.get(REQUIRED_SCC_ANNOTATION)
        if name != required:
            reason = f"invalid change of required security context constraint annotation: {required} to {name}"
            raise errors.forbidden(request.resource, meta.name, reason[:MAX_DENIAL])
        part = MutablePart.EPHEMERAL_CONTAINERS if request.subresource == EPHEMERAL_CONTAINERS else MutablePart.NOTHING
        return self._admit(request, pod, objects, part).pod

    def _admit(
        self,
        request: AdmissionRequest,
        pod: Pod,
        objects: Transaction,
        part: MutablePart = MutablePart.POD,
    ) -> Trial:
        """Return the trial that admits the pod. Raises Forbidden."""
        decision, ranges = self._decide(request, pod, objects, part)
        if decision.admitted is None:
            raise errors.forbidden(request.resource, pod.metadata.name, denial(decision, pod, ranges))
        request.annotate(CHOSEN_ANNOTATION, decision.admitted.scc.metadata.name)
        return decision.admitted

    def _decide(
        self,
        request: AdmissionRequest,
        pod: Pod,
        objects: Transaction,
        part: MutablePart = MutablePart.POD,
    ) -> tuple[Decision, NamespaceRanges]:
        """Return the decision about the pod, and the ranges of its namespace. Raises Forbidden."""
        resource, meta = request.resource, pod.metadata
        ranges = namespace_ranges(resource, pod, objects)
        sccs = candidates(resource, pod, objects)
        requester = CONTROLLERS if request.requester is None else request.requester.user
        usable = usable_by(service_account_user(pod), requester, meta.namespace, self._authorize)
        return decide(pod, sccs, ranges, usable, part), ranges


class NamespaceSecurityAllocation(AdmissionPlugin):
    """Gives a new namespace its block of user IDs and groups, and its SELinux level."""

    def reserve(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        if request.operation is not Operation.CREATE or not request.resource.is_stored_as(Namespace):
            return obj
        annotations = obj.metadata.annotations
        if annotations.get(UID_RANGE_ANNOTATION):
            return obj
        cursor = read_cursor(UID_BLOCK_CURSOR, objects.get)
        others = (namespace.metadata.annotations for namespace in objects.list(group_resource(Namespace)))
        blocks, after = allocate_blocks(1, others, cursor.next)
        if not blocks:
            return obj
        move_cursor(cursor, after, objects)
        return with_metadata(obj, annotations={**blocks[0], **annotations})


def namespace_ranges(resource: AnyResource, pod: Pod, objects: Transaction) -> NamespaceRanges:
    """Return the ranges of a pod's namespace. Raises Forbidden."""
    name = pod.metadata.namespace
    namespace: Namespace | None = objects.get(Key(group_resource(Namespace), "", name))
    try:
        if namespace is None:
            raise BadNamespaceRanges(f'namespaces "{name}" not found')
        return parse_ranges(namespace.metadata.annotations)
    except BadNamespaceRanges as error:
        reason = f'error fetching namespace "{name}": {error}'
        raise errors.forbidden(resource, pod.metadata.name, reason) from error


def without_scc(pod: Pod) -> Pod:
    """Return a pod without the annotations that say which SCC admitted it."""
    names = (SCC_ANNOTATION, SUBJECT_ANNOTATION)
    annotations = {key: value for key, value in pod.metadata.annotations.items() if key not in names}
    return with_metadata(pod, annotations=annotations)


def usable_by(account: User | None, requester: User | None, namespace: str, authorize: Authorize) -> Usable:
    """Return the function that tells which of a service account and a requester may use an SCC in a namespace."""

    def usable(scc: SecurityContextConstraints) -> str:
        for user, subject in ((account, SERVICE_ACCOUNT_SUBJECT), (requester, USER_SUBJECT)):
            if user is not None and may_use(user, scc, namespace, authorize):
                return subject
        return ""

    return usable


def may_use(user: User, scc: SecurityContextConstraints, namespace: str, authorize: Authorize) -> bool:
    """Return whether a user may use an SCC for pods in a namespace."""
    if user.name in scc.users or not user.groups.isdisjoint(scc.groups):
        return True
    name = scc.metadata.name
    return authorize(user, Attributes("use", SECURITY_GROUP, SCC_PLURAL, namespace=namespace, name=name))


def candidates(resource: AnyResource, pod: Pod, objects: Transaction) -> Collection[SecurityContextConstraints]:
    """Return all SCCs, or the one that the pod requires. Raises Forbidden."""
    sccs = group_resource(SecurityContextConstraints)
    name = pod.metadata.annotations.get(REQUIRED_SCC_ANNOTATION)
    if name is None:
        return objects.list(sccs)
    name = name[:MAX_SCC_NAME]
    scc = objects.get(Key(sccs, "", name))
    if scc is None:
        missing = f'{SCC_PLURAL}.{SECURITY_GROUP} "{name}" not found'
        reason = f'failed to retrieve the required SCC "{name}": {missing}'
        raise errors.forbidden(resource, pod.metadata.name, reason)
    return (scc,)


def denial(decision: Decision, pod: Pod, ranges: NamespaceRanges) -> str:
    """Return why no SCC admits a pod, and the least permissive SCC that would if its user might use it."""
    found = ", ".join(map(str, decision.violations))
    if len(decision.violations) != 1:
        found = f"[{found[:MAX_DENIAL]}]"
    name = least_permissive_scc(pod, decision, ranges)
    hint = f'; the least permissive SCC that admits the pod is "{name}"' if name else ""
    return f"unable to validate against any security context constraint: {found}{hint}"


def _with_annotations_of(old: Pod, new: Pod) -> Pod:
    """Return the new state with the annotations of the old one that say which SCC admitted the pod."""
    known = {
        key: value for key, value in old.metadata.annotations.items() if key in (SCC_ANNOTATION, SUBJECT_ANNOTATION)
    }
    annotations = {**without_scc(new).metadata.annotations, **known}
    return new if annotations == new.metadata.annotations else with_metadata(new, annotations=annotations)
