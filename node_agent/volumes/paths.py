"""Where volumes are on the host; mounts of containers; claims to volumes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from api.core.pod import Container, Pod
from api.core.references import Reference
from api.core.resources import memory_limit, pod_limit
from api.core.storage import BOUND, PersistentVolume, PersistentVolumeClaim
from api.core.volumes import Volume, VolumeMount
from api.meta.quantity import to_int
from api.meta.types import Object
from node_agent.runtime.environment import expand, undefined_variables
from node_agent.volumes.payload import is_projected
from reconcile.errors import DriverError, NotReady, Refused

PLUGINS = {
    "empty_dir": "kubernetes.io~empty-dir",
    "config_map": "kubernetes.io~configmap",
    "secret": "kubernetes.io~secret",
    "downward_api": "kubernetes.io~downward-api",
    "projected": "kubernetes.io~projected",
    "nfs": "kubernetes.io~nfs",
}
"""Source of a volume → directory of its kind in the pod's directory."""

VOLUME_DIRS = ("volume-subpaths", "volumes")
"""Of a pod's directory: parts of volumes, which go before the volumes themselves."""

PROPAGATIONS = {"HostToContainer": "rslave", "Bidirectional": "rshared"}
"""How a mount takes part in mounts that come later → Docker's word for it; nothing for those that do not."""


@dataclass(frozen=True, slots=True)
class SubPath:
    """A part of a volume: `path` below `root`, to be had at `target`. `may_make`: it is made where it is missing."""

    root: str
    path: str
    target: str
    may_make: bool


def volume_dir(pod_dir: str, volume: Volume) -> str:
    """The directory of a volume that the agent makes. Raises Refused for a kind that it does not know."""
    plugin = next((plugin for field, plugin in PLUGINS.items() if getattr(volume, field) is not None), "")
    if not plugin:
        raise Refused(f"no volume plugin matched volume {volume.name!r}; its kind is not supported by this node")
    return f"{pod_dir}/volumes/{plugin}/{volume.name}"


def volume_host_path(pod_dir: str, volume: Volume) -> str:
    """The file or directory on the host behind a volume."""
    return volume.host_path.path if volume.host_path is not None else volume_dir(pod_dir, volume)


def is_read_only(volume: Volume) -> bool:
    """Whether no container may write it, whatever its mounts say."""
    claim, nfs = volume.persistent_volume_claim, volume.nfs
    return is_projected(volume) or bool(claim and claim.read_only) or bool(nfs and nfs.read_only)


def is_pod_owned(volume: Volume) -> bool:
    """Whether what is in it is the pod's, and no more there than this pod is."""
    return volume.empty_dir is not None or is_projected(volume)


def is_in_memory(volume: Volume) -> bool:
    """Whether it takes memory in place of a disk."""
    return volume.empty_dir is not None and volume.empty_dir.medium == "Memory"


def tmpfs_size(volume: Volume, pod: Pod, memory: int) -> int:
    """The most bytes of a volume in memory: no more than it says, than the pod may use, than the host has."""
    limit = volume.empty_dir.size_limit if volume.empty_dir is not None else None
    sizes = (to_int(limit or 0), pod_limit(pod.spec, memory_limit), memory)
    return min(size for size in sizes if size > 0)


def sub_paths(pod: Pod, container: Container, pod_dir: str, variables: Mapping[str, str]) -> Iterator[SubPath]:
    """The parts of volumes that the container mounts. Raises Refused for one that its variables make impossible."""
    volumes = {volume.name: volume for volume in pod.spec.volumes}
    for index, mount in enumerate(container.volume_mounts):
        volume, path = volumes[mount.name], _sub_path(mount, variables)
        if path:
            target = _target(pod_dir, mount, container, index)
            yield SubPath(volume_host_path(pod_dir, volume), path, target, may_make=not is_read_only(volume))


