"""Claims and volumes are paired as people have written it down, on both sides, and stay so."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.storage import PersistentVolume, PersistentVolumeClaim
from api.validate import default
from master.claims import bindings
from tests.unit.master.make import meta


def disk(name: str, claim: str = "", uid: str = "") -> PersistentVolume:
    spec: dict[str, Any] = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    if claim:
        spec["claimRef"] = {"namespace": "red", "name": claim, "uid": uid}
    item = msgspec.convert({"spec": spec | {"hostPath": {"path": "/srv"}}}, PersistentVolume)
    return default(replace(item, metadata=meta(name)))


def claim(name: str, volume: str = "", uid: str = "") -> PersistentVolumeClaim:
    item = msgspec.convert({"spec": {"volumeName": volume}}, PersistentVolumeClaim)
    return default(replace(item, metadata=meta(name, namespace="red", uid=uid or f"uid-{name}")))


Items = list[PersistentVolume | PersistentVolumeClaim]


def settled(*items: PersistentVolume | PersistentVolumeClaim) -> Items:
    """What is there when nothing is left to write; writing twice must be enough."""
    held: Items = list(items)
    for _ in range(2):
        for change in bindings(
            [item for item in held if isinstance(item, PersistentVolume)],
            [item for item in held if isinstance(item, PersistentVolumeClaim)],
        ):
            held[next(place for place, item in enumerate(held) if item is change.before)] = change.item  # type: ignore[call-overload]
    volumes = [item for item in held if isinstance(item, PersistentVolume)]
    assert not list(bindings(volumes, [item for item in held if isinstance(item, PersistentVolumeClaim)]))
    return held


def phases(items: Items) -> list[str]:
    return [item.status.phase for item in items]


def test_one_side_is_enough() -> None:
    for pair in ((disk("d", claim="c"), claim("c")), (disk("d"), claim("c", volume="d"))):
        volume, wish = settled(*pair)
        assert isinstance(volume, PersistentVolume)
        assert isinstance(wish, PersistentVolumeClaim)
        holder = volume.spec.claim_ref
        assert holder is not None
        assert (holder.kind, holder.namespace, holder.name, holder.uid) == (
            "PersistentVolumeClaim", "red", "c", "uid-c",
        )  # fmt: skip
        assert (wish.spec.volume_name, wish.status.capacity) == ("d", {"storage": "1Gi"})
        assert phases([volume, wish]) == ["Bound", "Bound"]


def test_nobody_is_given_what_he_did_not_name() -> None:
    assert phases(settled(disk("d"), claim("c"))) == ["Available", "Pending"]
    assert phases(settled(disk("d", claim="c"), claim("other", volume="d"))) == ["Available", "Pending"]
    assert phases(settled(disk("d", claim="c"), claim("c", volume="e"), disk("e"))) == ["Available", "Bound", "Bound"]
    assert phases(settled(disk("d"), claim("a", volume="d"), claim("b", volume="d"))) == ["Bound", "Bound", "Pending"]


def test_storage_is_not_inherited_by_a_claim_of_the_same_name() -> None:
    volume, _ = settled(disk("d", claim="c"), claim("c"))
    assert phases(settled(volume)) == ["Released"]
    assert phases(settled(volume, claim("c", uid="another"))) == ["Released", "Pending"]
    assert phases(settled(volume, claim("c", volume="d", uid="another"))) == ["Released", "Pending"]


def test_a_claim_whose_volume_is_gone_is_lost() -> None:
    _, wish = settled(disk("d", claim="c"), claim("c"))
    assert phases(settled(wish)) == ["Lost"]


NAMES = st.sampled_from(["", "a", "b"])


@given(st.tuples(NAMES, NAMES), st.tuples(NAMES, NAMES))
def test_it_settles_and_no_volume_has_two_claims(volumes: tuple[str, str], claims: tuple[str, str]) -> None:
    items = [disk(name, claim=wish) for name, wish in zip("ab", volumes, strict=True)]
    wishes = [claim(name, volume=wish) for name, wish in zip("ab", claims, strict=True)]
    found = settled(*items, *wishes)
    bound = [item for item in found if item.status.phase == "Bound"]
    had = [item.spec.volume_name for item in bound if isinstance(item, PersistentVolumeClaim)]
    assert len(had) == len(set(had))
    assert len(bound) == 2 * len(had)
