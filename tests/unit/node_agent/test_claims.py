"""What a claim stands for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from api.core.references import Reference, pod_refs
from api.core.storage import PersistentVolume, PersistentVolumeClaim
from api.meta.types import Object, ObjectMeta
from node_agent.volumes.paths import binds, claimed_volumes, resolve_claim
from reconcile.errors import DriverError
from tests.unit.node_agent.make import pod

WISH = pod(
    "[{name: main, image: i, volumeMounts: [{name: v, mountPath: /v}]}]",
    "  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]",
)
CLAIM = Reference(PersistentVolumeClaim, "red", "data")
DISK = Reference(PersistentVolume, "", "disk")


def objects(source: dict[str, Any], *, phase: str = "Bound", holder: str = "u1") -> dict[Reference, Object]:
    claim = msgspec.convert({"spec": {"volumeName": "disk"}, "status": {"phase": phase}}, PersistentVolumeClaim)
    disk = msgspec.convert({"spec": source | {"claimRef": {"uid": holder}}}, PersistentVolume)
    return {CLAIM: replace(claim, metadata=ObjectMeta(name="data", namespace="red", uid="u1")), DISK: disk}


NFS = {"nfs": {"server": "files", "path": "/srv"}, "mountOptions": ["nolock"]}


def test_a_claim_stands_for_the_storage_that_it_has() -> None:
    assert pod_refs(WISH) == {CLAIM}
    held = objects(NFS)
    assert list(claimed_volumes({CLAIM: held[CLAIM]})) == [DISK]
    volume, options = resolve_claim(WISH.spec.volumes[0], "red", held)
    assert volume.nfs is not None
    assert (volume.nfs.server, volume.nfs.read_only, options) == ("files", False, ("nolock",))
    one = replace(WISH, spec=replace(WISH.spec, volumes=(volume,)))
    assert binds(one, one.spec.containers[0], "/pods/u") == ("/pods/u/volumes/kubernetes.io~nfs/v:/v",)


@pytest.mark.parametrize("source", [NFS, {"hostPath": {"path": "/srv"}}])
def test_a_claim_that_is_only_read_is_only_read(source: dict[str, Any]) -> None:
    wish = WISH.spec.volumes[0]
    claim = replace(wish.persistent_volume_claim, read_only=True)  # type: ignore[type-var]
    volume, _ = resolve_claim(replace(wish, persistent_volume_claim=claim), "red", objects(source))
    one = replace(WISH, spec=replace(WISH.spec, volumes=(volume,)))
    (bind,) = binds(one, one.spec.containers[0], "/pods/u")
    assert bind.endswith(":/v:ro")
    assert volume.nfs is None or volume.nfs.read_only


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({}, 'persistentvolumeclaim "data" not found'),
        (objects(NFS, phase="Pending"), 'persistentvolumeclaim "data" is not bound to a volume: it is Pending'),
        ({CLAIM: objects(NFS)[CLAIM]}, 'persistentvolume "disk" not found'),
        (objects(NFS, holder="u0"), 'persistentvolume "disk" does not belong to persistentvolumeclaim "data"'),
    ],
)
def test_a_claim_without_storage_says_why(held: dict[Reference, Object], words: str) -> None:
    with pytest.raises(DriverError) as told:
        resolve_claim(WISH.spec.volumes[0], "red", held)
    assert str(told.value) == words
