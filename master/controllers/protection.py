"""Storage in use stays: a claim as long as a pod has it, a volume as long as a claim has it. Pure.

Both bear a finalizer from their beginning; it is taken away from what is being deleted once nobody uses it any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from api.core.pod import FINAL_PHASES, Pod
from api.core.storage import BOUND, PersistentVolume, PersistentVolumeClaim
from master.kinds.kind import with_metadata
from master.kinds.persistent_volume import VOLUME_FINALIZER
from master.kinds.persistent_volume_claim import CLAIM_FINALIZER
from master.writing.outcomes import Change, Drop

S = TypeVar("S", PersistentVolume, PersistentVolumeClaim)


def releases(
    volumes: Iterable[PersistentVolume], claims: Iterable[PersistentVolumeClaim], pods: Iterable[Pod]
) -> Iterator[Change | Drop]:
    """What is being deleted and in nobody's use: it goes, or loses our finalizer and waits for those of others."""
    leaving = [claim for claim in claims if claim.metadata.deletion_timestamp]
    used = frozenset(_used(pods)) if leaving else frozenset()
    for claim in leaving:
        if (claim.metadata.namespace, claim.metadata.name) not in used:
            yield from _without(claim, CLAIM_FINALIZER)
    for volume in volumes:
        if volume.metadata.deletion_timestamp and volume.status.phase != BOUND:
            yield from _without(volume, VOLUME_FINALIZER)


def _used(pods: Iterable[Pod]) -> Iterator[tuple[str, str]]:
    """The claims of pods that have not ended."""
    for pod in pods:
        if pod.status.phase not in FINAL_PHASES:
            for volume in pod.spec.volumes:
                if volume.persistent_volume_claim is not None:
                    yield pod.metadata.namespace, volume.persistent_volume_claim.claim_name


def _without(item: S, finalizer: str) -> Iterator[Change | Drop]:
    left = tuple(one for one in item.metadata.finalizers if one != finalizer)
    if not left:
        yield Drop(item)
    elif left != item.metadata.finalizers:
        yield Change(with_metadata(item, finalizers=left), item)
