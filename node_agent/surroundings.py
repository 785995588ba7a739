"""What a pod's sandbox and containers need from this host: network, images' users, profiles, other containers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from api import bandwidth
from api.attach import NODE_AGENT, AttachRequest
from api.configuration import Secret
from api.objects import Container as Wish
from api.objects import Pod
from api.references import passwords_of, variables_of
from node_agent.containers import ContainerSpec, Host, container_spec, message_file, pod_dir, sandbox_spec
from node_agent.credentials import Credential, fitting
from node_agent.drivers import host as directories
from node_agent.drivers import sub_paths as sub_path_driver
from node_agent.drivers.docker import Docker
from node_agent.environment import Sources, environment
from node_agent.observed import Container, PodContainers
from node_agent.plan import Start
from node_agent.pod_network import SandboxNetwork
from node_agent.references import References
from node_agent.resolver import asks_cluster, without_cluster_dns
from node_agent.security import Grounds, container_rights, seccomp_profile
from node_agent.service_variables import service_variables
from node_agent.settings import MADE_HERE
from node_agent.stages import target_of
from node_agent.tools import Tools
from node_agent.volume_paths import sub_paths
from reconcile.errors import Gone


async def boxed(tools: Tools, pod: Pod, attempt: int) -> ContainerSpec:
    """The sandbox as Docker is asked for it; its control group is there when it starts. Raises Refused, NotReady."""
    spec = sandbox_spec(pod, tools.pause_image, attempt, tools.host)
    return replace(spec, cgroup_parent=await tools.cgroups.path(pod))


async def created(docker: Docker, spec: ContainerSpec) -> str:
    """Create a sandbox, whose image is fetched only where it is missing, and never the one that is made on the node.

    Returns its id. Raises what Docker raises.
    """
    try:
        return await docker.create(spec)
    except Gone:
        if spec.image == MADE_HERE:
            raise
        await docker.pull(spec.image)
        return await docker.create(spec)


async def connected(pod: Pod, sandbox: Container, network: SandboxNetwork, node_address: str) -> tuple[str, str]:
    """The pod's address, at which it can be reached when this returns: its own, or the node's with hostNetwork.

    Then the name server that its network has for it. Each is empty where the network gives none.

    Raises what the network raises.
    """
    if pod.spec.host_network:
        return node_address, (await network.status()).nameserver if asks_cluster(pod) else ""
    meta = pod.metadata
    ingress, egress = bandwidth.limits(meta.annotations)
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


async def named(pod: Pod, host: Host, address: str, nameserver: str) -> list[tuple[str, str]]:
    """Write how the pod calls itself and whom it asks for names: `nameserver`, where the node's settings name nobody.

    Returns what to tell (reason, message) of it. Raises NotReady.
    """
    if nameserver and not host.cluster_dns:
        host = replace(host, cluster_dns=(nameserver,))
    exceeded = await asyncio.to_thread(directories.write_network_files, pod, host, address)
    told = (("DNSConfigForming", exceeded), ("MissingClusterDNS", without_cluster_dns(pod, host.cluster_dns)))
    return [(reason, message) for reason, message in told if message]


def credentials_for(
    wish: Wish, pod: Pod, references: References, tell: Callable[[str, str, str], None]
) -> tuple[Credential, ...]:
    """What the pod may show to the registry of a container's image; a secret that is missing is told and does without.

    Raises Unread while the master has not spoken.
    """
    wanted = passwords_of(pod)
    found = references.found(wanted)
    for missing in (one for one in wanted if one not in found):
        words = f"Unable to retrieve some image pull secrets ({missing.name}); "
        words += "attempting to pull the image may not succeed."
        tell("FailedToRetrieveImagePullSecret", words, wish.name)
    return fitting(wish.image, (one for one in found.values() if isinstance(one, Secret)))


async def surrounded(
    tools: Tools, pod: Pod, start: Start, image: str, sandbox: str, seen: PodContainers
) -> ContainerSpec:
    """The container as Docker is asked for it; the pod's status has its addresses.

    Raises Refused, with what is wrong in the pod or missing, Unread while the master has not spoken.
    """
    wish, host = start.wish, tools.host
    objects = tools.references.found(variables_of(wish, pod.metadata.namespace))
    known = environment(pod, wish, Sources(objects, host.allocatable, service_variables(pod, tools.services(pod))))
    profile = seccomp_profile(pod, wish)
    named = profile.localhost_profile if profile is not None else ""
    grounds = Grounds(
        image_user=await tools.docker.image_user(image),
        seccomp=await asyncio.to_thread(directories.seccomp_profile, host, named) if named else "",
        apparmor=directories.has_apparmor(),
        seccomp_default=host.seccomp_default,
    )
    parts = tuple(sub_paths(pod, wish, pod_dir(host, pod.metadata.uid), known))
    path = message_file(host, pod.metadata.uid, wish.name, start.restarts)

    def prepare() -> None:
        sub_path_driver.prepare(parts)
        directories.make_message_file(path)

    await asyncio.to_thread(prepare)
    rights = container_rights(pod, wish, grounds)
    pid = target_of(wish, seen)
    spec = container_spec(pod, wish, image, sandbox, start.restarts, start.crashes, host, rights, known, pid)
    return replace(spec, cgroup_parent=await tools.cgroups.make(pod))
