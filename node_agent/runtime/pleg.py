"""Caches each pod's containers; invalidates the cache on Docker events and on a periodic relist (kubelet: PLEG, pod
cache).
"""

from __future__ import annotations

from collections.abc import Mapping

from node_agent.docker.client import DockerClient
from node_agent.runtime.container import RuntimePod, group_containers


class PodCache:
    """Blurred by Docker's events, by whatever we do ourselves, and when a list of all containers tells otherwise."""

    def __init__(self, docker: DockerClient, uid: str) -> None:
        self._docker = docker
        self._uid = uid
        self._clear = False
        self._seen = RuntimePod()

    def blur(self) -> None:
        """Something may have happened to the pod's containers."""
        self._clear = False

    @property
    def seen(self) -> RuntimePod:
        """Every container of the pod as it was last seen."""
        return self._seen

    async def look(self) -> RuntimePod:
        """Every container of the pod, running or not. Raises NotReady, Refused, Gone as Docker does."""
        if not self._clear:
            self._clear = True  # What happens while Docker answers blurs it again.
            try:
                self._seen = group_containers(await self._docker.pod_containers(self._uid))
            except BaseException:
                self._clear = False
                raise
        return self._seen

    def agrees(self, states: Mapping[str, str]) -> bool:
        """Whether a list of all containers of the pod, state by id, shows what was seen."""
        return not self._clear or {one.id: one.state for one in self._seen.everything} == states
