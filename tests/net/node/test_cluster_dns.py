"""DNS for pods at their gateway, with and without the master."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import dns.exception
import dns.message
import dns.query
import dns.rcode
import pytest

from api.core.services import Service, ServicePort, ServiceSpec
from api.meta.types import ObjectMeta
from api.validation.registry import default
from tests.testbed.isolation.world import PlannedPod
from tests.testbed.namespaces import inside
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.wait import wait_until

RED, BLUE, ADMIN = (
    PlannedPod("red-a", "red", "node-1"),
    PlannedPod("blue-a", "blue", "node-1"),
    PlannedPod("boss", "default", "node-1"),
)
FAR = PlannedPod("red-b", "red", "node-2")
SECONDS = 5.0
GATEWAYS: dict[str, str] = {}
ADDRESS = "172.30.7.7"
WEB = "web.red.svc.cluster.local"

FLOOD = """
import contextlib, socket, sys
import dns.message
server, name = sys.argv[1:]
asker = socket.socket(type=socket.SOCK_DGRAM)
asker.connect((server, 53))
plain = dns.message.make_query(name, "A").to_wire()
letters = [offset for offset in range(13, 13 + len(name)) if chr(plain[offset]).isalpha()]
variants = []
for number in range(1 << 14):
    # Each name has other upper and lower case, so that no cached answer matches.
    wire = bytearray(plain)
    for bit, offset in enumerate(letters):
        wire[offset] ^= (number >> bit & 1) * 32
    variants.append(bytes(wire))
while True:
    for wire in variants:
        with contextlib.suppress(OSError):
            asker.send(wire)
    with contextlib.suppress(ValueError):
        print("asked", flush=True)
        sys.stdout.close()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[PacketWorld]:
    with PacketWorld("podname", 37) as running:
        for project in ("red", "blue"):
            running.add_project(project)
        for planned_pod in (RED, BLUE, ADMIN, FAR):
            GATEWAYS[planned_pod.node] = str(running.gateway(planned_pod.node))
            assert running.add(planned_pod).nameserver == GATEWAYS[planned_pod.node]
        running.call_api(lambda client: client.create(web("red", ADDRESS)))
        wait_until(lambda: resolve(running, "red-a", WEB) == [ADDRESS], "the service to be known")
        yield running


def web(namespace: str, address: str) -> Service:
    spec = ServiceSpec(cluster_ip=address, ports=(ServicePort(port=80),))
    return default(Service(metadata=ObjectMeta(name="web", namespace=namespace), spec=spec))


def resolve(
    cluster: PacketWorld, pod_name: str, name: str, *, tcp: bool = False, seconds: float = SECONDS
) -> list[str]:
    """Return the addresses that the gateway resolves for a pod or a node, or the code of the error.

    Raises the exceptions of a resolver.
    """
    node = cluster.nodes.get(pod_name)
    namespace = node.namespace if node is not None else cluster.pod_namespace(pod_name)
    query, gateway = (
        dns.message.make_query(name, "A"),
        GATEWAYS[pod_name if node is not None else cluster.pods[pod_name].node],
    )
    with inside(namespace):
        reported = dns.query.tcp(query, gateway, seconds) if tcp else dns.query.udp(query, gateway, seconds)
    return [str(rdata) for rrset in reported.answer for rdata in rrset] or [dns.rcode.to_text(reported.rcode())]


@pytest.mark.parametrize("tcp", [False, True])
def test_names_resolve_only_in_their_own_project(cluster: PacketWorld, tcp: bool) -> None:
    assert resolve(cluster, "red-a", WEB, tcp=tcp) == [ADDRESS]
    assert resolve(cluster, "red-b", WEB, tcp=tcp) == [ADDRESS]
    assert resolve(cluster, "blue-a", WEB, tcp=tcp) == ["NXDOMAIN"]


def test_global_project_and_node_resolve_all_names(cluster: PacketWorld) -> None:
    for pod_name in ("boss", "node-1", "node-2"):
        assert resolve(cluster, pod_name, WEB) == [ADDRESS]


def test_dns_answers_follow_changes_at_once(cluster: PacketWorld) -> None:
    cluster.call_api(lambda client: client.create(web("blue", "172.30.7.8")))
    wait_until(lambda: resolve(cluster, "blue-a", "web.blue.svc.cluster.local") == ["172.30.7.8"], "the new service")
    cluster.call_api(lambda client: client.delete(Service, "web", "blue"))
    wait_until(lambda: resolve(cluster, "blue-a", "web.blue.svc.cluster.local") == ["NXDOMAIN"], "its end")


def test_dns_flood_of_one_pod_leaves_capacity_for_others(cluster: PacketWorld) -> None:
    """Two processes send queries as fast as they can. Another pod sends at most three queries, like a resolver.

    The senders have the lowest priority: the test is about capacity for queries, not about processor time.
    """
    in_pod = ["ip", "netns", "exec", cluster.pod_namespace("blue-a"), "nice", "-n", "19"]
    command = [*in_pod, sys.executable, "-c", FLOOD, GATEWAYS["node-1"]]
    floods = [subprocess.Popen([*command, WEB], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for flood in floods:
            assert flood.stdout is not None
            assert flood.stdout.readline(), "nobody floods"
        for _ in range(3):
            assert any(is_answered(cluster) for _ in range(3))
        assert all(flood.poll() is None for flood in floods)
    finally:
        for flood in floods:
            flood.kill()
            flood.communicate()


def is_answered(cluster: PacketWorld) -> bool:
    with contextlib.suppress(dns.exception.Timeout):
        return resolve(cluster, "red-a", WEB) == [ADDRESS]
    return False


def test_dns_works_without_the_master_even_after_a_daemon_restart(cluster: PacketWorld) -> None:
    restart(cluster)
    wait_until(lambda: cluster.network_ready("node-1"), "the daemon")
    wait_until(lambda: WEB.partition(".")[0] in stored_names(cluster), "names to be kept")
    cluster.kill("master")
    assert project_resolves_name(cluster)
    restart(cluster)
    wait_until(lambda: project_resolves_name(cluster), "names as they were kept")
    cluster.start("master")
    wait_until(cluster.master_answers, "the master")
    wait_until(lambda: cluster.network_ready("node-1"), "the network")
    assert project_resolves_name(cluster)


def stored_names(cluster: PacketWorld) -> str:
    path = cluster.nodes["node-1"].root / "sdn" / "names.json"
    return path.read_text() if path.exists() else ""


def restart(cluster: PacketWorld) -> None:
    cluster.kill("node-1 sdn")
    cluster.start("node-1 sdn")


def project_resolves_name(cluster: PacketWorld) -> bool:
    """Return whether the service's project resolves its name, and check that no other project does.

    The queries are sent over TCP, which fails at once if no server listens.
    """
    try:
        known = resolve(cluster, "red-a", WEB, tcp=True) == [ADDRESS]
        assert resolve(cluster, "blue-a", WEB, tcp=True) in (["NXDOMAIN"], ["SERVFAIL"])
    except OSError:
        return False
    return known
