"""Reads termination messages, once for each container."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from api.core.pod import Container, Pod
from api.core.resource_requests import all_containers
from node_agent.docker.client import DockerClient
from node_agent.host import HostInfo, termination_message_path
from node_agent.runtime import pod_files
from node_agent.runtime.container import RuntimeContainer, RuntimePod

MAX_MESSAGE_BYTES = 4096
MAX_POD_BYTES = 12 << 10
"""Limit of the messages of all containers of a pod together (kubelet: MaxPodTerminationMessageLogLength)."""

MAX_LOG_BYTES = 2048
LOG_LINES = 80
"""Limits of a message that is taken from the end of a log."""


class TerminationMessages:
    """The termination messages of one pod's containers."""

    def __init__(self, docker: DockerClient, host: HostInfo) -> None:
        self._docker = docker
        self._host = host
        self._messages: dict[str, str] = {}

    async def read_all(self, pod: Pod, runtime_pod: RuntimePod) -> Mapping[str, str]:
        """Return the messages of the exited containers, by container ID. Raises NotReady."""
        specs = {container.name: container for container in all_containers(pod)}
        max_bytes = min(MAX_MESSAGE_BYTES, MAX_POD_BYTES // max(len(specs), 1))
        messages = {}
        for name, history in runtime_pod.containers.items():
            for container in history:
                if not container.exited or name not in specs:
                    continue
                message = self._messages.get(container.id)
                if message is None:
                    message = await self._read(pod, specs[name], container, max_bytes)
                messages[container.id] = message
        self._messages = messages
        return messages

    async def _read(self, pod: Pod, spec: Container, exited: RuntimeContainer, max_bytes: int) -> str:
        path = termination_message_path(self._host, pod.metadata.uid, spec.name, exited.restart_count)
        message = await asyncio.to_thread(pod_files.read_tail, path, max_bytes)
        if message or spec.termination_message_policy != "FallbackToLogsOnError" or exited.succeeded:
            return message
        return await self._docker.log_tail(exited.id, LOG_LINES, min(MAX_LOG_BYTES, max_bytes))
