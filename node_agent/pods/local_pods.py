"""The pods that have containers, a directory or a cgroup on this host."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from node_agent.cgroups.manager import CgroupManager
from node_agent.docker.client import DockerClient
from node_agent.host import HostInfo
from node_agent.runtime import pod_files
from node_agent.runtime.container import POD_NAME, POD_NAMESPACE


class LocalPods:
    """Lists the pods that have containers, a directory or a cgroup on this host, whether or not a source has them."""

    def __init__(self, docker: DockerClient, cgroups: CgroupManager, host: HostInfo) -> None:
        self._docker = docker
        self._cgroups = cgroups
        self._host = host

    async def list_directories(self) -> set[str]:
        """Return the UIDs of the pods that have a directory. Raises NotReady."""
        return await asyncio.to_thread(pod_files.list_pod_dirs, self._host)

    async def find_by_name(self, namespace: str, name: str) -> dict[str, Mapping[str, str]]:
        """Return the pods of this name that have containers: labels of one container by pod UID. Raises DriverError."""
        labels_by_uid = await self._docker.list_pods()
        return {
            uid: labels
            for uid, labels in labels_by_uid.items()
            if (labels.get(POD_NAMESPACE), labels.get(POD_NAME)) == (namespace, name)
        }

    async def list(self) -> dict[str, Mapping[str, str]]:
        """Return all pods: labels of one container by pod UID, empty for a pod without containers.

        Raises DriverError.
        """
        labels_by_uid = await self._docker.list_pods()
        directories = await self.list_directories()
        cgroups = await self._cgroups.list_pod_uids()
        return {uid: labels_by_uid.get(uid, {}) for uid in directories | cgroups | labels_by_uid.keys()}
