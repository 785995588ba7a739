"""Binding of claims and volumes, and their protection finalizers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.core.pod import Pod
from api.core.storage import PersistentVolume, PersistentVolumeClaim
from api.validation.registry import default
from master.controllers.actions import ForceDelete, Update
from master.controllers.persistent_volumes import bind_volumes, release_protection
from master.resources.metadata import with_metadata
from master.resources.scheme import BY_KIND
from master.resources.volumes import DEFAULT_CLASS_ANNOTATIONS, StorageClass
from tests.unit.master.examples import meta
from tests.unit.node_agent.examples import make_pod


def disk(name: str, claim: str = "", uid: str = "", **more: Any) -> PersistentVolume:
    spec: dict[str, Any] = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], **more}
    if claim:
        spec["claimRef"] = {"namespace": "red", "name": claim, "uid": uid}
    volume = msgspec.convert({"spec": spec | {"hostPath": {"path": "/srv"}}}, PersistentVolume)
    return default(replace(volume, metadata=meta(name)))


def claim(name: str, volume: str = "", uid: str = "", **more: Any) -> PersistentVolumeClaim:
    """Without `more` it is for another class than that of the disks."""
    spec = {"volumeName": volume, "storageClassName": "none", "accessModes": ["ReadWriteOnce"], **more}
    result = msgspec.convert({"spec": spec}, PersistentVolumeClaim)
    return default(replace(result, metadata=meta(name, namespace="red", uid=uid or f"uid-{name}")))


Items = list[PersistentVolume | PersistentVolumeClaim]


def settled(*items: PersistentVolume | PersistentVolumeClaim, usual: str = "") -> Items:
    """Return the state when nothing is left to write. Two passes must suffice."""
    held: Items = list(items)
    default_class = StorageClass(metadata=meta(usual, annotations={DEFAULT_CLASS_ANNOTATIONS[0]: "true"}))
    classes = [default_class] if usual else []
    for _ in range(2):
        for change in bind_volumes(
            [obj for obj in held if isinstance(obj, PersistentVolume)],
            [obj for obj in held if isinstance(obj, PersistentVolumeClaim)],
            classes,
        ):
            assert isinstance(change, Update)
            held[next(index for index, obj in enumerate(held) if obj is change.before)] = change.object  # type: ignore[call-overload]
    volumes = [obj for obj in held if isinstance(obj, PersistentVolume)]
    assert not list(bind_volumes(volumes, [obj for obj in held if isinstance(obj, PersistentVolumeClaim)], classes))
    return held


def phases(items: Items) -> list[str]:
    return [obj.status.phase for obj in items]


def test_claim_and_volume_bind_when_either_names_the_other() -> None:
    for pair in ((disk("d", claim="c"), claim("c")), (disk("d"), claim("c", volume="d"))):
        volume, bound_claim = settled(*pair)
        assert isinstance(volume, PersistentVolume)
        assert isinstance(bound_claim, PersistentVolumeClaim)
        holder = volume.spec.claim_ref
        assert holder is not None
        assert (holder.kind, holder.namespace, holder.name, holder.uid) == (
            "PersistentVolumeClaim", "red", "c", "uid-c",
        )  # fmt: skip
        assert (bound_claim.spec.volume_name, bound_claim.status.capacity) == ("d", {"storage": "1Gi"})
        assert phases([volume, bound_claim]) == ["Bound", "Bound"]


def test_claim_that_names_a_volume_binds_to_no_other() -> None:
    assert phases(settled(disk("d"), claim("c"))) == ["Available", "Pending"]
    assert phases(settled(disk("d", claim="c"), claim("other", volume="d"))) == ["Available", "Pending"]
    assert phases(settled(disk("d", claim="c"), claim("c", volume="e"), disk("e"))) == ["Available", "Bound", "Bound"]
    assert phases(settled(disk("d"), claim("a", volume="d"), claim("b", volume="d"))) == ["Bound", "Bound", "Pending"]


def test_volume_is_not_bound_to_a_new_claim_of_the_same_name() -> None:
    volume, _ = settled(disk("d", claim="c"), claim("c"))
    assert phases(settled(volume)) == ["Released"]
    assert phases(settled(volume, claim("c", uid="another"))) == ["Released", "Pending"]
    assert phases(settled(volume, claim("c", volume="d", uid="another"))) == ["Released", "Pending"]


def test_claim_of_a_deleted_volume_is_lost() -> None:
    _, bound_claim = settled(disk("d", claim="c"), claim("c"))
    assert phases(settled(bound_claim)) == ["Lost"]


def bound_claim(name: str = "c", size: str = "1Gi", **more: Any) -> PersistentVolumeClaim:
    return claim(name, **{"storageClassName": "", "resources": {"requests": {"storage": size}}, **more})


def volume_of(*items: PersistentVolume | PersistentVolumeClaim, usual: str = "") -> str:
    [persistent_volume_claim] = [obj for obj in settled(*items, usual=usual) if isinstance(obj, PersistentVolumeClaim)]
    return persistent_volume_claim.spec.volume_name


def test_unnamed_claim_binds_to_the_smallest_matching_volume() -> None:
    disks = [disk("large", capacity={"storage": "9Gi"}), disk("small"), disk("mid", capacity={"storage": "2Gi"})]
    assert volume_of(*disks, bound_claim()) == "small"
    assert volume_of(*disks, bound_claim(size="1500Mi")) == "mid"
    assert volume_of(*disks, bound_claim(size="10Gi")) == ""
    assert volume_of(disk("d", claim="other"), bound_claim()) == ""
    assert volume_of(disk("d", accessModes=["ReadWriteMany"]), bound_claim()) == ""
    both = disk("d", accessModes=["ReadWriteMany", "ReadWriteOnce"])
    assert volume_of(both, bound_claim(accessModes=["ReadWriteMany"])) == "d"
    red, blue = (replace(disk(name), metadata=meta(name, labels={"of": name})) for name in ("red", "blue"))
    assert volume_of(red, blue, bound_claim(selector={"matchLabels": {"of": "red"}})) == "red"


def test_claim_binds_only_to_volumes_of_its_storage_class() -> None:
    fast, plain = disk("fast", storageClassName="ssd"), disk("plain")
    assert volume_of(fast, plain, bound_claim(storageClassName="ssd")) == "fast"
    assert volume_of(fast, plain, bound_claim(storageClassName="tape")) == ""
    assert volume_of(fast, plain, bound_claim(storageClassName=None)) == "plain"
    assert volume_of(fast, plain, bound_claim(storageClassName=None), usual="ssd") == "fast"
    assert volume_of(fast, bound_claim(), usual="ssd") == ""


def test_two_claims_never_share_a_volume() -> None:
    actual = settled(disk("a"), disk("b"), bound_claim("c1"), bound_claim("c2"), bound_claim("c3"))
    had = [obj.spec.volume_name for obj in actual if isinstance(obj, PersistentVolumeClaim)]
    assert had == ["a", "b", ""]


NAMES = st.sampled_from(["", "a", "b"])


@given(st.tuples(NAMES, NAMES), st.tuples(NAMES, NAMES))
def test_volume_binding_converges_without_double_bindings(volumes: tuple[str, str], claims: tuple[str, str]) -> None:
    items = [disk(name, claim=bound_claim) for name, bound_claim in zip("ab", volumes, strict=True)]
    persistent_volume_claims = [claim(name, volume=bound_claim) for name, bound_claim in zip("ab", claims, strict=True)]
    actual = settled(*items, *persistent_volume_claims)
    bound = [obj for obj in actual if obj.status.phase == "Bound"]
    had = [obj.spec.volume_name for obj in bound if isinstance(obj, PersistentVolumeClaim)]
    assert len(had) == len(set(had))
    assert len(bound) == 2 * len(had)


USER = make_pod(spec="  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]")


def leaving(obj: Any, *others: str) -> Any:
    """Return a created object that is being deleted."""
    begun = BY_KIND[obj.KIND].prepare_for_create(obj)
    finalizers = (*begun.metadata.finalizers, *others)
    return with_metadata(begun, deletion_timestamp="2026-01-01T00:00:00Z", finalizers=finalizers)


def phase(of: Pod, name: str) -> Pod:
    return replace(of, status=replace(of.status, phase=name))


@pytest.mark.parametrize(
    ("pods", "goes"),
    [
        ([], True),
        ([make_pod()], True),
        ([USER], False),
        ([phase(USER, "Running")], False),
        ([phase(USER, "Succeeded"), phase(USER, "Failed")], True),
    ],
)
def test_claim_protection_finalizer_is_removed_when_no_pod_uses_it(pods: list[Pod], goes: bool) -> None:
    obj: PersistentVolumeClaim = leaving(claim("data"))
    assert obj.metadata.finalizers == ("kubernetes.io/pvc-protection",)
    assert list(release_protection([], [obj], pods)) == ([ForceDelete(obj)] if goes else [])


@pytest.mark.parametrize(("bound", "goes"), [("Available", True), ("Released", True), ("Bound", False)])
def test_volume_protection_finalizer_is_removed_when_unbound(bound: str, goes: bool) -> None:
    volume: PersistentVolume = leaving(disk("one"))
    volume = replace(volume, status=replace(volume.status, phase=bound))
    assert volume.metadata.finalizers == ("kubernetes.io/pv-protection",)
    assert list(release_protection([volume], [], [USER])) == ([ForceDelete(volume)] if goes else [])


def test_foreign_finalizers_are_kept() -> None:
    obj = leaving(claim("data"), "example.com/backup")
    [change] = release_protection([], [obj], [])
    assert isinstance(change, Update)
    assert change.object.metadata.finalizers == ("example.com/backup",)
    assert not list(release_protection([], [change.object], []))  # type: ignore[list-item]


def test_protection_of_objects_not_being_deleted_is_kept() -> None:
    assert not list(release_protection([disk("one")], [claim("data")], []))
