"""Volume binding: on which nodes the claims of a pod can be used, and the choice of volumes or of a node. Pure.

A pod is bound to a node only when all of its claims are bound. A claim whose class waits for the first consumer gets
the smallest matching volume of the node that was selected for the pod. If there is none, the claim gets the annotation
`volume.kubernetes.io/selected-node`, and its provisioner creates a volume there. Messages are those of the plugin
VolumeBinding of kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from api.core.node import Node
from api.core.placement import matches_node_selector
from api.core.pod import Pod
from api.core.storage import BOUND, SELECTED_NODE, LocalVolume, PersistentVolume, PersistentVolumeClaim
from api.meta.types import ObjectReference
from master.controllers.actions import Failed, Update, isolate_errors
from master.controllers.claim_events import ClaimKey, claims_of, provisioned_name, waits_for_consumer
from master.controllers.persistent_volumes import is_free, matches_claim, storage_size
from master.resources.metadata import with_metadata
from master.resources.volumes import NO_PROVISIONER, StorageClass, claim_class, default_class, matches_topology

BIND_CONFLICT = "node(s) didn't find available persistent volumes to bind"
NODE_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
NO_VOLUME = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
UNBOUND_IMMEDIATE = "pod has unbound immediate PersistentVolumeClaims"
BINDING = 'running PreBind plugin "VolumeBinding": binding volumes: '


@dataclass(frozen=True, slots=True)
class UnboundClaim:
    """A claim for which a volume or a node is to be chosen. `candidates` are volumes that match it, smallest first."""

    claim: PersistentVolumeClaim
    storage_class: StorageClass
    candidates: tuple[PersistentVolume, ...]


@dataclass(frozen=True, slots=True)
class PodVolumes:
    """What the claims of a pod require of a node.

    `problem` is why no node is feasible. `bound` are the volumes of bound claims, None for one that does not exist.
    `waiting` is why claims are not bound although a node is selected.
    """

    problem: str = ""
    bound: tuple[PersistentVolume | None, ...] = ()
    unbound: tuple[UnboundClaim, ...] = ()
    waiting: str = ""


NO_VOLUMES = PodVolumes()


@dataclass(slots=True)
class VolumeBinder:
    """The claims and volumes of the cluster in the course of one pass, with the choices made in it."""

    claims: dict[ClaimKey, PersistentVolumeClaim] = field(default_factory=dict)
    volumes: dict[str, PersistentVolume] = field(default_factory=dict)
    classes: dict[str, StorageClass] = field(default_factory=dict)
    default_class: str = ""
    problems: dict[str, str] = field(default_factory=dict)
    """Why a volume is not provisioned, by its name."""
    free: list[tuple[int, str]] = field(default_factory=list)
    """Size and name of the volumes that no claim has, smallest first."""
    prebound: dict[ClaimKey, str] = field(default_factory=dict)
    """Volume that names a claim, by the claim."""

    def add_volume(self, volume: PersistentVolume) -> tuple[()]:
        """Add a volume. Raises BadQuantity, and then it is not a candidate of any claim."""
        name, owner = volume.metadata.name, volume.spec.claim_ref
        self.volumes[name] = volume
        if owner is not None:
            claim = self.claims.get((owner.namespace, owner.name))
            if claim is not None and owner.uid in ("", claim.metadata.uid):
                self.prebound[(owner.namespace, owner.name)] = name
        elif is_free(volume):
            self.free.append((storage_size(volume.spec.capacity), name))
        return ()

    def volumes_of(self, pod: Pod) -> PodVolumes:
        """Return what the claims of a pod require."""
        keys = tuple(dict.fromkeys(claims_of(pod)))
        if not keys:
            return NO_VOLUMES
        bound: list[PersistentVolume | None] = []
        unbound: list[UnboundClaim] = []
        waiting: list[str] = []
        for key in keys:
            claim = self.claims.get(key)
            if claim is None:
                return PodVolumes(problem=f'persistentvolumeclaim "{key[1]}" not found')
            if claim.metadata.deletion_timestamp:
                return PodVolumes(problem=f'persistentvolumeclaim "{key[1]}" is being deleted')
            if claim.spec.volume_name and claim.status.phase == BOUND:
                bound.append(self.volumes.get(claim.spec.volume_name))
                continue
            choice = self._unbound(claim)
            if choice is None:
                return PodVolumes(problem=UNBOUND_IMMEDIATE)
            unbound.append(choice)
            problem = self.problems.get(provisioned_name(claim))
            if problem:
                waiting.append(f'persistentvolumeclaim "{key[1]}": {problem}')
        # The smallest claim chooses first: the volume that it leaves may be large enough for the next one.
        unbound.sort(key=lambda each: storage_size(each.claim.spec.resources.requests))
        return PodVolumes(bound=tuple(bound), unbound=tuple(unbound), waiting="; ".join(waiting))

    def _unbound(self, claim: PersistentVolumeClaim) -> UnboundClaim | None:
        """Return the claim with its candidates; None if its binding does not wait for a pod."""
        storage_class = self.classes.get(claim_class(claim) or self.default_class)
        if storage_class is None or not waits_for_consumer(storage_class) or claim.spec.volume_name:
            return None
        prebound = self.prebound.get((claim.metadata.namespace, claim.metadata.name))
        if prebound is not None:
            return UnboundClaim(claim, storage_class, (self.volumes[prebound],))
        matching = (self.volumes[name] for _, name in self.free if matches_claim(self.volumes[name], claim))
        return UnboundClaim(claim, storage_class, tuple(matching))

    def choose(self, volumes: PodVolumes, node: Node) -> Iterator[Update]:
        """Yield the writes that choose volumes, or the node, for the unbound claims of a pod; nothing if it was done.

        Later pods of this pass see the choices.
        """
        for claim, volume in self._assign(volumes, node) or ():
            key = (claim.metadata.namespace, claim.metadata.name)
            if volume is None:
                annotations = {**claim.metadata.annotations, SELECTED_NODE: node.metadata.name}
                self.claims[key] = with_metadata(claim, annotations=annotations)
                yield Update(self.claims[key], claim)
            else:
                name = volume.metadata.name
                reference = ObjectReference(
                    api_version="v1", kind=claim.KIND, namespace=key[0], name=key[1], uid=claim.metadata.uid
                )
                self.volumes[name] = replace(volume, spec=replace(volume.spec, claim_ref=reference))
                self.prebound[key] = name
                self.free = [entry for entry in self.free if entry[1] != name]
                yield Update(self.volumes[name], volume)

    def reason(self, volumes: PodVolumes, node: Node) -> str:
        """Return why the claims of a pod cannot be used on a node; empty if they can."""
        if volumes.problem:
            return volumes.problem
        if any(volume is None for volume in volumes.bound):
            return NO_VOLUME
        if not all(allows_node(volume, node) for volume in volumes.bound if volume is not None):
            return NODE_CONFLICT
        return BIND_CONFLICT if self._assign(volumes, node) is None else ""

    def _assign(
        self, volumes: PodVolumes, node: Node
    ) -> list[tuple[PersistentVolumeClaim, PersistentVolume | None]] | None:
        """Return each unbound claim for which a choice is to be made, with its volume on the node.

        The volume is None if one is to be provisioned there. The result is None if a claim cannot be bound on the node.
        """
        choices: list[tuple[PersistentVolumeClaim, PersistentVolume | None]] = []
        taken: set[str] = set()
        for unbound in volumes.unbound:
            claim, storage_class = unbound.claim, unbound.storage_class
            if (claim.metadata.namespace, claim.metadata.name) in self.prebound:
                if not allows_node(unbound.candidates[0], node):
                    return None
                continue
            selected_node = claim.metadata.annotations.get(SELECTED_NODE)
            if selected_node is not None:
                if selected_node != node.metadata.name:
                    return None
                continue
            usable = (volume for volume in unbound.candidates if volume.metadata.name not in taken)
            volume = next((each for each in usable if allows_node(each, node)), None)
            if volume is None and not _can_provision(storage_class, node):
                return None
            if volume is not None:
                taken.add(volume.metadata.name)
            choices.append((claim, volume))
        return choices


def _can_provision(storage_class: StorageClass, node: Node) -> bool:
    return storage_class.provisioner != NO_PROVISIONER and matches_topology(storage_class, node.metadata.labels)


def allows_node(volume: PersistentVolume, node: Node) -> bool:
    """Return whether the node affinity of a volume matches a node."""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return True
    return matches_node_selector(affinity.required, node.metadata.name, node.metadata.labels)


@dataclass(frozen=True, slots=True)
class StorageObjects:
    """The objects from which a VolumeBinder is made."""

    claims: Iterable[PersistentVolumeClaim] = ()
    volumes: Iterable[PersistentVolume] = ()
    classes: Iterable[StorageClass] = ()
    local_volumes: Iterable[LocalVolume] = ()


NO_STORAGE = StorageObjects()


def fill_binder(binder: VolumeBinder, storage: StorageObjects) -> Iterator[Failed]:
    """Fill a binder. Yield the volumes that cannot be read."""
    classes = tuple(storage.classes)
    binder.classes = {storage_class.metadata.name: storage_class for storage_class in classes}
    binder.default_class = default_class(classes)
    binder.claims = {(claim.metadata.namespace, claim.metadata.name): claim for claim in storage.claims}
    binder.problems = {
        volume.metadata.name: f"node {volume.spec.node_name}: {volume.status.message}"
        for volume in storage.local_volumes
        if volume.status.message
    }
    yield from isolate_errors(storage.volumes, binder.add_volume)
    binder.free.sort()
