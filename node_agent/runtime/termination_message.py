"""Reads termination messages, once for each container.

Source: facts/node.md 10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from api.core.pod import Container as Wish
from api.core.pod import Pod
from api.core.resources import all_containers
from node_agent.docker.client import DockerClient
from node_agent.host import HostInfo, termination_message_path
from node_agent.runtime import pod_dir
from node_agent.runtime.container import RuntimeContainer, RuntimePod

MAX_MESSAGE_BYTES, MAX_POD_BYTES = 4096, 12 << 10
MAX_LOG_BYTES, LOG_LINES = 2048, 80
"""Bytes of one message, of all of a pod, and of one that is taken from a log, with its lines."""


class TerminationMessages:
    """Of one pod's containers."""

    def __init__(self, docker: DockerClient, host: HostInfo) -> None:
        self._docker = docker
        self._host = host
        self._known: dict[str, str] = {}

    async def read_all(self, pod: Pod, seen: RuntimePod) -> Mapping[str, str]:
        """The messages of the containers that have ended, by id. Raises NotReady while Docker is away."""
        wishes = {wish.name: wish for wish in all_containers(pod)}
        room = min(MAX_MESSAGE_BYTES, MAX_POD_BYTES // max(len(wishes), 1))
        known = {}
        for name, history in seen.containers.items():
            for one in history:
                if one.exited and name in wishes:
                    read = self._known.get(one.id)
                    known[one.id] = await self._read(pod, wishes[name], one, room) if read is None else read
        self._known = known
        return known

    async def _read(self, pod: Pod, wish: Wish, ended: RuntimeContainer, room: int) -> str:
        path = termination_message_path(self._host, pod.metadata.uid, wish.name, ended.restart_count)
        said = await asyncio.to_thread(pod_dir.read_tail, path, room)
        if said or wish.termination_message_policy != "FallbackToLogsOnError" or ended.succeeded:
            return said
        return await self._docker.log_tail(ended.id, LOG_LINES, min(MAX_LOG_BYTES, room))
