"""Where the volumes of a pod are on the host, and what containers have of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from api.objects import Container, Pod
from api.quantity import whole
from api.resources import allowed, limited_memory
from api.volumes import Volume, VolumeMount
from node_agent.environment import expand, unknown
from node_agent.payload import is_made_of_files
from reconcile.errors import Refused

PLUGINS = {
    "empty_dir": "kubernetes.io~empty-dir",
    "config_map": "kubernetes.io~configmap",
    "secret": "kubernetes.io~secret",
    "downward_api": "kubernetes.io~downward-api",
    "projected": "kubernetes.io~projected",
    "nfs": "kubernetes.io~nfs",
}
"""Source of a volume → directory of its kind in the pod's directory."""

FOLDERS = ("volume-subpaths", "volumes")
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


def source_of(pod_dir: str, volume: Volume) -> str:
    """The file or directory on the host behind a volume."""
    return volume.host_path.path if volume.host_path is not None else volume_dir(pod_dir, volume)


def is_read_only(volume: Volume) -> bool:
    """Whether no container may write it, whatever its mounts say."""
    claim, nfs = volume.persistent_volume_claim, volume.nfs
    return is_made_of_files(volume) or bool(claim and claim.read_only) or bool(nfs and nfs.read_only)


def is_own(volume: Volume) -> bool:
    """Whether what is in it is the pod's, and no more there than this pod is."""
    return volume.empty_dir is not None or is_made_of_files(volume)


def is_in_memory(volume: Volume) -> bool:
    """Whether it takes memory in place of a disk."""
    return volume.empty_dir is not None and volume.empty_dir.medium == "Memory"


def memory_size(volume: Volume, pod: Pod, memory: int) -> int:
    """The most bytes of a volume in memory: no more than it says, than the pod may use, than the host has."""
    limit = volume.empty_dir.size_limit if volume.empty_dir is not None else None
    sizes = (whole(limit or 0), allowed(pod.spec, limited_memory), memory)
    return min(size for size in sizes if size > 0)


def sub_paths(pod: Pod, container: Container, pod_dir: str, variables: Mapping[str, str]) -> Iterator[SubPath]:
    """The parts of volumes that the container mounts. Raises Refused for one that its variables make impossible."""
    volumes = {volume.name: volume for volume in pod.spec.volumes}
    for index, mount in enumerate(container.volume_mounts):
        volume, path = volumes[mount.name], _sub_path(mount, variables)
        if path:
            target = _target(pod_dir, mount, container, index)
            yield SubPath(source_of(pod_dir, volume), path, target, may_make=not is_read_only(volume))


def _sub_path(mount: VolumeMount, variables: Mapping[str, str]) -> str:
    if not mount.sub_path_expr:
        return mount.sub_path
    missing = unknown(mount.sub_path_expr, variables)
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
    return source_of(pod_dir, volume)


def _bind(volume: Volume, mount: VolumeMount, source: str) -> str:
    if mount.recursive_read_only == "Enabled":
        raise Refused(f"volume mount {mount.name!r}: recursiveReadOnly Enabled is not supported by this runtime")
    read_only = "ro" if mount.read_only or is_read_only(volume) else ""
    options = ",".join(word for word in (read_only, PROPAGATIONS.get(mount.mount_propagation or "", "")) if word)
    return f"{source}:{mount.mount_path}{':' if options else ''}{options}"
