"""What containers said when they ended: their termination messages, read once for each.

Source: facts/node.md 10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from api.objects import Container as Wish
from api.objects import Pod
from api.resources import containers_of
from node_agent.containers import Host, message_file
from node_agent.drivers import host as directories
from node_agent.drivers.docker import Docker
from node_agent.observed import Container, PodContainers

LONGEST, LONGEST_TOGETHER = 4096, 12 << 10
LONGEST_LOG, LOG_LINES = 2048, 80
"""Bytes of one message, of all of a pod, and of one that is taken from a log, with its lines."""


class LastWords:
    """Of one pod's containers."""

    def __init__(self, docker: Docker, host: Host) -> None:
        self._docker = docker
        self._host = host
        self._known: dict[str, str] = {}

    async def learn(self, pod: Pod, seen: PodContainers) -> Mapping[str, str]:
        """The messages of the containers that have ended, by id. Raises NotReady while Docker is away."""
        wishes = {wish.name: wish for wish in containers_of(pod)}
        room = min(LONGEST, LONGEST_TOGETHER // max(len(wishes), 1))
        known = {}
        for name, history in seen.containers.items():
            for one in history:
                if one.ended and name in wishes:
                    read = self._known.get(one.id)
                    known[one.id] = await self._read(pod, wishes[name], one, room) if read is None else read
        self._known = known
        return known

    async def _read(self, pod: Pod, wish: Wish, ended: Container, room: int) -> str:
        path = message_file(self._host, pod.metadata.uid, wish.name, ended.restarts)
        said = await asyncio.to_thread(directories.read_end, path, room)
        if said or wish.termination_message_policy != "FallbackToLogsOnError" or ended.succeeded:
            return said
        return await self._docker.log_end(ended.id, LOG_LINES, min(LONGEST_LOG, room))
