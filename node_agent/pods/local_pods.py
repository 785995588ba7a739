"""The pods of which something exists on this host: containers, directories, cgroups."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from node_agent.cgroups.manager import CgroupManager
from node_agent.docker.client import DockerClient
from node_agent.host import HostInfo
from node_agent.runtime import pod_dir
from node_agent.runtime.container import POD_NAME, POD_NAMESPACE


class LocalPods:
    """Lists the pods of which something exists on this host, whether or not a source has them."""

    def __init__(self, docker: DockerClient, cgroups: CgroupManager, host: HostInfo) -> None:
        self._docker = docker
        self._cgroups = cgroups
        self._host = host

    async def with_directory(self) -> set[str]:
        """Return the UIDs of the pods that have a directory. Raises NotReady."""
        return await asyncio.to_thread(pod_dir.list_pod_dirs, self._host)

    async def named(self, namespace: str, name: str) -> dict[str, Mapping[str, str]]:
        """Return the pods of this name that have containers, as UID → labels of a container. Raises DriverError."""
        labels = await self._docker.list_pods()
        return {
            uid: row for uid, row in labels.items() if (row.get(POD_NAMESPACE), row.get(POD_NAME)) == (namespace, name)
        }

    async def list(self) -> dict[str, Mapping[str, str]]:
        """Return all pods, as UID → labels of a container. Without containers the labels are empty.

        Raises DriverError.
        """
        labels = await self._docker.list_pods()
        directories = await self.with_directory()
        cgroups = await self._cgroups.list_pod_uids()
        return {uid: labels.get(uid, {}) for uid in directories | cgroups | labels.keys()}
