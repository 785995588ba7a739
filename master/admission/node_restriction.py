"""NodeRestriction: what a node may not write about itself. Pure.

Source: the admission plugin NodeRestriction of Kubernetes. A node that could write these would attract pods with
secrets, or have its Node garbage collected (CVE-2025-5187) and register again without its taints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from api.core.node import Node

RESTRICTED = "node-restriction.kubernetes.io"
"""Labels with this prefix, or one below it, are others' alone."""

KUBERNETES = ("kubernetes.io", "k8s.io")
"""Prefixes of labels that mean something to Kubernetes; all others are a node's to set."""

OWN_DOMAINS = ("kubelet.kubernetes.io", "node.kubernetes.io")
"""Of those, a node sets the ones with these prefixes, or with one below them,"""

OWN_PREFIXES = frozenset(("topology.kubernetes.io", "failure-domain.beta.kubernetes.io"))
"""the ones with just these,"""

OWN_LABELS = frozenset(
    (
        "kubernetes.io/hostname",
        "kubernetes.io/arch",
        "kubernetes.io/os",
        "beta.kubernetes.io/hostname",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/instance-type",
    )
)
"""and these."""


def node_restriction_denial(new: Node, old: Node | None) -> str | None:
    """Why a node may not register (`old` is None) or change its own Node so; None if it may."""
    if old is None:
        listed = _forbidden_labels(new.metadata.labels)
        if listed:
            return f"is not allowed to set the following labels: {', '.join(listed)}"
        return "is not allowed to set ownerReferences" if new.metadata.owner_references else None
    if new.spec.taints != old.spec.taints:
        return "is not allowed to modify taints"
    listed = _forbidden_labels(_changed(new.metadata.labels, old.metadata.labels))
    if listed:
        return f"is not allowed to modify labels: {', '.join(listed)}"
    if new.metadata.owner_references != old.metadata.owner_references:
        return "is not allowed to modify ownerReferences"
    return None


def _changed(new: Mapping[str, str], old: Mapping[str, str]) -> Iterable[str]:
    """The labels that came, went, or have another value."""
    return (key for key in {**new, **old} if new.get(key) != old.get(key))


def _forbidden_labels(labels: Iterable[str]) -> list[str]:
    return sorted(label for label in labels if not _is_allowed_label(label))


def _is_allowed_label(label: str) -> bool:
    prefix = label.rpartition("/")[0]
    if _is_below(prefix, RESTRICTED):
        return False
    if not any(_is_below(prefix, one) for one in KUBERNETES):
        return True
    return label in OWN_LABELS or prefix in OWN_PREFIXES or any(_is_below(prefix, one) for one in OWN_DOMAINS)


def _is_below(prefix: str, domain: str) -> bool:
    return prefix == domain or prefix.endswith(f".{domain}")
