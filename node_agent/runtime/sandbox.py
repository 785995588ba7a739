"""Creates a pod's sandbox and connects it to the network; back-off after failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from api.core import resources
from api.core.pod import Pod, PodStatus
from api.core.services import Service
from api.network.attach import NODE_AGENT, AttachRequest
from node_agent.cgroups.manager import CgroupManager
from node_agent.config import PAUSE_IMAGE
from node_agent.docker.client import DockerClient
from node_agent.host import HostInfo
from node_agent.network.dns import missing_cluster_dns, uses_cluster_dns
from node_agent.network.plugin import PodNetwork
from node_agent.object_cache import ObjectCache
from node_agent.probes.manager import ProbeDependencies
from node_agent.runtime import pod_dir
from node_agent.runtime.container import RuntimeContainer
from node_agent.runtime.pleg import PodCache
from node_agent.runtime.spec import ContainerConfig, sandbox_config
from node_agent.volumes.tokens import TokenCache
from reconcile.errors import Gone


@dataclass(frozen=True, slots=True)
class WorkerDependencies:
    """The same for every pod. `event` tells (pod, reason, message, container or nothing)."""

    docker: DockerClient
    cache: PodCache
    network: PodNetwork
    host: HostInfo
    node_address: str
    pause_image: str
    report: Callable[[str, PodStatus], None]
    gone: Callable[[str], None]
    event: Callable[[Pod, str, str, str], None]
    references: ObjectCache
    tokens: TokenCache
    cgroups: CgroupManager
    probing: ProbeDependencies
    services: Callable[[Pod], Collection[Service]]


async def prepare_sandbox_config(tools: WorkerDependencies, pod: Pod, attempt: int) -> ContainerConfig:
    """The sandbox as Docker is asked for it; its control group is there when it starts. Raises Refused, NotReady."""
    spec = sandbox_config(pod, tools.pause_image, attempt, tools.host)
    return replace(spec, cgroup_parent=await tools.cgroups.cgroup_parent(pod))


async def create_sandbox(docker: DockerClient, spec: ContainerConfig) -> str:
    """Create a sandbox, whose image is fetched only where it is missing, and never the one that is made on the node.

    Returns its id. Raises what Docker raises.
    """
    try:
        return await docker.create(spec)
    except Gone:
        if spec.image == PAUSE_IMAGE:
            raise
        await docker.pull(spec.image)
        return await docker.create(spec)


async def attach_network(
    pod: Pod, sandbox: RuntimeContainer, network: PodNetwork, node_address: str
) -> tuple[str, str]:
    """The pod's address, at which it can be reached when this returns: its own, or the node's with hostNetwork.

    Then the name server that its network has for it. Each is empty where the network gives none.

    Raises what the network raises.
    """
    if pod.spec.host_network:
        return node_address, (await network.status()).nameserver if uses_cluster_dns(pod) else ""
    meta = pod.metadata
    ingress, egress = resources.bandwidth_limits(meta.annotations)
    request = AttachRequest(
        sandbox=sandbox.id,
        netns=f"/proc/{sandbox.pid}/ns/net",
        namespace=meta.namespace,
        name=meta.name,
        runtime=NODE_AGENT,
        uid=meta.uid,
        ingress_bandwidth=ingress,
        egress_bandwidth=egress,
    )
    attachment = await network.attach(request)
    return attachment.ip.partition("/")[0], attachment.nameserver


async def write_pod_dns(pod: Pod, host: HostInfo, address: str, nameserver: str) -> list[tuple[str, str]]:
    """Write how the pod calls itself and whom it asks for names: `nameserver`, where the node's settings name nobody.

    Returns what to tell (reason, message) of it. Raises NotReady.
    """
    if nameserver and not host.cluster_dns:
        host = replace(host, cluster_dns=(nameserver,))
    exceeded = await asyncio.to_thread(pod_dir.write_network_files, pod, host, address)
    told = (("DNSConfigForming", exceeded), ("MissingClusterDNS", missing_cluster_dns(pod, host.cluster_dns)))
    return [(reason, message) for reason, message in told if message]
