"""The pods that have containers, a directory or a cgroup on this host, and orphans: those that no source has."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from api.core.pod import Pod, PodSpec
from api.meta.types import ObjectMeta
from api.validation.static_pods import CONFIG_SOURCE
from node_agent.cgroups.manager import CgroupManager
from node_agent.docker.client import DockerClient
from node_agent.host import HostInfo
from node_agent.runtime import pod_files
from node_agent.runtime.container import ANNOTATION, GRACE, POD_NAME, POD_NAMESPACE, SANDBOX_TYPE, TYPE, int_label

ORPHAN_GRACE_SECONDS = 2
"""Grace period of an orphan whose containers have no label with its grace period."""


def orphan_pod(uid: str, labels: Mapping[str, str]) -> Pod:
    """Return a pod of which only the labels of its sandbox, or of another container, are known.

    It is static if its sandbox has the annotation of a static pod; it then has its full grace period, as a static pod
    that is removed while the agent runs. Otherwise it is a pod of the API server whose deletion was forced.
    """
    is_sandbox = labels.get(TYPE) == SANDBOX_TYPE  # Other containers may have this label from their image.
    source = labels.get(ANNOTATION + CONFIG_SOURCE, "api") if is_sandbox else "api"
    return Pod(
        metadata=ObjectMeta(
            name=labels.get(POD_NAME, "unknown"),
            namespace=labels.get(POD_NAMESPACE, ""),
            uid=uid,
            annotations={CONFIG_SOURCE: source},
        ),
        spec=PodSpec(termination_grace_period_seconds=int_label(labels, GRACE, ORPHAN_GRACE_SECONDS)),
    )


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
        """Return the pods of this name that have containers: labels of the sandbox, or of a container, by pod UID.

        Raises DriverError.
        """
        labels_by_uid = await self._docker.list_pods()
        return {
            uid: labels
            for uid, labels in labels_by_uid.items()
            if (labels.get(POD_NAMESPACE), labels.get(POD_NAME)) == (namespace, name)
        }

    async def list(self) -> dict[str, Mapping[str, str]]:
        """Return all pods: labels of the sandbox, or of a container, by pod UID; empty for a pod without containers.

        Raises DriverError.
        """
        labels_by_uid = await self._docker.list_pods()
        directories = await self.list_directories()
        cgroups = await self._cgroups.list_pod_uids()
        return {uid: labels_by_uid.get(uid, {}) for uid in directories | cgroups | labels_by_uid.keys()}
