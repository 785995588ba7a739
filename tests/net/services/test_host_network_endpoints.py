"""Services whose endpoints are pods in the network of a node, and everything else that listens there."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from api.client.client import AlreadyExists, Client
from api.core.endpoints import SERVICE_LABEL, Endpoint, EndpointSlice, SlicePort
from api.core.pod import Container, ContainerPort, Pod, PodSpec, PodStatus
from api.core.services import Service, ServicePort
from api.meta.types import ObjectMeta
from node_agent.network.host_ports import NO_HOST_PORTS, NodePorts, compile_host_ports
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.netns.services import ECHO, TARGET_PORT, answering, call, create_service, wait_for_answer
from tests.testbed.wait import wait_until

OUTSIDE = "/proc/self/ns/net"
SERVED, OTHER = 9100, 9999
NODES = ("node-1", "node-2")
PORTS = (ServicePort(port=80, target_port=SERVED),)


@pytest.fixture(scope="module")
def exporter(world: PacketWorld) -> Iterator[Service]:
    """Yield a service of the project red: a pod with hostNetwork on each node. The nodes have other listeners, too."""

    async def register(client: Client) -> None:
        for node in NODES:
            meta = ObjectMeta(name=f"exporter-{node}", namespace="red", labels={"app": "exporter"})
            spec = PodSpec(containers=(Container(name="c", image="none"),), node_name=node, host_network=True)
            with contextlib.suppress(AlreadyExists):
                await client.create(Pod(metadata=meta, spec=spec))
            address = str(world.node_address(node))
            conditions = [{"type": "Ready", "status": "True"}]
            status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
            await client.patch_status(Pod, meta.name, "red", {"status": status})

    async def withdraw(client: Client) -> None:
        for node in NODES:
            await client.delete(Pod, f"exporter-{node}", "red", grace_seconds=0)
        await client.delete(Service, "exporter", "red")
        await client.delete(Service, "intruder", "blue")

    running = [
        subprocess.Popen(
            ["ip", "netns", "exec", world.nodes[node].namespace, sys.executable, "-c", ECHO, node, str(port)],
            stdout=subprocess.PIPE,
        )
        for node in NODES
        for port in (SERVED, OTHER)
    ]
    try:
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline(), "the program did not begin"
        world.call_api(register)
        yield create_service(world, "exporter", "red", {"app": "exporter"}, ports=PORTS)
        world.call_api(withdraw)
    finally:
        for process in running:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("caller", ["red-a", "red-c", "admin-a", "admin-b"])
def test_pods_reach_endpoints_in_the_network_of_nodes(world: PacketWorld, exporter: Service, caller: str) -> None:
    namespace = world.pod_namespace(caller)
    wait_for_answer(namespace, exporter.spec.cluster_ip, 80)
    assert {call(namespace, exporter.spec.cluster_ip, 80)[0] for _ in range(16)} == set(NODES)
    for node in NODES:
        assert call(namespace, world.node_address(node), SERVED)[0] == node


@pytest.mark.parametrize("caller", ["red-a", "red-c", "blue-a", "blue-b"])
def test_pods_reach_no_other_program_of_any_node(world: PacketWorld, exporter: Service, caller: str) -> None:
    namespace = world.pod_namespace(caller)
    wait_for_answer(world.pod_namespace("red-a"), exporter.spec.cluster_ip, 80)
    ports = (OTHER,) if caller.startswith("red") else (OTHER, SERVED)
    for address in (*map(world.node_address, NODES), *map(world.gateway, NODES)):
        for port in ports:
            with pytest.raises(OSError, match="No route to host"):
                call(namespace, address, port)
    for node in NODES:
        assert call(OUTSIDE, world.node_address(node), OTHER)[0] == node
        assert call(world.nodes["node-1"].namespace, world.node_address(node), OTHER)[0] == node


def test_pods_reach_host_ports_of_their_node(world: PacketWorld) -> None:
    pod = world.pods["blue-a"]
    container_ports = tuple(
        ContainerPort(container_port=TARGET_PORT, host_port=9080, protocol=protocol) for protocol in ("TCP", "UDP")
    )
    published = Pod(
        metadata=ObjectMeta(name=pod.name, namespace=pod.project),
        spec=PodSpec(containers=(Container(name="c", image="none", ports=container_ports),)),
        status=PodStatus(pod_ip=str(pod.address)),
    )
    node = world.nodes[pod.node]
    nft = ("ip", "netns", "exec", node.namespace, "nft", "-f", "-")
    ruleset = compile_host_ports([published], NodePorts(frozenset({node.address}))).ruleset
    subprocess.run(nft, input=ruleset, text=True, check=True)
    try:
        with answering(world, pod.name):
            for caller in ("red-a", "blue-a", "admin-a"):
                assert call(world.pod_namespace(caller), node.address, 9080)[0] == pod.name
            assert call(OUTSIDE, node.address, 9080)[0] == pod.name
            with pytest.raises(TimeoutError):
                call(world.pod_namespace("red-a"), pod.address, TARGET_PORT, seconds=0.3)
            at_loopback = (pod.name, str(world.gateway(pod.node)))
            assert call(node.namespace, "127.0.0.1", 9080) == at_loopback
            assert call(node.namespace, "127.0.0.1", 9080, "UDP") == at_loopback
            world.kill(f"{pod.node} sdn")
            assert call(node.namespace, "127.0.0.1", 9080) == at_loopback
            world.start(f"{pod.node} sdn")
            wait_until(lambda: world.network_ready(pod.node), "the network")
            assert call(node.namespace, "127.0.0.1", 9080) == at_loopback
    finally:
        subprocess.run(nft, input=NO_HOST_PORTS, text=True, check=True)


def test_service_of_a_tenant_opens_no_port_of_a_node(world: PacketWorld, exporter: Service) -> None:
    endpoint_slice = EndpointSlice(
        metadata=ObjectMeta(name="intruder", namespace="blue", labels={SERVICE_LABEL: "intruder"}),
        address_type="IPv4",
        endpoints=(Endpoint(addresses=(str(world.node_address("node-1")),)),),
        ports=(SlicePort(port=OTHER),),
    )
    intruder = create_service(world, "intruder", "blue", {}, ports=(ServicePort(port=80, target_port=OTHER),))
    world.call_api(lambda client: client.create(endpoint_slice))
    # A program of the node reaches the endpoint, so the service works.
    assert wait_for_answer(world.nodes["node-1"].namespace, intruder.spec.cluster_ip, 80)[0] == "node-1"

    def refusal(caller: str) -> str:
        try:
            answer = call(world.pod_namespace(caller), intruder.spec.cluster_ip, 80)
        except OSError as error:
            return str(error)
        raise AssertionError(f"{answer} to {caller}")

    for caller in ("blue-a", "blue-b"):
        # The switches may learn of the endpoint after the firewall of node-1. Until then, the service has none.
        wait_until(lambda: "No route to host" in refusal(caller), f"the firewall rejects {caller}")  # noqa: B023
