"""The pods of this node as the server's handlers need them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from api.core.pod import Pod
from node_agent.runtime.container import RuntimePod
from node_agent.stats.model import PodWithContainers


class PodLister(Protocol):
    """The pods of this node (implemented by PodManager)."""

    def list_pods(self) -> Sequence[PodWithContainers]:
        """Return every pod with its status, and its containers as they were read last."""

    def get_pod(self, namespace: str, name: str, uid: str = "") -> Pod:
        """Return a pod by its name, and by its UID if that is given. Raises Gone."""

    async def get_containers(self, pod: Pod) -> RuntimePod:
        """Return the containers of a pod. Raises NotReady, Gone."""
