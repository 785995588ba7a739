"""What a container's request needs from this host: its image's user, profiles, volumes, what it looks into."""

from __future__ import annotations

import asyncio

from api.objects import Pod
from node_agent.containers import ContainerSpec, Host, container_spec, pod_dir
from node_agent.drivers import host as directories
from node_agent.drivers import sub_paths as sub_path_driver
from node_agent.drivers.docker import Docker
from node_agent.environment import environment
from node_agent.observed import PodContainers
from node_agent.plan import Start
from node_agent.security import Grounds, container_rights, seccomp_profile
from node_agent.stages import target_of
from node_agent.volume_paths import sub_paths


async def surrounded(
    docker: Docker, host: Host, pod: Pod, start: Start, image: str, sandbox: str, seen: PodContainers
) -> ContainerSpec:
    """The container as Docker is asked for it. Raises Refused, with what is wrong in the pod or missing on the host."""
    wish = start.wish
    profile = seccomp_profile(pod, wish)
    named = profile.localhost_profile if profile is not None else ""
    grounds = Grounds(
        image_user=await docker.image_user(image),
        seccomp=await asyncio.to_thread(directories.seccomp_profile, host, named) if named else "",
        apparmor=directories.has_apparmor(),
    )
    parts = tuple(sub_paths(pod, wish, pod_dir(host, pod.metadata.uid), environment(pod, wish)))
    await asyncio.to_thread(sub_path_driver.prepare, parts)
    rights = container_rights(pod, wish, grounds)
    pid = target_of(wish, seen)
    return container_spec(pod, wish, image, sandbox, start.restarts, start.crashes, host, rights, pid)
