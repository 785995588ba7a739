"""Which class an ingress has that names none. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from master.kinds.ingress import CLASS_ANNOTATION, Ingress, IngressClass

DEFAULT = "ingressclass.kubernetes.io/is-default-class"
"""Annotation of the class that such ingresses get; of several the newest counts, and of those the first by name."""


def classed(item: Ingress, classes: Iterable[IngressClass]) -> Ingress:
    """The ingress with its class."""
    if item.spec.ingress_class_name is not None or CLASS_ANNOTATION in item.metadata.annotations:
        return item
    usual = sorted(
        (one for one in classes if one.metadata.annotations.get(DEFAULT) == "true"), key=lambda one: one.metadata.name
    )
    if not usual:
        return item
    newest = max(usual, key=lambda one: one.metadata.creation_timestamp or "")
    return replace(item, spec=replace(item.spec, ingress_class_name=newest.metadata.name))
