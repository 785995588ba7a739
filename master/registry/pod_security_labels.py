"""The Pod Security labels of a namespace: which follow SCCs, and how they are written. Pure.

Source: the label synchronization of OpenShift's cluster-policy-controller. The labels of the modes warn and audit are
written as by a server-side apply, so labels of other field managers stay.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

import msgspec

from api.core.node import Namespace
from master.admission.pod_security.checks import PRIVILEGED
from master.admission.pod_security.policy import AUDIT, MODES, PREFIX, WARN
from master.admission.pod_security.scc_level import least_restrictive, scc_level
from master.admission.scc.namespace_ranges import BadNamespaceRanges, parse_ranges
from master.registry.managed_fields import APPLY, FieldManager, apply, managers_in, with_managed_fields
from master.resources.metadata import format_time, with_metadata
from master.resources.namespaces import NAMESPACES, SYSTEM_NAMESPACES
from master.resources.security_context_constraints import ANY, SecurityContextConstraints

CONTROLLER_NAME = "pod-security-admission-label-synchronization-controller"
"""The controller that synchronizes labels, and its field manager."""

PRIVILEGED_FIELD_MANAGER = "privileged-namespaces-psa-label-syncer"
PRIVILEGED_NAMESPACES = frozenset(("default", "kube-public", "kube-system"))
"""Namespaces whose labels are always privileged, for all modes."""

EXEMPT_NAMESPACES = frozenset((*SYSTEM_NAMESPACES, "openshift"))
"""Namespaces whose labels do not follow SCCs."""

SYNC_LABEL = "security.openshift.io/scc.podSecurityLabelSync"
"""With the value false, the labels of the namespace are left alone; with true, also those of others are replaced."""

LEVEL_ANNOTATION = "security.openshift.io/MinimallySufficientPodSecurityStandard"

SYNCHRONIZED_MODES = (WARN, AUDIT)


def with_level(namespace: Namespace, level: str | None, now: datetime.datetime) -> Namespace:
    """Return a namespace with the labels of a level, except labels that other field managers own.

    It is unchanged if its labels do not follow SCCs, and if the level is None. Namespaces of the system have the level
    privileged for all modes.
    """
    if namespace.metadata.name in PRIVILEGED_NAMESPACES:
        return _with_privileged_labels(namespace, now)
    if level is None or _has_level(namespace, _labels_of(level), level):
        return namespace
    labels = _own_labels(namespace, level)
    if not labels or _has_level(namespace, labels, level):
        return namespace
    return _applied(namespace, CONTROLLER_NAME, labels, {LEVEL_ANNOTATION: level}, now)


def _labels_of(level: str) -> dict[str, str]:
    return {
        key: value
        for mode in SYNCHRONIZED_MODES
        for key, value in ((f"{PREFIX}{mode}", level), (f"{PREFIX}{mode}-version", "latest"))
    }


def _has_level(namespace: Namespace, labels: Mapping[str, str], level: str) -> bool:
    meta = namespace.metadata
    return meta.annotations.get(LEVEL_ANNOTATION) == level and labels.items() <= meta.labels.items()


def _own_labels(namespace: Namespace, level: str) -> dict[str, str]:
    """Return the labels of a level that no other field manager owns; none if the namespace does not follow SCCs."""
    name, sync = namespace.metadata.name, namespace.metadata.labels.get(SYNC_LABEL)
    if name in EXEMPT_NAMESPACES or sync == "false" or (name.startswith("openshift-") and sync != "true"):
        return {}
    foreign = frozenset[str]() if sync == "true" else _foreign_labels(namespace)
    return {key: value for key, value in _labels_of(level).items() if key not in foreign}


def _with_privileged_labels(namespace: Namespace, now: datetime.datetime) -> Namespace:
    wanted = {f"{PREFIX}{mode}": PRIVILEGED for mode in MODES}
    if wanted.items() <= namespace.metadata.labels.items():
        return namespace
    return _applied(namespace, PRIVILEGED_FIELD_MANAGER, wanted, {}, now)


def _foreign_labels(namespace: Namespace) -> frozenset[str]:
    """Return the Pod Security labels that other field managers own. Without a record, all are theirs."""
    labels = namespace.metadata.labels
    managers = managers_in({"metadata": {"managedFields": namespace.metadata.managed_fields}})
    if not managers:
        return frozenset(labels)
    others = [manager.fields for manager in managers if manager.manager != CONTROLLER_NAME]
    return frozenset(key for key in labels if any(("f:metadata", "f:labels", f"f:{key}") in each for each in others))


def _applied(
    namespace: Namespace,
    manager: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    now: datetime.datetime,
) -> Namespace:
    """Return the namespace after a forced server-side apply of labels and annotations."""
    live = msgspec.to_builtins(namespace)
    body = {"metadata": {"labels": {**labels}, "annotations": {**annotations}}}
    if not annotations:
        del body["metadata"]["annotations"]
    field_manager = FieldManager(manager, APPLY, "", namespace.API_VERSION, format_time(now), frozenset())
    result = apply(live, body, NAMESPACES.merge_schema, managers_in(live), field_manager)
    meta = result.document["metadata"]
    changed = with_metadata(namespace, labels=meta.get("labels", {}), annotations=meta.get("annotations", {}))
    return with_managed_fields(changed, result.managers)  # type: ignore[no-any-return]


def namespace_level(
    namespace: Namespace, names: frozenset[str], sccs: Iterable[SecurityContextConstraints]
) -> str | None:
    """Return the level of a namespace whose service accounts may use these SCCs; None if it cannot be known.

    `names` are names of SCCs; ANY stands for all.
    """
    try:
        uids = parse_ranges(namespace.metadata.annotations).uids
    except BadNamespaceRanges:
        return None
    usable = [scc for scc in sccs if scc.metadata.name in names or ANY in names]
    return least_restrictive(scc_level(scc, uids) for scc in usable) if usable else None
