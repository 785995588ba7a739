"""The default class of ingresses."""

from __future__ import annotations

import pytest

from api.core.storage import PersistentVolumeClaim, PersistentVolumeClaimSpec
from master.admission.defaults import DEFAULT_CLASS_ANNOTATION, apply_default_class, apply_default_storage_class
from master.resources.ingresses import CLASS_ANNOTATION, Ingress, IngressClass, IngressSpec
from tests.unit.master.examples import meta


def a_class(name: str, default: str = "", created: str = "2026-01-01T00:00:00Z") -> IngressClass:
    return IngressClass(
        metadata=meta(name, annotations={DEFAULT_CLASS_ANNOTATION: default}, creation_timestamp=created)
    )


OLD, NEW = a_class("old", "true"), a_class("new", "true", "2026-02-01T00:00:00Z")
ALSO_NEW = a_class("also-new", "true", "2026-02-01T00:00:00Z")


@pytest.mark.parametrize(
    ("classes", "wanted"),
    [
        ([], None),
        ([a_class("a"), a_class("b", "false")], None),
        ([a_class("a"), OLD], "old"),
        ([OLD, NEW], "new"),
        ([NEW, OLD, ALSO_NEW], "also-new"),
    ],
)
def test_ingress_gets_the_newest_default_class(classes: list[IngressClass], wanted: str | None) -> None:
    assert apply_default_class(Ingress(metadata=meta("web")), classes).spec.ingress_class_name == wanted


def test_ingress_keeps_its_named_class() -> None:
    for ingress in (
        Ingress(metadata=meta("web"), spec=IngressSpec(ingress_class_name="mine")),
        Ingress(metadata=meta("web", annotations={CLASS_ANNOTATION: "mine"})),
    ):
        assert apply_default_class(ingress, [NEW]) is ingress


@pytest.mark.parametrize(
    ("named", "annotations", "default", "wanted"),
    [
        (None, {}, "local", "local"),
        (None, {}, "", None),
        ("", {}, "local", ""),
        ("ssd", {}, "local", "ssd"),
        (None, {"volume.beta.kubernetes.io/storage-class": "ssd"}, "local", None),
    ],
)
def test_claim_gets_the_default_class_unless_it_names_one(
    named: str | None, annotations: dict[str, str], default: str, wanted: str | None
) -> None:
    spec = PersistentVolumeClaimSpec(storage_class_name=named)
    claim = PersistentVolumeClaim(metadata=meta("data", annotations=annotations), spec=spec)
    assert apply_default_storage_class(claim, default).spec.storage_class_name == wanted