def _sub_path(mount: VolumeMount, variables: Mapping[str, str]) -> str:
    if not mount.sub_path_expr:
        return mount.sub_path
    missing = undefined_variables(mount.sub_path_expr, variables)
    if missing:
        raise Refused(f"subPathExpr {mount.sub_path_expr!r}: the container has no variable {missing[0]}")
    path = expand(mount.sub_path_expr, variables)
    if not path or path.startswith("/") or ".." in path.split("/"):
        raise Refused(f"subPathExpr {mount.sub_path_expr!r} is {path!r}; a relative path without '..' is accepted")
    return path


def _target(pod_dir: str, mount: VolumeMount, container: Container, index: int) -> str:
    return f"{pod_dir}/volume-subpaths/{mount.name}/{container.name}/{index}"


def binds(pod: Pod, container: Container, pod_dir: str) -> tuple[str, ...]:
    """The container's mounts as Docker wants them: `SOURCE:TARGET[:OPTIONS]`. Raises Refused for what Docker cannot."""
    volumes = {volume.name: volume for volume in pod.spec.volumes}
    return tuple(
        _bind(volumes[mount.name], mount, _source(volumes[mount.name], mount, container, index, pod_dir))
        for index, mount in enumerate(container.volume_mounts)
    )


def _source(volume: Volume, mount: VolumeMount, container: Container, index: int, pod_dir: str) -> str:
    if mount.sub_path or mount.sub_path_expr:
        return _target(pod_dir, mount, container, index)
    return volume_host_path(pod_dir, volume)


def _bind(volume: Volume, mount: VolumeMount, source: str) -> str:
    if mount.recursive_read_only == "Enabled":
        raise Refused(f"volume mount {mount.name!r}: recursiveReadOnly Enabled is not supported by this runtime")
    read_only = "ro" if mount.read_only or is_read_only(volume) else ""
    options = ",".join(word for word in (read_only, PROPAGATIONS.get(mount.mount_propagation or "", "")) if word)
    return f"{source}:{mount.mount_path}{':' if options else ''}{options}"


def claimed_volumes(claims: Mapping[Reference, Object]) -> Iterator[Reference]:
    """The volumes that claims have."""
    for claim in claims.values():
        if isinstance(claim, PersistentVolumeClaim) and claim.spec.volume_name:
            yield Reference(PersistentVolume, "", claim.spec.volume_name)


def resolve_claim(
    volume: Volume, namespace: str, objects: Mapping[Reference, Object]
) -> tuple[Volume, tuple[str, ...]]:
    """The volume with its storage as its source, beside the claim, and the options with which it is mounted.

    Raises NotReady while the claim has none, Refused when it is not the claim's own.
    """
    wish = volume.persistent_volume_claim
    if wish is None:
        return volume, ()
    reference = Reference(PersistentVolumeClaim, namespace, wish.claim_name)
    claim = objects.get(reference)
    if not isinstance(claim, PersistentVolumeClaim):
        raise NotReady(f"{reference} not found")
    if claim.status.phase != BOUND or not claim.spec.volume_name:
        raise NotReady(f"{reference} is not bound to a volume: it is {claim.status.phase or 'Pending'}")
    place = Reference(PersistentVolume, "", claim.spec.volume_name)
    storage = objects.get(place)
    if not isinstance(storage, PersistentVolume):
        raise NotReady(f"{place} not found")
    holder = storage.spec.claim_ref
    if holder is None or holder.uid != claim.metadata.uid:
        raise Refused(f"{place} does not belong to {reference}")
    spec = storage.spec
    nfs = spec.nfs and replace(spec.nfs, read_only=spec.nfs.read_only or wish.read_only)
    return replace(volume, nfs=nfs, host_path=spec.host_path), spec.mount_options


def claim_paths(pod: Pod, objects: Mapping[Reference, Object], pod_dir: str) -> dict[str, str]:
    """The directories behind those volumes of a pod that are claims, by the volumes' names, as far as is known."""
    found = {}
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            try:
                storage, _ = resolve_claim(volume, pod.metadata.namespace, objects)
                found[volume.name] = volume_host_path(pod_dir, storage)
            except DriverError:
                continue
    return found
