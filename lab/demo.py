"""The demo workload: three projects with a pod on every node; prints their state and connectivity."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from api.client.client import AlreadyExists, Client
from api.core.node import Namespace, Node
from api.core.pod import Container, Pod, PodSpec
from api.core.services import Service, ServicePort, ServiceSpec
from api.meta.types import ObjectMeta
from api.network.types import HostSubnet, NetNamespace
from api.validation.registry import default
from lab.connectivity import Matrix, Probe, ProbedService, measure
from lab.images import TOOLBOX
from lab.process import LabError
from lab.topology import Lab
from reconcile.terminal import table

PROJECTS = ("red", "blue", "default")
LABEL = {"app": "demo"}
SERVICE = "demo"
WAIT_SECONDS = 120.0


async def apply(client: Client, lab: Lab) -> None:
    """Create the projects and their pods. Objects that exist are not changed."""
    for project in PROJECTS:
        with contextlib.suppress(AlreadyExists):
            await client.create(Namespace(metadata=ObjectMeta(name=project)))
    for project in PROJECTS:
        for node in lab.nodes:
            with contextlib.suppress(AlreadyExists):
                await client.create(_pod(project, node.number, node.name))
        with contextlib.suppress(AlreadyExists):
            await client.create(_service(project))


def _pod(project: str, number: int, node: str) -> Pod:
    sleeper = Container(
        name="toolbox",
        image=TOOLBOX,
        image_pull_policy="IfNotPresent",
        command=("sh", "-c", "mkdir -p /tmp/www; hostname > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www"),
    )
    meta = ObjectMeta(name=f"{project}-{number}", namespace=project, labels=LABEL)
    spec = PodSpec(containers=(sleeper,), node_name=node, termination_grace_period_seconds=1)
    return default(Pod(metadata=meta, spec=spec))


def _service(project: str) -> Service:
    """Return the service with all pods of a project."""
    ports = (ServicePort(port=80, target_port=8080),)
    return default(
        Service(metadata=ObjectMeta(name=SERVICE, namespace=project), spec=ServiceSpec(selector=LABEL, ports=ports))
    )


def is_ready(thing: Node | Pod) -> bool:
    """Return True if the Ready condition of a node or pod is True."""
    return any(condition.type == "Ready" and condition.status == "True" for condition in thing.status.conditions)


@dataclass(frozen=True, slots=True)
class Tally:
    """Number of objects that are ready, and a sentence for each object that is not."""

    done: int
    waiting: tuple[str, ...] = ()


async def until(look: Callable[[], Awaitable[Tally]], progress: Callable[[str], None], wanted: int, what: str) -> None:
    """Wait until enough objects are ready, and print the progress. Raises LabError after two minutes."""
    deadline, said = time.monotonic() + WAIT_SECONDS, -1
    while True:
        tally = await look()
        if tally.done != said:
            progress(f"{tally.done}/{wanted} {what}")
            said = tally.done
        if tally.done >= wanted:
            return
        if time.monotonic() > deadline:
            missing = "".join(f"\n  {sentence}" for sentence in tally.waiting)
            raise LabError(f"only {tally.done} of {wanted} {what} after {WAIT_SECONDS:.0f} s{missing}")
        await asyncio.sleep(0.1)


async def nodes_ready(client: Client, lab: Lab) -> Tally:
    """Count ready nodes. For all others, return the reason or the place of their logs."""
    known = {node.metadata.name: node for node in (await client.list(Node)).items}
    ready = [name for name, node in known.items() if is_ready(node)]
    said = {name: _why(node) for name, node in known.items()}
    waiting = tuple(
        f"{node.name}: {said.get(node.name, 'has not registered')}; see .lab/{node.name}/log"
        for node in lab.nodes
        if node.name not in ready
    )
    return Tally(len(ready), waiting)


async def pods_running(client: Client) -> Tally:
    """Count running pods of the demo. For all others, return the reason."""
    pods = await _demo_pods(client)
    waiting = tuple(
        f"{pod.metadata.namespace}/{pod.metadata.name} on {pod.spec.node_name}: {pod.status.message or _why(pod)}"
        for pod in pods
        if not (is_ready(pod) and pod.status.pod_ip)
    )
    return Tally(len(pods) - len(waiting), waiting)


async def _demo_pods(client: Client) -> tuple[Pod, ...]:
    """Return the pods of the demo. Pods of other projects may have their label."""
    labelled = (await client.list(Pod, label_selector="app=demo")).items
    return tuple(pod for pod in labelled if pod.metadata.namespace in PROJECTS)


def _why(thing: Node | Pod) -> str:
    conditions = [condition for condition in thing.status.conditions if condition.type == "Ready"]
    return conditions[0].message or conditions[0].reason if conditions else "has said nothing yet"


async def show(client: Client, lab: Lab) -> Matrix:
    """Print nodes, subnets, VNIDs and pods, and measure the connectivity."""
    nodes = (await client.list(Node)).items
    subnets = {subnet.host: subnet for subnet in (await client.list(HostSubnet)).items}
    rows = [
        (
            node.metadata.name,
            "Ready" if is_ready(node) else "NotReady",
            subnets[node.metadata.name].host_ip if node.metadata.name in subnets else "-",
            subnets[node.metadata.name].subnet if node.metadata.name in subnets else "-",
        )
        for node in nodes
    ]
    print("\n" + table(("NODE", "STATUS", "ADDRESS", "SUBNET"), rows))
    net_namespaces = (await client.list(NetNamespace)).items
    if net_namespaces:
        print(
            "\n"
            + table(
                ("PROJECT", "VNID"),
                [(net_namespace.netname, str(net_namespace.netid)) for net_namespace in net_namespaces],
            )
        )
    pods = await _demo_pods(client)
    listed = [
        (p.metadata.namespace, p.metadata.name, p.status.phase, p.status.pod_ip or "-", p.spec.node_name) for p in pods
    ]
    print("\n" + table(("PROJECT", "POD", "STATUS", "IP", "NODE"), listed))
    services = [
        service
        for service in (await client.list(Service)).items
        if service.metadata.name == SERVICE and service.metadata.namespace in PROJECTS
    ]
    services.sort(key=lambda service: PROJECTS.index(service.metadata.namespace))
    frontends = [(service.metadata.namespace, SERVICE, service.spec.cluster_ip) for service in services]
    print("\n" + table(("PROJECT", "SERVICE", "CLUSTER IP"), frontends))
    vnids = {net_namespace.netname: net_namespace.netid for net_namespace in net_namespaces}
    called = [ProbedService(project, vnids.get(project, 0), SERVICE) for project, _, _ in frontends]
    return await asyncio.to_thread(measure, members(pods, lab, vnids), called, str(lab.site.outside))


def members(pods: tuple[Pod, ...], lab: Lab, vnids: Mapping[str, int]) -> list[Probe]:
    """Return the pods that can send: those that are ready and not being deleted. Pure."""
    sockets = {node.name: str(node.docker_socket) for node in lab.nodes}
    running = [
        pod
        for pod in pods
        if is_ready(pod)
        and pod.status.pod_ip
        and pod.status.container_statuses
        and pod.metadata.deletion_timestamp is None
    ]
    running.sort(key=lambda pod: (PROJECTS.index(pod.metadata.namespace), pod.metadata.name))
    return [
        Probe(
            project=pod.metadata.namespace,
            vnid=vnids.get(pod.metadata.namespace, 0),
            name=pod.metadata.name,
            address=pod.status.pod_ip,
            container=pod.status.container_statuses[0].container_id.removeprefix("docker://"),
            docker_socket=sockets[pod.spec.node_name],
        )
        for pod in running
        if pod.spec.node_name in sockets
    ]
