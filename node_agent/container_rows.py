"""What a container's status tells beside its state: its mounts, its resources, its user. Pure.

Source: facts/node.md 13.
"""

from __future__ import annotations

from api.objects import Container as Wish
from api.objects import (
    ContainerStatus,
    ContainerUser,
    LinuxContainerUser,
    ResourceRequirements,
    VolumeMountStatus,
)
from node_agent.observed import Container


def volume_mounts(wish: Wish) -> tuple[VolumeMountStatus, ...]:
    """What the container asks for; what is mounted below a volume is never made read-only with it."""
    return tuple(
        VolumeMountStatus(
            name=mount.name,
            mount_path=mount.mount_path,
            read_only=mount.read_only,
            recursive_read_only="Disabled" if mount.read_only else None,
        )
        for mount in wish.volume_mounts
    )


def resources(wish: Wish, newest: Container | None) -> ResourceRequirements | None:
    """What the container has, which is what it asked for; nothing before there is one."""
    if newest is None:
        return None
    return ResourceRequirements(limits=wish.resources.limits, requests=wish.resources.requests)


def user(newest: Container | None, known: ContainerStatus | None) -> ContainerUser | None:
    """Who the container was when it was first seen running: what has become of it since does not count."""
    if newest is None:
        return None
    if known is not None and known.user is not None and known.container_id == f"docker://{newest.id}":
        return known.user
    if newest.user is None:
        return None
    uid, gid, groups = newest.user
    return ContainerUser(linux=LinuxContainerUser(uid=uid, gid=gid, supplemental_groups=groups))
