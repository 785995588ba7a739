"""What a container's request needs from this host: its image's user, profiles, the container it looks into."""

from __future__ import annotations

import asyncio

from api.objects import Pod
from node_agent.containers import ContainerSpec, Host, container_spec
from node_agent.drivers import host as directories
from node_agent.drivers.docker import Docker
from node_agent.observed import PodContainers
from node_agent.plan import Start
from node_agent.security import Grounds, container_rights, seccomp_profile
from node_agent.stages import target_of


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
    rights = container_rights(pod, wish, grounds)
    pid = target_of(wish, seen)
    return container_spec(pod, wish, image, sandbox, start.restarts, start.crashes, host, rights, pid)
