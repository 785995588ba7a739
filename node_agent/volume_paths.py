"""Where the volumes of a pod are on the host, and what containers have of them. Pure."""

from __future__ import annotations

from api.objects import Container, Pod
from api.volumes import Volume, VolumeMount
from node_agent.payload import is_made_of_files

PLUGINS = {
    "empty_dir": "kubernetes.io~empty-dir",
    "config_map": "kubernetes.io~configmap",
    "secret": "kubernetes.io~secret",
    "downward_api": "kubernetes.io~downward-api",
    "projected": "kubernetes.io~projected",
}
"""Source of a volume → directory of its kind in the pod's directory."""


def volume_dir(pod_dir: str, volume: Volume) -> str:
    """The directory of a volume that the agent makes."""
    plugin = next(plugin for field, plugin in PLUGINS.items() if getattr(volume, field) is not None)
    return f"{pod_dir}/volumes/{plugin}/{volume.name}"


def source_of(pod_dir: str, volume: Volume) -> str:
    """The file or directory on the host behind a volume."""
    return volume.host_path.path if volume.host_path is not None else volume_dir(pod_dir, volume)


def is_read_only(volume: Volume) -> bool:
    """Whether no container may write it, whatever its mounts say."""
    return is_made_of_files(volume)


def binds(pod: Pod, container: Container, pod_dir: str) -> tuple[str, ...]:
    """The container's mounts as Docker wants them: `SOURCE:TARGET[:OPTIONS]`."""
    volumes = {volume.name: volume for volume in pod.spec.volumes}
    return tuple(_bind(volumes[mount.name], mount, pod_dir) for mount in container.volume_mounts)


def _bind(volume: Volume, mount: VolumeMount, pod_dir: str) -> str:
    read_only = ":ro" if mount.read_only or is_read_only(volume) else ""
    return f"{source_of(pod_dir, volume)}:{mount.mount_path}{read_only}"
