"""Pods, SCCs and the namespace that the tests of SCC admission share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from api.core.pod import Pod
from api.meta.schema import without_nulls
from api.validation.registry import default
from master.admission.scc.matching import SERVICE_ACCOUNT_SUBJECT, USER_SUBJECT
from master.admission.scc.namespace_ranges import NamespaceRanges, parse_ranges
from master.auth.bootstrap_sccs import BOOTSTRAP_SCCS
from master.resources.security_context_constraints import SecurityContextConstraints

ANNOTATIONS = {
    "openshift.io/sa.scc.uid-range": "1000680000/10000",
    "openshift.io/sa.scc.supplemental-groups": "1000680000/10000",
    "openshift.io/sa.scc.mcs": "s0:c26,c15",
}
RANGES: NamespaceRanges = parse_ranges(ANNOTATIONS)
BY_NAME: Mapping[str, SecurityContextConstraints] = {scc.metadata.name: scc for scc in BOOTSTRAP_SCCS}


def pod(spec: Mapping[str, Any] | None = None, container: Mapping[str, Any] | None = None, **metadata: Any) -> Pod:
    """Return a pod of one container `a`. `spec` and `container` are documents that complete it."""
    document = {
        "metadata": {"name": "p", "namespace": "red", **metadata},
        "spec": {"containers": [{"name": "a", "image": "i", **(container or {})}], **(spec or {})},
    }
    return default(msgspec.convert(without_nulls(document), Pod))


def secured(pod_context: Mapping[str, Any] | None = None, context: Mapping[str, Any] | None = None) -> Pod:
    """Return a pod with the security contexts of the pod and of its container."""
    spec = {"securityContext": dict(pod_context)} if pod_context else {}
    return pod(spec, {"securityContext": dict(context)} if context else {})


def usable(user: Sequence[str] = (), account: Sequence[str] = ()) -> Callable[[SecurityContextConstraints], str]:
    """Return who may use an SCC: the names of SCCs that the user has, and that the service account has."""

    def subject(scc: SecurityContextConstraints) -> str:
        if scc.metadata.name in account:
            return SERVICE_ACCOUNT_SUBJECT
        return USER_SUBJECT if scc.metadata.name in user else ""

    return subject


def contexts(filled: Pod) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the security contexts of a pod and of its first container, as documents."""
    document = msgspec.json.decode(msgspec.json.encode(filled.spec))
    return document.get("securityContext", {}), document["containers"][0].get("securityContext", {})
