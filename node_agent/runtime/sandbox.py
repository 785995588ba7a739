"""Creates a pod's sandbox and attaches it to the pod network; back-off after failures."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from api.core.pod import Pod
from api.core.resource_requests import bandwidth_limits
from api.network.attach import NODE_AGENT, AttachRequest
from node_agent.cgroups.manager import CgroupManager
from node_agent.clock import steady_clock
from node_agent.config import PAUSE_IMAGE
from node_agent.docker.client import DockerClient
from node_agent.event_recorder import PodEvents
from node_agent.host import HostInfo
from node_agent.network.dns import missing_cluster_dns, uses_cluster_dns
from node_agent.network.plugin import PodNetwork, missing_address
from node_agent.runtime import pod_files
from node_agent.runtime.actions import PodActions
from node_agent.runtime.container import RuntimeContainer
from node_agent.runtime.spec import ContainerConfig, sandbox_config
from reconcile.backoff import Backoff
from reconcile.errors import DriverError, Gone

log = logging.getLogger(__name__)

SANDBOX_BACKOFF = Backoff(1.0, 300.0)
"""Seconds between attempts to create a sandbox and to attach it. Docker's events about a failed attempt must not start
the next one."""


class PodSandbox:
    """The sandbox of one pod, and its attachment to the pod network.

    `address` is the pod's address, empty while it has none; `address` in the constructor is the address in the pod's
    status, from the previous agent process. `failure` is the reason and the message of the last failure of the sandbox
    or its network. `retry_at`, by the steady clock, is None unless the last attempt failed.
    """

    def __init__(
        self,
        docker: DockerClient,
        network: PodNetwork,
        cgroups: CgroupManager,
        host: HostInfo,
        events: PodEvents,
        address: str = "",
    ) -> None:
        self.address = address
        self.failure: tuple[str, str] | None = None
        self.retry_at: datetime | None = None
        self._docker = docker
        self._network = network
        self._cgroups = cgroups
        self._host = host
        self._events = events
        self._attached_id = ""
        self._failures = 0

    @property
    def is_attached(self) -> bool:
        """Whether this agent process has attached the sandbox to the network."""
        return bool(self._attached_id)

    def is_backing_off(self, now: datetime) -> bool:
        """Return whether it is too early for another attempt."""
        return self.retry_at is not None and now < self.retry_at

    async def create(self, pod: Pod, attempt: int, actions: PodActions) -> str:
        """Create a sandbox, and return its ID. Raises NotReady, Refused, Gone after a failure was recorded.

        The containers in `actions.remove` are removed when the new sandbox exists, because restart counts and attempts
        are computed from them: they would be lost if the agent were killed in between.
        """
        if attempt > 0:
            self._events.record("SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
        with self._failures_recorded():
            config = dataclasses.replace(
                sandbox_config(pod, self._host.pause_image, attempt, self._host),
                cgroup_parent=await self._cgroups.cgroup_parent(pod),
            )
            sandbox_id, _ = await asyncio.gather(create_container(self._docker, config), self._cgroups.create(pod))
            await self._detach_and_remove(actions.remove)
        return sandbox_id

    async def start(self, sandbox_id: str) -> RuntimeContainer:
        """Start a sandbox, and return it. Raises NotReady, Refused, Gone after a failure was recorded."""
        with self._failures_recorded():
            await self._docker.start(sandbox_id)
            sandbox = await self._docker.inspect(sandbox_id)
        self.failure = None
        return sandbox

    async def attach(self, pod: Pod, sandbox: RuntimeContainer) -> None:
        """Attach the sandbox to the network and write the pod's DNS files, unless this was done before.

        Raises NotReady, Refused after a failure was recorded. Raises Gone if the network cannot serve this sandbox any
        more; the sandbox is killed then, so that the next sync creates another one.
        """
        if self._attached_id == sandbox.id:
            return
        try:
            address, nameserver = await self._request_address(pod, sandbox)
        except DriverError as error:
            if isinstance(error, Gone):
                pod_name = f"{pod.metadata.namespace}/{pod.metadata.name}"
                log.warning("sandbox lost its network", extra={"pod": pod_name, "error": error})
                await self._docker.kill(sandbox.id, "SIGKILL")
            self._record_failure(f"network: {error}")
            raise
        self.failure = missing_address(pod, address)
        self.address = address
        await self._write_dns_files(pod, nameserver)
        self._attached_id = sandbox.id
        self._failures = 0
        self.retry_at = None

    async def detach(self, sandbox_ids: Iterable[str]) -> None:
        """Detach sandboxes from the network. A sandbox that is not attached is no error."""
        for sandbox_id in sandbox_ids:
            await self._network.detach(sandbox_id)
        self._attached_id = ""

    def network_changed(self) -> None:
        """Attach the sandbox again at the next sync, because the node has another subnet."""
        self._attached_id = ""

    async def _request_address(self, pod: Pod, sandbox: RuntimeContainer) -> tuple[str, str]:
        """Return the pod's address and the name server of its network. Each is empty if the network provides none.

        A pod with hostNetwork has the node's address. Packets flow to the address when this returns.
        """
        if pod.spec.host_network:
            nameserver = (await self._network.status()).nameserver if uses_cluster_dns(pod) else ""
            return self._host.node_address, nameserver
        ingress, egress = bandwidth_limits(pod.metadata.annotations)
        request = AttachRequest(
            sandbox=sandbox.id,
            netns=f"/proc/{sandbox.pid}/ns/net",
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            runtime=NODE_AGENT,
            uid=pod.metadata.uid,
            ingress_bandwidth=ingress,
            egress_bandwidth=egress,
        )
        attachment = await self._network.attach(request)
        return attachment.ip.partition("/")[0], attachment.nameserver

    async def _write_dns_files(self, pod: Pod, nameserver: str) -> None:
        """Write /etc/hosts and /etc/resolv.conf. `nameserver` is used if the node's settings name none."""
        host = self._host
        if nameserver and not host.cluster_dns:
            host = dataclasses.replace(host, cluster_dns=(nameserver,))
        exceeded_limit = await asyncio.to_thread(pod_files.write_network_files, pod, host, self.address)
        if exceeded_limit:
            self._events.record("DNSConfigForming", exceeded_limit)
        missing = missing_cluster_dns(pod, host.cluster_dns)
        if missing:
            self._events.record("MissingClusterDNS", missing)

    async def _detach_and_remove(self, containers: Iterable[RuntimeContainer]) -> None:
        for container in containers:
            if container.is_sandbox:
                await self._network.detach(container.id)
            await remove_container(self._docker, container)
        self.address = ""
        self._attached_id = ""

    @contextlib.contextmanager
    def _failures_recorded(self) -> Iterator[None]:
        """Record a driver error of the block before it is raised."""
        try:
            yield
        except DriverError as error:
            self._record_failure(str(error))
            raise

    def _record_failure(self, message: str) -> None:
        self.failure = ("FailedCreatePodSandBox", message)
        self._events.record("FailedCreatePodSandBox", f"Failed to create pod sandbox: {message}")
        self._failures += 1
        self.retry_at = steady_clock() + timedelta(seconds=SANDBOX_BACKOFF.delay(self._failures))


async def create_container(docker: DockerClient, config: ContainerConfig) -> str:
    """Create a sandbox container, and return its ID. Pull its image if it is missing, unless it is PAUSE_IMAGE.

    Raises what Docker raises.
    """
    try:
        return await docker.create(config)
    except Gone:
        if config.image == PAUSE_IMAGE:
            raise
        await docker.pull(config.image)
        return await docker.create(config)


async def remove_container(docker: DockerClient, container: RuntimeContainer) -> None:
    """Remove a container. Docker refuses if it was listed as never started and runs nevertheless."""
    if container.never_started:
        await docker.remove_unstarted(container.id)
    else:
        await docker.remove(container.id)
