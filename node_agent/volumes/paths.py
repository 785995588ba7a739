"""Paths of volumes on the host; mounts of containers; volumes of claims. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import asdict, replace

from api.core.node import Node
from api.core.placement import matches_node_selector
from api.core.pod import Container, Pod
from api.core.references import Reference
from api.core.resource_requests import memory_limit, pod_limit
from api.core.storage import BOUND, LocalVolumeSource, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec
from api.core.volumes import Volume, VolumeMount
from api.meta.quantity import to_int
from api.meta.types import Object
from node_agent.runtime.environment import expand, undefined_variables
from node_agent.volumes.payload import has_payload
from reconcile.errors import DriverError, NotReady, Refused

LOCAL_PLUGIN = "kubernetes.io~local-volume"

PLUGIN_DIRS = {
    "empty_dir": "kubernetes.io~empty-dir",
    "config_map": "kubernetes.io~configmap",
    "secret": "kubernetes.io~secret",
    "downward_api": "kubernetes.io~downward-api",
    "projected": "kubernetes.io~projected",
    "nfs": "kubernetes.io~nfs",
    "local": LOCAL_PLUGIN,
}
"""Field of a volume's source → directory for volumes of this kind in the pod's directory."""

VOLUME_DIRS = ("volume-subpaths", "volumes")
"""Subdirectories of a pod's directory. The subPath mounts are removed before the volumes that they are part of."""

PROPAGATION_OPTIONS = {"HostToContainer": "rslave", "Bidirectional": "rshared"}
"""Mount propagation of a container's mount → Docker's mount option."""


class ClaimedVolume(Volume, frozen=True):
    """A volume of a pod with the source of its claim's PersistentVolume, of a kind that no pod itself can name."""

    local: LocalVolumeSource | None = None


@dataclass(frozen=True, slots=True)
class SubPath:
    """A part of a volume: `path` below `root`, to be mounted at `target`.

    With `create_missing`, missing components of the path are created as directories.
    """

    root: str
    path: str
    target: str
    create_missing: bool


def volume_dir(pod_dir: str, volume: Volume) -> str:
    """Return the directory of a volume that the agent sets up. Raises Refused for an unsupported kind of volume."""
    plugin = next((plugin for field, plugin in PLUGIN_DIRS.items() if getattr(volume, field, None) is not None), "")
    if not plugin:
        raise Refused(f"no volume plugin matched volume {volume.name!r}; its kind is not supported by this node")
    return f"{pod_dir}/volumes/{plugin}/{volume.name}"


def local_path(volume: Volume) -> str:
    """Return the directory of a local volume on the host; empty for another kind of volume."""
    return volume.local.path if isinstance(volume, ClaimedVolume) and volume.local is not None else ""


def volume_host_path(pod_dir: str, volume: Volume) -> str:
    """Return the file or directory on the host that is the volume. Raises Refused as `volume_dir` does."""
    return volume.host_path.path if volume.host_path is not None else volume_dir(pod_dir, volume)


def is_read_only(volume: Volume) -> bool:
    """Return whether the volume is read-only for all containers, regardless of their mounts."""
    claim = volume.persistent_volume_claim
    nfs = volume.nfs
    return has_payload(volume) or bool(claim and claim.read_only) or bool(nfs and nfs.read_only)


def is_pod_owned(volume: Volume) -> bool:
    """Return whether the content of the volume belongs to the pod and is removed with it."""
    return volume.empty_dir is not None or has_payload(volume)


def is_in_memory(volume: Volume) -> bool:
    """Return whether the volume is an emptyDir in memory."""
    return volume.empty_dir is not None and volume.empty_dir.medium == "Memory"


def tmpfs_size(volume: Volume, pod: Pod, memory: int) -> int:
    """Return the size in bytes of an emptyDir in memory.

    It is the smallest of the volume's size limit, the pod's memory limit and the host's memory.
    """
    limit = volume.empty_dir.size_limit if volume.empty_dir is not None else None
    sizes = (to_int(limit or 0), pod_limit(pod.spec, memory_limit), memory)
    return min(size for size in sizes if size > 0)


def sub_paths(pod: Pod, container: Container, pod_dir: str, variables: Mapping[str, str]) -> Iterator[SubPath]:
    """Yield the subPaths that a container mounts. `variables` is its environment, for subPathExpr.

    Raises Refused if a subPathExpr has no valid value.
    """
    volumes = {volume.name: volume for volume in pod.spec.volumes}
    for index, mount in enumerate(container.volume_mounts):
        volume = volumes[mount.name]
        path = _expanded_sub_path(mount, variables)
        if path:
            target = _sub_path_target(pod_dir, mount, container, index)
            yield SubPath(volume_host_path(pod_dir, volume), path, target, create_missing=not is_read_only(volume))


def binds(pod: Pod, container: Container, pod_dir: str) -> tuple[str, ...]:
    """Return the container's mounts in Docker's form `SOURCE:TARGET[:OPTIONS]`.

    Raises Refused for a mount that Docker does not support.
    """
    volumes = {volume.name: volume for volume in pod.spec.volumes}
    return tuple(
        _bind(volumes[mount.name], mount, _bind_source(volumes[mount.name], mount, container, index, pod_dir))
        for index, mount in enumerate(container.volume_mounts)
    )


