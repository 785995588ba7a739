"""Storage in use stays although it is being deleted, and goes when nobody has it any more."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from api.core.pod import Pod
from api.core.storage import PersistentVolume, PersistentVolumeClaim
from master.controllers.actions import ForceDelete, Update
from master.controllers.persistent_volumes import release_protection
from master.resources.metadata import with_metadata
from master.resources.scheme import BY_KIND
from tests.unit.master.test_claims import claim, disk
from tests.unit.node_agent.make import pod

USER = pod(spec="  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]")


def leaving(item: Any, *others: str) -> Any:
    """As it began, and now being deleted."""
    begun = BY_KIND[item.KIND].on_create(item)
    finalizers = (*begun.metadata.finalizers, *others)
    return with_metadata(begun, deletion_timestamp="2026-01-01T00:00:00Z", finalizers=finalizers)


def phase(of: Pod, name: str) -> Pod:
    return replace(of, status=replace(of.status, phase=name))


@pytest.mark.parametrize(
    ("pods", "goes"),
    [
        ([], True),
        ([pod()], True),
        ([USER], False),
        ([phase(USER, "Running")], False),
        ([phase(USER, "Succeeded"), phase(USER, "Failed")], True),
    ],
)
def test_a_claim_goes_when_no_pod_has_it(pods: list[Pod], goes: bool) -> None:
    item: PersistentVolumeClaim = leaving(claim("data"))
    assert item.metadata.finalizers == ("kubernetes.io/pvc-protection",)
    assert list(release_protection([], [item], pods)) == ([ForceDelete(item)] if goes else [])


@pytest.mark.parametrize(("bound", "goes"), [("Available", True), ("Released", True), ("Bound", False)])
def test_a_volume_goes_when_no_claim_has_it(bound: str, goes: bool) -> None:
    item: PersistentVolume = leaving(disk("one"))
    item = replace(item, status=replace(item.status, phase=bound))
    assert item.metadata.finalizers == ("kubernetes.io/pv-protection",)
    assert list(release_protection([item], [], [USER])) == ([ForceDelete(item)] if goes else [])


def test_finalizers_of_others_are_waited_for() -> None:
    item = leaving(claim("data"), "example.com/backup")
    [change] = release_protection([], [item], [])
    assert isinstance(change, Update)
    assert change.item.metadata.finalizers == ("example.com/backup",)
    assert not list(release_protection([], [change.item], []))  # type: ignore[list-item]


def test_what_is_not_being_deleted_stays() -> None:
    assert not list(release_protection([disk("one")], [claim("data")], []))