def claimed_volumes(claims: Mapping[Reference, Object]) -> Iterator[Reference]:
    """Yield references to the PersistentVolumes that these claims are bound to."""
    for claim in claims.values():
        if isinstance(claim, PersistentVolumeClaim) and claim.spec.volume_name:
            yield Reference(PersistentVolume, "", claim.spec.volume_name)


def resolve_claim(
    volume: Volume, namespace: str, objects: Mapping[Reference, Object], node: Node | None
) -> tuple[Volume, tuple[str, ...]]:
    """Return the volume with the source of its claim's PersistentVolume, and the mount options.

    Other volumes are returned unchanged. Raises NotReady while the claim is not bound, Refused if its PersistentVolume
    belongs to another claim or cannot be used on this node. `node` is None until it is registered.
    """
    source = volume.persistent_volume_claim
    if source is None:
        return volume, ()
    claim_reference = Reference(PersistentVolumeClaim, namespace, source.claim_name)
    claim = objects.get(claim_reference)
    if not isinstance(claim, PersistentVolumeClaim):
        raise NotReady(f"{claim_reference} not found")
    if claim.status.phase != BOUND or not claim.spec.volume_name:
        raise NotReady(f"{claim_reference} is not bound to a volume: it is {claim.status.phase or 'Pending'}")
    storage_reference = Reference(PersistentVolume, "", claim.spec.volume_name)
    storage = objects.get(storage_reference)
    if not isinstance(storage, PersistentVolume):
        raise NotReady(f"{storage_reference} not found")
    owner = storage.spec.claim_ref
    if owner is None or owner.uid != claim.metadata.uid:
        raise Refused(f"{storage_reference} does not belong to {claim_reference}")
    spec = storage.spec
    _check_node_affinity(spec, node)
    nfs = spec.nfs and replace(spec.nfs, read_only=spec.nfs.read_only or source.read_only)
    if spec.local is not None:
        return ClaimedVolume(**asdict(volume), local=spec.local), spec.mount_options
    return replace(volume, nfs=nfs, host_path=spec.host_path), spec.mount_options


def _check_node_affinity(spec: PersistentVolumeSpec, node: Node | None) -> None:
    """Raise Refused if a volume cannot be used on this node (kubelet: CheckNodeAffinity).

    The scheduler sees to that, but a pod may name its node itself.
    """
    if spec.node_affinity is None or spec.node_affinity.required is None:
        return
    if node is None:
        raise NotReady("this node is not registered yet, and the volume has a node affinity")
    if not matches_node_selector(spec.node_affinity.required, node.metadata.name, node.metadata.labels):
        raise Refused("no matching NodeSelectorTerms: the volume cannot be used on this node")


def claim_paths(pod: Pod, objects: Mapping[Reference, Object], pod_dir: str, node: Node | None) -> dict[str, str]:
    """Return the directories of a pod's volumes with claims, by volume name. Claims without a volume are omitted."""
    paths = {}
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            try:
                storage, _ = resolve_claim(volume, pod.metadata.namespace, objects, node)
                paths[volume.name] = volume_host_path(pod_dir, storage)
            except DriverError:
                continue
    return paths


def _expanded_sub_path(mount: VolumeMount, variables: Mapping[str, str]) -> str:
    if not mount.sub_path_expr:
        return mount.sub_path
    missing = undefined_variables(mount.sub_path_expr, variables)
    if missing:
        raise Refused(f"subPathExpr {mount.sub_path_expr!r}: the container has no variable {missing[0]}")
    path = expand(mount.sub_path_expr, variables)
    if not path or path.startswith("/") or ".." in path.split("/"):
        raise Refused(f"subPathExpr {mount.sub_path_expr!r} is {path!r}; a relative path without '..' is accepted")
    return path


def _sub_path_target(pod_dir: str, mount: VolumeMount, container: Container, index: int) -> str:
    return f"{pod_dir}/volume-subpaths/{mount.name}/{container.name}/{index}"


def _bind_source(volume: Volume, mount: VolumeMount, container: Container, index: int, pod_dir: str) -> str:
    if mount.sub_path or mount.sub_path_expr:
        return _sub_path_target(pod_dir, mount, container, index)
    return volume_host_path(pod_dir, volume)


def _bind(volume: Volume, mount: VolumeMount, source: str) -> str:
    if mount.recursive_read_only == "Enabled":
        raise Refused(f"volume mount {mount.name!r}: recursiveReadOnly Enabled is not supported by this runtime")
    read_only = "ro" if mount.read_only or is_read_only(volume) else ""
    propagation = PROPAGATION_OPTIONS.get(mount.mount_propagation or "", "")
    options = ",".join(option for option in (read_only, propagation) if option)
    return f"{source}:{mount.mount_path}:{options}" if options else f"{source}:{mount.mount_path}"
